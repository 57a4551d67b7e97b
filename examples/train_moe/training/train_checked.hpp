/// The same training on a device that checks the order of accesses.
#pragma once

#include <string>
#include <tidepool/device/checked.hpp>
#include <vector>

#include "../kernels/declared.hpp"
#include "train_each.hpp"

namespace moe {

/// As `train_each`; the last result says what was found.
template <class Kernels, class Device>
std::vector<run_result> train_checked(tidepool::checked_device<Device>& dev, const settings& run,
                                      const std::vector<tidepool::options>& variants,
                                      const corpus& text) {
  using checked = tidepool::checked_device<Device>;
  auto results = train_each<declared_kernels<Kernels, checked>>(dev, run, variants, text);
  results.back().order_mistakes = dev.findings().size();
  results.back().order_report = dev.report();
  return results;
}

}  // namespace moe
