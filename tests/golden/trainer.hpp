/// A trainer on the virtual device that does what a described step says, and the step recorded of
/// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tidepool/device/virtual.hpp>
#include <tidepool/offloader.hpp>
#include <tidepool/plan/profile.hpp>
#include <utility>
#include <vector>

namespace golden {

/// Computing times as kernels have them, each off by up to `share`; with fixed numbers.
inline void vary_times(tidepool::plan::profile& step, double share) {
  std::mt19937_64 random(24);
  const auto factor = [&] {
    const auto unit = static_cast<double>(random() >> 11U) * 0x1p-53;
    return 1 + share * (2 * unit - 1);
  };
  for (auto& each : step.events) each.compute_us *= factor();
  step.rest_us *= factor();
}

/// Leaves out what no group saves: a trainer keeps it in memory of its own.
inline void drop_staying(tidepool::plan::profile& step) {
  using tidepool::plan::event_kind;
  std::vector<std::uint32_t> number(step.storages.size(), tidepool::plan::none);
  std::vector<tidepool::plan::storage_profile> left;
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (step.storages[i].group == tidepool::plan::none) continue;
    number[i] = static_cast<std::uint32_t>(left.size());
    left.push_back(step.storages[i]);
  }
  std::vector<tidepool::plan::event> calls;
  double pending_us = 0;
  for (auto each : step.events) {
    each.compute_us += std::exchange(pending_us, 0.0);
    if (each.kind == event_kind::allocate || each.kind == event_kind::release) {
      if (number[each.index] == tidepool::plan::none) {
        pending_us = each.compute_us;
        continue;
      }
      each.index = number[each.index];
    }
    calls.push_back(each);
  }
  step.rest_us += pending_us;
  step.storages = std::move(left);
  step.events = std::move(calls);
}

/// Without offers to compute anything again.
inline void drop_offers(tidepool::plan::profile& step) {
  for (auto& chunk : step.chunks) {
    for (auto& group : chunk.groups) group.recompute_us = 0;
  }
}

/// Gives the calls of a step to an offloader on the virtual device. A group that can be computed
/// again is offered.
class trainer {
 public:
  explicit trainer(const tidepool::plan::profile& step)
      : step_(&step),
        dev_(machine_of(step)),
        stream_(dev_.make_stream()),
        off_(dev_, options_of(step)),
        held_(step.storages.size()),
        open_(step.chunks.size()) {
    off_.on_report([](std::string_view) {});
    for (const auto& each : step.chunks) members_.emplace_back(each.groups.size());
    for (std::uint32_t i = 0; i < step.storages.size(); ++i) {
      const auto& each = step.storages[i];
      members_.at(each.chunk).at(each.group).push_back(i);
    }
  }

  /// The second of two steps, with its times, as an offloader records it.
  [[nodiscard]] tidepool::plan::profile record() {
    for (int i = 0; i < 2; ++i) run();
    return off_.profile();
  }

 private:
  using device = tidepool::virtual_device;
  using offloader = tidepool::offloader<device>;

  static tidepool::machine machine_of(const tidepool::plan::profile& step) {
    tidepool::machine model;
    model.device_bytes = model.host_bytes = std::size_t{1} << 46;
    model.offload_rate = step.link.out;
    model.reload_rate = step.link.in;
    model.both_rate = step.link.both;
    model.copy_latency_ns = step.link.latency_us * 1e3;
    model.moves_bytes = false;
    return model;
  }
  // Room for everything: the plan is of no interest, only the recorded step.
  static tidepool::options options_of(const tidepool::plan::profile& step) {
    tidepool::options opts;
    opts.offload_modules = step.modules;
    opts.policy = tidepool::policy_kind::automatic;
    opts.min_tensor_elements = 1;
    opts.host_budget = std::size_t{1} << 45;
    opts.local_ranks = 1;
    return opts;
  }

  void run() {
    for (const auto& each : step_->events) {
      wait(each.wait_us);
      compute(each.compute_us - each.wait_us);
      call(each);
    }
    wait(step_->rest_wait_us);
    compute(step_->rest_us - step_->rest_wait_us);
    off_.end_step();
  }
  void wait(double us) {
    if (us > 0) off_.wait_for_others(stream_.ref(), [&] { compute(us); });
  }
  void compute(double us) {
    if (us > 0) dev_.launch(stream_.ref(), us * 1e3, nullptr);
  }

  void call(const tidepool::plan::event& each) {
    using enum tidepool::plan::event_kind;
    switch (each.kind) {
      case allocate:
        held_[each.index] = off_.allocate(step_->storages[each.index].bytes, stream_.ref());
        begin(step_->storages[each.index].chunk);
        return;
      case commit:
        return commit_group(each.chunk, each.index);
      case end_forward:
        return open_[each.chunk].end_forward();
      case restore:
        return restore_group(each.chunk, each.index);
      case release:
        return held_[each.index].reset(stream_.ref());
      case let_go:
        throw std::runtime_error("golden: a described step lets nothing go");
    }
  }

  void begin(std::uint32_t chunk) {
    if (chunk < begun_) return;
    const auto& about = step_->chunks[chunk];
    open_[chunk] = off_.begin({.microbatch = about.microbatch, .model_chunk = about.model_chunk});
    left_.push_back(about.groups.size());
    begun_ = chunk + 1;
  }

  [[nodiscard]] tidepool::module_id module_of(const tidepool::plan::group_profile& group) const {
    return off_.module(step_->modules[static_cast<std::size_t>(group.module)]);
  }

  void commit_group(std::uint32_t chunk, std::uint32_t index) {
    const auto& group = step_->chunks[chunk].groups[index];
    with_members(chunk, index, [&](auto&... saved) {
      if (group.recompute_us > 0) {
        open_[chunk].commit_or_discard(module_of(group), group.layer, stream_.ref(), saved...);
      } else {
        open_[chunk].commit(module_of(group), group.layer, stream_.ref(), saved...);
      }
    });
  }
  void restore_group(std::uint32_t chunk, std::uint32_t index) {
    const auto& group = step_->chunks[chunk].groups[index];
    const auto again = [&] { compute(group.recompute_us); };
    with_members(chunk, index, [&](auto&... saved) {
      auto& from = open_[chunk];
      if (group.recompute_us > 0) {
        from.restore_or_recompute(module_of(group), group.layer, stream_.ref(), again, saved...);
      } else {
        from.restore(module_of(group), group.layer, stream_.ref(), saved...);
      }
    });
    if (--left_[chunk] > 0) return;
    open_[chunk].finish();
    if (chunk + 1 == step_->chunks.size()) {
      begun_ = 0;
      left_.clear();
    }
  }

  template <class Call>
  void with_members(std::uint32_t chunk, std::uint32_t index, const Call& call) {
    const auto& of = members_[chunk][index];
    switch (of.size()) {
      case 1:
        return call(held_[of[0]]);
      case 2:
        return call(held_[of[0]], held_[of[1]]);
      case 3:
        return call(held_[of[0]], held_[of[1]], held_[of[2]]);
      default:
        throw std::runtime_error("golden: a group of " + std::to_string(of.size()) + " tensors");
    }
  }

  const tidepool::plan::profile* step_;
  device dev_;
  device::stream stream_;
  offloader off_;
  std::vector<offloader::buffer> held_;
  std::vector<std::vector<std::vector<std::uint32_t>>> members_;  // of each group
  std::vector<offloader::chunk> open_;
  std::vector<std::size_t> left_;  // groups of each chunk that are not restored yet
  std::uint32_t begun_ = 0;        // chunks of this step
};

}  // namespace golden
