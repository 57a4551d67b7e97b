/// A trainer on the virtual device that does what a profile says, by the public calls alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tidepool/device/virtual.hpp>
#include <tidepool/offloader.hpp>
#include <tidepool/options.hpp>
#include <tidepool/plan.hpp>
#include <tidepool/plan/profile.hpp>
#include <utility>
#include <vector>

namespace golden {

/// Gives the calls of a step to an offloader on the virtual device. A group that can be computed
/// again is offered.
class trainer {
 public:
  trainer(const tidepool::plan::profile& step, tidepool::options opts)
      : step_(&step),
        dev_(machine_of(step)),
        stream_(dev_.make_stream()),
        off_(dev_, complete(std::move(opts), step), {.planner = tidepool::planner()}),
        held_(step.storages.size()),
        open_(step.chunks.size()) {
    off_.on_report([](std::string_view) {});
    for (const auto& each : step.chunks) members_.emplace_back(each.groups.size());
    for (std::uint32_t i = 0; i < step.storages.size(); ++i) {
      const auto& each = step.storages[i];
      members_.at(each.chunk).at(each.group).push_back(i);
    }
  }

  /// True for a step in which each group has one to three tensors of its own, and nothing else.
  [[nodiscard]] static bool can_do(const tidepool::plan::profile& step) {
    using enum tidepool::plan::event_kind;
    std::vector<std::vector<std::size_t>> tensors;
    for (const auto& each : step.chunks) tensors.emplace_back(each.groups.size());
    for (const auto& each : step.storages) {
      if (each.group == tidepool::plan::none) return false;
      ++tensors[each.chunk][each.group];
    }
    for (const auto& chunk : tensors) {
      for (const auto count : chunk) {
        if (count < 1 || count > 3) return false;
      }
    }
    return step.shared.empty() && std::none_of(step.events.begin(), step.events.end(),
                                               [](const auto& each) { return each.kind == drop; });
  }

  [[nodiscard]] auto& off() { return off_; }

  /// Microseconds of one step; without `end_step`, none can follow.
  double run(bool ends = true) {
    dev_.synchronize();
    const auto begin_ns = dev_.now_ns();
    for (const auto& each : step_->events) {
      wait(each.wait_us);
      compute(each.compute_us - each.wait_us);
      call(each);
    }
    wait(step_->rest_wait_us);
    compute(step_->rest_us - step_->rest_wait_us);
    dev_.synchronize();
    const auto us = (dev_.now_ns() - begin_ns) / 1e3;
    if (ends) off_.end_step();
    return us;
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
    if (step.peer_link) {
      model.peer_bytes = model.host_bytes;
      model.peer_offload_rate = step.peer_link->out;
      model.peer_reload_rate = step.peer_link->in;
      model.peer_both_rate = step.peer_link->both;
      model.peer_latency_ns = step.peer_link->latency_us * 1e3;
      model.peer_shares_link = step.peer_shares_link;
    }
    model.moves_bytes = false;
    return model;
  }
  static tidepool::options complete(tidepool::options opts, const tidepool::plan::profile& step) {
    for (std::size_t m = 0; m < step.modules.size(); ++m) {
      const bool commits =
          std::any_of(step.chunks.begin(), step.chunks.end(), [&](const auto& chunk) {
            return std::any_of(chunk.groups.begin(), chunk.groups.end(), [&](const auto& group) {
              return static_cast<std::size_t>(group.module) == m;
            });
          });
      if (commits) opts.offload_modules.push_back(step.modules[m]);
    }
    opts.min_tensor_elements = 1;
    opts.host_budget = std::size_t{1} << 45;
    opts.local_ranks = 1;
    return opts;
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
      case synchronise:
        return dev_.synchronize();
      case drop:
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

/// The second of two steps, with its times, as an offloader records it that has room for all.
[[nodiscard]] inline tidepool::plan::profile recorded(const tidepool::plan::profile& described) {
  tidepool::options opts;
  opts.policy = tidepool::policy_kind::automatic;
  trainer run(described, opts);
  for (int i = 0; i < 2; ++i) run.run();
  return run.off().profile();
}

}  // namespace golden
