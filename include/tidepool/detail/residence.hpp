// Which groups stay on the device: by their layer, by plan, and by what the plan counted on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "tidepool/plan/policy.hpp"

namespace tidepool::detail {

class residence {
 public:
  // Groups of other layers than these stay; none are named: that does not count.
  explicit residence(const std::vector<int>& offload_layers) {
    for (const auto layer : offload_layers) {
      layers_.resize(std::max(layers_.size(), static_cast<std::size_t>(layer) + 1));
      layers_[static_cast<std::size_t>(layer)] = true;
    }
  }

  // From now on these stay.
  void settle(plan::residency planned) {
    planned_ = std::move(planned);
    everything_leaves_ =
        layers_.empty() && std::all_of(planned_.begin(), planned_.end(), [](const auto& row) {
          return std::find(row.begin(), row.end(), true) == row.end();
        });
  }

  // Groups that should stay by plan leave all the same once so many bytes have, since shapes may
  // have grown after it was made; and unless so many are free in one piece (0: that does not
  // count), since what stays never gives way, and with shapes that change nobody planned where it
  // lies.
  void keep_at_most(std::size_t bytes, std::size_t piece) {
    limit_ = bytes;
    piece_ = piece;
  }

  // The group of a chunk, both by their number in the step. `largest_free` gives the longest piece
  // of free memory.
  template <class LargestFree>
  [[nodiscard]] bool stays(std::size_t chunk, std::size_t group, int layer, std::size_t bytes,
                           const LargestFree& largest_free) const {
    if (layer_stays(layer)) return true;
    if (chunk >= planned_.size() || group >= planned_[chunk].size() || !planned_[chunk][group]) {
      return false;
    }
    if (limit_ == unlimited) return true;
    return kept_ + bytes <= limit_ && (piece_ == 0 || largest_free() >= piece_);
  }
  // Known after the warm-up step, so that a commit need not ask.
  [[nodiscard]] bool everything_leaves() const { return everything_leaves_; }

  void add(std::size_t bytes) { kept_ += bytes; }
  void take(std::size_t bytes) { kept_ -= bytes; }

  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

 private:
  [[nodiscard]] bool layer_stays(int layer) const {
    return !layers_.empty() && (layer < 0 || static_cast<std::size_t>(layer) >= layers_.size() ||
                                !layers_[static_cast<std::size_t>(layer)]);
  }

  std::vector<bool> layers_;
  plan::residency planned_;
  std::size_t limit_ = unlimited;
  std::size_t piece_ = 0;
  std::size_t kept_ = 0;  // bytes that stay and are not restored yet
  bool everything_leaves_ = false;
};

}  // namespace tidepool::detail
