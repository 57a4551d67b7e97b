// A span of work on one stream, which lasts as long as the object.
#pragma once

#include <cstddef>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_3_0::detail {

class traced_span {
 public:
  // `lane_of()` is called only where an observer listens.
  template <class Lane>
  traced_span(engine& owner, const Lane& lane_of, const span_label& label)
      : heard_(&owner.heard()), label_(label) {
    if (!heard_->any()) return;
    lane_ = lane_of();
    heard_->begin_span(lane_, mark_);
  }
  traced_span(traced_span&&) = delete;
  ~traced_span() { heard_->end_span(lane_, mark_, label_); }

 private:
  const observers* heard_;
  span_label label_;
  lane_id lane_{};
  std::size_t mark_ = observers::no_mark;
};

}  // namespace tidepool::detail
