/// Tests that need a GPU: skipped visibly without one. Under `--require-gpu` (or with
/// TIDEPOOL_REQUIRE_GPU=1 in the environment) the binary refuses to run without one.
///
///     TIDEPOOL_GPU_TEST("a reload waits for its offload") { … }
///
/// is a doctest test case of the suite `gpu`. Inside an ordinary test case, `TIDEPOOL_NEEDS_GPU();`
/// does the same from that line on.
#pragma once

#include <doctest/doctest.h>

namespace tidepool::test {

/// Whether a CUDA device can be used now; false in a build without CUDA.
[[nodiscard]] bool gpu_available();

/// Notes for the closing lines that the running test case was skipped.
void count_skipped();

}  // namespace tidepool::test

#define TIDEPOOL_NEEDS_GPU()                  \
  do {                                        \
    if (!::tidepool::test::gpu_available()) { \
      ::tidepool::test::count_skipped();      \
      MESSAGE("skipped: no GPU");             \
      return;                                 \
    }                                         \
  } while (false)

#define TIDEPOOL_GPU_TEST_IMPL(body, name)      \
  static void body();                           \
  TEST_CASE(name* doctest::test_suite("gpu")) { \
    TIDEPOOL_NEEDS_GPU();                       \
    body();                                     \
  }                                             \
  static void body()

#define TIDEPOOL_GPU_TEST(name) TIDEPOOL_GPU_TEST_IMPL(DOCTEST_ANONYMOUS(tidepool_gpu_test_), name)
