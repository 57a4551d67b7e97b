/// The trainer on a GPU, with the order of accesses checked.
#include <tidepool/codec/fp8_kernels.cuh>
#include <tidepool/device/cuda.hpp>
#include <tidepool/pack.hpp>

#include "../kernels/cuda/kernels.hpp"
#include "devices.hpp"
#include "train_checked.hpp"

std::vector<moe::run_result> moe::check_on_cuda(const settings& run,
                                                const std::vector<tidepool::options>& variants,
                                                const corpus& text) {
  tidepool::checked_device<tidepool::cuda_device> dev{0};
  dev.use(tidepool::cuda_packer());
  return train_checked<cuda_kernels>(dev, run, variants, text);
}
