/// bench_step_checked: the check of gradients on a device that also judges the order of accesses.
#include <cstdio>
#include <exception>

#include "check.hpp"
#include "command_line.hpp"

int main(int argc, char** argv) {
  static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16));
  int exit_code = 0;
  const auto run = bench::read_command_line(argc, argv, exit_code);
  if (!run) return exit_code;
  if (!run->check) {
    std::fputs("bench_step_checked: measures nothing; run it with --check\n", stderr);
    return 2;
  }
  try {
    bench::cuda_device dev{0};
    bench::check(cudaSetDevice(dev.ordinal()), "cudaSetDevice");
    const auto stream = dev.make_stream();
    dev.name_stream(stream.ref(), "compute");
    const int failures = bench::check_gradients(dev, stream.ref(), *run);
    std::fputs(dev.report().c_str(), stdout);
    return failures == 0 && dev.findings().empty() ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fflush(stdout);
    std::fprintf(stderr, "bench_step_checked: %s\n", problem.what());
    return 2;
  }
}
