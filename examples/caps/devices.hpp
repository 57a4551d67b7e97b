/// The measurements of `caps` on each device.
#pragma once

#include <string>
#include <vector>

#include "measure.hpp"

namespace caps {

/// What was measured, and on what.
struct measured {
  std::string device;  ///< in words, with what its link gave
  std::vector<series> all;
};

#if defined(TIDEPOOL_HAS_CUDA)
[[nodiscard]] int cuda_devices();
[[nodiscard]] measured measure_on_cuda(const axes& what, const part_begins& begins);
#endif

}  // namespace caps
