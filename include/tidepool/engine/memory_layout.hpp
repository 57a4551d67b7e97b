// Where every storage is, as graphs know it: by number and address.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

struct storage_place {
  std::uint64_t number = 0;      // of the storage: addresses are reused, this is not
  const void* device = nullptr;  // null while away
  const void* copy = nullptr;    // where it was offloaded to; null while there is none
  std::size_t bytes = 0;
  bool eager = false;  // made outside any capture
  friend bool operator==(const storage_place&, const storage_place&) = default;
};

// In the order of their numbers.
using memory_layout = std::vector<storage_place>;

// The place of the storage with that number; null when it is not there.
[[nodiscard]] inline const storage_place* place_of(std::uint64_t number, const memory_layout& all) {
  const auto at = std::ranges::lower_bound(all, number, {}, &storage_place::number);
  return at != all.end() && at->number == number ? &*at : nullptr;
}

// True when all that `handles` say to be somewhere is there in `truth`. What is there beside it
// nobody can ask for: contents of handles that are gone, and second copies.
[[nodiscard]] inline bool agrees(const memory_layout& handles, const memory_layout& truth) {
  return std::ranges::all_of(handles, [&](const storage_place& said) {
    const auto* found = place_of(said.number, truth);
    return found != nullptr && (said.device == nullptr || said.device == found->device) &&
           (said.copy == nullptr || said.copy == found->copy);
  });
}

// True when every storage of `wanted` that was made outside captures is still there, and of the
// others none is among those that are `gone`.
[[nodiscard]] inline bool all_alive(const memory_layout& wanted, const memory_layout& handles,
                                    const std::vector<std::uint64_t>& gone) {
  return std::ranges::all_of(wanted, [&](const storage_place& each) {
    return each.eager ? place_of(each.number, handles) != nullptr
                      : std::ranges::find(gone, each.number) == gone.end();
  });
}

// What of `wanted` is not so in `found`, in words.
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
