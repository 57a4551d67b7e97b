/// The trainer on ranks, each with a virtual device of its own.
#include <tidepool/device/virtual.hpp>

#include "../kernels/cpu/kernels.hpp"
#include "../parallel/mpi_link.hpp"
#include "devices.hpp"
#include "train_each.hpp"

std::vector<moe::run_result> moe::train_on_ranks(const settings& run,
                                                 const std::vector<tidepool::options>& variants,
                                                 const corpus& text, world& all) {
  tidepool::virtual_device dev{tidepool::machine{}};
  return train_each<cpu_kernels, mpi_link>(dev, run, variants, text, all);
}
