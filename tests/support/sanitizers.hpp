/// Which sanitizer a test is built with, as either compiler says it.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TIDEPOOL_TEST_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define TIDEPOOL_TEST_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(TIDEPOOL_TEST_ASAN)
#define TIDEPOOL_TEST_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(TIDEPOOL_TEST_TSAN)
#define TIDEPOOL_TEST_TSAN 1
#endif
