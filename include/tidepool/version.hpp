/// The library's version, in one place: CMake reads it from here.
#pragma once

#define TIDEPOOL_VERSION_MAJOR 0
#define TIDEPOOL_VERSION_MINOR 2
#define TIDEPOOL_VERSION_PATCH 0

namespace tidepool {

/// Major, minor and patch number of the headers this translation unit was compiled with.
struct version {
  int major = TIDEPOOL_VERSION_MAJOR;
  int minor = TIDEPOOL_VERSION_MINOR;
  int patch = TIDEPOOL_VERSION_PATCH;
};

}  // namespace tidepool
