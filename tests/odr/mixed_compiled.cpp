#define TIDEPOOL_COMPILED
#include "one_step.hpp"

std::string from_compiled() { return one_step(); }
