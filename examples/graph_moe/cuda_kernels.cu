/// The kernels on a GPU: ranks by CUB's scan of a block.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "../train_moe/kernels/cuda/tools.cuh"
#include "cuda_kernels.hpp"

namespace graph_moe {
namespace {

using moe::block_size, moe::blocks_for, moe::check_launch, moe::thread_id;

// One block for each expert: a scan over the choices, a block's width at a time.
__global__ void rank_kernel(std::int32_t* rank_of, std::int32_t* counts, const std::int32_t* choice,
                            index choices) {
  using scan = cub::BlockScan<std::int32_t, block_size>;
  __shared__ typename scan::TempStorage memory;
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  std::int32_t before = 0;
  for (index first = 0; first < choices; first += block_size) {
    const index i = first + threadIdx.x;
    const std::int32_t mine = i < choices && choice[i] == expert ? 1 : 0;
    std::int32_t rank = 0, all = 0;
    scan(memory).ExclusiveSum(mine, rank, all);
    __syncthreads();  // the next scan uses the memory again
    if (mine == 1) rank_of[i] = before + rank;
    before += all;
  }
  if (threadIdx.x == 0) counts[expert] = before;
}

__global__ void lay_out_kernel(std::int32_t* row, const std::int32_t* choice, index choices,
                               index stride) {
  const index i = thread_id();
  if (i >= choices) return;
  row[i] = static_cast<std::int32_t>(row[i] < stride ? choice[i] * stride + row[i] : -1);
}

// 16 bytes a thread: widths are multiples of 8 numbers.
__global__ void clear_rest_kernel(uint4* x, const std::int32_t* count, index all, index of_row) {
  const index i = thread_id();
  if (i < all && i >= *count * of_row) x[i] = {};
}

__global__ void largest_kernel(std::int32_t* most, const std::int32_t* counts, index count) {
  using reduction = cub::BlockReduce<std::int32_t, block_size>;
  __shared__ typename reduction::TempStorage memory;
  std::int32_t mine = 0;
  for (index i = threadIdx.x; i < count; i += block_size) mine = max(mine, counts[i]);
  const std::int32_t all =
      reduction(memory).Reduce(mine, [](std::int32_t a, std::int32_t b) { return a < b ? b : a; });
  if (threadIdx.x == 0) *most = all;
}

__global__ void update_kernel(float* w, float* g, float* m, index count, const std::int32_t* most,
                              sgd_step s) {
  const index i = thread_id();
  if (i >= count) return;
  const float gradient = g[i];
  g[i] = 0;
  if (*most > s.limit) return;
  m[i] = s.momentum * m[i] + gradient;
  w[i] -= s.learning_rate * m[i];
}

}  // namespace

void cuda_kernels::rank(std::int32_t* rank_of, std::int32_t* counts, const std::int32_t* choice,
                        routing_shape s) {
  rank_kernel<<<static_cast<unsigned>(s.experts), block_size, 0, stream_>>>(rank_of, counts, choice,
                                                                            s.tokens * s.top_k);
  check_launch("rank");
}

void cuda_kernels::lay_out(std::int32_t* row, const std::int32_t* choice, index choices,
                           index stride) {
  lay_out_kernel<<<blocks_for(choices), block_size, 0, stream_>>>(row, choice, choices, stride);
  check_launch("lay_out");
}

void cuda_kernels::clear_rest(operand x, const std::int32_t* count, index rows, index width) {
  const index of_row = width * bytes_of(x.type) / index{sizeof(uint4)};
  clear_rest_kernel<<<blocks_for(rows * of_row), block_size, 0, stream_>>>(x.as<uint4>(), count,
                                                                           rows * of_row, of_row);
  check_launch("clear_rest");
}

void cuda_kernels::largest(std::int32_t* most, const std::int32_t* counts, index count) {
  largest_kernel<<<1, block_size, 0, stream_>>>(most, counts, count);
  check_launch("largest");
}

void cuda_kernels::update(float* w, float* g, float* m, index count, const std::int32_t* most,
                          sgd_step s) {
  update_kernel<<<blocks_for(count), block_size, 0, stream_>>>(w, g, m, count, most, s);
  check_launch("update");
}

}  // namespace graph_moe
