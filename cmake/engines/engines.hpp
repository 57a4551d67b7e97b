/// The engines that Tidepool's own programs have in common, compiled once (virtual.cpp, cuda.cpp)
/// instead of in each. It goes before a program's own text, which knows nothing of it; programs
/// that measure the engine itself do without.
#pragma once

#include "tidepool/device/cuda.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

/// What most of a program's compile time goes to. `How` is `extern template`, or `template` where
/// the code is to be made.
#define TIDEPOOL_ENGINE(How, ...)            \
  How class detail::engine<__VA_ARGS__>;     \
  How class detail::plan_maker<__VA_ARGS__>; \
  How class detail::recorder<__VA_ARGS__>;   \
  How class detail::storages<__VA_ARGS__>

namespace tidepool {
TIDEPOOL_ENGINE(extern template, virtual_device);
#if defined(TIDEPOOL_HAS_CUDA)
TIDEPOOL_ENGINE(extern template, cuda_device);
#endif
}  // namespace tidepool
