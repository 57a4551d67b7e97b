/// The trainer on a machine without a GPU.
#include <tidepool/device/virtual.hpp>

#include "../kernels/cpu/kernels.hpp"
#include "devices.hpp"
#include "train_each.hpp"

std::vector<moe::run_result> moe::train_on_virtual(const settings& run,
                                                   const std::vector<tidepool::options>& variants,
                                                   const corpus& text) {
  tidepool::virtual_device dev{tidepool::machine{}};
  return train_each<cpu_kernels>(dev, run, variants, text);
}
