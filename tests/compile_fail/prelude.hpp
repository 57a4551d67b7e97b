// What the sources include, to be compiled ahead once for each compiler.
#pragma once

#include <string>

#include "tidepool/device/cuda.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/module.hpp"
#include "tidepool/offloader.hpp"
