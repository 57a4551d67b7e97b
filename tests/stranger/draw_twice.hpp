// Tensors that are adopted twice or three times, with a reference each: handles over the same
// bytes, saved by different modules and given up in any order.
#pragma once

#include <utility>
#include <vector>

#include "program.hpp"

namespace stranger {

inline void draw_twice(program& into, dice& roll) {
  into.sides.resize(1);
  into.operations.clear();
  auto& with = into.sides[0];
  if (roll.chance(0.8)) with.modules = 0b1111;
  if (roll.chance(0.7)) with.layers = 0;
  if (roll.chance(0.5)) with.margin = false;
  const auto add = [&](operation op) { into.operations.push_back(std::move(op)); };
  const auto a_stream = [&] { return roll.below(into.streams); };
  const auto free_some = [&](std::vector<int>& slots, double share) {
    for (auto& each : slots) {
      if (!roll.chance(share)) continue;
      add(roll.chance(0.8) ? operation{kind::reset, each, a_stream()}
                           : operation{kind::destroy, each});
    }
  };
  for (int step = roll.from(1, 6); step > 0; --step) {
    const int chunks = roll.chance(0.7) ? 1 : 2;
    for (int c = 1; c <= chunks; ++c) add({kind::begin, c, 0, c});
    std::vector<int> slots;
    std::vector<std::vector<int>> left;  // handles of each module
    left.resize(4);
    int next = 0, groups = 0;
    for (int tensors = roll.from(1, 4); tensors > 0; --tensors) {
      const int first = next++;
      add({kind::adopt, first, 16 * roll.from(1, 256), a_stream(), roll.below(3), 0});
      slots.push_back(first);
      left[static_cast<std::size_t>(roll.below(4))].push_back(first);
      for (int more = roll.from(1, 2); more > 0; --more) {
        if (roll.chance(0.3)) add({kind::read, first, a_stream()});
        operation again{kind::adopt, next, 0, 0, roll.below(3), 0};
        again.slots = {
            slots[slots.size() - 1 - static_cast<std::size_t>(roll.below(2)) % slots.size()]};
        add(std::move(again));
        slots.push_back(next);
        if (roll.chance(0.85)) left[static_cast<std::size_t>(roll.below(4))].push_back(next);
        ++next;
      }
      if (roll.chance(0.1)) free_some(slots, 0.2);
      if (roll.chance(0.2)) add({kind::release_borrowed, 0});
    }
    for (int module = 0; module < 4; ++module) {
      auto& all = left[static_cast<std::size_t>(module)];
      while (!all.empty()) {
        operation save{kind::commit,  roll.from(1, chunks), module,
                       roll.below(3), a_stream(),           roll.chance(0.15) ? by_hand : plain};
        for (int n = roll.from(1, 2); n > 0 && !all.empty(); --n) {
          save.slots.push_back(all.back());
          all.pop_back();
        }
        add(std::move(save));
        ++groups;
        if (roll.chance(0.3)) add({kind::read, roll.below(next), a_stream()});
        if (roll.chance(0.2)) add({kind::release_borrowed, 0});
        if (roll.chance(0.15)) free_some(slots, 0.3);
      }
    }
    for (int c = 1; c <= chunks; ++c) add({kind::end_forward, c});
    if (roll.chance(0.2)) free_some(slots, 0.5);
    for (int c = 1; c <= chunks; ++c) {
      for (int g = groups; g > 0; --g) {
        if (roll.chance(0.1)) {
          add({kind::forget, c, roll.below(groups), a_stream()});
        } else {
          add({kind::restore, c, roll.below(groups), a_stream()});
        }
        for (const int each : slots) {
          if (roll.chance(0.3)) add({kind::read, each, a_stream()});
        }
        free_some(slots, 0.25);
        if (roll.chance(0.1)) add({kind::release_borrowed, 0});
      }
      add(roll.chance(0.93) ? operation{kind::finish, c} : operation{kind::abandon, c});
    }
    free_some(slots, 1);
    for (int c = 1; c <= chunks; ++c) add({kind::abandon, c});  // where that could not be
    if (roll.chance(0.5)) add({kind::check_idle, 0});
    add({kind::end_step, 0});
  }
}

}  // namespace stranger
