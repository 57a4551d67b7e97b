#include <tidepool/codec/fp8_kernels.cuh>
#include <tidepool/tidepool.hpp>

int from_third() { return tidepool::version{}.major; }
