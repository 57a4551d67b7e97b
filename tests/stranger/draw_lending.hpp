// Memory that another device lends, borrowed and taken away somewhere in a program.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "program.hpp"

namespace stranger {

// Put among the others afterwards, so that a seed stands for what it did.
inline void draw_lending(program& into) {
  if (into.seed % 3 != 1 || into.streams == 4 || into.operations.empty()) return;
  dice roll(into.seed + (std::uint64_t{1} << 40));
  auto& all = into.operations;
  const auto put = [&](int at, operation op) {
    all.insert(all.begin() + std::min<std::ptrdiff_t>(at, std::ssize(all)), std::move(op));
  };
  std::vector<int> ends;  // of steps
  const auto somewhere = [&] {
    ends.clear();
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      if (all[static_cast<std::size_t>(i)].what == kind::end_step) ends.push_back(i + 1);
    }
    if (ends.empty() || roll.chance(0.3)) return roll.below(static_cast<int>(all.size()));
    return ends[static_cast<std::size_t>(roll.below(static_cast<int>(ends.size())))];
  };
  const int sides = static_cast<int>(into.sides.size());
  const auto borrow = [&] {
    return operation{kind::borrow_memory, roll.below(sides), 4096 * roll.from(1, 5), roll.below(2)};
  };
  put(roll.chance(0.6) ? 0 : somewhere(), borrow());
  for (int more = roll.from(0, 4); more > 0; --more) {
    switch (roll.below(4)) {
      case 0:
        put(somewhere(), {kind::return_memory, roll.below(sides)});
        break;
      case 1:
        put(somewhere(), borrow());
        break;
      default:
        put(somewhere(), {kind::lender_goes, roll.below(sides), roll.below(2)});
    }
  }
}

}  // namespace stranger
