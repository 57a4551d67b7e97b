/// Profiles for tests of the planner: random ones, and a uniform stack.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "tidepool/plan/profile.hpp"

namespace tidepool::test {

/// Builds a profile call by call.
class script {
 public:
  plan::profile result;

  void compute(double us) { pending_ += us; }
  void wait(double us) {
    pending_ += us;
    waits_ += us;
  }
  void call(plan::event_kind kind, std::uint32_t index, std::uint32_t chunk = 0) {
    result.events.push_back(
        {kind, index, chunk, std::exchange(pending_, 0.0), std::exchange(waits_, 0.0)});
  }
  [[nodiscard]] plan::profile finish() {
    result.rest_us = std::exchange(pending_, 0.0);
    result.rest_wait_us = std::exchange(waits_, 0.0);
    return std::move(result);
  }

 private:
  double pending_ = 0;
  double waits_ = 0;
};

/// What a random step is made of.
struct random_step {
  std::size_t groups = 8;  ///< in all
  std::size_t chunks = 1;
  std::size_t depth = 1;
  bool mixed_sizes = true;
  bool recompute = false;
  bool waits = false;        ///< for other ranks, before passes and at the end
  bool outliving = false;    ///< every third tensor has a handle until the next commit
  bool ends_forward = true;  ///< false: the first restore ends a forward pass, and no call
};

/// A 1F1B step of `chunks` microbatches with one tensor a group.
inline plan::profile random_profile(std::mt19937_64& random, const random_step& about) {
  const auto roll = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  constexpr double mib = 1048576;
  script write;
  auto& step = write.result;
  step.modules = {"expert_fc1", "moe_act"};
  step.link = {roll(20, 60), roll(20, 60), 0, 2};
  step.link.both = std::max(step.link.out, step.link.in) * roll(1.0, 2.0);
  const auto length = std::max<std::size_t>(1, about.groups / about.chunks);
  std::vector<std::size_t> bytes;
  std::vector<double> forward;
  std::vector<double> backward;
  for (std::size_t i = 0; i < length; ++i) {
    bytes.push_back(static_cast<std::size_t>((about.mixed_sizes ? roll(1, 64) : 32.0) * mib));
    const auto copy_us = static_cast<double>(bytes.back()) / step.link.out / 1e3;
    forward.push_back(copy_us * roll(0.2, 2));
    backward.push_back(copy_us * roll(0.4, 3));
  }
  const auto chunks = static_cast<std::uint32_t>(about.chunks);
  for (std::uint32_t c = 0; c < chunks; ++c) {
    plan::chunk_profile chunk;
    chunk.microbatch = static_cast<int>(c);
    for (std::uint32_t i = 0; i < length; ++i) {
      chunk.groups.push_back({static_cast<module_id>(i % 2), static_cast<int>(i / 2), bytes[i],
                              about.recompute && i % 2 == 1 ? forward[i] : 0.0});
      step.storages.push_back({bytes[i], c, i});
    }
    step.chunks.push_back(std::move(chunk));
  }
  using enum plan::event_kind;
  const auto storage = [&](std::uint32_t c, std::uint32_t i) {
    return static_cast<std::uint32_t>(c * length + i);
  };
  const auto wait = [&] {
    if (about.waits) write.wait(roll(0, 2) * forward[0] * static_cast<double>(length));
  };
  const auto run_forward = [&](std::uint32_t c) {
    if (c > 0) wait();
    step.passes.push_back({c, false});
    for (std::uint32_t i = 0; i < length; ++i) {
      write.compute(forward[i] * 0.1);
      write.call(allocate, storage(c, i));
      write.compute(forward[i] * 0.9);
      write.call(commit, i, c);
      if (about.outliving && i % 3 == 1) write.call(drop, storage(c, i - 1));
    }
    if (about.ends_forward) write.call(end_forward, 0, c);
  };
  const auto run_backward = [&](std::uint32_t c) {
    step.passes.push_back({c, true});
    wait();
    for (auto i = static_cast<std::uint32_t>(length); i-- > 0;) {
      write.compute(backward[i] * 0.3);
      write.call(restore, i, c);
      write.compute(backward[i] * 0.7);
      write.call(release, storage(c, i));
    }
  };
  std::uint32_t sent = 0;
  for (; sent + 1 < about.depth && sent < chunks; ++sent) run_forward(sent);
  for (std::uint32_t back = 0; back < chunks; ++back) {
    if (sent < chunks) run_forward(sent++);
    run_backward(back);
  }
  wait();
  write.compute(roll(0, 100));
  return write.finish();
}

}  // namespace tidepool::test
