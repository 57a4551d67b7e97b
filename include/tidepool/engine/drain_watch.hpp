// Whether the host has waited for the whole device, asked without waiting for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/drain.hpp"
#include "tidepool/device/hardware.hpp"

namespace tidepool::inline v0_2_0::detail {

// A host that runs ahead of the device never sees it idle. One that has waited for all of it does,
// at the next call. One that is slower than the device sees that all has been computed at every
// call: what it finds tells something only where it was ahead at the call before.
class drain_watch {
 public:
  explicit drain_watch(hardware& dev) : dev_(&dev), ends_(dev) {}

  void forget() noexcept {
    for (auto& each : copies_) each.under_way = false;
    behind_ = true;
    sights_.clear();
  }

  // One was given to `lane`. Costs an event.
  void copied(lane_id lane) {
    const auto found = std::ranges::find(copies_, lane, &copy::lane);
    const auto at = static_cast<std::size_t>(found - copies_.begin());
    ends_.record(at, dev_->stream(lane));
    if (at == copies_.size()) copies_.push_back({lane});
    copies_[at].under_way = true;
  }

  // A call comes, of which others ask by its number; `before` is the latest mark, and `mark` its
  // number.
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
  // Of a call that was looked at; `us_since(mark)` is from a mark to the computing behind the call.
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
  // The device was idle at a call.
  struct sight {
    std::size_t call;
    std::size_t mark;  // before it
    drain::what seen;
    double copies_us;  // from the mark to the end of the last copy
  };

  hardware* dev_;
  timing_events ends_;  // of the latest copy of each lane, as in `copies_`
  std::vector<copy> copies_;
  std::vector<sight> sights_;  // in the order of calls
  bool behind_ = true;         // the host, at the latest call; nothing was there before the first
};

}  // namespace tidepool::detail
