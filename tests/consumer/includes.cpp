// The whole of Tidepool included, and one call of it: where a package puts headers and flags is
// seen by this as by main.cpp, whose engine takes a compiler three times as long.
#include <cstdio>
#include <tidepool/parse.hpp>
#include <tidepool/tidepool.hpp>

int main() {
  const auto options = tidepool::parse_options("--max-inflight=1");
  std::printf("tidepool %d.%d\n", TIDEPOOL_VERSION_MAJOR, TIDEPOOL_VERSION_MINOR);
  return options.max_inflight == 1U ? 0 : 1;
}
