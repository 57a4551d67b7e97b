// Two owners of one tensor are made by share(), which a reader sees.
// expect: use of deleted function|implicitly-deleted copy constructor
// expect: move-only; buffer::share\(\) makes another handle
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::null_device;

tidepool::buffer<device> second(const tidepool::buffer<device>& first) {
#ifdef TIDEPOOL_TEST_CONTROL
  tidepool::buffer<device> other = first.share();
#else
  tidepool::buffer<device> other = first;
#endif
  return other;
}
