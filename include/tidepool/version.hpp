/// The library's version, in one place: CMake reads it from here.
#pragma once

/// The major version; 0: the interface may change with each minor one.
#define TIDEPOOL_VERSION_MAJOR 0
/// The minor version.
#define TIDEPOOL_VERSION_MINOR 2
/// The patch version.
#define TIDEPOOL_VERSION_PATCH 0

namespace tidepool::inline v0_3_0 {

/// Major, minor and patch number of the headers this translation unit was compiled with.
struct version {
  int major = TIDEPOOL_VERSION_MAJOR;  ///< `TIDEPOOL_VERSION_MAJOR`
  int minor = TIDEPOOL_VERSION_MINOR;  ///< `TIDEPOOL_VERSION_MINOR`
  int patch = TIDEPOOL_VERSION_PATCH;  ///< `TIDEPOOL_VERSION_PATCH`
};

}  // namespace tidepool
