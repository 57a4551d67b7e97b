#define TIDEPOOL_PACK_SOURCE
#include "tidepool/pack.hpp"
