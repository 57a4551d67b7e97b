// Some hundred steps whose sizes differ from step to step, as those of experts do: memory may grow
// while they begin, and then no more.
#pragma once

#include <utility>

#include "program.hpp"

namespace stranger {

inline void draw_long(program& into, dice& roll) {
  into.sides.resize(1);
  into.operations.clear();
  into.fault_at = 0;
  auto& with = into.sides[0];
  with = side{};
  with.memory = roll.below(2);
  with.step = static_cast<std::size_t>(roll.from(1, 8)) * 2048;
  with.host_step = static_cast<std::size_t>(roll.from(1, 8)) * 2048;
  with.margin = roll.chance(0.3);
  with.ahead = roll.from(0, 3);
  if (roll.chance(0.3)) with.slack = 512 * roll.from(0, 8);
  if (roll.chance(0.2)) with.cap = roll.from(0, 3);
  const auto add = [&](operation op) { into.operations.push_back(std::move(op)); };
  const auto a_stream = [&] { return roll.chance(0.8) ? 0 : roll.below(into.streams); };
  const int most = 1 << roll.from(7, 10);  // of 16 bytes
  const auto a_size = [&] {
    return roll.chance(0.05) ? 0 : 16 * roll.from(1, roll.chance(0.3) ? most / 16 : most);
  };
  const double lent = roll.chance(0.5) ? 0 : 0.5;
  const int steps = long_only() ? 1000 : 250;
  const int depth = roll.from(1, 2);
  for (int step = 0; step < steps; ++step) {
    if (step == steps / 4) add({kind::check_growth, 0, 1});
    int next = 0;
    for (int c = 1; c <= depth; ++c) {
      const int stream = a_stream();
      add({kind::begin, c, 0, c});
      for (int layer = roll.from(2, 8); layer > 0; --layer) {
        operation save{kind::commit, c, roll.below(4), layer, stream, plain};
        for (int n = roll.from(1, 2); n > 0; --n) {
          const int bytes = a_size();
          if (roll.chance(lent)) {
            // Few sizes, since a trainer's allocator has regions of each.
            add({kind::adopt, next, bytes / 512 * 512, stream, roll.below(2), 0});
          } else {
            add({kind::allocate, next, bytes, stream, 0, 0});
            add({kind::write, next, stream});
          }
          save.slots.push_back(next++);
        }
        add(std::move(save));
      }
      add({kind::end_forward, c});
    }
    for (int c = 1; c <= depth; ++c) {
      for (int g = 0; g < 8; ++g) {
        add({kind::restore, c, 0, a_stream()});
        for (int slot = 0; slot < next; ++slot) {
          if (roll.chance(0.2)) add({kind::read, slot, 0});
        }
      }
      for (int slot = 0; slot < next; ++slot) add({kind::reset, slot, a_stream()});
      add({kind::finish, c});
    }
    for (int slot = 0; slot < next; ++slot) add({kind::reset, slot, a_stream()});
    add({kind::end_step, 0});
    if (step > steps / 4 && step % (steps / 16) == 0) {
      add({kind::synchronize});
      add({kind::check_growth, 0});
    }
  }
}

}  // namespace stranger
