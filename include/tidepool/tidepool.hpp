/// Everything. Include single headers instead where compile time matters.
#pragma once

#include "tidepool/device/cuda.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/fwd.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/profiler.hpp"
#include "tidepool/trace/report.hpp"
#include "tidepool/trace/summary.hpp"
#include "tidepool/trace/timeline.hpp"
#include "tidepool/version.hpp"
