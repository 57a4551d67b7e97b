// The message with which a call refuses its options.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "tidepool/error.hpp"

namespace tidepool::test {

/// The message of the `Error` that `call` throws; fails the test when it throws nothing.
template <class Error = option_error, class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  FAIL_CHECK("nothing was refused");
  return {};
}

/// Checks that every one of `phrases` occurs in `message`.
inline void check_says(const std::string& message, std::initializer_list<const char*> phrases) {
  CAPTURE(message);
  for (const char* const phrase : phrases) {
    CAPTURE(std::string(phrase));
    CHECK(message.find(phrase) != std::string::npos);
  }
}

}  // namespace tidepool::test
