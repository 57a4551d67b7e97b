// expect: use of deleted function|call to deleted constructor
// expect: move-only; launch one graph many times
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

using graph = tidepool::graph<tidepool::virtual_device>;

graph second(graph& first) {
#ifdef TIDEPOOL_TEST_CONTROL
  graph other = std::move(first);
#else
  graph other = first;
#endif
  return other;
}
