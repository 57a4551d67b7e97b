// What one layer saves and how long it takes, by module.
//
// Sources. [K]: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models", section 4 (which tensors a layer saves, and what tensor and sequence parallelism leave
// of them). [M]: Megatron-Core's fine-grained offloading, where a module stands for its input.
// [F]: Dao 2023, "FlashAttention-2" (scores are not saved; backward has 2.5 times the matmuls of
// forward).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "description.hpp"
#include "machines.hpp"

namespace planning::detail {

// Durations in microseconds, and bytes, of one layer for one microbatch on one rank.
struct layer_costs {
  struct both_ways {
    double forward = 0;
    double backward = 0;
  };
  // Saved tensors by module, as in `model_modules`, and what stays.
  std::array<std::size_t, 7> saved{};
  std::size_t statistics = 0;    // of attention, saved with core_attn
  std::size_t shared_saved = 0;  // router's and shared experts'
  both_ways norm, qkv, core, proj, router, dispatch, fc1, act, fc2, combine, shared;
  std::array<double, 7> recompute{};  // from the group before

  layer_costs(const model_description& model, const machine_description& on, bool dense)
      : m_(model), on_(on) {
    const auto tensor = model.tensor_parallel;
    const auto bytes = model.bytes_per_element;
    const auto all = model.sequence * model.microbatch;  // tokens of a microbatch
    const auto own = all / tensor;                       // with sequence parallelism, [K] 4.2.2
    const auto heads = model.heads / tensor;
    const auto kv =
        std::max<std::size_t>((model.latent() ? model.heads : model.kv_heads) / tensor, 1);
    const auto qk_dim = model.head_dim + model.rope_dim;
    const auto k = dense ? 1 : model.top_k;
    const auto ffn = dense ? model.dense_ffn / tensor : model.ffn;
    // With balanced routing a rank gets as many tokens as it sends.
    const auto routed = dense ? all : own * k;
    const auto h = model.hidden;

    // [K] 4.1: a norm saves its input; a linear layer its input, once for q, k and v.
    const auto stream = own * h * bytes;
    saved[0] = saved[4] = stream;
    saved[1] =
        stream +
        own * (model.q_latent + model.kv_latent + (model.latent() ? model.rope_dim : 0)) * bytes;
    // [K] 4.1: q, k and v; [F]: no scores, one float a row instead.
    saved[2] = all * (heads * qk_dim + kv * (qk_dim + model.head_dim)) * bytes;
    statistics = all * heads * sizeof(float);
    saved[3] = all * heads * model.head_dim * bytes;
    // [M]: the input of fc1 is the routed copy of each token, that of the activation gate and half.
    saved[5] = dense ? own * h * bytes : routed * h * bytes;
    saved[6] = routed * ffn * (model.fused_activation ? 2 : 3) * bytes;
    const auto shared_ffn = dense ? 0 : model.shared_experts * model.ffn / tensor;
    // The router and shared experts share the norm's output, which is not the routed copy.
    shared_saved = dense ? 0 : stream + all * shared_ffn * 2 * bytes;

    const auto f = [](std::size_t value) { return static_cast<double>(value); };
    const auto b = f(bytes);
    const auto weight_q = model.latent() && model.q_latent > 0
                              ? f(h) * f(model.q_latent) + f(model.q_latent) * f(heads * qk_dim)
                              : f(h) * f(heads * qk_dim);
    const auto weight_kv = model.latent() ? f(h) * f(model.kv_latent + model.rope_dim) +
                                                f(model.kv_latent) * f(kv * 2 * model.head_dim)
                                          : f(h) * f(kv * 2 * model.head_dim);
    // Two all-gathers and two reduce-scatters a pass, [K] 4.2.2, of (t - 1) / t of the tokens.
    const auto gather = peers_us(f(all) * f(h) * b * (1 - 1 / f(tensor)));
    // Dispatch and combine: all but the own part goes to other ranks.
    const auto exchange =
        dense ? 0 : peers_us(f(routed) * f(h) * b * (1 - 1 / f(model.expert_parallel)));

    // Memory-bound: what a fused kernel reads and writes.
    norm = {memory_us(2 * f(stream)), memory_us(4 * f(stream))};
    qkv = gemm(f(all), weight_q + weight_kv, f(saved[1] + saved[2]), f(1));
    const auto rope = memory_us(2 * f(saved[2]));
    qkv.forward += rope + gather;
    qkv.backward += rope + gather;
    // Causal: half of 2 s (qk + v) multiply-adds a token and head, so 1 s (qk + v) of 2 flops.
    const auto attention =
        f(all) * f(model.sequence) * f(heads) * f(qk_dim + model.head_dim) / on.attention_tflops;
    core = {attention / 1e6, 2.5 * attention / 1e6};
    proj = gemm(f(all), f(heads * model.head_dim) * f(h), f(saved[3]) + f(stream), f(1));
    proj.forward += memory_us(3 * f(stream)) + gather;  // the residual
    proj.backward += memory_us(2 * f(stream)) + gather;
    if (!dense) {
      router = gemm(f(own), f(h) * f(model.experts), f(stream), f(1));
      const auto moved = memory_us(2 * f(routed) * f(h) * b);
      dispatch = {moved + exchange, moved + exchange};
      combine = {moved + exchange, moved + exchange};
      shared = gemm(f(all), f(h) * 3 * f(shared_ffn), f(shared_saved), f(1));
    } else {
      dispatch = {gather, gather};
      combine = {gather + memory_us(3 * f(stream)), gather};
    }
    const auto own_experts = dense ? 1.0 : f(model.experts) / f(model.expert_parallel);
    const auto wide = f(routed) * f(ffn) * b;
    fc1 = gemm(f(routed), f(h) * 2 * f(ffn), f(saved[5]) + 2 * wide, own_experts);
    act = {memory_us(3 * wide), memory_us((model.fused_activation ? 6 : 5) * wide)};
    fc2 = gemm(f(routed), f(ffn) * f(h), wide + f(routed) * f(h) * b, own_experts);

    // Each from what the group before it saves; the first is the layer's input, which must be kept
    // or come back.
    recompute = {0,
                 norm.forward,
                 qkv.forward,
                 core.forward,
                 proj.forward,
                 norm.forward + dispatch.forward,
                 fc1.forward + (model.fused_activation ? 0 : act.forward)};
  }

 private:
  [[nodiscard]] double memory_us(double bytes) const { return bytes / on_.memory_rate / 1e3; }
  [[nodiscard]] double peers_us(double bytes) const {
    return on_.peer_rate > 0 ? m_.exposed * bytes / on_.peer_rate / 1e3 : 0;
  }
  // A linear layer of `weights` for each of `copies` experts: two flops a token and weight forward,
  // twice that backward (for inputs and for weights); not faster than memory gives weights and
  // tensors, in backward with gradients in fp32 that are added to.
  [[nodiscard]] both_ways gemm(double tokens, double weights, double tensors, double copies) const {
    const auto us = 2 * tokens * weights / (on_.gemm_tflops * m_.efficiency) / 1e6;
    const auto stored = copies * weights;
    const auto b = static_cast<double>(m_.bytes_per_element);
    return {std::max(us, memory_us(stored * b + tensors)),
            std::max(2 * us, memory_us(stored * (b + 8) + 2 * tensors))};
  }

  const model_description& m_;
  const machine_description& on_;
};

}  // namespace planning::detail
