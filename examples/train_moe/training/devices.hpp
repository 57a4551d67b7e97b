/// The devices that the trainer runs on, each behind one function.
#pragma once

#include <memory>
#include <tidepool/options.hpp>
#include <vector>

#include "../model/config.hpp"
#include "data.hpp"
#include "run_result.hpp"

namespace moe {

/// The same training once for each of `variants`, on the virtual device with the CPU kernels.
std::vector<run_result> train_on_virtual(const settings& run,
                                         const std::vector<tidepool::options>& variants,
                                         const corpus& text);

/// The same on the current CUDA device. Both are in `device_cuda.cpp`, for builds with CUDA.
std::vector<run_result> train_on_cuda(const settings& run,
                                      const std::vector<tidepool::options>& variants,
                                      const corpus& text);
/// The same two on a device that checks the order of accesses, for `--check-order`.
std::vector<run_result> check_on_virtual(const settings& run,
                                         const std::vector<tidepool::options>& variants,
                                         const corpus& text);
std::vector<run_result> check_on_cuda(const settings& run,
                                      const std::vector<tidepool::options>& variants,
                                      const corpus& text);
/// How many there are.
int cuda_devices();

struct launch;
class world;

/// The same on the virtual devices of all ranks, which talk over MPI; every rank has the losses. In
/// `device_ranks.cpp`, for builds with MPI.
std::vector<run_result> train_on_ranks(const settings& run,
                                       const std::vector<tidepool::options>& variants,
                                       const corpus& text, world& all);
/// The same on the GPUs of all ranks. This and the next are in `device_cuda_ranks.cpp`, for builds
/// with NCCL.
std::vector<run_result> train_on_cuda_ranks(const settings& run,
                                            const std::vector<tidepool::options>& variants,
                                            const corpus& text, world& all);
/// Ranks on GPUs that need no MPI.
std::unique_ptr<world> ranks_over_nccl(const launch& by);

}  // namespace moe
