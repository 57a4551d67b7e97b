/// The operations that the model is written over; `cpu/kernels.hpp` and `cuda/kernels.hpp` each
/// provide all of them.
///
/// Every matrix is row-major. A `float*` is fp32; an operand may be bf16 or fp16 as well, all
/// operands of a call but those of `convert` and `gather` in the same type. Sums are of fp32
/// whatever the operands are. Every call enqueues work on the set's one stream and returns. Results
/// depend on nothing but the inputs: each sum has a fixed order, there are no atomics. Names:
/// `rows` are tokens or dispatched rows, `width` is the length of one; `d…` is a gradient.
#pragma once

#include <concepts>
#include <cstdint>
#include <tidepool/codec/fp8.hpp>

#include "../model/config.hpp"
#include "operand.hpp"

namespace moe {

/// Shape of an attention call; `qkv` holds, for each token, all queries, then keys, then values.
struct attention_shape {
  index batch, seq, heads, head_size;

  [[nodiscard]] MOE_HOST_DEVICE index width() const { return heads * head_size; }
};

/// Shape of a routing decision.
struct routing_shape {
  index tokens, experts, top_k;
  index capacity;  ///< most tokens of an expert; who comes later is dropped from it
};

/// What AdamW needs to know about one step.
struct adamw_step {
  float learning_rate, beta1, beta2, epsilon, decay;
  float correction1, correction2;  ///< 1 − betaᵗ
  float unscale = 1;               ///< takes the loss scale out of the gradient
};

/// A step of a counter-based generator: the same bits on every device, in any order.
MOE_HOST_DEVICE constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// A set of kernels bound to one stream.
template <class K>
concept kernel_set = requires(K k, float* out, const float* in, operand y, const_operand x,
                              std::int32_t* ints, const std::int32_t* list, index n, float value,
                              std::uint64_t seed, attention_shape heads, routing_shape routing,
                              adamw_step step, fp8_scaling scaling, coded_operand codes,
                              const tidepool::fp8_tensor<typename K::device>& packed) {
  // w[i] = uniform in [−range, range): (w, count, range, seed)
  k.randomize(out, n, value, seed);
  // w[i] = value: (w, count, value)
  k.fill(out, n, value);
  // Copies to pinned host memory. A kernel does it, since a copy engine may have megabytes of
  // offloads queued before it: (host, device, count), for floats and for counts
  k.publish(out, in, n);
  k.publish(ints, list, n);
  // y = x, in the type of y: (y, x, count)
  k.convert(y, x, n);
  // e4m3 codes and their scales, and in place of x what they stand for; x is bf16:
  // (codes, scale, x, rows, width, scaling)
  k.quantise(y, out, y, n, n, scaling);
  // What codes stand for: (x, codes, scale, rows, width, scaling)
  k.dequantise(y, x, in, n, n, scaling);
  // The codes of w[in][out] as [out][in], the scales of their blocks as [out blocks][in blocks],
  // rows of `weight_scale_stride`, and in y what they stand for, as [in][out]; y is bf16, w fp32.
  // If y is e4m3, it gets the codes themselves, and at `turned_scales_at` lie their scales:
  // (codes, scale, y, w, in, out, scaling)
  k.quantise_weight(y, out, y, in, n, n, scaling);
  // x as Tidepool's FP8 codec packs it, and back; x is bf16: (packed, x), (x, packed)
  k.encode(packed, x);
  k.decode(y, packed);
  // found[0] = 1 if one of the numbers is not finite, else 0: (found, x, count)
  k.find_not_finite(ints, in, n);
  // y = a + b: (y, a, b, count)
  k.add(out, in, in, n);

  // x[t] = table[token[t]] + positions[t mod seq], both here and below without what is null: (x,
  // table, positions, token, rows, seq, width)
  k.embed(out, in, in, list, n, n, n);
  // dtable and dpositions accumulate: (dtable, dpositions, dx, token, rows, seq, width)
  k.embed_backward(out, out, in, list, n, n, n);

  // y = x · rstd · gain: (y, rstd, x, gain, rows, width)
  k.rmsnorm(y, out, in, in, n, n);
  // dx and dgain accumulate: (dx, dgain, dy, x, rstd, gain, rows, width)
  k.rmsnorm_backward(out, out, in, in, in, in, n, n);

  // y = x·w, with w[in][out]; y may be fp32 beside narrower operands, here and below:
  // (y, x, w, rows, in, out)
  k.linear(y, x, x, n, n, n);
  // The same of codes, x from `quantise` and w from `quantise_weight`; y is bf16 or fp32. Widths
  // are multiples of 16, and of 128 where a scale covers a block: (y, x, w, rows, in, out, scaling)
  k.linear_of_codes(y, codes, codes, n, n, n, scaling);
  // Both gradients, dx = dy·wᵀ and dw + xᵀ·dy, of codes with scales along the sum: e5m2 that are
  // made of dy, e4m3 made of x, and w's as [in][out]; x and dy are bf16, dx fp32:
  // (dx, dw, x, dy, w, rows, in, out, scaling)
  k.linear_backward_of_codes(out, out, x, x, codes, n, n, n, scaling);
  // dx = dy·wᵀ: (dx, dy, w, rows, in, out)
  k.linear_backward_input(y, x, x, n, n, n);
  // dw accumulates xᵀ·dy: (dw, x, dy, rows, in, out)
  k.linear_backward_weight(out, x, x, n, n, n);

  // Causal softmax attention; lse[token][head] is all that backward needs of the probabilities:
  // (o, lse, qkv, shape)
  k.attention(y, out, x, heads);
  // (dqkv, dout, qkv, o, lse, shape)
  k.attention_backward(y, x, x, x, in, heads);

  // Softmax of the router's logits and the `top_k` best experts: (probs, choice, logits, shape)
  k.route(out, ints, in, routing);
  // counts[e] tokens that chose each expert, and the row of each choice, −1 for those over
  // capacity: experts one after the other, each padded: (row, counts, choice, shape)
  k.assign(ints, ints, list, routing);
  // The inverse of `row`: source[r] = token · top_k + its choice, or −1 in padding, and the
  // probability of that choice, or 0: (source, weight, row, choice, probs, rows, shape)
  k.place(ints, out, list, list, in, n, routing);
  // Load-balancing loss, 1 when every expert gets the same: (loss, probs, counts, shape)
  k.balance(out, in, list, routing);
  // dlogits from the gradients of `weight` and of `scale · balance`:
  // (dlogits, dweight, row, choice, probs, counts, scale, shape)
  k.route_backward(out, in, list, list, in, list, value, routing);

  // y[r] = x[source[r] / top_k], 0 in padding: (y, x, source, rows, top_k, width)
  k.gather(y, x, list, n, n, n);
  // y[t] = residual[t] + Σ x[row[t][k]]; y may be the residual:
  // (y, residual, x, row, rows, top_k, width)
  k.combine(out, in, in, list, n, n, n);

  // b = silu(a[:ffn]) · a[ffn:] · weight: (b, a, weight, rows, ffn)
  k.swiglu(y, x, in, n, n);
  // (da, dweight, db, a, weight, rows, ffn)
  k.swiglu_backward(y, out, in, x, in, n, n);

  // Mean loss in nats, and the gradient of `scale · loss`, which may lie in place of the logits:
  // (loss, dlogits, logits, target, rows, width, scale)
  k.cross_entropy(out, y, in, list, n, n, value);

  // One step of AdamW that leaves the gradient zero: (w, g, m, v, count, step)
  k.adamw(out, out, out, out, n, step);
};

}  // namespace moe
