/// The one `main` of the tests: doctest's, with `--require-gpu` and a word on what was skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "gpu.hpp"

#if defined(TIDEPOOL_HAS_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace {

// What CTest reads as "skipped" (SKIP_RETURN_CODE in CMakeLists.txt).
constexpr int exit_skipped = 77;

unsigned skipped = 0;
unsigned ran = 0;

// A filter that matches nothing must not look like success; doctest itself returns 0.
struct counting_listener : doctest::IReporter {
  explicit counting_listener(const doctest::ContextOptions&) {}

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    ran = stats.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("count", 1, counting_listener);

bool set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view{value} != "0";
}

}  // namespace

namespace tidepool::test {

bool gpu_available() {
#if defined(TIDEPOOL_HAS_CUDA)
  static const bool available = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  }();
  return available;
#else
  return false;
#endif
}

void count_skipped() { ++skipped; }

}  // namespace tidepool::test

int main(int argc, char** argv) {
  bool require_gpu = set("TIDEPOOL_REQUIRE_GPU");
  bool gpu_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument{argv[i]};
    if (argument == "--require-gpu") require_gpu = true;
    if (argument == "-ts=gpu" || argument == "--test-suite=gpu") gpu_only = true;
  }
  if (require_gpu && !tidepool::test::gpu_available()) {
#if defined(TIDEPOOL_HAS_CUDA)
    std::cerr << "--require-gpu: no GPU can be used here (see nvidia-smi)\n";
#else
    std::cerr << "--require-gpu: this build has no CUDA; configure with -DTIDEPOOL_CUDA=ON\n";
#endif
    return EXIT_FAILURE;
  }

  doctest::Context context{argc, argv};
  const int result = context.run();
  if (context.shouldExit() || result != EXIT_SUCCESS) return result;

  if (ran == 0) {
    if (gpu_only && !tidepool::test::gpu_available()) {
      std::cout << "skipped: no GPU test in this build\n";
      return exit_skipped;
    }
    std::cerr << "no test case matches the filters\n";
    return EXIT_FAILURE;
  }
  if (skipped > 0) {
    std::cout << "skipped: no GPU: " << skipped << " of " << ran << " test cases\n";
    if (skipped == ran) return exit_skipped;
  }
  return result;
}
