/// Rings of slots for `--memory=slots`, from the shapes of the model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tidepool/codec/fp8_numbers.hpp>
#include <tidepool/options.hpp>
#include <tidepool/validate.hpp>
#include <vector>

#include "../model/model_parts.hpp"
#include "../model/precision.hpp"
#include "../parallel/layout.hpp"

namespace moe {

/// One tensor that a layer, or the head, saves: who saves it, its elements at most, and their size.
struct saved_shape {
  std::string_view module;
  index elements;
  index element_bytes = 4;
};

/// A matrix of experts, as operands of GEMMs or as codes with scales.
inline std::vector<saved_shape> shapes_of_matrix(std::string_view module, index rows, index width,
                                                 const number_types& types) {
  if (types.packs) {
    const auto bytes = tidepool::codec::packed_bytes(static_cast<std::size_t>(rows * width));
    return {{module, static_cast<index>(bytes), 1}};
  }
  if (!types.quantises) return {{module, rows * width, bytes_of(types.operands)}};
  return {{module, rows * width, bytes_of(number_type::e4m3)},
          {module, scale_count(rows, width, types.scaling)}};
}

/// What the attention of a layer saves, and the norm of what follows it.
inline std::vector<saved_shape> shapes_of_attention(const model_sizes& m, index operand_bytes) {
  const index tokens = m.tokens(), wide = tokens * m.hidden;
  return {{"attn_norm", wide},
          {"attn_norm", tokens},
          {"qkv_linear", wide, operand_bytes},
          {"core_attn", 3 * wide, operand_bytes},
          {"attn_proj", wide, operand_bytes},  // core_attn saves it too; it leaves when both do
          {"core_attn", tokens * m.heads},
          {"mlp_norm", wide},
          {"mlp_norm", tokens}};
}

inline std::vector<saved_shape> shapes_of_mlp(const model_sizes& m, index operand_bytes) {
  const index tokens = m.tokens();
  return {{"mlp_fc1", tokens * m.hidden, operand_bytes},
          {"mlp_act", tokens * 2 * m.dense_ffn, operand_bytes},
          {"mlp_fc2", tokens * m.dense_ffn, operand_bytes}};
}

inline std::vector<saved_shape> shapes_of_shared(const model_sizes& m, index operand_bytes) {
  const index tokens = m.tokens();
  return {{"shared_act", tokens * 2 * m.shared_ffn(), operand_bytes},
          {"shared_fc2", tokens * m.shared_ffn(), operand_bytes}};
}

/// What routing decides is taken at its upper bound.
inline std::vector<saved_shape> shapes_of_experts(const model_sizes& m, bool fused,
                                                  const number_types& types) {
  const index tokens = m.tokens(), wide = tokens * m.hidden, rows = m.max_rows();
  const index operand_bytes = bytes_of(types.operands);
  std::vector<saved_shape> shapes{
      {"router", wide, operand_bytes},
      {"router", tokens * m.experts},
      {"router", tokens * m.top_k},
      {"router", tokens * m.top_k},
      {"router", rows},
      {"router", rows},
      {"router", m.experts},
      {fused ? "fused_group_mlp" : "moe_act", rows * 2 * m.ffn, operand_bytes}};
  for (const auto& each :
       {shapes_of_matrix(fused ? "fused_group_mlp" : "expert_fc1", rows, m.hidden, types),
        shapes_of_matrix(fused ? "fused_group_mlp" : "expert_fc2", rows, m.ffn, types)}) {
    shapes.insert(shapes.end(), each.begin(), each.end());
  }
  return shapes;
}

/// `x_module` decides about what the head reads: others may save it too.
inline std::vector<saved_shape> shapes_of_head(const model_sizes& m, std::string_view x_module,
                                               index operand_bytes) {
  const index wide = m.tokens() * m.hidden;
  return {{x_module, wide},
          {"final_norm", wide, operand_bytes},
          {"final_norm", m.tokens()},
          {"final_norm", m.tokens() * vocabulary, operand_bytes}};
}

/// What the projection of multi-token prediction saves beside the hidden state, which a head has.
inline std::vector<saved_shape> shapes_of_mtp(const model_sizes& m, index operand_bytes) {
  const index tokens = m.tokens(), wide = tokens * m.hidden;
  return {{"mtp_proj", wide},
          {"mtp_proj", wide, operand_bytes},
          {"mtp_proj", wide, operand_bytes},
          {"mtp_proj", tokens},
          {"mtp_proj", tokens}};
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
    count_of_bytes[static_cast<std::size_t>(shape.elements * shape.element_bytes)] +=
        leaves ? std::min(all, moving) : all;
  };
  const auto ranges = ranges_of_rank(run, run.rank);
  const auto most = [&](auto counts) {  // layers of one chunk
    index layers = 0;
    for (const layer_range& range : ranges) {
      index count = 0;
      for (index l = range.first; l < range.end; ++l) count += counts(l) ? 1 : 0;
      layers = std::max(layers, count);
    }
    return static_cast<std::size_t>(layers);
  };
  const auto add_all = [&](const std::vector<saved_shape>& shapes, std::size_t layers) {
    for (const saved_shape& shape : shapes) add(shape, layers);
  };
  const model_sizes& m = run.model;
  const number_types types = types_of(run);
  const index operand_bytes = bytes_of(types.operands);
  if (run.pipeline) {  // the residual stream on its way out, and a gradient
    count_of_bytes[static_cast<std::size_t>(run.model.tokens() * run.model.hidden) *
                   sizeof(float)] += 2;
  }
  const bool has_head =
      std::any_of(ranges.begin(), ranges.end(), [](const auto& r) { return r.head; });
  const auto mtp = static_cast<std::size_t>(has_head ? m.mtp : 0);
  const bool mtp_is_dense = m.is_dense(m.layers - 1);
  add_all(shapes_of_attention(m, operand_bytes), mtp + most([](index) { return true; }));
  const auto dense = (mtp_is_dense ? mtp : 0) + most([&](index l) { return m.is_dense(l); });
  if (dense > 0) add_all(shapes_of_mlp(m, operand_bytes), dense);
  const auto routed = (mtp_is_dense ? 0 : mtp) + most([&](index l) { return !m.is_dense(l); });
  if (routed > 0) {
    add_all(shapes_of_experts(m, is_enabled("fused_group_mlp"), types), routed);
    if (m.shared_experts > 0) add_all(shapes_of_shared(m, operand_bytes), routed);
  }
  // What a head and the projection behind it read leaves when both modules do.
  const bool x_stays = mtp > 0 && !is_enabled("mtp_proj");
  add_all(shapes_of_head(m, x_stays ? "mtp_proj" : "final_norm", operand_bytes), 1 + mtp);
  if (mtp > 0) add_all(shapes_of_mtp(m, operand_bytes), mtp);
  if (run.pipeline && m.mtp > 0) {  // gradients of the embedding, there and back
    count_of_bytes[static_cast<std::size_t>(vocabulary * m.hidden) * sizeof(float)] += 2;
  }

  std::vector<tidepool::slot_ring> rings;
  for (const auto& [bytes, count] : count_of_bytes) rings.push_back({bytes, count});
  return rings;
}

}  // namespace moe
