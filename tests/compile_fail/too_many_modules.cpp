// One bit of a word stands for a module.
// expect: tidepool: at most 64 modules
#include "tidepool/module.hpp"

#define EIGHT(x) x "0", x "1", x "2", x "3", x "4", x "5", x "6", x "7"
#define SIXTY_FOUR \
  EIGHT("a"), EIGHT("b"), EIGHT("c"), EIGHT("d"), EIGHT("e"), EIGHT("f"), EIGHT("g"), EIGHT("h")

#ifdef TIDEPOOL_TEST_CONTROL
using list = tidepool::modules<SIXTY_FOUR>;
#else
using list = tidepool::modules<SIXTY_FOUR, "one_more">;
#endif
static_assert(!list::open);
