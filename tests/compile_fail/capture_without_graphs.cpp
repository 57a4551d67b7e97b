// The null device has no graphs to capture into.
// expect: capturing_device
// expect: no type named 'graph' in
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/offloader.hpp"

#ifdef TIDEPOOL_TEST_CONTROL
using device = tidepool::virtual_device;
#else
using device = tidepool::null_device;
#endif

void capture(tidepool::offloader<device>& off, device::stream_ref stream) {
  auto graph = off.capture(stream, [] {});
}
