/// The bodies of the engine, which is one for all devices.
///
/// `engine.hpp` includes them. With `TIDEPOOL_COMPILED` it does not: they are compiled elsewhere,
/// and a file that still includes this gets nothing.
#pragma once

#include "tidepool/core/linkage.hpp"

#if TIDEPOOL_DEFINITIONS
#include "tidepool/engine/commit.hpp"
#include "tidepool/engine/lifetime.hpp"
#include "tidepool/engine/memory.hpp"
#include "tidepool/engine/passes.hpp"
#include "tidepool/engine/plan.hpp"
#include "tidepool/engine/plan_maker_impl.hpp"
#include "tidepool/engine/recompute.hpp"
#include "tidepool/engine/refusals.hpp"
#include "tidepool/engine/reload.hpp"
#include "tidepool/engine/restore.hpp"
#include "tidepool/engine/staying.hpp"
#endif
