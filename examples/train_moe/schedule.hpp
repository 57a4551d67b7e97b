/// In which order the microbatches of a step go forward and backward.
#pragma once

#include <algorithm>

namespace moe {

/// 1F1B: `in_flight` forwards first, then backward of the oldest and forward of the next in turn,
/// then the backwards that are left. Depth 1 is one microbatch at a time.
///
/// Backwards come in the order of their microbatches at any depth, so gradients add up alike.
template <class Forward, class Backward>
void one_forward_one_backward(int microbatches, int in_flight, Forward forward, Backward backward) {
  const int warm_up = std::min(in_flight, microbatches);
  for (int next = 0; next < warm_up; ++next) forward(next);
  for (int next = warm_up; next < microbatches; ++next) {
    backward(next - warm_up);
    forward(next);
  }
  for (int oldest = microbatches - warm_up; oldest < microbatches; ++oldest) backward(oldest);
}

}  // namespace moe
