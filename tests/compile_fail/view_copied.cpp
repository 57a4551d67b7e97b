// expect: use of deleted function|implicitly-deleted copy constructor
// expect: move-only; buffer::share\(\) makes another handle
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::null_device;

tidepool::view<device> second(tidepool::view<device>& first) {
#ifdef TIDEPOOL_TEST_CONTROL
  tidepool::view<device> other = std::move(first);
#else
  tidepool::view<device> other = first;
#endif
  return other;
}
