// expect: commit and restore take buffers and views of the offloader's own device
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::virtual_device;
using offloader = tidepool::offloader<device, tidepool::modules<"core_attn">>;

#ifdef TIDEPOOL_TEST_CONTROL
using other = tidepool::virtual_device;
#else
using other = tidepool::null_device;
#endif

void forward(offloader::chunk& chunk, device::stream_ref stream, tidepool::buffer<other>& saved) {
  chunk.commit<"core_attn">(0, stream, saved);
}
