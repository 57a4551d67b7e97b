/// The offloaders of the devices of tests, compiled once in engines_*.cpp instead of in every test.
#pragma once

#include "counting_device.hpp"
#include "faulty_device.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

/// What is a template on the device. `How` is `extern template`, or `template` where the code is to
/// be made.
#define TIDEPOOL_TEST_ENGINE(How, ...)        \
  How class detail::hardware_of<__VA_ARGS__>; \
  How class chunk<__VA_ARGS__, all_modules>;  \
  How class offloader<__VA_ARGS__, all_modules>

namespace tidepool {
TIDEPOOL_TEST_ENGINE(extern template, test::counting_device<virtual_device>);
TIDEPOOL_TEST_ENGINE(extern template, test::faulty_device<virtual_device>);
}  // namespace tidepool
