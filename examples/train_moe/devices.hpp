/// The two devices that the trainer runs on, each behind one function.
#pragma once

#include <vector>

#include "train.hpp"

namespace moe {

/// The same training once for each of `variants`, on the virtual device with the CPU kernels.
std::vector<run_result> train_on_virtual(const settings& run,
                                         const std::vector<tidepool::options>& variants,
                                         const corpus& text);

/// The same on the current CUDA device. Both are in `device_cuda.cu`, for builds with CUDA.
std::vector<run_result> train_on_cuda(const settings& run,
                                      const std::vector<tidepool::options>& variants,
                                      const corpus& text);
bool cuda_present();

}  // namespace moe
