/// What one microbatch reads and leaves besides the residual stream.
#pragma once

#include <cstdint>

#include "config.hpp"

namespace moe {

/// Where one microbatch finds its text and leaves its losses, all on the device.
struct microbatch_io {
  const std::int32_t* token;  ///< of each place; behind them those 1 ahead, 2 ahead, …
  /// [0]: cross-entropy; [1 + l]: load balance of layer l, and of those of multi-token prediction;
  /// then the cross-entropy of each of its depths.
  float* losses;
};

inline index token_count(const model_sizes& m) { return (1 + m.ahead()) * m.tokens(); }
inline index loss_count(const model_sizes& m) { return 1 + m.layers + 2 * m.mtp; }
/// Where the cross-entropy of a depth lies, which counts from 1.
inline index mtp_loss(const model_sizes& m, index depth) { return m.layers + m.mtp + depth; }

}  // namespace moe
