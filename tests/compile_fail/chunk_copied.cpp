// expect: use of deleted function|call to deleted constructor
// expect: move-only; pass it by reference
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using offloader = tidepool::offloader<tidepool::null_device, tidepool::modules<"core_attn">>;

#ifdef TIDEPOOL_TEST_CONTROL
void forward(offloader::chunk& chunk);
#else
void forward(offloader::chunk chunk);
#endif

void step(offloader& off) {
  auto chunk = off.begin();
  forward(chunk);
}
