// Reloads ahead of use in a step whose order is known. The queue knows where each group is and
// which one comes back next, within limits in groups and bytes. The simulator uses it to follow the
// engine's rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/plan/detail/layout.hpp"
#include "tidepool/rules/reloads_ahead.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

enum class place : std::uint8_t { nowhere, device, away, arriving };

class reload_queue {
 public:
  static constexpr auto unlimited = tidepool::detail::reloads_ahead<std::uint32_t>::unlimited;

  // Starts one run of a step, with limits on reloads ahead.
  void start(const layout& map, std::size_t groups, std::size_t bytes) {
    map_ = &map;
    most_groups_ = groups;
    most_bytes_ = bytes;
    while (!ahead_.empty()) ahead_.forget(slots_[ahead_.latest()]);
    slots_.assign(map.groups.size(), ahead::none);
    where_.assign(map.groups.size(), place::nowhere);
    forward_done_.assign(map.first.size(), false);
    next_ = 0;
  }

  [[nodiscard]] place& where(std::uint32_t group) { return where_[group]; }
  void end_forward(std::uint32_t chunk) { forward_done_[chunk] = true; }
  // As in the engine, the first restore ends the forward pass if no call has.
  void restored(std::uint32_t group) {
    end_forward(map_->groups[group].chunk);
    ahead_.forget(slots_[group]);
    where_[group] = place::device;
  }

  // Calls `reload` for groups that have left (`leaves`), in the order of their use. `reload`
  // returns true and sets where the group is, or returns false if there is no memory. The queue
  // stops at the first group without memory or whose forward pass is not over.
  template <class Leaves, class Reload>
  void advance(const Leaves& leaves, const Reload& reload) {
    for (; next_ < map_->reload_order.size(); ++next_) {
      const auto group = map_->reload_order[next_];
      const auto& about = map_->groups[group];
      const auto at = where_[group];
      if (about.bytes == 0 || at == place::arriving || at == place::device) continue;
      if (!leaves(group)) continue;
      if (!ahead_.may_grow(most_groups_, most_bytes_)) return;
      if (at != place::away || !forward_done_[about.chunk] || !reload(group)) return;
      slots_[group] = ahead_.add(group, about.bytes);
    }
  }

  // Takes the latest reload ahead back, and returns its group, or none if there is none. The group
  // is reloaded once more when its turn comes.
  [[nodiscard]] std::uint32_t evict() {
    if (ahead_.empty()) return none;
    const auto group = ahead_.latest();
    ahead_.forget(slots_[group]);
    where_[group] = place::away;
    while (next_ > 0 && map_->reload_order[next_ - 1] != group) --next_;
    if (next_ > 0) --next_;
    return group;
  }

 private:
  using ahead = tidepool::detail::reloads_ahead<std::uint32_t>;

  const layout* map_ = nullptr;
  std::size_t most_groups_ = 0;
  std::size_t most_bytes_ = 0;
  ahead ahead_;
  std::vector<ahead::slot> slots_;  // by group
  std::vector<place> where_;
  std::vector<bool> forward_done_;  // by chunk
  std::size_t next_ = 0;
};

}  // namespace tidepool::plan::detail
