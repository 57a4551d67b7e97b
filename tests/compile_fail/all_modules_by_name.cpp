// With all_modules no name is compiled in, and a name in a template argument finds nothing.
// expect: with all_modules, name a module by the id from offloader::module
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

void forward(tidepool::offloader<tidepool::null_device>& off,
             tidepool::buffer<tidepool::null_device>& saved) {
  auto chunk = off.begin();
#ifdef TIDEPOOL_TEST_CONTROL
  chunk.commit(off.module("core_attn"), 0, {}, saved);
#else
  chunk.commit<"core_attn">(0, {}, saved);
#endif
}
