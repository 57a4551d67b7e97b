/// The trainer on ranks, each with a GPU of its own.
#include <cuda_runtime_api.h>

#include <tidepool/device/cuda.hpp>

#include "devices.hpp"
#include "kernels_cuda.hpp"
#include "nccl_link.hpp"
#include "train_each.hpp"

std::vector<moe::run_result> moe::train_on_cuda_ranks(
    const settings& run, const std::vector<tidepool::options>& variants, const corpus& text,
    world& all) {
  tidepool::cuda_device dev{all.local_rank()};
  // Kernels and NCCL go to the current device.
  if (const cudaError_t code = cudaSetDevice(dev.ordinal()); code != cudaSuccess) {
    throw tidepool::device_error(std::string("cudaSetDevice: ") + cudaGetErrorString(code), code);
  }
  return train_each<cuda_kernels, nccl_link>(dev, run, variants, text, all);
}
