// The `main` of the tests that judge mutants: runs the cases whose numbers are given, each within
// its seconds, in that order, until one fails. Without words, it lists them.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sys/time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "gpu.hpp"

namespace tidepool::test {

bool gpu_available() { return false; }
void count_skipped() {}

}  // namespace tidepool::test

namespace {

/// What computes or waits for too long is ended by a signal.
void limit(double seconds) {
  const itimerval computing{{0, 0}, {static_cast<time_t>(seconds), 0}};
  const itimerval waiting{{0, 0}, {static_cast<time_t>(20 + 2 * seconds), 0}};
  setitimer(ITIMER_PROF, &computing, nullptr);
  setitimer(ITIMER_REAL, &waiting, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  auto& chosen = doctest::detail::getRegisteredTests();
  const std::vector<doctest::detail::TestCase> all(chosen.begin(), chosen.end());
  for (std::size_t i = 0; i < all.size() && argc == 1; ++i) {
    std::printf("%s\t%s\n", all[i].m_file.c_str(), all[i].m_name);
  }
  for (int i = 1; i < argc; ++i) {
    char* seconds = nullptr;
    const auto& test = all.at(std::strtoul(argv[i], &seconds, 10));
    chosen = {test};
    std::printf("case %s\n", test.m_file.c_str());
    std::fflush(stdout);
    limit(*seconds == ':' ? std::strtod(seconds + 1, nullptr) : 300);
    doctest::Context context;
    context.setOption("minimal", true);
    context.setOption("no-colors", true);
    context.setOption("abort-after", 1);
    const auto begin = std::clock();
    if (context.run() != 0) return 1;
    std::printf("seconds %.3f\n", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return 0;
}
