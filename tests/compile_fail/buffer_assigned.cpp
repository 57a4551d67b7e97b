// expect: use of deleted function|implicitly deleted
// expect: move-only; buffer::share\(\) makes another handle
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::null_device;

void assign(tidepool::buffer<device>& to, tidepool::buffer<device>& from) {
#ifdef TIDEPOOL_TEST_CONTROL
  to = std::move(from);
#else
  to = from;
#endif
}
