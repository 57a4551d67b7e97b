// The engine from its begin to its end.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/memory/pinned.hpp"

namespace tidepool::inline v0_2_0::detail {

// `names` are the modules by id; `enabled` those that leave.
template <device Device>
engine<Device>::engine(Device& dev, const options& opts, std::vector<std::string> names,
                       const std::vector<bool>& enabled, std::unique_ptr<block_source> memory)
    : dev_(&dev),
      opts_(opts),
      names_(std::move(names)),
      ranges_(names_),
      windows_(names_.size()),
      keeps_(opts.offload_layers),
      learner_(opts),
      store_(dev, opts, std::move(memory)),
      bytes_before_step_(names_.size()) {
  for (std::size_t m = 0; m < names_.size(); ++m) {
    counters_.modules.push_back({});
    counters_.modules[m].name = names_[m];
    counters_.modules[m].enabled = enabled[m];
    counters_.modules[m].by_all =
        enabled[m] && opts.offload_modules == std::vector<std::string>{"all"};
    const auto own = opts.module_max_inflight.find(names_[m]);
    windows_[m].set({own != opts.module_max_inflight.end() ? own->second : opts.max_inflight,
                     opts.max_inflight_bytes});
  }
  for (const auto& name : names_) labels_.push_back(labelled(name));
  for (const auto& name : opts.recompute_modules) counters_.recomputed.push_back({name});
  if (const auto share = host_share_text(opts); !share.empty()) {
    counters_.host_budget =
        text::size_text(store_.at(place_kind::host).blocks->budget()) + ", " + share;
  }
  if (opts.policy == policy_kind::automatic) {
    recorder_ = std::make_unique<recorder<Device>>(dev);
  }
  if constexpr (order_checking_device<Device>) {
    for (const auto kind : {place_kind::host, place_kind::peer, place_kind::file}) {
      if (!store_.has(kind)) continue;
      dev.name_copy_streams(order_.stream(store_.offload_lane(kind)),
                            order_.stream(store_.reload_lane(kind)), kind);
    }
  }
  if constexpr (requires { dev.issued(); }) issued_before_ = dev.issued();
  without_a_plan();
}

template <device Device>
void engine<Device>::release(engine* which) noexcept {
  if (--which->references_ == 0) delete which;
}

// An exception destroys it: work that the device would run in the process may point into frames
// that are gone. What was queued before it was made cannot, and may be another offloader's.
template <device Device>
void engine<Device>::drop_work() noexcept {
  if constexpr (requires { dev_->drop(stream_ref()); }) {
    for (std::size_t i = 0; i < order_.count(); ++i) {
      const auto stream = order_.stream(static_cast<lane_id>(i));
      if constexpr (requires { dev_->drop(stream, dev_->issued()); }) {
        dev_->drop(stream, issued_before_);
      } else {
        dev_->drop(stream);
      }
    }
    graphs_.replayed = false;
  }
}

template <device Device>
engine<Device>::~engine() {
  if (!graphs_.replayed) return;
  try {
    dev_->synchronize();  // graphs copy on streams that are not ours
  } catch (...) {         // a device that is gone runs no graph
  }
}

}  // namespace tidepool::detail
