/// The memory-bound kernels of the stack: compiled apart, since nvcc takes long for what has none.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels.hpp"

namespace bench {

namespace {

inline constexpr int block_size = 256;
inline constexpr int warp_size = 32;

inline void check_launch(const char* kernel) {
  const auto code = cudaGetLastError();
  if (code != cudaSuccess) check(code, (std::string("launch of ") + kernel).c_str());
}

// ---- eight elements at a time ----

__device__ inline void load8(const bf16* from, float (&to)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}

__device__ inline unsigned pack2(float low, float high) {
  const unsigned first = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  const unsigned second = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  return first | second << 16;
}

__device__ inline void store8(bf16* to, const float (&from)[8]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(pack2(from[0], from[1]), pack2(from[2], from[3]),
                                             pack2(from[4], from[5]), pack2(from[6], from[7]));
}

struct sum_of {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct max_of {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over a block of `block_size` threads, in every thread, always in the same order.
template <class Operation>
__device__ float reduce(float value, Operation op) {
  __shared__ float of_warp[block_size / warp_size];
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(~0U, value, step));
  }
  __syncthreads();  // of_warp may still be read from the reduction before
  if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = value;
  __syncthreads();
  value = of_warp[0];
  for (int w = 1; w < block_size / warp_size; ++w) value = op(value, of_warp[w]);
  return value;
}

// ---- kernels ----

__device__ inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

__global__ void random_kernel(bf16* to, index packs, std::uint64_t seed, float range) {
  const index stride = static_cast<index>(gridDim.x) * blockDim.x;
  for (index i = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs;
       i += stride) {
    float values[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto bits = mixed(seed + static_cast<std::uint64_t>(2 * i + half));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto word = static_cast<float>((bits >> (16 * j)) & 0xffffU);
        values[4 * half + j] = (word - 32767.5F) * (range / 32768.0F);
      }
    }
    store8(to + i * 8, values);
  }
}

__global__ void gather_kernel(bf16* to, const bf16* from, const int* source, index width) {
  const bf16* const row = from + source[blockIdx.x] * width;
  bf16* const out = to + blockIdx.x * width;
  for (index i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
    *reinterpret_cast<uint4*>(out + i) = *reinterpret_cast<const uint4*>(row + i);
  }
}

// `to` may be `residual`: each element is read before it is written.
__global__ void combine_kernel(bf16* to, const bf16* residual, const bf16* rows, const int* row_of,
                               int top_k, index width) {
  const int* const mine = row_of + static_cast<index>(blockIdx.x) * top_k;
  for (index i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
    float sum[8];
    load8(residual + blockIdx.x * width + i, sum);
    for (int k = 0; k < top_k; ++k) {
      float part[8];
      load8(rows + mine[k] * width + i, part);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += part[j];
    }
    store8(to + blockIdx.x * width + i, sum);
  }
}

__global__ void add_kernel(bf16* to, const bf16* more, index packs) {
  const index i = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  float a[8];
  float b[8];
  load8(to + i * 8, a);
  load8(more + i * 8, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) a[j] += b[j];
  store8(to + i * 8, a);
}

// A row of `a` is the gate, then the value; `weight` is the router's, one for each row.
__global__ void swiglu_kernel(bf16* b, const bf16* a, const float* weight, index ffn) {
  const index row = blockIdx.x;
  for (index i = threadIdx.x * 8; i < ffn; i += blockDim.x * 8) {
    float gate[8];
    float value[8];
    load8(a + row * 2 * ffn + i, gate);
    load8(a + row * 2 * ffn + ffn + i, value);
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] *= weight[row] * gate[j] / (1 + __expf(-gate[j]));
    store8(b + row * ffn + i, value);
  }
}

// Makes b again, which was not saved, and turns db into da.
__global__ void swiglu_backward_kernel(bf16* b, bf16* da, const bf16* db, const bf16* a,
                                       const float* weight, index ffn) {
  const index row = blockIdx.x;
  for (index i = threadIdx.x * 8; i < ffn; i += blockDim.x * 8) {
    float gate[8];
    float value[8];
    float gradient[8];
    load8(a + row * 2 * ffn + i, gate);
    load8(a + row * 2 * ffn + ffn + i, value);
    load8(db + row * ffn + i, gradient);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float open = 1 / (1 + __expf(-gate[j]));
      const float silu = gate[j] * open;
      const float from_above = gradient[j] * weight[row];
      gradient[j] = silu * value[j] * weight[row];
      gate[j] = from_above * value[j] * open * (1 + gate[j] * (1 - open));
      value[j] = from_above * silu;
    }
    store8(b + row * ffn + i, gradient);
    store8(da + row * 2 * ffn + i, gate);
    store8(da + row * 2 * ffn + ffn + i, value);
  }
}

// One block for each query (x) of each head (y); a query sees the keys up to its own. In place.
__global__ void softmax_kernel(bf16* scores, index keys, index first_query) {
  bf16* const row = scores + (static_cast<index>(blockIdx.y) * gridDim.x + blockIdx.x) * keys;
  const index seen = first_query + blockIdx.x + 1;
  float most = -INFINITY;
  float sum = 0;
  for (index i = threadIdx.x * 8; i < seen; i += blockDim.x * 8) {
    float score[8];
    load8(row + i, score);
    float peak = most;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j >= seen) score[j] = -INFINITY;
      peak = fmaxf(peak, score[j]);
    }
    sum *= __expf(most - peak);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += __expf(score[j] - peak);
    most = peak;
  }
  const float top = reduce(most, max_of{});
  const float total = reduce(sum * __expf(most - top), sum_of{});
  const float scale = 1 / total;
  for (index i = threadIdx.x * 8; i < keys; i += blockDim.x * 8) {
    float score[8];
    load8(row + i, score);
#pragma unroll
    for (int j = 0; j < 8; ++j) score[j] = i + j < seen ? __expf(score[j] - top) * scale : 0.0F;
    store8(row + i, score);
  }
}

// Turns the gradients of the probabilities into those of the scores, in place.
__global__ void softmax_backward_kernel(bf16* gradients, const bf16* probabilities, index keys) {
  const index at = (static_cast<index>(blockIdx.y) * gridDim.x + blockIdx.x) * keys;
  float dot = 0;
  for (index i = threadIdx.x * 8; i < keys; i += blockDim.x * 8) {
    float p[8];
    float d[8];
    load8(probabilities + at + i, p);
    load8(gradients + at + i, d);
#pragma unroll
    for (int j = 0; j < 8; ++j) dot += p[j] * d[j];
  }
  dot = reduce(dot, sum_of{});
  for (index i = threadIdx.x * 8; i < keys; i += blockDim.x * 8) {
    float p[8];
    float d[8];
    load8(probabilities + at + i, p);
    load8(gradients + at + i, d);
#pragma unroll
    for (int j = 0; j < 8; ++j) d[j] = p[j] * (d[j] - dot);
    store8(gradients + at + i, d);
  }
}

// Integer sums: the same whatever the order of the threads.
__global__ void checksum_kernel(unsigned long long* into, const bf16* data, index count) {
  unsigned long long sum = 0;
  unsigned long long broken = 0;
  const index stride = static_cast<index>(gridDim.x) * blockDim.x;
  for (index i = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const unsigned bits = __bfloat16_as_ushort(data[i]);
    sum += mixed(static_cast<std::uint64_t>(i) << 16 | bits);
    broken += (bits & 0x7f80U) == 0x7f80U ? 1 : 0;
  }
  atomicAdd(into, sum);
  if (broken != 0) atomicAdd(into + 1, broken);
}

inline unsigned grid(index blocks) { return static_cast<unsigned>(blocks); }
inline unsigned grid_of_threads(index items) { return grid((items + block_size - 1) / block_size); }

}  // namespace

// ---- launches ----

void fill_random(bf16* to, index count, std::uint64_t seed, double deviation, cudaStream_t stream) {
  const auto range = static_cast<float>(deviation * std::sqrt(3.0));
  // Seeds lie far apart, so that no two arrays share a stretch of the sequence.
  random_kernel<<<std::min(grid_of_threads(count / 8), 4096U), block_size, 0, stream>>>(
      to, count / 8, seed << 40, range);
  check_launch("random_kernel");
}

void gather(bf16* to, const bf16* from, const int* source, index rows, index width,
            cudaStream_t stream) {
  gather_kernel<<<grid(rows), block_size, 0, stream>>>(to, from, source, width);
  check_launch("gather_kernel");
}

void combine(bf16* to, const bf16* residual, const bf16* rows, const int* row_of, index tokens,
             index top_k, index width, cudaStream_t stream) {
  combine_kernel<<<grid(tokens), block_size, 0, stream>>>(to, residual, rows, row_of,
                                                          static_cast<int>(top_k), width);
  check_launch("combine_kernel");
}

void add(bf16* to, const bf16* more, index count, cudaStream_t stream) {
  add_kernel<<<grid_of_threads(count / 8), block_size, 0, stream>>>(to, more, count / 8);
  check_launch("add_kernel");
}

void swiglu(bf16* b, const bf16* a, const float* weight, index rows, index ffn,
            cudaStream_t stream) {
  swiglu_kernel<<<grid(rows), block_size, 0, stream>>>(b, a, weight, ffn);
  check_launch("swiglu_kernel");
}

void swiglu_backward(bf16* b, bf16* da, const bf16* db, const bf16* a, const float* weight,
                     index rows, index ffn, cudaStream_t stream) {
  swiglu_backward_kernel<<<grid(rows), block_size, 0, stream>>>(b, da, db, a, weight, ffn);
  check_launch("swiglu_backward_kernel");
}

void softmax(bf16* scores, index heads, index queries, index keys, index first_query,
             cudaStream_t stream) {
  softmax_kernel<<<dim3(grid(queries), grid(heads)), block_size, 0, stream>>>(scores, keys,
                                                                              first_query);
  check_launch("softmax_kernel");
}

void softmax_backward(bf16* gradients, const bf16* probabilities, index heads, index queries,
                      index keys, cudaStream_t stream) {
  softmax_backward_kernel<<<dim3(grid(queries), grid(heads)), block_size, 0, stream>>>(
      gradients, probabilities, keys);
  check_launch("softmax_backward_kernel");
}

void add_checksum(unsigned long long* into, const bf16* data, index count, cudaStream_t stream) {
  checksum_kernel<<<std::min(grid_of_threads(count), 2048U), block_size, 0, stream>>>(into, data,
                                                                                      count);
  check_launch("checksum_kernel");
}

}  // namespace bench
