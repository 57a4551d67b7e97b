#define TIDEPOOL_TEST_MODULE "core_attn"
#include "with_tidepool.hpp"
