/// CUDA kernels of the routed experts: choosing, laying out rows, moving them, activation.
#include <algorithm>

#include "kernels.hpp"
#include "tools.cuh"

namespace moe {
namespace {

constexpr index most_experts = 256;  // `validate` allows no more

// One thread for each token: there are few experts, and their order decides ties.
__global__ void route_kernel(float* probs, std::int32_t* choice, const float* logits,
                             routing_shape s) {
  const index t = thread_id();
  if (t >= s.tokens) return;
  const float* in = logits + t * s.experts;
  float* p = probs + t * s.experts;
  float top = in[0];
  for (index e = 1; e < s.experts; ++e) top = fmaxf(top, in[e]);
  float sum = 0;
  for (index e = 0; e < s.experts; ++e) sum += p[e] = expf(in[e] - top);
  for (index e = 0; e < s.experts; ++e) p[e] /= sum;
  std::int32_t* chosen = choice + t * s.top_k;
  for (index k = 0; k < s.top_k; ++k) {
    index best = -1;
    for (index e = 0; e < s.experts; ++e) {
      bool taken = false;
      for (index before = 0; before < k; ++before) taken |= chosen[before] == e;
      if (!taken && (best < 0 || p[e] > p[best])) best = e;
    }
    chosen[k] = static_cast<std::int32_t>(best);
  }
}

// One block for each expert: the rank of each of its choices, in the order of the tokens.
__global__ void rank_kernel(std::int32_t* row, std::int32_t* counts, const std::int32_t* choice,
                            index choices) {
  __shared__ int of_warp[block_size / warp_size];
  const int expert = static_cast<int>(blockIdx.x);
  const unsigned warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  int before = 0;
  for (index first = 0; first < choices; first += block_size) {
    const index i = first + threadIdx.x;
    const bool mine = i < choices && choice[i] == expert;
    const unsigned votes = __ballot_sync(~0U, mine);
    __syncthreads();
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int rank = before + __popc(votes & ((1U << lane) - 1));
    for (unsigned w = 0; w < block_size / warp_size; ++w) {
      if (w < warp) rank += of_warp[w];
      before += of_warp[w];
    }
    if (mine) row[i] = rank;
  }
  if (threadIdx.x == 0) counts[expert] = before;
}

// Rank within the expert becomes row among all.
__global__ void rank_to_row_kernel(std::int32_t* row, const std::int32_t* counts,
                                   const std::int32_t* choice, routing_shape s) {
  __shared__ std::int32_t first[most_experts];
  if (threadIdx.x == 0) {
    index next = 0;
    for (index e = 0; e < s.experts; ++e) {
      first[e] = static_cast<std::int32_t>(next);
      const index kept = min(static_cast<index>(counts[e]), s.capacity);
      next += (kept + row_padding - 1) / row_padding * row_padding;
    }
  }
  __syncthreads();
  const index i = thread_id();
  if (i < s.tokens * s.top_k) row[i] = row[i] < s.capacity ? row[i] + first[choice[i]] : -1;
}

__global__ void clear_rows_kernel(std::int32_t* source, float* weight, index rows) {
  const index r = thread_id();
  if (r >= rows) return;
  source[r] = -1;
  weight[r] = 0;
}

__global__ void place_kernel(std::int32_t* source, float* weight, const std::int32_t* row,
                             const std::int32_t* choice, const float* probs, routing_shape s) {
  const index i = thread_id();
  if (i >= s.tokens * s.top_k || row[i] < 0) return;
  source[row[i]] = static_cast<std::int32_t>(i);
  weight[row[i]] = probs[i / s.top_k * s.experts + choice[i]];
}

__device__ float balance_scale(const routing_shape& s) {
  return static_cast<float>(s.experts) / (static_cast<float>(s.tokens) * s.tokens * s.top_k);
}

__global__ void balance_kernel(float* loss, const float* probs, const std::int32_t* counts,
                               routing_shape s) {
  float sum = 0;
  for (index t = threadIdx.x; t < s.tokens; t += blockDim.x) {
    for (index e = 0; e < s.experts; ++e) {
      sum += probs[t * s.experts + e] * static_cast<float>(counts[e]);
    }
  }
  sum = reduce(sum, sum_of{});
  if (threadIdx.x == 0) *loss = sum * balance_scale(s);
}

__global__ void route_backward_kernel(float* dlogits, const float* dweight, const std::int32_t* row,
                                      const std::int32_t* choice, const float* probs,
                                      const std::int32_t* counts, float scale, routing_shape s) {
  const index t = thread_id();
  if (t >= s.tokens) return;
  const float* p = probs + t * s.experts;
  float* d = dlogits + t * s.experts;
  for (index e = 0; e < s.experts; ++e) {
    d[e] = scale * balance_scale(s) * static_cast<float>(counts[e]);
  }
  for (index i = t * s.top_k; i < (t + 1) * s.top_k; ++i) {
    if (row[i] >= 0) d[choice[i]] += dweight[row[i]];
  }
  float mean = 0;
  for (index e = 0; e < s.experts; ++e) mean += d[e] * p[e];
  for (index e = 0; e < s.experts; ++e) d[e] = p[e] * (d[e] - mean);
}

/// Four numbers that are read and written at once.
template <class T>
struct alignas(4 * sizeof(T)) quad {
  T number[4];
};

// One block for each row; widths are multiples of 4.
template <class To, class From>
__global__ void gather_kernel(quad<To>* y, const quad<From>* x, const std::int32_t* source,
                              index top_k, index width) {
  const index r = blockIdx.x;
  const index from = source[r];
  for (index c = threadIdx.x; c < width; c += blockDim.x) {
    quad<From> in{};
    if (from >= 0) in = x[from / top_k * width + c];
    quad<To> out;
    for (int i = 0; i < 4; ++i) put(out.number[i], to_float(in.number[i]));
    y[r * width + c] = out;
  }
}

__global__ void combine_kernel(float4* y, const float4* residual, const float4* x,
                               const std::int32_t* row, index top_k, index width) {
  const index t = blockIdx.x;
  for (index c = threadIdx.x; c < width; c += blockDim.x) {
    float4 sum = residual[t * width + c];
    for (index k = 0; k < top_k; ++k) {
      const index from = row[t * top_k + k];
      if (from < 0) continue;
      const float4 part = x[from * width + c];
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    y[t * width + c] = sum;
  }
}

template <class T>
__global__ void swiglu_kernel(T* b, const T* a, const float* weight, index ffn) {
  const index r = blockIdx.x;
  const T* row = a + r * 2 * ffn;
  for (index c = threadIdx.x; c < ffn; c += blockDim.x) {
    const float gate = to_float(row[c]), value = to_float(row[ffn + c]);
    put(b[r * ffn + c], gate * sigmoid(gate) * value * weight[r]);
  }
}

template <class T>
__global__ void swiglu_backward_kernel(T* da, float* dweight, const float* db, const T* a,
                                       const float* weight, index ffn) {
  const index r = blockIdx.x;
  const T* row = a + r * 2 * ffn;
  T* dgate = da + r * 2 * ffn;
  T* dvalue = dgate + ffn;
  float sum = 0;
  for (index c = threadIdx.x; c < ffn; c += blockDim.x) {
    const float up = db[r * ffn + c];
    const float gate = to_float(row[c]), value = to_float(row[ffn + c]);
    const float s = sigmoid(gate);
    const float silu = gate * s;
    sum += up * silu * value;
    put(dgate[c], up * weight[r] * value * (s + silu * (1 - s)));
    put(dvalue[c], up * weight[r] * silu);
  }
  sum = reduce(sum, sum_of{});
  if (threadIdx.x == 0) dweight[r] = sum;
}

float4* four(float* x) { return reinterpret_cast<float4*>(x); }
const float4* four(const float* x) { return reinterpret_cast<const float4*>(x); }

}  // namespace

void cuda_kernels::route(float* probs, std::int32_t* choice, const float* logits, routing_shape s) {
  route_kernel<<<blocks_for(s.tokens), block_size, 0, stream_>>>(probs, choice, logits, s);
  check_launch("route");
}

void cuda_kernels::assign(std::int32_t* row, std::int32_t* counts, const std::int32_t* choice,
                          routing_shape s) {
  const index choices = s.tokens * s.top_k;
  rank_kernel<<<static_cast<unsigned>(s.experts), block_size, 0, stream_>>>(row, counts, choice,
                                                                            choices);
  check_launch("rank");
  rank_to_row_kernel<<<blocks_for(choices), block_size, 0, stream_>>>(row, counts, choice, s);
  check_launch("rank_to_row");
}

void cuda_kernels::place(std::int32_t* source, float* weight, const std::int32_t* row,
                         const std::int32_t* choice, const float* probs, index rows,
                         routing_shape s) {
  clear_rows_kernel<<<blocks_for(rows), block_size, 0, stream_>>>(source, weight, rows);
  check_launch("clear_rows");
  place_kernel<<<blocks_for(s.tokens * s.top_k), block_size, 0, stream_>>>(source, weight, row,
                                                                           choice, probs, s);
  check_launch("place");
}

void cuda_kernels::balance(float* loss, const float* probs, const std::int32_t* counts,
                           routing_shape s) {
  balance_kernel<<<1, block_size, 0, stream_>>>(loss, probs, counts, s);
  check_launch("balance");
}

void cuda_kernels::route_backward(float* dlogits, const float* dweight, const std::int32_t* row,
                                  const std::int32_t* choice, const float* probs,
                                  const std::int32_t* counts, float scale, routing_shape s) {
  route_backward_kernel<<<blocks_for(s.tokens), block_size, 0, stream_>>>(
      dlogits, dweight, row, choice, probs, counts, scale, s);
  check_launch("route_backward");
}

void cuda_kernels::gather(operand y, const_operand x, const std::int32_t* source, index rows,
                          index top_k, index width) {
  with_numbers(x, [&]<class From>(const From* from) {
    with_numbers(y, [&]<class To>(To* to) {
      gather_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(
          reinterpret_cast<quad<To>*>(to), reinterpret_cast<const quad<From>*>(from), source, top_k,
          width / 4);
    });
  });
  check_launch("gather");
}

void cuda_kernels::combine(float* y, const float* residual, const float* x, const std::int32_t* row,
                           index tokens, index top_k, index width) {
  combine_kernel<<<static_cast<unsigned>(tokens), block_size, 0, stream_>>>(
      four(y), four(residual), four(x), row, top_k, width / 4);
  check_launch("combine");
}

void cuda_kernels::swiglu(operand b, const_operand a, const float* weight, index rows, index ffn) {
  with_numbers(b, [&]<class T>(T* to) {
    swiglu_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(to, a.as<T>(), weight,
                                                                           ffn);
  });
  check_launch("swiglu");
}

void cuda_kernels::swiglu_backward(operand da, float* dweight, const float* db, const_operand a,
                                   const float* weight, index rows, index ffn) {
  with_numbers(da, [&]<class T>(T* to) {
    swiglu_backward_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(
        to, dweight, db, a.as<T>(), weight, ffn);
  });
  check_launch("swiglu_backward");
}

}  // namespace moe
