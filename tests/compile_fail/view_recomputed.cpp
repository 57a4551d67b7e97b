// What was discarded is computed again into buffers; a view has no memory of its own.
// expect: what is discarded and recomputed is buffers of the offloader's own device
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::null_device;
using offloader = tidepool::offloader<device, tidepool::modules<"core_attn">>;

void backward(offloader::chunk& chunk, device::stream_ref stream, tidepool::buffer<device>& saved) {
#ifdef TIDEPOOL_TEST_CONTROL
  chunk.restore_or_recompute<"core_attn">(
      0, stream, [] {}, saved);
#else
  auto part = saved.view({.width = 64});
  chunk.restore_or_recompute<"core_attn">(
      0, stream, [] {}, part);
#endif
}
