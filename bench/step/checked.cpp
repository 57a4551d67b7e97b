/// bench_step_checked: the check of gradients on a device that also judges the order of accesses.
#include <cstdio>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/pack.hpp>

#include "../../examples/tools/device_line.hpp"
#include "../../examples/tools/voice.hpp"
#include "check.hpp"
#include "command_line.hpp"

int main(int argc, char** argv) {
  static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16));
  const std::string me = "bench_step_checked";
  return tools::run(me, [&] {
    const auto run = bench::read_command_line(me, argc, argv);
    if (!run.check) throw tidepool::option_error("measures nothing; run it with --check");
    bench::cuda_device dev{0};
    dev.use(tidepool::cuda_packer());
    bench::check(cudaSetDevice(dev.ordinal()), "cudaSetDevice");
    tools::print_device<bench::cuda_device>(dev.ordinal());
    const auto stream = dev.make_stream();
    dev.name_stream(stream.ref(), "compute");
    const int failures = bench::check_gradients(dev, stream.ref(), run);
    std::fputs(dev.report().c_str(), stdout);
    return failures == 0 && dev.findings().empty() ? 0 : 1;
  });
}
