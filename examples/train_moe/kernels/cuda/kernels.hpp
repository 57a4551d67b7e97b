/// The kernels for CUDA: cuBLASLt for linear layers, cuBLAS for attention, small kernels of its own
/// for the rest.
///
/// fp32 is plain fp32 (no TF32), and narrower operands are summed in fp32. A fixed workspace for
/// both, and no atomics: the same inputs give the same bits wherever the buffers lie. This header
/// needs no nvcc; the kernels are in the `.cu` files of the same name.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <tidepool/device/cuda.hpp>

#include "../../model/device_array.hpp"
#include "../kernels.hpp"
#include "products.hpp"

namespace moe {

class cuda_kernels {
 public:
  using device = tidepool::cuda_device;
  using stream_ref = device::stream_ref;

  cuda_kernels(device& dev, stream_ref stream, const settings& run);
  cuda_kernels(const cuda_kernels&) = delete;
  cuda_kernels& operator=(const cuda_kernels&) = delete;
  ~cuda_kernels();

  // What each of these does is said in `../kernels.hpp`.
  void randomize(float* w, index count, float range, std::uint64_t seed);
  void fill(float* w, index count, float value);
  void publish(float* host, const float* from, index count);
  void publish(std::int32_t* host, const std::int32_t* from, index count);
  void convert(operand y, const_operand x, index count);
  void quantise(operand codes, float* scale, operand x, index rows, index width,
                fp8_scaling scaling);
  void quantise_weight(operand codes, float* scale, operand y, const float* w, index in, index out,
                       fp8_scaling scaling);
  void dequantise(operand x, const_operand codes, const float* scale, index rows, index width,
                  fp8_scaling scaling);
  void encode(const tidepool::fp8_tensor<device>& to, const_operand x);
  void decode(operand x, const tidepool::fp8_tensor<device>& from);
  void find_not_finite(std::int32_t* found, const float* x, index count);
  void add(float* y, const float* a, const float* b, index count);
  void embed(float* x, const float* table, const float* positions, const std::int32_t* token,
             index rows, index seq, index width);
  void embed_backward(float* dtable, float* dpositions, const float* dx, const std::int32_t* token,
                      index rows, index seq, index width);
  void rmsnorm(operand y, float* rstd, const float* x, const float* gain, index rows, index width);
  void rmsnorm_backward(float* dx, float* dgain, const float* dy, const float* x, const float* rstd,
                        const float* gain, index rows, index width);
  void linear(operand y, const_operand x, const_operand w, index rows, index in, index out);
  void linear_of_codes(operand y, coded_operand x, coded_operand w, index rows, index in, index out,
                       fp8_scaling scaling);
  void linear_backward_of_codes(float* dx, float* dw, const_operand x, const_operand dy,
                                coded_operand w, index rows, index in, index out,
                                fp8_scaling scaling);
  void linear_backward_input(operand dx, const_operand dy, const_operand w, index rows, index in,
                             index out);
  void linear_backward_weight(float* dw, const_operand x, const_operand dy, index rows, index in,
                              index out);
  void attention(operand o, float* lse, const_operand qkv, attention_shape s);
  void attention_backward(operand dqkv, const_operand dout, const_operand qkv, const_operand o,
                          const float* lse, attention_shape s);
  void route(float* probs, std::int32_t* choice, const float* logits, routing_shape s);
  void assign(std::int32_t* row, std::int32_t* counts, const std::int32_t* choice, routing_shape s);
  void place(std::int32_t* source, float* weight, const std::int32_t* row,
             const std::int32_t* choice, const float* probs, index rows, routing_shape s);
  void balance(float* loss, const float* probs, const std::int32_t* counts, routing_shape s);
  void route_backward(float* dlogits, const float* dweight, const std::int32_t* row,
                      const std::int32_t* choice, const float* probs, const std::int32_t* counts,
                      float scale, routing_shape s);
  void gather(operand y, const_operand x, const std::int32_t* source, index rows, index top_k,
              index width);
  void combine(float* y, const float* residual, const float* x, const std::int32_t* row,
               index tokens, index top_k, index width);
  void swiglu(operand b, const_operand a, const float* weight, index rows, index ffn);
  void swiglu_backward(operand da, float* dweight, const float* db, const_operand a,
                       const float* weight, index rows, index ffn);
  void cross_entropy(float* loss, operand dlogits, const float* logits, const std::int32_t* target,
                     index rows, index width, float scale);
  void adamw(float* w, float* g, float* m, float* v, index count, adamw_step s);

 private:
  struct matrix {
    const_operand data;
    index ld;
    bool transposed;
    index stride;  ///< from one of a batch to the next
  };

  /// c[m][n] = alpha · a·b, row-major, for `batch` triples.
  void gemm(index m, index n, index k, float alpha, const matrix& a, const matrix& b, operand c,
            index ldc, index c_stride, index batch);
  /// Throws `tidepool::option_error` unless the GPU multiplies codes with such scales.
  static void check_multiplies_codes(const device& dev, fp8_scaling scaling);
  /// The scale with which all of `x` fits such codes.
  void scale_of_tensor(float* scale, const_operand x, index count,
                       number_type codes = number_type::e4m3);
  /// Runs `body(first token, first head, heads)` over groups of heads that fit the scratch.
  template <class Body>
  void each_group_of_heads(attention_shape s, Body body);

  /// Where `scores` go as an operand in the type of `like`.
  static operand as_operand(const device_array<device, float>& scores,
                            const std::optional<device_array<device, float>>& narrow,
                            const_operand like);

  /// Heads whose scores are in memory at once.
  static constexpr index heads_at_once = 4;
  /// Rows that one partial sum of a gain's gradient covers.
  static constexpr index rows_per_sum = 64;
  /// Partial results of the largest number of a whole tensor.
  static constexpr int blocks_of_maximum = 256;
  static constexpr index blas_bytes = index{32} << 20;  ///< what cuBLAS would take on Hopper
  /// Rows of a sum of codes over them, with zeros at its end: cuBLASLt wants multiples of 16, and
  /// few products have less than 64.
  static index summed_rows(index rows) { return rows < 64 ? 64 : (rows + 15) / 16 * 16; }
  static index parts_of(index rows) { return (rows + rows_per_sum - 1) / rows_per_sum; }

  device& device_;
  cudaStream_t stream_;
  cublasHandle_t blas_ = nullptr;
  device_array<device, float> blas_memory_;  ///< of cuBLAS and cuBLASLt
  products products_;
  device_array<device, float> scores_;   ///< [heads_at_once][seq][seq]
  device_array<device, float> dscores_;  ///< the same
  // Probabilities and the gradients of scores as operands: in place of these two, or here.
  std::optional<device_array<device, float>> narrow_scores_, narrow_dscores_;
  device_array<device, float> partial_;  ///< partial sums of reductions over tokens
  /// Where codes are multiplied: the scales of some rows, as cuBLASLt reads them.
  std::optional<device_array<device, float>> turned_scales_;
  /// Where backward multiplies codes too: those of some rows, as they lie or turned over.
  struct code_room {
    device_array<device, e4m3> codes;
    device_array<device, float> scale;

    code_room(device& dev, index count, index scales)
        : codes(dev, count, "codes of rows"), scale(dev, scales, "scales of rows") {}
  };
  std::optional<code_room> dy_codes_, turned_dy_, turned_x_;
};

static_assert(kernel_set<cuda_kernels>);

}  // namespace moe
