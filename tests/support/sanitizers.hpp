/// Whether a test is built with AddressSanitizer, as either compiler says it, and what it may then
/// leave out.
#pragma once

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TIDEPOOL_TEST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(TIDEPOOL_TEST_ASAN)
#define TIDEPOOL_TEST_ASAN 1
#endif

namespace tidepool::test {

/// Of the cases of a long single-threaded sweep, one in so many is enough: sanitizers make each ten
/// times as long and look at every access of it. A build may ask for that by itself.
#if defined(TIDEPOOL_TEST_THINNED)
inline constexpr std::size_t thinned = TIDEPOOL_TEST_THINNED;
#elif defined(TIDEPOOL_TEST_ASAN)
inline constexpr std::size_t thinned = 12;
#else
inline constexpr std::size_t thinned = 1;
#endif

/// The same for sweeps of which the full length leaves nothing out (tests/CMakeLists.txt).
#if defined(TIDEPOOL_TEST_FULL)
inline constexpr std::size_t thinned_if_short = 1;
#else
inline constexpr std::size_t thinned_if_short = thinned;
#endif

}  // namespace tidepool::test
