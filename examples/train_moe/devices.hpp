/// The devices that the trainer runs on, each behind one function.
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

class world;

/// The same on the virtual devices of all ranks of a pipeline; every rank has the losses. In
/// `device_ranks.cpp`, for builds with MPI.
std::vector<run_result> train_on_ranks(const settings& run,
                                       const std::vector<tidepool::options>& variants,
                                       const corpus& text, world& all);

}  // namespace moe
