/// The engine for the devices of tests, compiled once in engines_*.cpp instead of in every test.
///
/// It only saves time: a test that does not include it has its own copy, and is right as well.
#pragma once

#include "counting_device.hpp"
#include "faulty_device.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

// What most of a test's compile time goes to. `How` is `extern template`, or `template` where the
// code is to be made.
#define TIDEPOOL_TEST_ENGINE(How, ...)       \
  How class detail::engine<__VA_ARGS__>;     \
  How class detail::plan_maker<__VA_ARGS__>; \
  How class detail::recorder<__VA_ARGS__>;   \
  How class detail::storages<__VA_ARGS__>;   \
  How class chunk<__VA_ARGS__, all_modules>; \
  How class offloader<__VA_ARGS__, all_modules>

namespace tidepool {
TIDEPOOL_TEST_ENGINE(extern template, virtual_device);
TIDEPOOL_TEST_ENGINE(extern template, test::counting_device<virtual_device>);
TIDEPOOL_TEST_ENGINE(extern template, test::faulty_device<virtual_device>);
}  // namespace tidepool
