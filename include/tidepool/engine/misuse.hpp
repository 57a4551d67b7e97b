// Mistakes of a caller in words, as far as they need no engine to be told.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

[[noreturn, gnu::cold]] inline void throw_mixed_capture(bool capturing) {
  throw misuse_error(
      capturing
          ? "capture: this stream takes no part in the capture under way; make it wait for an event"
            " of the captured stream first, or end the capture"
          : "this stream is being captured, but not by the offloader, so the copies would escape"
            " the graph; capture with offloader::capture, or commit after the graph has been "
            "launched");
}

[[noreturn, gnu::cold]] inline void throw_too_many(const std::string& what) {
  throw misuse_error("allocate: " + what +
                     " are more than any memory has; did the count overflow, as rows * columns"
                     " does in an int?");
}

// No machine has half of what an address can name: what asks for it counted in a type too small.
inline constexpr std::size_t most_bytes = std::numeric_limits<std::size_t>::max() / 2;

[[nodiscard]] inline std::size_t bytes_of(std::size_t count, std::size_t each) {
  if (count > most_bytes / each) {
    throw_too_many(std::to_string(count) + " elements of " + std::to_string(each) + " bytes");
  }
  return count * each;
}

[[noreturn, gnu::cold]] inline void throw_serves_another() {
  throw misuse_error(
      "allocate_from: this memory has served another offloader, on whose streams it is free;"
      " give each offloader a source of its own");
}

[[noreturn, gnu::cold]] inline void throw_left_empty(int layer, std::size_t argument) {
  throw misuse_error("restore of layer " + std::to_string(layer) + ": argument " +
                     std::to_string(argument) +
                     " was emptied by a commit, and this restore would leave it so: its chunk is"
                     " forward_only, or the module is none that offloads; restore in the chunk and"
                     " by the name of the commit");
}

}  // namespace tidepool::detail
