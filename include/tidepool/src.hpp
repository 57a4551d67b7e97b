/// What `TIDEPOOL_COMPILED` leaves out, compiled: include it in one file of a program, which needs
/// no other Tidepool header, or link the CMake target `tidepool::compiled`.
///
/// ```cpp
/// // tidepool.cpp
/// #include <tidepool/src.hpp>
/// ```
///
/// It holds the functions that are no templates, and the engines for `virtual_device` and, where
/// the CUDA toolkit is found, `cuda_device`.
#pragma once

#if !defined(TIDEPOOL_COMPILED)
#define TIDEPOOL_COMPILED
#endif
#if defined(TIDEPOOL_DEFINITIONS)
#error "tidepool: include tidepool/src.hpp before every other header of Tidepool"
#endif
#define TIDEPOOL_SOURCE

#include "tidepool/plan.hpp"
#include "tidepool/tidepool.hpp"

namespace tidepool::inline v0_2_0::detail {

template class engine<virtual_device>;
template class plan_maker<virtual_device>;
#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))
template class engine<cuda_device>;
template class plan_maker<cuda_device>;
#endif

}  // namespace tidepool::detail
