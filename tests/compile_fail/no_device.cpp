// expect: constraints not satisfied
// expect: no type named 'stream' in
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

class my_device {};

#ifdef TIDEPOOL_TEST_CONTROL
using offloader = tidepool::offloader<tidepool::null_device>;
#else
using offloader = tidepool::offloader<my_device>;
#endif
void use(offloader&);
