/// Which layers and which experts of the model a rank holds, and the order of its passes.
#pragma once

#include <algorithm>
#include <string>
#include <tidepool/error.hpp>
#include <vector>

#include "../model/config.hpp"
#include "schedule.hpp"

namespace moe {

/// Consecutive layers, with the embedding before them or the head behind them if it is theirs.
struct layer_range {
  index first = 0;
  index end = 0;
  bool embedding = false;
  bool head = false;

  [[nodiscard]] index count() const { return end - first; }
  [[nodiscard]] bool holds(index layer) const { return layer >= first && layer < end; }
};

/// The experts of each layer that a rank holds.
struct expert_range {
  index first = 0;
  index count = 0;
};

inline expert_range experts_of_rank(const settings& run, int rank) {
  const index each = run.model.experts / run.grid.experts;
  return {run.grid.member_of(rank) * each, each};
}

/// All of a model in one range.
inline layer_range whole_of(const model_sizes& m) { return {0, m.layers, true, true}; }

inline pipeline_shape shape_of(const settings& run) {
  return {run.grid.stages, run.virtual_stages, run.own_microbatches(), run.pairs};
}

/// Layers of each stage, in order. What does not divide evenly goes to the last stages, one each:
/// the first ranks hold more microbatches at once.
inline std::vector<index> layers_of_stages(const settings& run) {
  if (!run.layers_per_rank.empty()) return run.layers_per_rank;
  const index stages = shape_of(run).stages();
  std::vector<index> layers;
  for (index s = 0; s < stages; ++s) {
    const bool one_more = s >= stages - run.model.layers % stages;
    layers.push_back(run.model.layers / stages + (one_more ? 1 : 0));
  }
  return layers;
}

/// What this rank does in one step of training.
inline std::vector<pipeline_step> steps_of(const settings& run) {
  if (run.pipeline) return steps_of_rank(shape_of(run), run.stage());
  if (run.expert_parallel) {
    return pairs_of_one_forward_one_backward(run.own_microbatches(), run.in_flight);
  }
  return one_forward_one_backward(run.microbatches, run.in_flight);
}

/// The ranges that `rank` holds, one for each of its chunks.
inline std::vector<layer_range> ranges_of_rank(const settings& run, int rank) {
  if (!run.pipeline) return {whole_of(run.model)};
  const pipeline_shape shape = shape_of(run);
  const std::vector<index> layers = layers_of_stages(run);
  std::vector<layer_range> mine;
  index first = 0;
  for (int stage = 0; stage < shape.stages(); ++stage) {
    const index end = first + layers[static_cast<std::size_t>(stage)];
    if (shape.rank_of(stage) == run.grid.stage_of(rank)) {
      mine.push_back({first, end, stage == 0, stage + 1 == shape.stages()});
    }
    first = end;
  }
  return mine;
}

/// Throws `tidepool::option_error`, naming option, value and remedy, unless the model can be laid
/// out over the ranks.
inline void validate_layout(const settings& run) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  const int along = run.grid.stages, all = run.grid.ranks();
  const std::string ranks = std::to_string(along) + (along == 1 ? " rank" : " ranks");
  if (run.virtual_stages < 1 || run.virtual_stages > 4096) {
    fail("--virtual-stages=" + std::to_string(run.virtual_stages) + ": use 1 to 4096");
  }
  const index stages = shape_of(run).stages();
  if (stages > run.model.layers) {
    fail("--pipeline: " + ranks + " with --virtual-stages=" + std::to_string(run.virtual_stages) +
         " make " + std::to_string(stages) +
         " stages, more than --layers=" + std::to_string(run.model.layers) +
         "; start fewer ranks, or lower the one or raise the other");
  }
  if (run.virtual_stages > 1 && run.microbatches % all != 0) {
    fail("--microbatches=" + std::to_string(run.microbatches) +
         ": with --virtual-stages=" + std::to_string(run.virtual_stages) +
         " it must be a multiple of the " + std::to_string(all) + " ranks; give " +
         std::to_string((run.microbatches / all + 1) * all));
  }
  if (run.layers_per_rank.empty()) return;
  std::string given = "--layers-per-rank=";
  index sum = 0;
  for (const index layers : run.layers_per_rank) {
    given += (given.back() == '=' ? "" : ",") + std::to_string(layers);
    sum += layers;
  }
  if (run.virtual_stages > 1) {
    fail(given + ": is for one stage of each rank; leave it or --virtual-stages out");
  }
  if (run.layers_per_rank.size() != static_cast<std::size_t>(along)) {
    fail(given + ": names " + std::to_string(run.layers_per_rank.size()) +
         " ranks, but there are " + std::to_string(along) + "; give one number for each");
  }
  if (*std::min_element(run.layers_per_rank.begin(), run.layers_per_rank.end()) < 1) {
    fail(given + ": each rank needs a layer; give 1 or more for each");
  }
  if (sum != run.model.layers) {
    fail(given + ": makes " + std::to_string(sum) +
         " layers, not --layers=" + std::to_string(run.model.layers) + "; let them add up to it");
  }
}

/// Throws `tidepool::option_error` unless each rank gets as many experts and microbatches.
inline void validate_expert_parallel(const settings& run, bool in_flight_given) {
  const auto fail = [](const std::string& option, index value, const std::string& remedy) {
    throw tidepool::option_error(option + "=" + std::to_string(value) + ": " + remedy);
  };
  const int across = run.grid.experts;
  const std::string ranks = std::to_string(across);
  if (run.model.experts % across != 0) {
    fail("--experts", run.model.experts,
         "with --expert-parallel it must be a multiple of the " + ranks + " ranks; give " +
             std::to_string((run.model.experts / across + 1) * across));
  }
  if (run.microbatches % across != 0) {
    fail("--microbatches", run.microbatches,
         "with --expert-parallel it must be a multiple of the " + ranks + " ranks; give " +
             std::to_string((run.microbatches / across + 1) * across));
  }
  if (in_flight_given && run.in_flight > run.own_microbatches()) {
    fail("--in-flight", run.in_flight,
         "is more than the " + std::to_string(run.own_microbatches()) +
             " microbatches of each rank; lower it or raise --microbatches");
  }
}

}  // namespace moe
