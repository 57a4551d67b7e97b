/// How fast weights change, by the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "../model/config.hpp"

namespace moe {

/// Linear warm-up over a tenth of the steps, then a cosine down to a tenth.
[[nodiscard]] inline float learning_rate(const settings& run, int step) {
  const int warm_up = std::max(1, run.steps / 10);
  if (step < warm_up) {
    return run.learning_rate * static_cast<float>(step + 1) / static_cast<float>(warm_up);
  }
  const float done =
      static_cast<float>(step - warm_up) / static_cast<float>(std::max(1, run.steps - warm_up));
  return run.learning_rate * (0.55F + 0.45F * std::cos(std::numbers::pi_v<float> * done));
}

}  // namespace moe
