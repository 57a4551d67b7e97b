/// The bodies of the engine, which is the same for all devices.
///
/// `engine.hpp` includes this file. With `TIDEPOOL_COMPILED` the bodies are compiled in another
/// file, and this file is empty.
#pragma once

#include "tidepool/core/linkage.hpp"

#if TIDEPOOL_DEFINITIONS
#include "tidepool/engine/commit.hpp"
#include "tidepool/engine/lifetime.hpp"
#include "tidepool/engine/memory.hpp"
#include "tidepool/engine/pack_storages.hpp"
#include "tidepool/engine/passes.hpp"
#include "tidepool/engine/plan.hpp"
#include "tidepool/engine/plan_maker_impl.hpp"
#include "tidepool/engine/recompute.hpp"
#include "tidepool/engine/refusals.hpp"
#include "tidepool/engine/reload.hpp"
#include "tidepool/engine/restore.hpp"
#include "tidepool/engine/staying.hpp"
#endif
