/// The trainer on ranks, each with a GPU of its own.
#include <cuda_runtime_api.h>

#include <tidepool/device/cuda.hpp>
#include <tidepool/pack.hpp>

#include "../kernels/cuda/kernels.hpp"
#include "../parallel/nccl_link.hpp"
#include "../parallel/nccl_world.hpp"
#include "devices.hpp"
#include "train_each.hpp"

namespace {

/// A communicator of ranks that talk in another way, too.
moe::nccl_communicator bring_together(moe::world& all) {
  ncclUniqueId id{};
  if (all.rank() == 0) moe::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {all.gather(id).front(), all.size(), all.rank()};
}

}  // namespace

std::unique_ptr<moe::world> moe::ranks_over_nccl(const launch& by) {
  return std::make_unique<nccl_world>(by);
}

std::vector<moe::run_result> moe::train_on_cuda_ranks(
    const settings& run, const std::vector<tidepool::options>& variants, const corpus& text,
    world& all) {
  tidepool::cuda_device dev{all.local_rank()};
  dev.use(tidepool::cuda_packer());
  // Kernels and NCCL go to the current device.
  if (const cudaError_t code = cudaSetDevice(dev.ordinal()); code != cudaSuccess) {
    throw tidepool::device_error(std::string("cudaSetDevice: ") + cudaGetErrorString(code), code);
  }
  if (auto* const over_nccl = dynamic_cast<nccl_world*>(&all)) {
    nccl_team team{all, over_nccl->everybody()};
    return train_each<cuda_kernels, nccl_link>(dev, run, variants, text, team);
  }
  const nccl_communicator everybody = bring_together(all);
  nccl_team team{all, everybody};
  return train_each<cuda_kernels, nccl_link>(dev, run, variants, text, team);
}
