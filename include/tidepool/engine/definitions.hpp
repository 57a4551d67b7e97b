/// The bodies of the engine's templates.
///
/// `engine.hpp` includes them. With `TIDEPOOL_COMPILED` it does not: the engines for the devices
/// that Tidepool brings are compiled elsewhere. A file with a device of its own then includes this.
#pragma once

#include "tidepool/engine/capture.hpp"
#include "tidepool/engine/commit.hpp"
#include "tidepool/engine/lifetime.hpp"
#include "tidepool/engine/memory.hpp"
#include "tidepool/engine/passes.hpp"
#include "tidepool/engine/plan.hpp"
#include "tidepool/engine/plan_maker_impl.hpp"
#include "tidepool/engine/recompute.hpp"
#include "tidepool/engine/recording.hpp"
#include "tidepool/engine/refusals.hpp"
#include "tidepool/engine/reload.hpp"
#include "tidepool/engine/restore.hpp"
#include "tidepool/engine/state.hpp"
#include "tidepool/engine/staying.hpp"
#include "tidepool/engine/tracing.hpp"
