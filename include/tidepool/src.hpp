/// What `TIDEPOOL_COMPILED` leaves out, compiled: include it in one file of a program, which needs
/// no other Tidepool header, or link the CMake target `tidepool::compiled`.
///
/// ```cpp
/// // tidepool.cpp
/// #include <tidepool/src.hpp>
/// ```
///
/// It holds the functions that are no templates: the engine among them, which is one for the
/// devices that Tidepool brings and for a program's own.
#pragma once

#if !defined(TIDEPOOL_COMPILED)
#define TIDEPOOL_COMPILED
#endif
#if defined(TIDEPOOL_DEFINITIONS)
#error "tidepool: include tidepool/src.hpp before every other header of Tidepool"
#endif
#define TIDEPOOL_SOURCE

#include "tidepool/device/checked.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/tidepool.hpp"
