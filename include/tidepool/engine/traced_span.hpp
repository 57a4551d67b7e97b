// A span of the trainer's own work on one stream, as an object's life.
#pragma once

#include <cstddef>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

class traced_span {
 public:
  // `lane_of()` is asked where a trace is being recorded.
  template <class Lane>
  traced_span(engine& owner, const Lane& lane_of, const span_label& label)
      : owner_(&owner), label_(label) {
    auto& memory = owner.memory();
    if (!memory.trace().on) return;
    lane_ = lane_of();
    from_ = memory.trace().begin(lane_);
  }
  traced_span(traced_span&&) = delete;
  ~traced_span() {
    if (from_ == tracer::off) return;
    try {
      auto& memory = owner_->memory();
      memory.trace().end(from_, lane_, label_);
    } catch (...) {  // a picture without this span
    }
  }

 private:
  engine* owner_;
  span_label label_;
  lane_id lane_{};
  std::size_t from_ = tracer::off;
};

}  // namespace tidepool::detail
