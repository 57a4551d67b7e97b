/// The modules that save something for their backward, and which of them a part of the model has.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <tidepool/module.hpp>
#include <vector>

#include "../parallel/layout.hpp"

namespace moe {

/// Every module of this model that saves something for its backward. Any of them may be offloaded;
/// `--offload-modules` decides. Those that Megatron-LM has not, "router" and "expert_fc2" among
/// them, have names of our own. The MLP of a dense layer has names apart from the experts', since
/// its tensors have another size and their time to leave is another.
using saving_modules =
    tidepool::modules<"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "router",
                      "expert_fc1", "moe_act", "expert_fc2", "fused_group_mlp", "shared_act",
                      "shared_fc2", "mlp_fc1", "mlp_act", "mlp_fc2", "final_norm", "mtp_proj">;

/// What can be computed again in backward instead of being kept: the outputs of both norms from
/// their inputs, activations from fc1's output (of experts, of a shared expert, of a dense layer),
/// and the rows of each expert from the tokens. `--recompute-modules` decides.
inline constexpr std::array<std::string_view, 5> recomputable{"layernorm", "moe_act", "moe_permute",
                                                              "mlp_act", "shared_act"};

/// Whether what has this name, in either list, is in `ranges` at all.
inline bool has_module(std::string_view name, const model_sizes& m,
                       const std::vector<layer_range>& ranges) {
  const auto any = [&](auto condition) {
    return std::any_of(ranges.begin(), ranges.end(), condition);
  };
  if (name == "final_norm") return any([](const layer_range& r) { return r.head; });
  if (name == "mtp_proj") {
    return m.mtp > 0 && any([](const layer_range& r) { return r.head; });
  }
  if (name.starts_with("mlp_") && name != "mlp_norm") {
    return any([&](const layer_range& r) { return m.is_dense(r.first); });
  }
  const bool of_experts = name == "router" || name.starts_with("expert_") ||
                          name.starts_with("moe_") || name == "fused_group_mlp";
  const bool of_shared = name.starts_with("shared_");
  if (!of_experts && !of_shared) return true;
  return (of_experts || m.shared_experts > 0) &&
         any([&](const layer_range& r) { return !m.is_dense(r.end - 1); });
}

}  // namespace moe
