// Construction and end of the engine.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/memory/pinned.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE engine::engine(std::unique_ptr<hardware> dev, const options& opts,
                               const std::vector<std::string_view>& names, std::uint64_t enabled,
                               std::unique_ptr<block_source> memory, planner_base* planner,
                               file_opener file)
    : dev_(std::move(dev)),
      opts_(opts),
      names_(names.begin(), names.end()),
      ranges_(names_),
      windows_(names_.size()),
      decider_(opts_),
      store_(*dev_, heard_, opts, std::move(memory), file),
      bytes_before_step_(names_.size()) {
  for (std::size_t m = 0; m < names_.size(); ++m) {
    counters_.modules.push_back({});
    counters_.modules[m].name = names_[m];
    const bool leaves = (enabled >> m & 1U) != 0;
    counters_.modules[m].enabled = leaves;
    counters_.modules[m].by_all = leaves && opts.offload_modules == std::vector<std::string>{"all"};
    const auto own = opts.module_max_inflight.find(names_[m]);
    windows_[m].set({own != opts.module_max_inflight.end() ? own->second : opts.max_inflight,
                     opts.max_inflight_bytes});
  }
  for (const auto& name : names_) labels_.push_back(labelled(name));
  store_.set_packing(packed_modules(*dev_, opts_, names_));
  for (const auto& name : opts.recompute_modules) counters_.recomputed.push_back({name});
  if (const auto share = host_share_text(opts); !share.empty()) {
    counters_.host_budget =
        text::size_text(store_.at(place_kind::host).blocks->budget()) + ", " + share;
  }
  if (planner != nullptr) learning_ = planner->learn(*this);
  if (opts.policy == policy_kind::automatic) listen_to_steps();
  for (const auto kind : {place_kind::host, place_kind::peer, place_kind::file}) {
    if (!store_.has(kind)) continue;
    const auto& place = store_.at(kind);
    dev_->name_copy_streams(place.offload, place.reload, place.unpack, kind);
  }
  issued_before_ = dev_->issued();
  without_a_plan();
}

TIDEPOOL_INLINE void engine::release(engine* which) noexcept {
  if (--which->references == 0) delete which;
}

// Drops queued work when an exception destroys the offloader, because work that the device would
// run in the process may point into frames that are gone. Work from before the offloader was made
// stays, because it may be another offloader's.
TIDEPOOL_INLINE void engine::drop_work() noexcept {
  if (!dev_->drops()) return;
  for (std::size_t i = 0; i < order_.count(); ++i) {
    dev_->drop(static_cast<lane_id>(i), issued_before_);
  }
  if (gate_ != nullptr) gate_->forget_launch();
}

TIDEPOOL_INLINE engine::~engine() {
  heard_.remove_all();  // memory goes back after this, when the observers are gone
  if (gate_ == nullptr || !gate_->replayed()) return;
  try {
    dev_->synchronize();  // graphs copy on streams that are not ours
  } catch (...) {         // a device that is gone runs no graph
  }
}

}  // namespace tidepool::detail
