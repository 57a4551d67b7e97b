// An arena that has room for the largest group and for hardly more: with nothing in use each group
// has to come back.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "program.hpp"

namespace stranger {

inline void draw_edge(program& into, dice& roll) {
  into.sides.resize(1);
  into.operations.clear();
  auto& with = into.sides[0];
  with.memory = 1;
  with.own = none;
  with.rings.clear();
  with.own_bytes = 0;
  with.automatic = false;
  with.modules = 0b1111;
  with.host_budget = 0;
  with.layers = 0;
  with.min_elements = 1;
  with.fraction = 1;
  with.delta = 0;
  const bool by_key = roll.chance(0.6);
  const auto add = [&](operation op) { into.operations.push_back(std::move(op)); };
  const auto a_stream = [&] { return roll.below(into.streams); };
  const auto shuffled = [&](int first, int count) {
    std::vector<int> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), first);
    for (int i = count; i > 1; --i) {
      std::swap(all[static_cast<std::size_t>(i - 1)], all[static_cast<std::size_t>(roll.below(i))]);
    }
    return all;
  };
  std::vector<std::vector<int>> groups;
  std::size_t most = 0;
  const auto sizes = [&] {
    groups.clear();
    for (int g = roll.from(2, 4); g > 0; --g) {
      auto& group = groups.emplace_back();
      std::size_t sum = 0;
      for (int n = roll.from(1, 3); n > 0; --n) {
        group.push_back(roll.chance(0.5) ? 256 * roll.from(1, 24) : 16 * roll.from(1, 384));
        sum += (static_cast<std::size_t>(group.back()) + 255) / 256 * 256;
      }
      most = std::max(most, sum);
    }
  };
  const bool same = roll.chance(0.5);
  sizes();
  for (int step = roll.from(2, 8); step > 0; --step) {
    if (!same) sizes();
    const int count = static_cast<int>(groups.size());
    std::vector<int> first(groups.size());
    int next = 0;
    add(by_key ? operation{kind::key_begin, 0, 0} : operation{kind::begin, 1, 0});
    for (int g = 0; g < count; ++g) {
      first[static_cast<std::size_t>(g)] = next;
      operation list{kind::commit, 1, g % 4, g, a_stream(), listed};
      if (by_key) add({kind::key_enter, 0, g % 4, g});
      for (const int bytes : groups[static_cast<std::size_t>(g)]) {
        if (by_key) {
          add({kind::key_save, 0, next, a_stream(), bytes, roll.below(3)});
        } else {
          add({kind::adopt, next, bytes, a_stream(), roll.below(3), 0});
          list.slots.push_back(next);
        }
        ++next;
      }
      add(by_key ? operation{kind::key_leave, 0, a_stream()} : std::move(list));
    }
    add(by_key ? operation{kind::key_end_forward, 0} : operation{kind::end_forward, 1});
    for (int g = count; g-- > 0;) {
      const int from = first[static_cast<std::size_t>(g)];
      const int many = static_cast<int>(groups[static_cast<std::size_t>(g)].size());
      if (by_key) {
        for (const int key : shuffled(from, many)) add({kind::key_load, 0, key, a_stream()});
        for (const int key : shuffled(from, many)) add({kind::key_drop, 0, key, a_stream()});
      } else {
        add({kind::restore, 1, 0, a_stream()});
        for (const int slot : shuffled(from, many)) add({kind::read, slot, a_stream()});
        for (const int slot : shuffled(from, many)) add({kind::reset, slot, a_stream()});
      }
    }
    add(by_key ? operation{kind::key_finish, 0} : operation{kind::finish, 1});
    add({kind::end_step, 0});
  }
  with.budget = most + 256 * static_cast<std::size_t>(roll.chance(0.6) ? 0 : roll.from(1, 4));
}

}  // namespace stranger
