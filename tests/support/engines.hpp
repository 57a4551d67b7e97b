/// The engine for the devices of tests, compiled once in engines_*.cpp instead of in every test.
#pragma once

#include "counting_device.hpp"
#include "faulty_device.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/engine/definitions.hpp"
#include "tidepool/offloader.hpp"

/// What most of a program's compile time goes to. `How` is `extern template`, or `template` where
/// the code is to be made.
#define TIDEPOOL_ENGINE(How, ...)        \
  How class detail::engine<__VA_ARGS__>; \
  How class detail::plan_maker<__VA_ARGS__>

#define TIDEPOOL_TEST_ENGINE(How, ...)       \
  TIDEPOOL_ENGINE(How, __VA_ARGS__);         \
  How class chunk<__VA_ARGS__, all_modules>; \
  How class offloader<__VA_ARGS__, all_modules>

namespace tidepool {
TIDEPOOL_ENGINE(extern template, virtual_device);
TIDEPOOL_TEST_ENGINE(extern template, test::counting_device<virtual_device>);
TIDEPOOL_TEST_ENGINE(extern template, test::faulty_device<virtual_device>);
}  // namespace tidepool
