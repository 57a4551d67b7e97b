/// Limits on what stays by a plan, for steps whose shapes vary. The engine keeps them, and
/// forecasts know them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/plan/detail/layout.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

/// The most bytes that the plan keeps on the device at once, of groups that are committed and not
/// yet restored.
[[nodiscard]] inline std::size_t kept_at_once(const profile& step, const actions& what) {
  std::size_t now = 0;
  std::size_t most = 0;
  const detail::layout map(step);
  for (const auto& each : step.events) {
    if (each.kind == event_kind::release && map.forgotten(each.index) != none) {
      const auto& of = step.storages[each.index];
      if (what[of.chunk][of.group] == action::keep) now -= std::min(now, of.bytes);
    }
    if (each.kind != event_kind::commit && each.kind != event_kind::restore) continue;
    if (what[each.chunk][each.index] != action::keep) continue;
    const auto bytes = step.chunks[each.chunk].groups[each.index].bytes;
    now += each.kind == event_kind::commit ? bytes : 0;
    now -= each.kind == event_kind::restore ? bytes : 0;
    most = std::max(most, now);
  }
  return most;
}

/// The most bytes at once that the trainer itself works with: of storages between allocation and
/// commit, or between restore and release.
[[nodiscard]] inline std::size_t handed_out_at_once(const profile& step) {
  std::vector<std::vector<std::vector<std::uint32_t>>> saved(step.chunks.size());
  for (std::size_t c = 0; c < saved.size(); ++c) saved[c].resize(step.chunks[c].groups.size());
  for (std::uint32_t i = 0; i < step.storages.size(); ++i) {
    const auto& each = step.storages[i];
    if (each.chunk != none) saved[each.chunk][each.group].push_back(i);
  }
  std::size_t now = 0;
  std::size_t most = 0;
  // A chunk that was given up may release its storages without a restore.
  std::vector<bool> out(step.storages.size(), false);
  const auto hand = [&](std::uint32_t storage, bool to_trainer) {
    if (out[storage] == to_trainer) return;
    out[storage] = to_trainer;
    const auto bytes = step.storages[storage].bytes;
    now = to_trainer ? now + bytes : now - bytes;
  };
  for (const auto& each : step.events) {
    if (each.kind == event_kind::allocate) hand(each.index, true);
    if (each.kind == event_kind::release) hand(each.index, false);
    if (each.kind == event_kind::commit || each.kind == event_kind::restore) {
      for (const auto storage : saved[each.chunk][each.index]) {
        hand(storage, each.kind == event_kind::restore);
      }
    }
    most = std::max(most, now);
  }
  return most;
}

/// The bytes that have to be free in one piece where a group is to stay: twice what the step works
/// with at once, because free memory may be fragmented. With less, models of many small tensors ran
/// out of memory.
[[nodiscard]] inline std::size_t free_piece(const profile& step) {
  return handed_out_at_once(step) * 2;
}

}  // namespace tidepool::plan
