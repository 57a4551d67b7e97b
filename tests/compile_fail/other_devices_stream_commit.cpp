// expect: null_device::stream_ref
// expect: virtual_device::stream_ref
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::virtual_device;
using offloader = tidepool::offloader<device, tidepool::modules<"core_attn">>;

void forward(offloader::chunk& chunk, tidepool::buffer<device>& saved,
#ifdef TIDEPOOL_TEST_CONTROL
             tidepool::virtual_device::stream_ref stream
#else
             tidepool::null_device::stream_ref stream
#endif
) {
  chunk.commit<"core_attn">(0, stream, saved);
}
