// Prices for `price_proof`: a search uphill, since what they prove is concave in them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/price_proof.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Steps along the slope, each price by what its own slopes were of late (as Adam does), shorter
// and shorter. Nothing rests on where that ends.
class price_search {
 public:
  explicit price_search(const timeline& of) : of_(&of), at_(of.size()), slope_(of.size()) {
    std::size_t events = of.size();
    for (const auto& each : of.parcels) events += each.last + 1 - each.first;
    steps_ = std::clamp(constants::price_work / events, std::size_t{50}, constants::price_steps);
    for (auto& each : moments_) each.assign(of.size(), {});
  }

  // The best prices found; all 0 where none say anything.
  [[nodiscard]] prices run() {
    prices best(of_->size());
    double most = 0;
    double fade = 1;
    double fade_squared = 1;
    for (std::size_t i = 0; i < steps_; ++i) {
      const auto says = price_proof(*of_, at_).least_us(&slope_);
      if (says > most) {
        most = says;
        best = at_;
      }
      fade *= along;
      fade_squared *= squared;
      const auto part = static_cast<double>(i) / static_cast<double>(steps_);
      const auto length = constants::price_step * std::pow(0.01, part) / (1 - fade);
      move(at_.out, slope_.out, moments_[0], length, 1 - fade_squared, 1);
      move(at_.in, slope_.in, moments_[1], length, 1 - fade_squared, 1);
      move(at_.both, slope_.both, moments_[2], length, 1 - fade_squared, 1);
      move(at_.memory, slope_.memory, moments_[3], length, 1 - fade_squared, 1 / of_->out);
      for (std::size_t k = 0; k < of_->size(); ++k) {
        share(k);
        if (of_->over[k] <= 0) at_.memory[k] = 0;
      }
    }
    return best;
  }

 private:
  struct moment {
    double slope = 0;
    double square = 0;
  };
  // How much of a mean is what was before.
  static constexpr double along = 0.9;
  static constexpr double squared = 0.99;

  static void move(std::vector<double>& price, const std::vector<double>& slope,
                   std::vector<moment>& of, double length, double seen, double unit) {
    for (std::size_t k = 0; k < price.size(); ++k) {
      const auto now = slope[k] * unit;
      of[k].slope = along * of[k].slope + (1 - along) * now;
      of[k].square = squared * of[k].square + (1 - squared) * now * now;
      const auto size = std::sqrt(of[k].square / seen);
      if (size > 0) price[k] = std::max(0.0, price[k] + length * unit * of[k].slope / size);
    }
  }

  // Shares of the link's time are at most 1 together: what is too much is taken off each alike.
  void share(std::size_t k) {
    const std::array<double*, 3> of{&at_.out[k], &at_.in[k], &at_.both[k]};
    for (int i = 0; i < 3; ++i) {
      const auto much = *of[0] + *of[1] + *of[2] - 1;
      if (much <= 0) return;
      double some = 0;
      for (const auto* each : of) some += *each > 0 ? 1 : 0;
      for (auto* each : of) *each = std::max(0.0, *each - much / some);
    }
    const auto sum = *of[0] + *of[1] + *of[2];
    if (sum > 1) {
      for (auto* each : of) *each /= sum;
    }
  }

  const timeline* of_;
  prices at_;
  prices slope_;
  std::array<std::vector<moment>, 4> moments_;
  std::size_t steps_ = 0;
};

}  // namespace tidepool::plan::detail
