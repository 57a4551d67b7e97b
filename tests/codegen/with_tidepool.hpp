// plain.cpp with commits and restores of TIDEPOOL_TEST_MODULE, in a build that lists `core_attn`.
#include <tidepool/tidepool.hpp>
#include <utility>

using device = tidepool::null_device;
using offloader = tidepool::offloader<device, tidepool::modules<"core_attn">>;
using chunk = decltype(std::declval<offloader&>().begin({}));
using buffer = tidepool::buffer<device>;
using stream = device::stream_ref;

extern "C" void run_forward(void* storage, int layer);
extern "C" void run_backward(void* storage, int layer);

extern "C" void forward(chunk& c, buffer& x, const stream& s, int layer) {
  run_forward(&x, layer);
  c.commit<TIDEPOOL_TEST_MODULE>(layer, s, x);
  c.commit_or_discard<TIDEPOOL_TEST_MODULE>(layer, s, x);
  run_forward(&x, layer + 1);
}

extern "C" void backward(chunk& c, buffer& x, const stream& s, int layer) {
  run_backward(&x, layer + 1);
  if (c.will_recompute<TIDEPOOL_TEST_MODULE>(layer)) run_forward(&x, layer);
  c.restore_or_recompute<TIDEPOOL_TEST_MODULE>(
      layer, s, [&] { run_forward(&x, layer); }, x);
  c.restore<TIDEPOOL_TEST_MODULE>(layer, s, x);
  run_backward(&x, layer);
}
