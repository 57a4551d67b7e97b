/// What a warm-up step recorded: which groups there were, in which order. Plain data.
#pragma once

#include <cstddef>
#include <vector>

#include "tidepool/module.hpp"

namespace tidepool::plan {

/// One run of one module.
struct group_profile {
  module_id module{};
  int layer = -1;
  std::size_t bytes = 0;  ///< that would leave the device; 0 when all its tensors stay anyway
};

/// One forward pass of one model chunk for one microbatch; groups in forward order.
struct chunk_profile {
  int model_chunk = 0;
  std::vector<group_profile> groups;
};

/// One pass over one chunk, in the order in which passes began.
struct pass {
  std::size_t chunk = 0;  ///< index into `profile::chunks`
  bool backward = false;
};

/// One step.
struct profile {
  std::vector<chunk_profile> chunks;  ///< in the order in which their forward passes began
  std::vector<pass> passes;

  void clear() {
    chunks.clear();
    passes.clear();
  }
};

}  // namespace tidepool::plan
