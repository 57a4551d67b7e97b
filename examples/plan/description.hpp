/// A model's description, and what makes one impossible.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <tidepool/core/text.hpp>
#include <tidepool/error.hpp>
#include <vector>

namespace planning {

/// The modules of a layer that may leave, in forward order; one group each.
inline constexpr std::array<std::string_view, 7> model_modules{
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"};

/// A transformer with gated MLPs, experts or dense, and one rank's part of it.
struct model_description {
  std::string name = "model";      ///< for reports
  std::size_t layers = 8;          ///< of the whole model
  std::size_t dense_layers = 0;    ///< of them, the first, without experts
  std::size_t hidden = 4096;       ///< width of the model
  std::size_t heads = 32;          ///< of attention
  std::size_t head_dim = 128;      ///< of queries and keys without `rope_dim`, and of values
  std::size_t kv_heads = 32;       ///< fewer than `heads`: grouped queries; not used with latents
  std::size_t q_latent = 0;        ///< latent attention (MLA) where the next one is not 0
  std::size_t kv_latent = 0;       ///< width of the latents of keys and values; 0: no MLA
  std::size_t rope_dim = 0;        ///< of MLA: further dimensions of queries and keys
  std::size_t experts = 8;         ///< of one layer; all tokens of a layer go to `top_k` of them
  std::size_t top_k = 2;           ///< experts for each token
  std::size_t ffn = 4096;          ///< of one expert; the gate and the other half each
  std::size_t shared_experts = 0;  ///< each of `ffn`, for all tokens
  std::size_t dense_ffn = 0;       ///< of dense layers; 0: none
  std::size_t sequence = 4096;     ///< tokens
  std::size_t microbatch = 1;      ///< sequences
  std::size_t bytes_per_element = 2;  ///< of activations: 2 for bf16
  /// fc2's input is made again from its activation's input in backward, as fused kernels do;
  /// otherwise it is saved, as a third tensor of `moe_act`.
  bool fused_activation = true;
  std::size_t tensor_parallel = 1;    ///< with sequence parallelism
  std::size_t expert_parallel = 1;    ///< ranks over which experts are spread
  std::size_t pipeline_parallel = 1;  ///< ranks over which layers are spread
  std::size_t pipeline_rank = 0;      ///< of the rank that is described
  std::size_t microbatches = 8;       ///< of a step
  std::size_t in_flight = 0;          ///< depth of 1F1B; 0: what the pipeline's rank has
  double efficiency = 1;              ///< share of the machine's GEMM rate that these shapes reach
  double exposed = 1;                 ///< share of the communication that nothing hides
  double rest_us = 0;                 ///< of a step, beside its layers
  std::vector<std::string> modules{model_modules.begin(), model_modules.end()};  ///< may leave

  /// Microbatches in flight: `in_flight`, or what 1F1B has on this rank.
  [[nodiscard]] std::size_t depth() const {
    const auto natural = pipeline_parallel - pipeline_rank;
    return in_flight > 0 ? in_flight : std::min(natural, microbatches);
  }
  /// All of them, where ranks of experts are not those of tensors as well.
  [[nodiscard]] std::size_t ranks() const {
    return tensor_parallel * expert_parallel * pipeline_parallel;
  }
  /// Whether attention has latents (MLA).
  [[nodiscard]] bool latent() const { return kv_latent > 0; }

  friend bool operator==(const model_description&, const model_description&) = default;
};

namespace detail {

class description_check {
 public:
  explicit description_check(const model_description& about) : about_(about) {
    sizes();
    attention();
    experts();
    parallel();
    modules();
  }

 private:
  [[noreturn]] void refuse(std::string_view field, const std::string& value,
                           const std::string& remedy) const {
    throw tidepool::option_error("tidepool: model " +
                                 tidepool::detail::text::in_quotes(about_.name) + ": " +
                                 std::string(field) + "=" + value + ": " + remedy);
  }
  void require(bool holds, std::string_view field, std::size_t value,
               const std::string& remedy) const {
    if (!holds) refuse(field, std::to_string(value), remedy);
  }
  void positive(std::string_view field, std::size_t value,
                std::size_t most = std::size_t{1} << 24) const {
    require(value > 0 && value <= most, field, value, "give 1 to " + std::to_string(most));
  }
  void divides(std::string_view field, std::size_t parts, std::string_view what,
               std::size_t whole) const {
    require(whole % parts == 0, field, parts,
            "give a divisor of " + std::string(what) + ", which is " + std::to_string(whole));
  }
  void share(std::string_view field, double value, double least) const {
    if (value > least && value <= 1) return;
    if (value == 0 && least < 0) return;
    refuse(field, std::to_string(value), "give a share above 0, at most 1");
  }

  void sizes() const {
    positive("layers", about_.layers, 1024);
    positive("hidden", about_.hidden, 1 << 20);
    positive("sequence", about_.sequence);
    positive("microbatch", about_.microbatch, 65536);
    positive("microbatches", about_.microbatches, 4096);
    require(about_.bytes_per_element == 1 || about_.bytes_per_element == 2 ||
                about_.bytes_per_element == 4,
            "bytes_per_element", about_.bytes_per_element, "give 1, 2 or 4");
    share("efficiency", about_.efficiency, 0);
    share("exposed", about_.exposed, -1);
    if (!(about_.rest_us >= 0 && about_.rest_us < 1e12)) {
      refuse("rest_us", std::to_string(about_.rest_us), "give microseconds, 0 or more");
    }
  }
  void attention() const {
    positive("heads", about_.heads, 4096);
    positive("head_dim", about_.head_dim, 4096);
    positive("kv_heads", about_.kv_heads, 4096);
    divides("kv_heads", about_.kv_heads, "heads", about_.heads);
    require(about_.latent() || (about_.q_latent == 0 && about_.rope_dim == 0), "kv_latent", 0,
            "latent attention has q_latent, kv_latent and rope_dim; give kv_latent, or none");
    require(about_.q_latent <= 65536 && about_.rope_dim <= 4096, "q_latent", about_.q_latent,
            "give at most 65536, and rope_dim of at most 4096");
    require(about_.kv_latent <= 65536, "kv_latent", about_.kv_latent, "give at most 65536");
  }
  void experts() const {
    require(about_.dense_layers <= about_.layers, "dense_layers", about_.dense_layers,
            "give at most layers, which is " + std::to_string(about_.layers));
    if (about_.dense_layers > 0) positive("dense_ffn", about_.dense_ffn, 1 << 20);
    if (about_.dense_layers == about_.layers) return;
    positive("experts", about_.experts, 65536);
    positive("ffn", about_.ffn, 1 << 20);
    require(about_.top_k > 0 && about_.top_k <= about_.experts, "top_k", about_.top_k,
            "give 1 to experts, which is " + std::to_string(about_.experts));
    require(about_.shared_experts <= 64, "shared_experts", about_.shared_experts,
            "give at most 64");
  }
  void parallel() const {
    positive("tensor_parallel", about_.tensor_parallel, 4096);
    positive("expert_parallel", about_.expert_parallel, 65536);
    positive("pipeline_parallel", about_.pipeline_parallel, 1024);
    divides("tensor_parallel", about_.tensor_parallel, "heads", about_.heads);
    divides("tensor_parallel", about_.tensor_parallel, "sequence", about_.sequence);
    if (about_.dense_layers < about_.layers) {
      divides("expert_parallel", about_.expert_parallel, "experts", about_.experts);
    }
    divides("pipeline_parallel", about_.pipeline_parallel, "layers", about_.layers);
    require(
        about_.pipeline_rank < about_.pipeline_parallel, "pipeline_rank", about_.pipeline_rank,
        "give less than pipeline_parallel, which is " + std::to_string(about_.pipeline_parallel));
    require(about_.in_flight <= about_.microbatches, "in_flight", about_.in_flight,
            "give at most microbatches, which is " + std::to_string(about_.microbatches));
    const auto layers = about_.layers / about_.pipeline_parallel;
    require(layers * about_.microbatches <= 65536, "microbatches", about_.microbatches,
            "a profile holds at most 65536 layers times microbatches; plan for fewer");
  }
  void modules() const {
    if (about_.modules.empty()) refuse("modules", "none", "name at least one that may leave");
    bool core = false;
    bool proj = false;
    for (const auto& name : about_.modules) {
      if (std::count(about_.modules.begin(), about_.modules.end(), name) > 1) {
        refuse("modules", name, "name each module once");
      }
      if (std::find(model_modules.begin(), model_modules.end(), name) == model_modules.end()) {
        const auto near = tidepool::detail::text::nearest(name, model_modules);
        refuse("modules", tidepool::detail::text::printable(name),
               "take of " + tidepool::detail::text::join(model_modules, ", ") +
                   (near.empty() ? "" : "; did you mean " + std::string(near) + "?"));
      }
      core = core || name == "core_attn";
      proj = proj || name == "attn_proj";
    }
    if (proj && !core) {
      refuse("modules", "attn_proj", "add core_attn: its backward needs the same tensor");
    }
  }

  const model_description& about_;
};

}  // namespace detail

/// Throws `option_error`, naming field, value and remedy, for a model that cannot be.
inline void check(const model_description& model) {
  static_cast<void>(detail::description_check(model));
}

}  // namespace planning
