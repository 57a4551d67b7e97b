#include <tidepool/codec/fp8.hpp>
#include <tidepool/tidepool.hpp>

int from_second() { return tidepool::version{}.major; }
