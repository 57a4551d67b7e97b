// The action for a group: by its layer, by plan, and by the memory that the plan counted on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::detail {

class residency {
 public:
  bool everything_leaves = false;  // set after the warm-up, so that a commit need not ask

  // Only groups of layers in `offload_layers` may leave; an empty list has no effect.
  explicit residency(const std::vector<int>& offload_layers) {
    for (const auto layer : offload_layers) {
      layers_.resize(std::max(layers_.size(), static_cast<std::size_t>(layer) + 1));
      layers_[static_cast<std::size_t>(layer)] = true;
    }
  }

  // Follows `planned` from now on. With `by_place` the plan also chooses the place of each group.
  void settle(plan::actions planned, bool by_place = false) {
    planned_ = std::move(planned);
    by_place_ = by_place;
    everything_leaves =
        !by_place && layers_.empty() &&
        std::all_of(planned_.begin(), planned_.end(), [](const auto& row) {
          return std::all_of(row.begin(), row.end(), [](auto each) { return each == leaves; });
        });
  }

  // Limits the groups that stay by plan. A group leaves once `bytes` bytes have stayed, because
  // shapes may have grown after the plan was made. It also leaves if fewer than `piece` bytes are
  // free in one piece, because tensors that stay are never evicted, and if shapes change, no plan
  // chose their places. `piece` 0: no such limit.
  void keep_at_most(std::size_t bytes, std::size_t piece) {
    limit_ = bytes;
    piece_ = piece;
  }

  // The action for a group of a chunk; both are numbers in the step. `largest_free` gives the
  // longest piece of free memory.
  template <class LargestFree>
  [[nodiscard]] plan::action of(std::size_t chunk, std::size_t group, int layer, std::size_t bytes,
                                const LargestFree& largest_free) const {
    if (layer_stays(layer)) return plan::action::keep;
    const auto what = planned(chunk, group);
    if (what != plan::action::keep || limit_ == unlimited) return what;
    const bool fits = kept_ + bytes <= limit_ && (piece_ == 0 || largest_free() >= piece_);
    return fits ? what : leaves;
  }
  // The action by plan alone.
  [[nodiscard]] plan::action planned(std::size_t chunk, std::size_t group) const {
    const bool known = chunk < planned_.size() && group < planned_[chunk].size();
    return known ? planned_[chunk][group] : leaves;
  }
  // The place for a group that leaves. If it has no room, the group goes to the next place.
  [[nodiscard]] place_kind place_of(plan::action what,
                                    const std::vector<place_kind>& places) const {
    const bool peer = what == plan::action::offload_to_peer;
    const auto found = std::find_if(places.begin(), places.end(), [&](place_kind each) {
      return (each == place_kind::peer) == peer;
    });
    return by_place_ && found != places.end() ? *found : places.front();
  }
  void add(std::size_t bytes) { kept_ += bytes; }
  void take(std::size_t bytes) { kept_ -= bytes; }

  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

 private:
  static constexpr auto leaves = plan::action::offload;

  [[nodiscard]] bool layer_stays(int layer) const {
    return !layers_.empty() && (layer < 0 || static_cast<std::size_t>(layer) >= layers_.size() ||
                                !layers_[static_cast<std::size_t>(layer)]);
  }

  std::vector<bool> layers_;
  plan::actions planned_;
  std::size_t limit_ = unlimited;
  std::size_t piece_ = 0;
  std::size_t kept_ = 0;  // bytes that stay and are not restored yet
  bool by_place_ = false;
};

}  // namespace tidepool::detail
