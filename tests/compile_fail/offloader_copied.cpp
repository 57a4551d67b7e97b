// expect: use of deleted function|call to deleted constructor
// expect: offloader\(const offloader&\) = delete
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using offloader = tidepool::offloader<tidepool::null_device>;

#ifdef TIDEPOOL_TEST_CONTROL
offloader& engine_of(offloader& off) { return off; }
#else
offloader engine_of(offloader& off) { return off; }
#endif
