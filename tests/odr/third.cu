#include <tidepool/tidepool.hpp>

int from_third() { return tidepool::version{}.major; }
