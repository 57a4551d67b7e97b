/// Rings of slots for `--memory=slots`, from the shapes of the model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tidepool/options.hpp>
#include <tidepool/validate.hpp>
#include <vector>

#include "layout.hpp"
#include "model_parts.hpp"

namespace moe {

/// One tensor that a layer, or the head, saves: who saves it, and its elements at most.
struct saved_shape {
  std::string_view module;
  index elements;
};

/// Everything that one layer saves. What routing decides is taken at its upper bound.
inline std::vector<saved_shape> shapes_of_layer(const model_sizes& m, bool fused) {
  const index tokens = m.tokens(), wide = tokens * m.hidden, rows = m.max_rows();
  return {{"attn_norm", wide},
          {"attn_norm", tokens},
          {"qkv_linear", wide},
          {"core_attn", 3 * wide},
          {"attn_proj", wide},  // core_attn saves it too; it leaves when both do
          {"core_attn", tokens * m.heads},
          {"mlp_norm", wide},
          {"mlp_norm", tokens},
          {"router", wide},
          {"router", tokens * m.experts},
          {"router", tokens * m.top_k},
          {"router", tokens * m.top_k},
          {"router", rows},
          {"router", rows},
          {"router", m.experts},
          {fused ? "fused_group_mlp" : "expert_fc1", rows * m.hidden},
          {fused ? "fused_group_mlp" : "moe_act", rows * 2 * m.ffn},
          {fused ? "fused_group_mlp" : "expert_fc2", rows * m.ffn}};
}

inline std::vector<saved_shape> shapes_of_head(const model_sizes& m) {
  const index wide = m.tokens() * m.hidden;
  return {{"final_norm", wide},
          {"final_norm", wide},
          {"final_norm", m.tokens()},
          {"final_norm", m.tokens() * vocabulary}};
}

/// Enough slots for a run: what stays needs one for every layer of every microbatch in flight; of
/// what leaves a few are enough, since a slot is taken again as soon as its copy is over.
inline std::vector<tidepool::slot_ring> rings_for(const settings& run,
                                                  const tidepool::options& opt) {
  const auto& names = saving_modules::names;
  const std::uint64_t enabled = tidepool::resolve_modules(opt, names, saving_modules::open);
  const auto is_enabled = [&](std::string_view module) {
    return (enabled >> static_cast<unsigned>(saving_modules::id(module)) & 1U) != 0;
  };
  const bool policy_keeps =
      opt.fraction < 1 || opt.delta_bytes_per_rank > 0 || !opt.offload_layers.empty();
  const auto in_flight = static_cast<std::size_t>(run.in_flight);
  // In use by forward, by backward, and kept by the margin; the rest in copies either way.
  const std::size_t moving = 3 + in_flight + opt.reload_ahead;

  std::map<std::size_t, std::size_t> count_of_bytes;
  const auto add = [&](const saved_shape& shape, std::size_t layers) {
    const std::size_t all = (layers + 1) * in_flight;
    const bool leaves = is_enabled(shape.module) && !policy_keeps &&
                        static_cast<std::size_t>(shape.elements) >= opt.min_tensor_elements;
    count_of_bytes[static_cast<std::size_t>(shape.elements) * sizeof(float)] +=
        leaves ? std::min(all, moving) : all;
  };
  index most = 0;
  for (const layer_range& range : ranges_of_rank(run, run.rank)) {
    most = std::max(most, range.count());
  }
  const auto layers = static_cast<std::size_t>(most);
  if (run.pipeline) {  // the residual stream on its way out, and a gradient
    count_of_bytes[static_cast<std::size_t>(run.model.tokens() * run.model.hidden) *
                   sizeof(float)] += 2;
  }
  for (const saved_shape& shape : shapes_of_layer(run.model, is_enabled("fused_group_mlp"))) {
    add(shape, layers);
  }
  for (const saved_shape& shape : shapes_of_head(run.model)) add(shape, 1);

  std::vector<tidepool::slot_ring> rings;
  for (const auto& [bytes, count] : count_of_bytes) rings.push_back({bytes, count});
  return rings;
}

}  // namespace moe
