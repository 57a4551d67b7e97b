// Takes room in a list before anything is changed, so that later calls cannot fail.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tidepool::inline v0_3_0::detail {

// At least doubles a capacity that is too small: `reserve` alone would copy a growing list each
// time.
template <class List>
void make_room(List& list, std::size_t count) {
  if (list.capacity() < count) list.reserve(std::max(count, 2 * list.capacity()));
}

}  // namespace tidepool::detail
