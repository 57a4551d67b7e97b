/// The embedding and its copy for multi-token prediction, which must stay equal.
#pragma once

#include <cstddef>
#include <utility>

#include "../parallel/layout.hpp"
#include "parameters.hpp"

namespace moe {

/// Gives both the sum of their gradients, once all backwards of a step have run. In a pipeline the
/// first and the last rank of a line send each other theirs. The sum of two numbers has the same
/// bits in either order, so AdamW does the same to both, on any number of ranks.
template <class Device, class Kernels, class Offloader, class Line>
void sum_embedding_gradients(const parameters<Device>& weights, Kernels& k, Offloader& off,
                             Line& line, const settings& run, typename Device::stream_ref stream) {
  const parameter& original = weights.embedding();
  const parameter& copy = weights.mtp_embedding();
  if (original.held && copy.held) {
    k.add(original.gradient, original.gradient, copy.gradient, copy.count);
    k.publish(copy.gradient, original.gradient, copy.count);
    return;
  }
  if (!original.held && !copy.held) return;
  const pipeline_shape shape = shape_of(run);
  float* const mine = original.held ? original.gradient : copy.gradient;
  const int other = shape.rank_of(original.held ? shape.stages() - 1 : 0);
  const int tag = 2 * shape.microbatches * shape.stages();  // above those of all microbatches
  const auto count = static_cast<std::size_t>(copy.count);
  auto out = off.template allocate<float>(count, stream);
  k.publish(out.template as<float>(), mine, copy.count);
  line.send(std::move(out), other, tag);
  auto in = off.template allocate<float>(count, stream);
  line.receive(in, other, tag);
  k.add(mine, mine, in.template as<float>(), copy.count);
  in.reset(stream);
}

}  // namespace moe
