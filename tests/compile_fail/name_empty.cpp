// expect: tidepool: the name of a module is empty
#include "tidepool/module.hpp"

#ifdef TIDEPOOL_TEST_CONTROL
using list = tidepool::modules<"core_attn", "moe_act">;
#else
using list = tidepool::modules<"core_attn", "">;
#endif
static_assert(!list::open);
