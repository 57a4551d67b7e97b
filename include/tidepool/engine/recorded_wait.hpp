// From here to its end a stream waits for other ranks.
#pragma once

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

class recorded_wait {
 public:
  // `stream` points to it for as long as this lives.
  recorded_wait(engine& owner, const void* stream, waits_for whom, std::uint32_t kind = 0)
      : owner_(&owner),
        stream_(stream),
        whom_(whom),
        kind_(kind),
        from_(owner.wait_begins(stream)) {}
  recorded_wait(const recorded_wait&) = delete;
  recorded_wait& operator=(const recorded_wait&) = delete;
  ~recorded_wait() {
    try {
      owner_->waited(from_, stream_, whom_, kind_);
    } catch (...) {  // a plan that takes it for computing
    }
  }

 private:
  engine* owner_;
  const void* stream_;
  waits_for whom_;
  std::uint32_t kind_;
  std::size_t from_;
};

}  // namespace tidepool::detail
