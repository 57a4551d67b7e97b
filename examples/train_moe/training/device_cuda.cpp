/// The trainer on a GPU.
#include <tidepool/device/cuda.hpp>
#include <tidepool/pack.hpp>

#include "../kernels/cuda/kernels.hpp"
#include "devices.hpp"
#include "train_each.hpp"

int moe::cuda_devices() { return tidepool::cuda_device::count(); }

std::vector<moe::run_result> moe::train_on_cuda(const settings& run,
                                                const std::vector<tidepool::options>& variants,
                                                const corpus& text) {
  tidepool::cuda_device dev{0};
  dev.use(tidepool::cuda_packer());
  return train_each<cuda_kernels>(dev, run, variants, text);
}
