/// The part of `gradient_check` that needs a GPU.
#include <cstdio>
#include <tidepool/device/cuda.hpp>
#include <tidepool/error.hpp>

#include "../kernels/cuda/kernels.hpp"
#include "gradient_codec.hpp"
#include "gradient_narrow.hpp"
#include "gradient_products.hpp"
#include "gradient_rows.hpp"

namespace moe {

/// Returns how many checks failed. A GPU that does not multiply codes is no failure.
int check_on_gpu() {
  using device = tidepool::cuda_device;
  if (device::count() == 0) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  device dev{0};
  // Tensor cores add up products of codes with fewer bits than fp32 has, and fp32 adds those sums.
  constexpr double accumulation = 0x1p-10;
  const int bad =
      check_rows<device, cuda_kernels>(dev) + check_codec<device, cuda_kernels>(dev, 0.05);
  try {
    return bad + check_all_codes<device, cuda_kernels>(dev, accumulation);
  } catch (const tidepool::option_error& e) {
    std::printf("skipped: %s\n", e.what());
    return bad;
  }
}

}  // namespace moe
