/// A set of kernels that tells a checking device what each of them reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tidepool/codec/fp8.hpp>

#include "kernels.hpp"

namespace moe {

/// `Kernels` on a `tidepool::checked_device`. What depends on the routing is declared as far as the
/// shapes tell: of rows that experts drop, nothing.
template <class Kernels, class Device>
class declared_kernels {
 public:
  using device = Device;
  using stream_ref = typename device::stream_ref;

  declared_kernels(device& dev, stream_ref stream, const settings& run)
      : dev_(dev),
        stream_(stream),
        inner_(dev, stream, run),
        codec_(dev, run.speed.bandwidth * 1e-9),
        tokens_(run.model.tokens()),
        drops_(run.model.capacity_factor > 0) {}

  // What each of these does is said in `kernels.hpp`.

  void randomize(float* w, index count, float range, std::uint64_t seed) {
    inner_.randomize(w, count, range, seed);
    writes("randomize", w, count);
  }
  void fill(float* w, index count, float value) {
    inner_.fill(w, count, value);
    writes("fill", w, count);
  }
  template <class T>
  void publish(T* host, const T* from, index count) {
    inner_.publish(host, from, count);
    reads("publish", from, count);
    writes("publish", host, count);
  }

  // ---- between numbers of different types ----

  void convert(operand y, const_operand x, index count) {
    inner_.convert(y, x, count);
    reads("convert", x, count);
    writes("convert", y, count);
  }
  void quantise(operand codes, float* scale, operand x, index rows, index width,
                fp8_scaling scaling) {
    inner_.quantise(codes, scale, x, rows, width, scaling);
    updates("quantise", x, rows * width);
    writes("quantise", codes, rows * width);
    writes("quantise", scale, scale_count(rows, width, scaling));
  }
  void quantise_weight(operand codes, float* scale, operand y, const float* w, index in, index out,
                       fp8_scaling scaling) {
    inner_.quantise_weight(codes, scale, y, w, in, out, scaling);
    reads("quantise_weight", w, in * out);
    writes("quantise_weight", codes, in * out);
    writes("quantise_weight", scale, weight_scale_count(in, out, scaling));
    if (y.type == number_type::e4m3) {
      writes("quantise_weight", scale + turned_scales_at(in, out, scaling),
             weight_scale_count(out, in, scaling));
    }
    writes("quantise_weight", y, in * out);
  }
  void dequantise(operand x, const_operand codes, const float* scale, index rows, index width,
                  fp8_scaling scaling) {
    inner_.dequantise(x, codes, scale, rows, width, scaling);
    reads("dequantise", codes, rows * width);
    reads("dequantise", scale, scale_count(rows, width, scaling));
    writes("dequantise", x, rows * width);
  }
  void encode(const tidepool::fp8_tensor<device>& to, const_operand x) {
    codec_.encode_into(to, x.data, stream_);
    reads("encode", x, static_cast<index>(to.elements));
    dev_.writes(to.data.data(), tidepool::codec::packed_bytes(to.elements), stream_, "encode");
  }
  void decode(operand x, const tidepool::fp8_tensor<device>& from) {
    codec_.decode_into(x.data, from, stream_);
    dev_.reads(from.data.data(), tidepool::codec::packed_bytes(from.elements), stream_, "decode");
    writes("decode", x, static_cast<index>(from.elements));
  }
  void find_not_finite(std::int32_t* found, const float* x, index count) {
    inner_.find_not_finite(found, x, count);
    reads("find_not_finite", x, count);
    writes("find_not_finite", found, 1);
  }

  // ---- on every token ----

  void add(float* y, const float* a, const float* b, index count) {
    inner_.add(y, a, b, count);
    reads("add", a, count);
    reads("add", b, count);
    writes("add", y, count);
  }
  void embed(float* x, const float* table, const float* positions, const std::int32_t* token,
             index rows, index seq, index width) {
    inner_.embed(x, table, positions, token, rows, seq, width);
    reads("embed", token, rows);
    reads("embed", table, vocabulary * width);
    reads("embed", positions, seq * width);
    writes("embed", x, rows * width);
  }
  void embed_backward(float* dtable, float* dpositions, const float* dx, const std::int32_t* token,
                      index rows, index seq, index width) {
    inner_.embed_backward(dtable, dpositions, dx, token, rows, seq, width);
    reads("embed_backward", token, rows);
    reads("embed_backward", dx, rows * width);
    updates("embed_backward", dtable, vocabulary * width);
    updates("embed_backward", dpositions, seq * width);
  }
  void rmsnorm(operand y, float* rstd, const float* x, const float* gain, index rows, index width) {
    inner_.rmsnorm(y, rstd, x, gain, rows, width);
    reads("rmsnorm", x, rows * width);
    reads("rmsnorm", gain, width);
    writes("rmsnorm", y, rows * width);
    writes("rmsnorm", rstd, rows);
  }
  void rmsnorm_backward(float* dx, float* dgain, const float* dy, const float* x, const float* rstd,
                        const float* gain, index rows, index width) {
    inner_.rmsnorm_backward(dx, dgain, dy, x, rstd, gain, rows, width);
    reads("rmsnorm_backward", dy, rows * width);
    reads("rmsnorm_backward", x, rows * width);
    reads("rmsnorm_backward", rstd, rows);
    reads("rmsnorm_backward", gain, width);
    updates("rmsnorm_backward", dx, rows * width);
    updates("rmsnorm_backward", dgain, width);
  }
  void linear(operand y, const_operand x, const_operand w, index rows, index in, index out) {
    inner_.linear(y, x, w, rows, in, out);
    reads("linear", x, rows * in);
    reads("linear", w, in * out);
    writes("linear", y, rows * out);
  }
  void linear_of_codes(operand y, coded_operand x, coded_operand w, index rows, index in, index out,
                       fp8_scaling scaling) {
    inner_.linear_of_codes(y, x, w, rows, in, out, scaling);
    reads("linear_of_codes", x.codes, rows * in);
    reads("linear_of_codes", x.scale, scale_count(rows, in, scaling));
    reads("linear_of_codes", w.codes, in * out);
    reads("linear_of_codes", w.scale, weight_scale_count(in, out, scaling));
    writes("linear_of_codes", y, rows * out);
  }
  void linear_backward_of_codes(float* dx, float* dw, const_operand x, const_operand dy,
                                coded_operand w, index rows, index in, index out,
                                fp8_scaling scaling) {
    inner_.linear_backward_of_codes(dx, dw, x, dy, w, rows, in, out, scaling);
    reads("linear_backward_of_codes", x, rows * in);
    reads("linear_backward_of_codes", dy, rows * out);
    reads("linear_backward_of_codes", w.codes, in * out);
    reads("linear_backward_of_codes", w.scale, weight_scale_count(out, in, scaling));
    updates("linear_backward_of_codes", dw, in * out);
    writes("linear_backward_of_codes", dx, rows * in);
  }
  void linear_backward_input(operand dx, const_operand dy, const_operand w, index rows, index in,
                             index out) {
    inner_.linear_backward_input(dx, dy, w, rows, in, out);
    reads("linear_backward_input", dy, rows * out);
    reads("linear_backward_input", w, in * out);
    writes("linear_backward_input", dx, rows * in);
  }
  void linear_backward_weight(float* dw, const_operand x, const_operand dy, index rows, index in,
                              index out) {
    inner_.linear_backward_weight(dw, x, dy, rows, in, out);
    reads("linear_backward_weight", x, rows * in);
    reads("linear_backward_weight", dy, rows * out);
    updates("linear_backward_weight", dw, in * out);
  }
  void attention(operand o, float* lse, const_operand qkv, attention_shape s) {
    inner_.attention(o, lse, qkv, s);
    const index rows = s.batch * s.seq;
    reads("attention", qkv, 3 * rows * s.width());
    writes("attention", o, rows * s.width());
    writes("attention", lse, rows * s.heads);
  }
  void attention_backward(operand dqkv, const_operand dout, const_operand qkv, const_operand o,
                          const float* lse, attention_shape s) {
    inner_.attention_backward(dqkv, dout, qkv, o, lse, s);
    const index rows = s.batch * s.seq;
    reads("attention_backward", dout, rows * s.width());
    reads("attention_backward", qkv, 3 * rows * s.width());
    reads("attention_backward", o, rows * s.width());
    reads("attention_backward", lse, rows * s.heads);
    writes("attention_backward", dqkv, 3 * rows * s.width());
  }

  // ---- routing ----

  void route(float* probs, std::int32_t* choice, const float* logits, routing_shape s) {
    inner_.route(probs, choice, logits, s);
    reads("route", logits, s.tokens * s.experts);
    writes("route", probs, s.tokens * s.experts);
    writes("route", choice, s.tokens * s.top_k);
  }
  void assign(std::int32_t* row, std::int32_t* counts, const std::int32_t* choice,
              routing_shape s) {
    inner_.assign(row, counts, choice, s);
    reads("assign", choice, s.tokens * s.top_k);
    writes("assign", row, s.tokens * s.top_k);
    writes("assign", counts, s.experts);
  }
  void place(std::int32_t* source, float* weight, const std::int32_t* row,
             const std::int32_t* choice, const float* probs, index rows, routing_shape s) {
    inner_.place(source, weight, row, choice, probs, rows, s);
    reads("place", row, s.tokens * s.top_k);
    reads("place", choice, s.tokens * s.top_k);
    reads("place", probs, s.tokens * s.experts);
    writes("place", source, rows);
    writes("place", weight, rows);
  }
  void balance(float* loss, const float* probs, const std::int32_t* counts, routing_shape s) {
    inner_.balance(loss, probs, counts, s);
    reads("balance", probs, s.tokens * s.experts);
    reads("balance", counts, s.experts);
    writes("balance", loss, 1);
  }
  void route_backward(float* dlogits, const float* dweight, const std::int32_t* row,
                      const std::int32_t* choice, const float* probs, const std::int32_t* counts,
                      float scale, routing_shape s) {
    inner_.route_backward(dlogits, dweight, row, choice, probs, counts, scale, s);
    reads("route_backward", dweight, routed(s.top_k));
    reads("route_backward", row, s.tokens * s.top_k);
    reads("route_backward", choice, s.tokens * s.top_k);
    reads("route_backward", probs, s.tokens * s.experts);
    reads("route_backward", counts, s.experts);
    writes("route_backward", dlogits, s.tokens * s.experts);
  }
  void gather(operand y, const_operand x, const std::int32_t* source, index rows, index top_k,
              index width) {
    inner_.gather(y, x, source, rows, top_k, width);
    reads("gather", source, rows);
    reads("gather", x, tokens_ * width);
    writes("gather", y, rows * width);
  }
  void combine(float* y, const float* residual, const float* x, const std::int32_t* row,
               index tokens, index top_k, index width) {
    inner_.combine(y, residual, x, row, tokens, top_k, width);
    reads("combine", row, tokens * top_k);
    reads("combine", residual, tokens * width);
    reads("combine", x, routed(top_k) * width);
    writes("combine", y, tokens * width);
  }
  void swiglu(operand b, const_operand a, const float* weight, index rows, index ffn) {
    inner_.swiglu(b, a, weight, rows, ffn);
    reads("swiglu", a, 2 * rows * ffn);
    reads("swiglu", weight, rows);
    writes("swiglu", b, rows * ffn);
  }
  void swiglu_backward(operand da, float* dweight, const float* db, const_operand a,
                       const float* weight, index rows, index ffn) {
    inner_.swiglu_backward(da, dweight, db, a, weight, rows, ffn);
    reads("swiglu_backward", db, rows * ffn);
    reads("swiglu_backward", a, 2 * rows * ffn);
    reads("swiglu_backward", weight, rows);
    writes("swiglu_backward", da, 2 * rows * ffn);
    writes("swiglu_backward", dweight, rows);
  }

  // ---- the end of a step ----

  void cross_entropy(float* loss, operand dlogits, const float* logits, const std::int32_t* target,
                     index rows, index width, float scale) {
    inner_.cross_entropy(loss, dlogits, logits, target, rows, width, scale);
    reads("cross_entropy", logits, rows * width);
    reads("cross_entropy", target, rows);
    writes("cross_entropy", dlogits, rows * width);
    writes("cross_entropy", loss, 1);
  }
  void adamw(float* w, float* g, float* m, float* v, index count, adamw_step s) {
    inner_.adamw(w, g, m, v, count, s);
    for (float* const each : {w, g, m, v}) updates("adamw", each, count);
  }

 private:
  template <class T>
  void reads(const char* kernel, const T* data, index count) {
    if (data == nullptr || count <= 0) return;
    dev_.reads(data, static_cast<std::size_t>(count) * sizeof(T), stream_, kernel);
  }
  template <class T>
  void writes(const char* kernel, T* data, index count) {
    if (data == nullptr || count <= 0) return;
    dev_.writes(data, static_cast<std::size_t>(count) * sizeof(T), stream_, kernel);
  }
  void reads(const char* kernel, const_operand x, index count) {
    reads(kernel, x.as<char>(), count * bytes_of(x.type));
  }
  void writes(const char* kernel, operand y, index count) {
    writes(kernel, y.as<char>(), count * bytes_of(y.type));
  }
  template <class Memory>
  void updates(const char* kernel, Memory what, index count) {
    reads(kernel, what, count);
    writes(kernel, what, count);
  }
  /// Rows of experts that there are at least: their padding comes on top.
  [[nodiscard]] index routed(index top_k) const { return drops_ ? 0 : tokens_ * top_k; }

  device& dev_;
  stream_ref stream_;
  Kernels inner_;
  tidepool::fp8_codec<device> codec_;
  index tokens_;
  bool drops_;
};

}  // namespace moe
