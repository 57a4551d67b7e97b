/// The engine for the devices of tests, compiled once in engines_*.cpp instead of in every test.
///
/// It only saves time: a test that does not include it has its own copy, and is right as well.
#pragma once

#include "../../cmake/engines/engines.hpp"
#include "counting_device.hpp"
#include "faulty_device.hpp"

#define TIDEPOOL_TEST_ENGINE(How, ...)       \
  TIDEPOOL_ENGINE(How, __VA_ARGS__);         \
  How class chunk<__VA_ARGS__, all_modules>; \
  How class offloader<__VA_ARGS__, all_modules>

namespace tidepool {
TIDEPOOL_TEST_ENGINE(extern template, test::counting_device<virtual_device>);
TIDEPOOL_TEST_ENGINE(extern template, test::faulty_device<virtual_device>);
}  // namespace tidepool
