#include <cstdio>
#include <tidepool/tidepool.hpp>
namespace tp = tidepool;

int main() {
  tp::virtual_device device{tp::machine{}};
  tp::options options;
  options.offload_modules = {"core_attn"};
  options.min_tensor_elements = 0;
  tp::offloader<tp::virtual_device, tp::modules<"core_attn">> off{device, options};
  auto stream = device.make_stream();
  for (int step = 0; step < 2; ++step) {
    auto x = off.allocate<float>(1024, stream.ref());
    auto chunk = off.begin({.microbatch = 0});
    chunk.commit<"core_attn">(0, stream.ref(), x);
    chunk.end_forward();
    chunk.restore<"core_attn">(0, stream.ref(), x);
    x.reset(stream.ref());
    chunk.finish();
    off.end_step();
  }
  const auto bytes = off.counters().modules.at(0).bytes_offloaded;
  std::printf("%llu bytes left the device\n", static_cast<unsigned long long>(bytes));
  return bytes > 0 ? 0 : 1;
}
