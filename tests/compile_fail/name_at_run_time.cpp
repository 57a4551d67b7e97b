// A name that is known at run time only has an id, which is looked up once.
// expect: a name is looked up once, by id = offloader::module\(name\); give commit that id
// expect: a name is looked up once, by id = offloader::module\(name\); give restore that id
#include <string>

#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

void step(tidepool::offloader<tidepool::null_device>& off,
          tidepool::buffer<tidepool::null_device>& saved, const std::string& name) {
  auto chunk = off.begin();
#ifdef TIDEPOOL_TEST_CONTROL
  const auto id = off.module(name);
#else
  const auto& id = name;
#endif
  chunk.commit(id, 0, {}, saved);
  chunk.restore(id, 0, {}, saved);
}
