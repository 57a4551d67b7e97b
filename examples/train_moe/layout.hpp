/// Which layers of the model a rank of a pipeline holds.
#pragma once

#include <algorithm>
#include <string>
#include <tidepool/error.hpp>
#include <vector>

#include "config.hpp"
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

/// All of a model in one range.
inline layer_range whole_of(const model_sizes& m) { return {0, m.layers, true, true}; }

inline pipeline_shape shape_of(const settings& run) {
  return {run.ranks, run.virtual_stages, run.microbatches};
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

/// The ranges that `rank` holds, one for each of its chunks.
inline std::vector<layer_range> ranges_of_rank(const settings& run, int rank) {
  const pipeline_shape shape = shape_of(run);
  const std::vector<index> layers = layers_of_stages(run);
  std::vector<layer_range> mine;
  index first = 0;
  for (int stage = 0; stage < shape.stages(); ++stage) {
    const index end = first + layers[static_cast<std::size_t>(stage)];
    if (shape.rank_of(stage) == rank) {
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
  const std::string ranks = std::to_string(run.ranks) + (run.ranks == 1 ? " rank" : " ranks");
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
  if (run.virtual_stages > 1 && run.microbatches % run.ranks != 0) {
    fail("--microbatches=" + std::to_string(run.microbatches) + ": with --virtual-stages=" +
         std::to_string(run.virtual_stages) + " it must be a multiple of the " + ranks + "; give " +
         std::to_string((run.microbatches / run.ranks + 1) * run.ranks));
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
  if (run.layers_per_rank.size() != static_cast<std::size_t>(run.ranks)) {
    fail(given + ": names " + std::to_string(run.layers_per_rank.size()) +
         " ranks, but there are " + std::to_string(run.ranks) + "; give one number for each");
  }
  if (*std::min_element(run.layers_per_rank.begin(), run.layers_per_rank.end()) < 1) {
    fail(given + ": each rank needs a layer; give 1 or more for each");
  }
  if (sum != run.model.layers) {
    fail(given + ": makes " + std::to_string(sum) +
         " layers, not --layers=" + std::to_string(run.model.layers) + "; let them add up to it");
  }
}

}  // namespace moe
