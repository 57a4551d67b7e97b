/// The bodies of the engine's templates.
///
/// `engine.hpp` includes them. With `TIDEPOOL_COMPILED` it does not: the engines for the devices
/// that Tidepool brings are compiled elsewhere. A file with a device of its own then includes this.
#pragma once

#include "tidepool/detail/engine_backward.hpp"
#include "tidepool/detail/engine_capture.hpp"
#include "tidepool/detail/engine_forward.hpp"
#include "tidepool/detail/engine_lifetime.hpp"
#include "tidepool/detail/engine_memory.hpp"
#include "tidepool/detail/engine_offload.hpp"
#include "tidepool/detail/engine_plan.hpp"
#include "tidepool/detail/engine_recompute.hpp"
#include "tidepool/detail/engine_refusals.hpp"
#include "tidepool/detail/engine_reload.hpp"
#include "tidepool/detail/engine_state.hpp"
#include "tidepool/detail/plan_maker_impl.hpp"
