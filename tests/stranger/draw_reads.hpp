// Reads in forward of tensors by key: a residual that a later module takes, a second stream's,
// while the scope is open and after it, by `load` and again at the address that it gave.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "program.hpp"

namespace stranger {

// One tensor by two keys, and weights among what is saved, which do not leave.
inline void draw_key_kinds(program& into, dice& roll) {
  const bool twice = roll.chance(0.35), weights = roll.chance(0.35), throws = roll.chance(0.1);
  for (auto& each : into.operations) {
    if (each.what != kind::key_save) continue;
    if (twice && roll.chance(0.2)) each.e |= 8;
    if (weights && roll.chance(0.3)) each.e |= roll.chance(0.7) ? 16 + 4 : 16;
    if (throws && roll.chance(0.1)) each.e |= 32;
  }
}

inline void draw_reads(program& into, dice& roll) {
  const double share = roll.chance(0.5) ? 0.1 : 0.4;
  std::array<std::vector<int>, key_pass_count> saved;
  std::array<bool, key_pass_count> forward{};
  std::vector<operation> all;
  for (auto& each : into.operations) {
    const auto what = each.what;
    const int pass = each.a;
    const int key = each.b;
    const operation of_layer = what == kind::layer_back ? each : operation{};
    all.push_back(std::move(each));
    if (what == kind::layer_back && roll.chance(share)) {
      for (const kind then : {kind::layer_back, kind::layer_read}) {
        all.push_back(of_layer);
        all.back().what = then;
        all.back().c = of_layer.c + 1;
      }
    }
    const bool of_keys = what == kind::key_begin || what == kind::key_enter ||
                         what == kind::key_save || what == kind::key_leave ||
                         what == kind::key_end_forward || what == kind::key_drop;
    if (!of_keys) continue;
    auto& keys = saved[static_cast<std::size_t>(pass)];
    auto& open = forward[static_cast<std::size_t>(pass)];
    if (what == kind::key_begin) keys.clear(), open = true;
    if (what == kind::key_end_forward) open = false;
    if (what == kind::key_save) keys.push_back(key);
    if (keys.empty() || !roll.chance(open ? share : share / 8)) continue;
    for (int reads = roll.from(1, 3); reads > 0; --reads) {
      const auto back = static_cast<std::size_t>(
          roll.chance(0.5) ? 0 : roll.below(static_cast<int>(keys.size())));
      const int which = keys[keys.size() - 1 - back];
      const int stream = roll.below(into.streams);
      all.push_back({roll.chance(0.75) ? kind::key_load : kind::key_read, pass, which, stream});
    }
    // The trainer forgets a key that it has read, before backward.
    if (open && roll.chance(0.04)) {
      all.push_back({kind::key_drop, pass, keys.back(), roll.below(into.streams)});
    }
  }
  into.operations = std::move(all);
}

}  // namespace stranger
