// Finds out if the host has waited for the whole device, without waiting for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/observe/recorded_steps.hpp"

namespace tidepool::inline v0_3_0::detail {

using plan::detail::drain;

// A host that runs ahead of the device never sees it idle. A host that has waited for the whole
// device sees it idle at the next call. A host that is slower than the device sees all computing
// over at every call: so a sight counts only if the host was ahead at the call before.
class drain_watch {
 public:
  explicit drain_watch(hardware& dev) : dev_(&dev), ends_(dev) {}

  void forget() noexcept {
    for (auto& each : copies_) each.under_way = false;
    behind_ = true;
    sights_.clear();
  }

  // Notes a copy that was given to `lane`. Costs an event.
  void copied(lane_id lane) {
    const auto found = std::ranges::find(copies_, lane, &copy::lane);
    const auto at = static_cast<std::size_t>(found - copies_.begin());
    ends_.record(at, dev_->stream(lane));
    if (at == copies_.size()) copies_.push_back({lane});
    copies_[at].under_way = true;
  }

  // Looks at the device when a call comes, whose number is `call`. `before` is the latest mark, and
  // `mark` its number.
  void look(timing_id before, std::size_t mark, std::size_t call) {
    if (!dev_->can().tells_what_is_over) return;
    const bool computed = dev_->passed(before);
    const bool was_behind = std::exchange(behind_, computed);
    if (!computed) return;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (copies_[i].under_way && !dev_->passed(ends_[i])) return;
    }
    sight now{call, mark, drain::what::unknown, 0};
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (!std::exchange(copies_[i].under_way, false)) continue;
      if (!was_behind) now.seen = drain::what::yes;
      now.copies_us = std::max(now.copies_us, dev_->elapsed_us(before, ends_[i]));
    }
    sights_.push_back(now);
  }
  // The finding at a call that was looked at; `us_since(mark)` is the time from a mark to the start
  // of the call on its stream.
  [[nodiscard]] drain at(std::size_t call, const auto& us_since) const {
    if (!dev_->can().tells_what_is_over) return {drain::what::unknown, 0};
    const auto found = std::ranges::lower_bound(sights_, call, {}, &sight::call);
    if (found == sights_.end() || found->call != call) return {};
    return {found->seen, std::max(0.0, us_since(found->mark) - found->copies_us)};
  }

 private:
  struct copy {
    lane_id lane;
    bool under_way = false;  // as far as is known
  };
  // A call at which the device was idle.
  struct sight {
    std::size_t call;
    std::size_t mark;  // the latest mark before the call
    drain::what seen;
    double copies_us;  // from the mark to the end of the last copy
  };

  hardware* dev_;
  timing_events ends_;  // ends of each lane's latest copy, numbered as `copies_`
  std::vector<copy> copies_;
  std::vector<sight> sights_;  // in the order of calls
  bool behind_ = true;         // true if the host was behind at the latest call, or there was none
};

}  // namespace tidepool::detail
