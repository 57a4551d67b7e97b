// Traces are compiled by programs that include their header.
// expect: tidepool: #include <tidepool/observe/tracing.hpp> for traces
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

void start([[maybe_unused]] tidepool::offloader<tidepool::null_device>& off,
           [[maybe_unused]] tidepool::null_device::stream_ref stream) {
#ifndef TIDEPOOL_TEST_CONTROL
  off.start_trace("step", stream);
#endif
}
