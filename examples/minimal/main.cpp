// The smallest training loop with Tidepool: forward saves one tensor for each of 16 layers.
//   1. The module has a name, and the options name it too: its tensors are offloaded.
//   2. Forward allocates a tensor, fills it, and commits it: its copy to the host starts.
//   3. Backward restores the tensor, reads it, and resets it: its memory is free.
//   4. The program checks that backward read what forward wrote, and prints what was saved.
#include <algorithm>
#include <iostream>
#include <tidepool/tidepool.hpp>

using device = tidepool::virtual_device;  // needs no GPU; on a GPU: tidepool::cuda_device

int main() {
  constexpr int layers = 16;
  constexpr std::size_t count = 1 << 20;
  int wrong = 0;
  device dev;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();

  // 1. A name that the list lacks, such as chunk.commit<"mpl_act">, does not compile.
  tidepool::options options;
  options.offload_modules = {"mlp_act"};
  tidepool::offloader<device, tidepool::strict_modules<"mlp_act">> off(dev, options);
  tidepool::buffer<device> saved[layers];

  // 2. Forward. A kernel of the virtual device is a function and the nanoseconds that it takes.
  auto chunk = off.begin();
  for (int layer = 0; layer < layers; ++layer) {
    saved[layer] = off.allocate<float>(count, stream);
    dev.launch(stream, 400'000, [to = saved[layer].as<float>(), layer] {
      std::fill_n(to, count, static_cast<float>(layer));
    });
    chunk.commit<"mlp_act">(layer, stream, saved[layer]);
  }
  chunk.end_forward();

  // 3. Backward, from the last layer to the first.
  for (int layer = layers - 1; layer >= 0; --layer) {
    chunk.restore<"mlp_act">(layer, stream, saved[layer]);
    dev.launch(stream, 800'000, [from = saved[layer].as<float>(), layer, &wrong] {
      if (std::count(from, from + count, static_cast<float>(layer)) != count) ++wrong;
    });
    saved[layer].reset(stream);
  }
  chunk.finish();
  off.end_step();
  dev.synchronize();

  // 4. The check, and the summary.
  std::cout << layers - wrong << " of " << layers
            << " layers read in backward what forward wrote\n";
  tidepool::trace::write_summary(std::cout, off.counters());
  return wrong == 0 ? 0 : 1;
}
