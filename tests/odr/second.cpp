#include <tidepool/tidepool.hpp>

int from_second() { return tidepool::version{}.major; }
