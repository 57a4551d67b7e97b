// What prices of link and memory prove about a timeline, and a search for those that prove most.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/timeline.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

// What time and memory are worth: shares of the link's time in each stretch, which together are at
// most 1, and microseconds for a byte away at the end of it. None is negative.
struct prices {
  std::vector<double> out;
  std::vector<double> in;
  std::vector<double> both;
  std::vector<double> memory;

  explicit prices(std::size_t stretches)
      : out(stretches), in(stretches), both(stretches), memory(stretches) {}
};

// Microseconds that any plan must add to computing, as these prices prove it. A Lagrangian bound:
// each limit of link and memory may be broken at its price, and each byte then does the best for
// itself. So it holds for whatever prices are given, and only how much it says depends on them.
//
// A wait for other ranks takes as much off as a step is late. What a microsecond of that is worth
// may be anything that never falls and is at least what the link's time is: here the most that this
// was until then, and all of it from where computing again may be late as well.
class price_proof {
 public:
  price_proof(const timeline& of, const prices& at) : of_(&of), at_(&at) {
    const auto count = of.size();
    leave_.resize(count);
    arrive_.resize(count);
    load_.resize(count);
    before_.resize(count);
    highest_.resize(count);
    double worth = 0;
    for (std::size_t i = 0; i < count; ++i) {
      load_[i] = at.out[i] + at.in[i] + at.both[i];
      const auto both = at.both[i] / of.both;
      leave_[i] = worth + both;
      arrive_[i] = worth - both;
      before_[i] = worth;
      worth += at.memory[i];
      const auto last = i > 0 ? highest_[i - 1] : 0;
      highest_[i] = load_[i] > load_[last] ? i : last;
    }
  }

  // Into `slope` goes how it changes with each price.
  [[nodiscard]] double least_us(prices* slope = nullptr) const {
    const auto& of = *of_;
    double sum = 0;
    for (std::size_t i = 0; i < of.size(); ++i) {
      const auto free = of.compute[i] - of.wait[i];
      const auto late = i < of.opens ? load_[highest_[i]] : 1;
      sum -= free * load_[i] + of.wait[i] * late;
      if (at_->memory[i] > 0) sum += at_->memory[i] * of.over[i];
      if (slope == nullptr) continue;
      slope->out[i] = slope->in[i] = slope->both[i] = -free;
      if (i < of.opens) add_load(*slope, highest_[i], -of.wait[i]);
      slope->memory[i] = std::max(0.0, of.over[i]);
    }
    for (const auto& each : of.parcels) sum -= each.bytes * gain(each, slope);
    return sum;
  }

 private:
  static void add_load(prices& slope, std::size_t at, double by) {
    for (auto* of : {&slope.out, &slope.in, &slope.both}) (*of)[at] += by;
  }

  // What a byte gains at most by being away.
  [[nodiscard]] double gain(const parcel& each, prices* slope) const {
    const auto slow_out = each.slow_out / of_->out;
    const auto slow_in = each.slow_in / of_->in;
    auto cheapest = std::numeric_limits<double>::infinity();
    double best = 0;
    std::size_t cheap_at = 0;
    std::size_t leaves = 0;
    std::size_t arrives = 0;
    for (auto i = each.first; i <= each.last; ++i) {
      const auto costs = leave_[i] + slow_out * at_->out[i];
      if (costs < cheapest) {
        cheapest = costs;
        cheap_at = i;
      }
      const auto gains = arrive_[i] - slow_in * at_->in[i] - cheapest;
      if (gains < best) continue;
      best = gains;
      leaves = cheap_at;
      arrives = i;
    }
    double again = -1;
    if (each.recompute_us >= 0) {
      again = before_[each.last] - before_[each.commit] -
              each.recompute_us * std::max(0.0, 1 - load_[each.again]);
    }
    if (slope != nullptr && again > best) {
      for (auto i = each.commit; i < each.last; ++i) slope->memory[i] -= each.bytes;
      add_load(*slope, each.again, -each.bytes * each.recompute_us);
    } else if (slope != nullptr && best > 0) {
      for (auto i = leaves; i < arrives; ++i) slope->memory[i] -= each.bytes;
      slope->out[leaves] += each.bytes * slow_out;
      slope->in[arrives] += each.bytes * slow_in;
      slope->both[leaves] += each.bytes / of_->both;
      slope->both[arrives] += each.bytes / of_->both;
    }
    return std::max(best, again);
  }

  const timeline* of_;
  const prices* at_;
  std::vector<double> load_;
  std::vector<double> leave_;  // by the price of both, and memory's until then
  std::vector<double> arrive_;
  std::vector<double> before_;        // memory's prices until a stretch
  std::vector<std::size_t> highest_;  // load, of the stretches until one
};

// Steps along the slope, each price by what its own slopes were of late (as Adam does), shorter
// and shorter. Nothing rests on where that ends.
class price_search {
 public:
  explicit price_search(const timeline& of)
      : of_(&of), at_(of.size()), slope_(of.size()), mean_(of.size()), square_(of.size()) {
    std::size_t events = of.size();
    for (const auto& each : of.parcels) events += each.last + 1 - each.first;
    steps_ = std::clamp(constants::price_work / events, std::size_t{50}, constants::price_steps);
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
      for (const auto of : {&prices::out, &prices::in, &prices::both}) {
        move(of, length, 1 - fade_squared, 1);
      }
      move(&prices::memory, length, 1 - fade_squared, 1 / of_->out);
      for (std::size_t k = 0; k < of_->size(); ++k) {
        share(k);
        if (of_->over[k] <= 0) at_.memory[k] = 0;
      }
    }
    return best;
  }

 private:
  // How much of a mean is what was before.
  static constexpr double along = 0.9;
  static constexpr double squared = 0.99;

  void move(std::vector<double> prices::*of, double length, double seen, double unit) {
    for (std::size_t k = 0; k < of_->size(); ++k) {
      const auto now = (slope_.*of)[k] * unit;
      auto& mean = (mean_.*of)[k];
      auto& square = (square_.*of)[k];
      auto& price = (at_.*of)[k];
      mean = along * mean + (1 - along) * now;
      square = squared * square + (1 - squared) * now * now;
      const auto size = std::sqrt(square / seen);
      if (size > 0) price = std::max(0.0, price + length * unit * mean / size);
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
  prices mean_;  // of slopes, and of their squares
  prices square_;
  std::size_t steps_ = 0;
};

}  // namespace tidepool::plan::detail
