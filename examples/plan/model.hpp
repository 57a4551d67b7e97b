/// The profile of a training step that nobody has run yet, from a model's description.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <tidepool/plan/profile.hpp>

#include "description.hpp"
#include "machines.hpp"
#include "step_writer.hpp"

namespace planning {

namespace plan = tidepool::plan;

/// GPUs of one host that copy at once, where nobody says: all ranks of the model, as many as
/// somebody measured on one host. 1 where nobody measured several.
[[nodiscard]] inline std::size_t copying_at_once(const model_description& model,
                                                 const machine_description& on) {
  const auto most = on.shared.empty() ? std::size_t{1} : on.shared.back().gpus;
  return std::min(model.ranks(), most);
}

/// The step of one rank: its layers, its microbatches in 1F1B. Durations are compute or memory,
/// whichever is longer, and communication that is not hidden; kernels do not slow each other.
/// Left out: temporaries, embedding and head, the pipeline's bubbles, imbalance of experts.
///
/// `gpus_per_host` GPUs copy at once all the time, so that the link is what each of them has then
/// (`link_at_once`); 0: `copying_at_once`. A recomputed group is made from what the group before it
/// saves; that it is there is up to the trainer. Throws `option_error`.
[[nodiscard]] inline plan::profile profile_of(const model_description& model,
                                              const machine_description& on,
                                              std::size_t gpus_per_host = 0) {
  check(model);
  if (!(on.gemm_tflops > 0 && on.attention_tflops > 0 && on.memory_rate > 0)) {
    throw tidepool::option_error(
        "tidepool: machine " + tidepool::detail::text::in_quotes(on.name) +
        ": gemm_tflops, attention_tflops or memory_rate is not above 0; give rates");
  }
  const auto gpus = gpus_per_host > 0 ? gpus_per_host : copying_at_once(model, on);
  auto step = detail::step_writer(model, on).write();
  step.link = link_at_once(on, gpus).each;
  step.peer_link = peer_link_of(on);
  return step;
}

/// The models that are known, with the batch and the parallel sizes of the runs they stand for.
[[nodiscard]] inline const std::array<model_description, 4>& known_models() {
  static const std::array<model_description, 4> all = [] {
    // What `bench/step` runs: the size of one DeepSeek-V3 stage, on one GPU.
    model_description proxy;
    proxy.name = "deepseek-v3-proxy";
    proxy.layers = 8;
    proxy.hidden = 7168;
    proxy.heads = proxy.kv_heads = 28;
    proxy.experts = 16;
    proxy.top_k = 8;
    proxy.ffn = 2048;
    proxy.microbatches = 8;
    proxy.in_flight = 2;

    // DeepSeek-V3 (config.json: 61 layers, 3 of them dense, and one for prediction ahead): 64
    // layers over 4 stages, each with 16 layers of experts; 64 ranks of experts.
    model_description deepseek = proxy;
    deepseek.name = "deepseek-v3";
    deepseek.layers = 64;
    deepseek.heads = deepseek.kv_heads = 128;
    deepseek.q_latent = 1536;
    deepseek.kv_latent = 512;
    deepseek.rope_dim = 64;
    deepseek.experts = 256;
    deepseek.shared_experts = 1;
    deepseek.pipeline_parallel = 4;
    deepseek.expert_parallel = 64;
    deepseek.in_flight = 4;
    deepseek.microbatches = 12;

    // Qwen3-30B-A3B (config.json), 8 of its 48 layers with microbatches of 24 sequences on 4 GPUs
    // and all three tensors of an MLP saved: what poolside measured on GB200, March 2026.
    model_description qwen;
    qwen.name = "qwen3-30b-a3b";
    qwen.layers = 8;
    qwen.hidden = 2048;
    qwen.heads = 32;
    qwen.kv_heads = 4;
    qwen.experts = 128;
    qwen.top_k = 8;
    qwen.ffn = 768;
    qwen.microbatch = 24;
    qwen.fused_activation = false;
    qwen.expert_parallel = 4;
    qwen.microbatches = 2;
    qwen.in_flight = 1;

    // Grok-2 (config.json; the dense MLP of 32768 beside the experts counts as two shared ones), 8
    // of its 64 layers, with as many tokens as 1.6 GB for one tensor of its MLP mean.
    model_description grok = qwen;
    grok.name = "grok-2";
    grok.hidden = 8192;
    grok.heads = 64;
    grok.kv_heads = 8;
    grok.experts = 8;
    grok.top_k = 2;
    grok.ffn = 16384;
    grok.shared_experts = 2;
    grok.microbatch = 6;
    return std::array<model_description, 4>{proxy, deepseek, qwen, grok};
  }();
  return all;
}

/// The model of that name. Throws `option_error`.
[[nodiscard]] inline const model_description& model_named(std::string_view name) {
  return detail::find_named<model_description>(known_models(), name, "model");
}

}  // namespace planning
