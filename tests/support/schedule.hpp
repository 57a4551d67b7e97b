/// In which order a pipeline stage runs the forward and backward passes of a step.
#pragma once

#include <cstddef>
#include <vector>

namespace tidepool::test {

struct pass {
  int microbatch = 0;
  int model_chunk = 0;
  bool backward = false;
};

/// 1F1B: at most `depth` microbatches in flight. With several model chunks they are interleaved:
/// `depth` microbatches pass chunk after chunk, and come back in the opposite order of chunks.
[[nodiscard]] inline std::vector<pass> one_f_one_b(int microbatches, int depth,
                                                   int model_chunks = 1) {
  std::vector<pass> forward;
  std::vector<pass> backward;
  for (int first = 0; first < microbatches; first += depth) {
    for (int c = 0; c < model_chunks; ++c) {
      for (int m = first; m < first + depth && m < microbatches; ++m) {
        forward.push_back({m, c, false});
        backward.push_back({m, model_chunks - 1 - c, true});
      }
    }
  }
  if (model_chunks == 1) {  // 1F1B proper
    forward.clear();
    backward.clear();
    for (int m = 0; m < microbatches; ++m) {
      forward.push_back({m, 0, false});
      backward.push_back({m, 0, true});
    }
  }
  const auto warm_up = static_cast<std::size_t>(depth) * static_cast<std::size_t>(model_chunks);
  std::vector<pass> order;
  std::size_t begun = 0;
  for (std::size_t done = 0; done < backward.size(); ++done) {
    while (begun < forward.size() && begun < done + warm_up) order.push_back(forward[begun++]);
    order.push_back(backward[done]);
  }
  return order;
}

}  // namespace tidepool::test
