// A view stays a view: moved into a buffer, it would show the storage from its offset on.
// expect: is protected within this context|is a protected member
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using device = tidepool::null_device;

void keep(tidepool::buffer<device>& to, tidepool::view<device>& part,
          tidepool::buffer<device>& from) {
#ifdef TIDEPOOL_TEST_CONTROL
  to = std::move(from);
  static_cast<void>(part);
#else
  static_cast<void>(from);
  tidepool::handle<device>& any = to;
  any = std::move(part);
#endif
}
