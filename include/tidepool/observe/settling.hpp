// Tells when the computing of the steps has settled: under load a GPU lowers its clock for seconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace tidepool::inline v0_3_0::plan::detail {

// Compares the medians of the latest steps and of as many before them.
class settling {
 public:
  // Steps that have a median. On an H200 a step of 0.7 s was settled after some ten.
  static constexpr std::size_t window = 4;
  // Medians that differ by this part are alike. A clock that falls exponentially, with a time of up
  // to 16 steps, then has less than 1 % to go; the computing of a steady step varies about as much.
  static constexpr double alike = 0.003;

  void begin_anew() noexcept {
    steps_us_.clear();
    settled_ = false;
  }
  void add(double step_us) {
    if (steps_us_.size() == 2 * window) steps_us_.erase(steps_us_.begin());
    steps_us_.push_back(step_us);
    if (steps_us_.size() < 2 * window) return;
    const auto now_us = median_us(window);
    settled_ = settled_ || std::abs(now_us - median_us(0)) <= alike * now_us;
  }
  // Stays true, so that ranks which wait for each other's steps to settle come to an end.
  [[nodiscard]] bool settled() const { return settled_; }

 private:
  [[nodiscard]] double median_us(std::size_t from) const {
    const auto first = steps_us_.begin() + static_cast<std::ptrdiff_t>(from);
    std::vector<double> us(first, first + window);
    std::ranges::sort(us);
    return (us[window / 2 - 1] + us[window / 2]) / 2;
  }

  std::vector<double> steps_us_;
  bool settled_ = false;
};

}  // namespace tidepool::plan::detail
