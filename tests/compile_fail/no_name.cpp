// expect: tidepool: name at least one module, or use all_modules
#include "tidepool/module.hpp"

#ifdef TIDEPOOL_TEST_CONTROL
using list = tidepool::modules<"core_attn">;
#else
using list = tidepool::modules<>;
#endif
static_assert(!list::open);
