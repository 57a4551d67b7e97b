/// Five kernels that train_moe does not have, for rows that only the device counts.
///
/// Each expert has a place for `stride` rows, and its rows lie at the begin of the place. So the
/// host knows where they lie and what to multiply, though not how many there are. `cpu_kernels.hpp`
/// and `cuda_kernels.hpp` each provide all of train_moe's kernels, and these.
#pragma once

#include <concepts>

#include "../train_moe/kernels/kernels.hpp"

namespace graph_moe {

using moe::const_operand, moe::index, moe::operand, moe::routing_shape;

/// A step of SGD with momentum.
struct sgd_step {
  float learning_rate, momentum;
  index limit;  ///< with more rows than this for an expert, the gradient is wrong, and not used
};

template <class K>
concept kernel_set = moe::kernel_set<K> &&
    requires(K k, float* out, operand y, std::int32_t* ints, const std::int32_t* list, index n,
             routing_shape s, sgd_step step) {
  // The rank of each choice among those of its expert, in the order of the tokens, and how many
  // choices each expert has: (rank, counts, choice, shape)
  k.rank(ints, ints, list, s);
  // Ranks become rows; the row of a choice without room is −1: (row, choice, choices, stride)
  k.lay_out(ints, list, n, n);
  // Clears the rows behind the first `*count`: (x, count, rows, width)
  k.clear_rest(y, list, n, n);
  // The largest of some counts: (most, counts, count)
  k.largest(ints, list, n);
  // Updates the weights unless `*most` is beyond the limit, and leaves the gradient zero:
  // (w, g, momentum, count, most, step)
  k.update(out, out, out, n, list, step);
};

}  // namespace graph_moe
