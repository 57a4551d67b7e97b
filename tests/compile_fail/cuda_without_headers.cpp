// Without CUDA's headers the device says what is missing.
// expect: cuda_device needs cuda_runtime_api.h: add the CUDA toolkit's include folder
// expect: TIDEPOOL_NO_CUDA
#include "tidepool/device/cuda.hpp"
#include "tidepool/device/null.hpp"

#ifdef TIDEPOOL_TEST_CONTROL
tidepool::null_device dev;
#else
tidepool::cuda_device dev;
#endif
