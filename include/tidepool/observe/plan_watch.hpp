// Measures the steps under a plan, and tells when they take another time than the plan promised.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "tidepool/device/hardware.hpp"

namespace tidepool::inline v0_3_0::detail {

// A step lasts from the end of the step before it to its own end, as in the profile that a plan is
// made of. Each step costs one event; the host never waits for the device.
class plan_watch {
 public:
  // Steps that have a median, so that a checkpoint or an evaluation between two steps does not
  // count.
  static constexpr std::size_t window = 8;
  // A plan is made anew where the median differs from the expected time by more than this part.
  // Predictions miss by up to 1 %.
  static constexpr double drifts = 0.02;

  explicit plan_watch(hardware& dev) : dev_(&dev), marks_(dev) {}

  // A plan that predicts steps of `predicted_us` is followed from the next step on; the step before
  // it has ended on `lane`. All events are made here, so that later steps make none.
  void begin(double predicted_us, lane_id lane) noexcept {
    expected_us_ = predicted_us;
    measured_ = read_ = 0;
    begun_ = 1;
    first_ = true;
    attempt([&] {
      if (!dev_->can().tells_what_is_over) return stop();
      for (std::size_t mark = 0; mark < ring; ++mark) marks_.record(mark, dev_->stream(lane));
    });
  }
  void stop() noexcept { expected_us_ = 0; }
  // False where nothing is to be measured, or the device has refused an event. Steps go on without.
  [[nodiscard]] bool runs() const { return expected_us_ > 0; }
  // The time that the steps were expected to take: by the plan, then by their first median.
  [[nodiscard]] double expected_us() const { return expected_us_; }
  // True until the first median of a plan is taken.
  [[nodiscard]] bool first() const { return first_; }

  // A step has ended on `lane`. Returns the median of the last steps at the end of each window.
  [[nodiscard]] std::optional<double> step_ended(lane_id lane) noexcept {
    attempt([&] {
      for (; read_ + 1 < begun_ && measured_ < window; ++read_) {
        if (!dev_->passed(marks_[(read_ + 1) % ring])) break;
        us_[measured_++] = marks_.elapsed_us(read_ % ring, (read_ + 1) % ring);
      }
      if (begun_ - read_ == ring) read_ = begun_;  // the host is too far ahead: begin anew
      marks_.record(begun_++ % ring, dev_->stream(lane));
    });
    if (!runs() || measured_ < window) return std::nullopt;
    measured_ = 0;
    std::ranges::sort(us_);
    return (us_[window / 2 - 1] + us_[window / 2]) / 2;
  }

  // Takes a median. Returns true if a plan should be made of the steps as they are now.
  //
  // A plan whose first median misses its prediction is made anew once. If the new plan misses as
  // well, a third one would, too, because the forecast lacks something. So from the first median on
  // the steps of every plan are compared with that median, and no longer with the prediction.
  [[nodiscard]] bool has_drifted(double median_us) noexcept {
    bool off = std::abs(median_us - expected_us_) > drifts * expected_us_;
    if (std::exchange(first_, false)) {
      off = off && !missed_;
      missed_ = off;
      expected_us_ = median_us;
    }
    return off;
  }

 private:
  // Steps that the host may be ahead of the device.
  static constexpr std::size_t ring = 2 * window;

  template <class Body>
  void attempt(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
      stop();
    }
  }

  hardware* dev_;
  timing_events marks_;  // ends of steps, numbered modulo `ring`
  std::array<double, window> us_{};
  std::size_t measured_ = 0;  // of `us_`
  std::size_t begun_ = 0;     // marks that were recorded
  std::size_t read_ = 0;      // the mark before the first step that is not measured
  double expected_us_ = 0;    // 0: nothing is measured
  bool first_ = true;
  bool missed_ = false;  // the plan before this one was replaced because its prediction missed
};

}  // namespace tidepool::detail
