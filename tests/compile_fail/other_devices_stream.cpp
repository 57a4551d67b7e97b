// expect: null_device::stream_ref
// expect: virtual_device::stream_ref
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

void forward(tidepool::offloader<tidepool::virtual_device>& off,
#ifdef TIDEPOOL_TEST_CONTROL
             tidepool::virtual_device::stream_ref stream
#else
             tidepool::null_device::stream_ref stream
#endif
) {
  auto saved = off.allocate<float>(16, stream);
}
