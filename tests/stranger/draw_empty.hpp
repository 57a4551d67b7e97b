// Tensors of no bytes, wherever a size is drawn: an expert that no token came to.
#pragma once

#include "program.hpp"

namespace stranger {

inline void draw_empty(program& into, dice& roll) {
  const double share = roll.chance(0.5) ? 0.08 : roll.chance(0.7) ? 0.3 : 0.8;
  for (auto& each : into.operations) {
    if (!roll.chance(share)) continue;
    switch (each.what) {
      case kind::allocate:
      case kind::adopt:
      case kind::make_state:
        each.b = 0;
        break;
      case kind::view:
        each.c += empty_shape;
        break;
      case kind::key_save:
      case kind::layer_fresh:
        each.d = 0;
        break;
      default:
        break;
    }
  }
}

}  // namespace stranger
