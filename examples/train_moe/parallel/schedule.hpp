/// In which order a rank takes the microbatches of a step forward and backward, as plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moe {

/// Stages in a row, dealt out to ranks in turn: stage s is chunk s / ranks of rank s % ranks.
struct pipeline_shape {
  int ranks = 1;
  int chunks = 1;  ///< stages of each rank
  int microbatches = 1;
  bool pairs = false;  ///< each backward beside the next forward: what one waits for, hides

  [[nodiscard]] int stages() const { return ranks * chunks; }
  [[nodiscard]] int stage(int rank, int chunk) const { return chunk * ranks + rank; }
  [[nodiscard]] int rank_of(int stage) const { return stage % ranks; }
};

/// One forward or backward of one microbatch through one chunk of a rank.
struct pipeline_step {
  enum class pass { forward, backward };

  pass what;
  int microbatch;
  int chunk;
  bool beside_next = false;  ///< a backward that runs together with the forward after it
};

/// 1F1B of one chunk: `depth` forwards first, then backward of the oldest and forward of the next
/// in turn, then the backwards that are left. Depth 1 is one microbatch at a time.
///
/// Backwards come in the order of their microbatches at any depth, so gradients add up alike.
inline std::vector<pipeline_step> one_forward_one_backward(int microbatches, int depth) {
  using enum pipeline_step::pass;
  const int warm_up = std::min(depth, microbatches);
  std::vector<pipeline_step> steps;
  for (int next = 0; next < warm_up; ++next) steps.push_back({forward, next, 0});
  for (int next = warm_up; next < microbatches; ++next) {
    steps.push_back({backward, next - warm_up, 0});
    steps.push_back({forward, next, 0});
  }
  for (int oldest = microbatches - warm_up; oldest < microbatches; ++oldest) {
    steps.push_back({backward, oldest, 0});
  }
  return steps;
}

/// Lets each backward run beside the forward behind it, so that each has work for the device while
/// the other's rows are on their way. One microbatch more is in flight.
inline std::vector<pipeline_step> in_pairs(std::vector<pipeline_step> steps) {
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    steps[i].beside_next = steps[i].what == pipeline_step::pass::backward &&
                           steps[i + 1].what == pipeline_step::pass::forward;
  }
  return steps;
}

/// 1F1B in pairs, with `depth` microbatches in flight as well.
inline std::vector<pipeline_step> pairs_of_one_forward_one_backward(int microbatches, int depth) {
  if (depth < 2) return one_forward_one_backward(microbatches, depth);
  return in_pairs(one_forward_one_backward(microbatches, depth - 1));
}

/// Interleaved 1F1B as Megatron-LM has it: groups of as many microbatches as there are ranks go
/// through one chunk after the other. `microbatches` must be a multiple of `ranks`, unless there is
/// one chunk.
///
/// Each chunk sees its backwards in the order of their microbatches, so gradients add up as in any
/// other schedule.
inline std::vector<pipeline_step> interleaved_one_forward_one_backward(const pipeline_shape& shape,
                                                                       int rank) {
  using enum pipeline_step::pass;
  const int group = shape.ranks * shape.chunks;
  const auto step = [&](pipeline_step::pass what, int number) {
    const int chunk = number % group / shape.ranks;
    const int microbatch = number / group * shape.ranks + number % shape.ranks;
    return pipeline_step{what, microbatch, what == forward ? chunk : shape.chunks - 1 - chunk};
  };
  const int all = shape.microbatches * shape.chunks;
  // Two steps for each rank behind this one: its forward and its backward come between.
  const int warm_up =
      std::min(all, 2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * shape.ranks);
  std::vector<pipeline_step> steps;
  for (int number = 0; number < warm_up; ++number) steps.push_back(step(forward, number));
  for (int number = warm_up; number < all; ++number) {
    steps.push_back(step(forward, number));
    steps.push_back(step(backward, number - warm_up));
  }
  for (int number = all - warm_up; number < all; ++number) steps.push_back(step(backward, number));
  return steps;
}

/// What `rank` does in one step of training.
///
/// Pairs take the interleaved schedule, of one chunk too: a rank gives nothing away before both of
/// a pair are over, so 1F1B, which has one forward for each rank behind, would wait for every pair.
inline std::vector<pipeline_step> steps_of_rank(const pipeline_shape& shape, int rank) {
  if (shape.pairs) return in_pairs(interleaved_one_forward_one_backward(shape, rank));
  if (shape.chunks > 1) return interleaved_one_forward_one_backward(shape, rank);
  return one_forward_one_backward(shape.microbatches, shape.ranks - rank);
}

/// The most forwards that wait for their backward at once.
inline int deepest(const std::vector<pipeline_step>& steps) {
  int open = 0, most = 0;
  for (const pipeline_step& step : steps) {
    open += step.what == pipeline_step::pass::forward ? 1 : -1;
    most = std::max(most, open + (step.beside_next ? 2 : 0));
  }
  return most;
}

}  // namespace moe
