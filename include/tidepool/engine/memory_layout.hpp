// The places of all storages, as graphs know them: numbers and addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

struct storage_place {
  std::uint64_t number = 0;      // number of the storage, which is never reused
  const void* device = nullptr;  // null while away
  const void* copy = nullptr;    // address of its offloaded copy; null: no copy
  std::size_t bytes = 0;
  bool eager = false;  // true: made outside any capture
  friend bool operator==(const storage_place&, const storage_place&) = default;
};

// Sorted by number.
using memory_layout = std::vector<storage_place>;

// The place of the storage with that number; null if `all` lacks it.
[[nodiscard]] inline const storage_place* place_of(std::uint64_t number, const memory_layout& all) {
  const auto at = std::ranges::lower_bound(all, number, {}, &storage_place::number);
  return at != all.end() && at->number == number ? &*at : nullptr;
}

// True if every address in `handles` is the same in `truth`. `truth` may have more, such as
// contents of handles that are gone and second copies, because no handle leads there.
[[nodiscard]] inline bool agrees(const memory_layout& handles, const memory_layout& truth) {
  return std::ranges::all_of(handles, [&](const storage_place& said) {
    const auto* found = place_of(said.number, truth);
    return found != nullptr && (said.device == nullptr || said.device == found->device) &&
           (said.copy == nullptr || said.copy == found->copy);
  });
}

// True if every storage of `wanted` that was made outside captures is in `handles`, and no other
// storage of `wanted` is in `gone`.
[[nodiscard]] inline bool all_alive(const memory_layout& wanted, const memory_layout& handles,
                                    const std::vector<std::uint64_t>& gone) {
  return std::ranges::all_of(wanted, [&](const storage_place& each) {
    return each.eager ? place_of(each.number, handles) != nullptr
                      : std::ranges::find(gone, each.number) == gone.end();
  });
}

// The first difference between `wanted` and `found`, in words.
[[nodiscard]] inline std::string difference(const memory_layout& wanted,
                                            const memory_layout& found) {
  for (const auto& each : wanted) {
    const auto* now = place_of(each.number, found);
    if (now != nullptr && *now == each) continue;
    std::ostringstream text;
    text << "a tensor of " << each.bytes << " bytes was ";
    if (each.device == nullptr) {
      text << "away";
    } else {
      text << "on the device at " << each.device;
    }
    text << " and is not now";
    if (now == nullptr) text << ": it has gone";
    return text.str();
  }
  return "a tensor is alive that was not";
}

}  // namespace tidepool::detail
