#define TIDEPOOL_TEST_MODULE "moe_act"
#include "with_tidepool.hpp"
