// A pointer cannot leave: nobody would know what is behind it.
// expect: commit and restore take buffers and views of the offloader's own device
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::null_device;
using offloader = tidepool::offloader<device, tidepool::modules<"core_attn">>;

void backward(offloader::chunk& chunk, device::stream_ref stream, tidepool::buffer<device>& saved) {
#ifdef TIDEPOOL_TEST_CONTROL
  chunk.restore<"core_attn">(0, stream, saved);
#else
  float* data = saved.as<float>();
  chunk.restore<"core_attn">(0, stream, data);
#endif
}
