// From here to its end a stream waits for other ranks.
#pragma once

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_3_0::detail {

// A variable, which is not copied. `stream` points to the stream for as long as it lives.
struct recorded_wait {
  ~recorded_wait() {
    if (auto* on = owner.records()) on->waited(from, stream, whom, kind);
  }

  engine& owner;
  const void* stream;
  waits_for whom;
  std::uint32_t kind = 0;
  std::size_t from = owner.records() != nullptr ? owner.records()->wait_begins(stream)
                                                : static_cast<std::size_t>(-1);
};

}  // namespace tidepool::detail
