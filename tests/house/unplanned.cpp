/// A trainer that never plans, as README.md has it. `house.symbols` looks at its object.
#include <iostream>
#include <tidepool/tidepool.hpp>

using device = tidepool::virtual_device;

int main() {
  device dev;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  tidepool::options options;
  options.offload_modules = {"expert_fc1"};
  tidepool::offloader<device, tidepool::modules<"expert_fc1">> off(dev, options);

  tidepool::buffer<device> saved[16];
  auto chunk = off.begin();
  for (int layer = 0; layer < 16; ++layer) {
    saved[layer] = off.allocate<float>(1 << 20, stream);
    chunk.commit<"expert_fc1">(layer, stream, saved[layer]);
  }
  chunk.end_forward();
  for (int layer = 15; layer >= 0; --layer) {
    chunk.restore<"expert_fc1">(layer, stream, saved[layer]);
    saved[layer].reset(stream);
  }
  chunk.finish();
  off.end_step();
  dev.synchronize();
  tidepool::trace::write_summary(std::cout, off.counters());
}
