// Error messages of calls on a chunk that is not open.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

// `microbatch` is that of the finished chunk; none where the chunk was never begun.
[[noreturn, gnu::cold]] inline void throw_closed_chunk(const std::string& call,
                                                       const std::optional<int>& microbatch) {
  if (!microbatch) {
    throw misuse_error(call +
                       ": this chunk was never begun, or was moved from; use the one that"
                       " offloader::begin returned");
  }
  throw misuse_error(call + ", microbatch " + std::to_string(*microbatch) +
                     ": its chunk is finished; call finish after the last restore, and begin a"
                     " chunk for each forward pass");
}
[[noreturn, gnu::cold]] inline void throw_closed_chunk(const char* call, std::string_view module,
                                                       int layer,
                                                       const std::optional<int>& microbatch) {
  throw_closed_chunk(
      std::string(call) + " of " + std::string(module) + " of layer " + std::to_string(layer),
      microbatch);
}

}  // namespace tidepool::detail
