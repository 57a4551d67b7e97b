/// What errors say.
#pragma once

#include <string>
#include <string_view>

#include "tidepool/error.hpp"

namespace tidepool::test {

/// The words of the `misuse_error` that `call` throws; empty when it throws none.
template <class Call>
[[nodiscard]] std::string message_of(const Call& call) {
  try {
    call();
  } catch (const misuse_error& problem) {
    return problem.what();
  }
  return {};
}

[[nodiscard]] inline bool says(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace tidepool::test
