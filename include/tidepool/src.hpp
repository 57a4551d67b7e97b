/// Compiles the functions that `TIDEPOOL_COMPILED` leaves out: include it in one file of a program,
/// which needs no other Tidepool header, or link the CMake target `tidepool::compiled`.
///
/// ```cpp
/// // tidepool.cpp
/// #include <tidepool/src.hpp>
/// ```
///
/// The file holds the functions that are not templates, among them the engine, which is the same
/// for Tidepool's devices and a program's own.
#pragma once

#if !defined(TIDEPOOL_COMPILED)
#define TIDEPOOL_COMPILED
#endif
#if defined(TIDEPOOL_DEFINITIONS)
#error "tidepool: include tidepool/src.hpp before every other header of Tidepool"
#endif
#define TIDEPOOL_SOURCE

#include "tidepool/device/checked.hpp"
#include "tidepool/places/file.hpp"
#include "tidepool/places/lending.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/tidepool.hpp"

namespace tidepool::inline v0_3_0::detail {
template class hardware_of<virtual_device>;
}  // namespace tidepool::detail
