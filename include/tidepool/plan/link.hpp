/// Measures what the link between a device and the host gives: `device/link.hpp`.
#pragma once

#include "tidepool/device/link.hpp"
