// The groups of a step that are forgotten instead of restored, by place.
#pragma once

#include <cstddef>
#include <vector>

#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::detail {

// The groups are learnt from earlier steps: a group that was forgotten the last time is not
// reloaded ahead of its turn.
class forgotten_groups {
 public:
  bool any = false;

  [[nodiscard]] bool has(std::size_t chunk, std::size_t group) const {
    return chunk < places_.size() && group < places_[chunk].size() && places_[chunk][group];
  }
  void add(std::size_t chunk, std::size_t group) {
    any = true;
    if (places_.size() <= chunk) places_.resize(chunk + 1);
    if (places_[chunk].size() <= group) places_[chunk].resize(group + 1);
    places_[chunk][group] = true;
  }
  void remove(std::size_t chunk, std::size_t group) {
    if (has(chunk, group)) places_[chunk][group] = false;
  }
  void clear() noexcept {
    any = false;
    places_.clear();
  }

  // Learns from a step from elsewhere, which has never been run here.
  void learn(const plan::profile& step) {
    clear();
    if (!step.timed()) return;
    std::vector<std::vector<bool>> restored;
    for (const auto& each : step.chunks) restored.emplace_back(each.groups.size());
    for (const auto& each : step.events) {
      if (each.kind == plan::event_kind::restore) restored[each.chunk][each.index] = true;
    }
    for (std::size_t c = 0; c < restored.size(); ++c) {
      for (std::size_t g = 0; g < restored[c].size(); ++g) {
        if (!restored[c][g]) add(c, g);
      }
    }
  }

 private:
  std::vector<std::vector<bool>> places_;
};

}  // namespace tidepool::detail
