/// CUDA kernels of norms, embedding, loss and AdamW: one pass over memory each.
#include <cmath>
#include <cub/block/block_scan.cuh>

#include "kernels.hpp"
#include "tools.cuh"

namespace moe {
namespace {

constexpr float epsilon = 1e-5F;

__global__ void randomize_kernel(float* w, index count, float range, std::uint64_t seed) {
  const index i = thread_id();
  if (i >= count) return;
  const auto bits = mix(seed + static_cast<std::uint64_t>(i)) >> 40;
  w[i] = (static_cast<float>(bits) * 0x1p-23F - 1) * range;
}

__global__ void fill_kernel(float* w, index count, float value) {
  const index i = thread_id();
  if (i < count) w[i] = value;
}

template <class T>
__global__ void publish_kernel(T* host, const T* from, index count) {
  const index i = thread_id();
  if (i < count) host[i] = from[i];
}

__global__ void add_kernel(float4* y, const float4* a, const float4* b, index count) {
  const index i = thread_id();
  if (i >= count) return;
  const float4 u = a[i], v = b[i];
  y[i] = {u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w};
}

__global__ void embed_kernel(float* x, const float* table, const float* positions,
                             const std::int32_t* token, index seq, index width) {
  const index t = blockIdx.x;
  for (index c = threadIdx.x; c < width; c += blockDim.x) {
    const float word = table[token[t] * width + c];
    x[t * width + c] = positions == nullptr ? word : word + positions[t % seq * width + c];
  }
}

// Blocks of one word add up that word's tokens in their order.
__global__ void embed_table_backward_kernel(float* dtable, const float* dx,
                                            const std::int32_t* token, index rows, index width) {
  using scan = cub::BlockScan<int, block_size>;
  __shared__ typename scan::TempStorage scratch;
  __shared__ int found[block_size];
  const std::int32_t word = static_cast<std::int32_t>(blockIdx.x);
  const index c = static_cast<index>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (index first = 0; first < rows; first += block_size) {
    const int mine = first + thread < rows && token[first + thread] == word ? 1 : 0;
    int before = 0, count = 0;
    scan(scratch).ExclusiveSum(mine, before, count);
    if (mine != 0) found[before] = thread;
    __syncthreads();
    if (c < width) {
      for (int i = 0; i < count; ++i) sum += dx[(first + found[i]) * width + c];
    }
    __syncthreads();
  }
  if (c < width) dtable[word * width + c] += sum;
}

__global__ void embed_positions_backward_kernel(float* dpositions, const float* dx, index rows,
                                                index seq, index width) {
  const index i = thread_id();
  if (i >= seq * width) return;
  float sum = 0;
  for (index at = i; at < rows * width; at += seq * width) sum += dx[at];
  dpositions[i] += sum;
}

// One block for each row, here and below.
template <class T>
__global__ void rmsnorm_kernel(T* y, float* rstd, const float* x, const float* gain, index width) {
  const index t = blockIdx.x;
  const float* in = x + t * width;
  float sum = 0;
  for (index c = threadIdx.x; c < width; c += blockDim.x) sum += in[c] * in[c];
  const float r = rsqrtf(reduce(sum, sum_of{}) / static_cast<float>(width) + epsilon);
  if (threadIdx.x == 0) rstd[t] = r;
  for (index c = threadIdx.x; c < width; c += blockDim.x) {
    put(y[t * width + c], in[c] * r * gain[c]);
  }
}

__global__ void rmsnorm_backward_kernel(float* dx, const float* dy, const float* x,
                                        const float* rstd, const float* gain, index width) {
  const index t = blockIdx.x;
  const float* in = x + t * width;
  const float* up = dy + t * width;
  const float r = rstd[t];
  float sum = 0;
  for (index c = threadIdx.x; c < width; c += blockDim.x) sum += up[c] * gain[c] * in[c];
  const float shrink = reduce(sum, sum_of{}) * r * r / static_cast<float>(width);
  for (index c = threadIdx.x; c < width; c += blockDim.x) {
    dx[t * width + c] += (up[c] * gain[c] - in[c] * shrink) * r;
  }
}

// partial[block][c] = Σ over that block's rows; `add_partial_kernel` adds the blocks up in order.
__global__ void gain_partial_kernel(float* partial, const float* dy, const float* x,
                                    const float* rstd, index rows, index width, index per_block) {
  const index c = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= width) return;
  const index first = blockIdx.y * per_block;
  float sum = 0;
  for (index t = first; t < min(first + per_block, rows); ++t) {
    sum += dy[t * width + c] * x[t * width + c] * rstd[t];
  }
  partial[blockIdx.y * width + c] = sum;
}

__global__ void add_partial_kernel(float* sum, const float* partial, index parts, index width) {
  const index c = thread_id();
  if (c >= width) return;
  float total = 0;
  for (index i = 0; i < parts; ++i) total += partial[i * width + c];
  sum[c] += total;
}

// The gradient may lie in place of the logits: each thread writes what it alone has read last.
template <class T>
__global__ void cross_entropy_kernel(float* losses, T* dlogits, const float* logits,
                                     const std::int32_t* target, index width, float scale) {
  const index t = blockIdx.x;
  const float* p = logits + t * width;
  float top = -INFINITY;
  for (index c = threadIdx.x; c < width; c += blockDim.x) top = fmaxf(top, p[c]);
  top = reduce(top, max_of{});
  float sum = 0;
  for (index c = threadIdx.x; c < width; c += blockDim.x) sum += expf(p[c] - top);
  sum = reduce(sum, sum_of{});
  if (threadIdx.x == 0) losses[t] = logf(sum) - (p[target[t]] - top);
  __syncthreads();
  for (index c = threadIdx.x; c < width; c += blockDim.x) {
    put(dlogits[t * width + c], scale * (expf(p[c] - top) / sum - (c == target[t] ? 1.0F : 0.0F)));
  }
}

// One block: the mean of all rows, each thread's share in order, then the threads'.
__global__ void mean_kernel(float* mean, const float* values, index count) {
  float sum = 0;
  for (index i = threadIdx.x; i < count; i += blockDim.x) sum += values[i];
  sum = reduce(sum, sum_of{});
  if (threadIdx.x == 0) *mean = sum / static_cast<float>(count);
}

__global__ void adamw_kernel(float* w, float* g, float* m, float* v, index count, adamw_step s) {
  const index i = thread_id();
  if (i >= count) return;
  const float gradient = g[i] * s.unscale;
  m[i] = s.beta1 * m[i] + (1 - s.beta1) * gradient;
  v[i] = s.beta2 * v[i] + (1 - s.beta2) * gradient * gradient;
  const float step = m[i] / s.correction1 / (sqrtf(v[i] / s.correction2) + s.epsilon);
  w[i] -= s.learning_rate * (step + s.decay * w[i]);
  g[i] = 0;
}

}  // namespace

void cuda_kernels::randomize(float* w, index count, float range, std::uint64_t seed) {
  randomize_kernel<<<blocks_for(count), block_size, 0, stream_>>>(w, count, range, seed);
  check_launch("randomize");
}

void cuda_kernels::fill(float* w, index count, float value) {
  fill_kernel<<<blocks_for(count), block_size, 0, stream_>>>(w, count, value);
  check_launch("fill");
}

void cuda_kernels::publish(float* host, const float* from, index count) {
  publish_kernel<<<blocks_for(count), block_size, 0, stream_>>>(host, from, count);
  check_launch("publish");
}

void cuda_kernels::publish(std::int32_t* host, const std::int32_t* from, index count) {
  publish_kernel<<<blocks_for(count), block_size, 0, stream_>>>(host, from, count);
  check_launch("publish");
}

void cuda_kernels::add(float* y, const float* a, const float* b, index count) {
  const auto four = [](auto* x) { return reinterpret_cast<float4*>(const_cast<float*>(x)); };
  add_kernel<<<blocks_for(count / 4), block_size, 0, stream_>>>(four(y), four(a), four(b),
                                                                count / 4);
  check_launch("add");
}

void cuda_kernels::embed(float* x, const float* table, const float* positions,
                         const std::int32_t* token, index rows, index seq, index width) {
  embed_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(x, table, positions, token,
                                                                        seq, width);
  check_launch("embed");
}

void cuda_kernels::embed_backward(float* dtable, float* dpositions, const float* dx,
                                  const std::int32_t* token, index rows, index seq, index width) {
  const dim3 grid(static_cast<unsigned>(vocabulary), blocks_for(width));
  embed_table_backward_kernel<<<grid, block_size, 0, stream_>>>(dtable, dx, token, rows, width);
  check_launch("embed_table_backward");
  if (dpositions == nullptr) return;
  embed_positions_backward_kernel<<<blocks_for(seq * width), block_size, 0, stream_>>>(
      dpositions, dx, rows, seq, width);
  check_launch("embed_positions_backward");
}

void cuda_kernels::rmsnorm(operand y, float* rstd, const float* x, const float* gain, index rows,
                           index width) {
  with_numbers(y, [&](auto* to) {
    rmsnorm_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(to, rstd, x, gain,
                                                                            width);
  });
  check_launch("rmsnorm");
}

void cuda_kernels::rmsnorm_backward(float* dx, float* dgain, const float* dy, const float* x,
                                    const float* rstd, const float* gain, index rows, index width) {
  rmsnorm_backward_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(dx, dy, x, rstd,
                                                                                   gain, width);
  check_launch("rmsnorm_backward");
  const index parts = parts_of(rows);
  const dim3 grid(blocks_for(width), static_cast<unsigned>(parts));
  gain_partial_kernel<<<grid, block_size, 0, stream_>>>(partial_.data(), dy, x, rstd, rows, width,
                                                        rows_per_sum);
  check_launch("gain_partial");
  add_partial_kernel<<<blocks_for(width), block_size, 0, stream_>>>(dgain, partial_.data(), parts,
                                                                    width);
  check_launch("add_partial");
}

void cuda_kernels::cross_entropy(float* loss, operand dlogits, const float* logits,
                                 const std::int32_t* target, index rows, index width, float scale) {
  with_numbers(dlogits, [&](auto* to) {
    cross_entropy_kernel<<<static_cast<unsigned>(rows), block_size, 0, stream_>>>(
        partial_.data(), to, logits, target, width, scale / static_cast<float>(rows));
  });
  check_launch("cross_entropy");
  mean_kernel<<<1, block_size, 0, stream_>>>(loss, partial_.data(), rows);
  check_launch("mean");
}

void cuda_kernels::adamw(float* w, float* g, float* m, float* v, index count, adamw_step s) {
  adamw_kernel<<<blocks_for(count), block_size, 0, stream_>>>(w, g, m, v, count, s);
  check_launch("adamw");
}

}  // namespace moe
