/// The trainer on a machine without a GPU, with the order of accesses checked.
#include <tidepool/device/virtual.hpp>

#include "../kernels/cpu/kernels.hpp"
#include "devices.hpp"
#include "train_checked.hpp"

std::vector<moe::run_result> moe::check_on_virtual(const settings& run,
                                                   const std::vector<tidepool::options>& variants,
                                                   const corpus& text) {
  tidepool::checked_device<tidepool::virtual_device> dev{tidepool::machine{}};
  return train_checked<cpu_kernels>(dev, run, variants, text);
}
