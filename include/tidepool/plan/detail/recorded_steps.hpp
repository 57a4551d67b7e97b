// Makes one step of the last few that were recorded: without what happened once, and with the
// places at which the host waits for the whole device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "tidepool/core/drain.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

using tidepool::detail::drain;

// A pass is taken as it was in the latest step, or in its median step where it took longer in the
// latest than a clock explains. So what came once goes: kernels that were used for the first time
// and waited for all copies under way, or a host that came late. In a plan that would be time in
// which copies can hide. What only moved from one call to another, as between two streams, stays: a
// median, or the least, of each call alone would lose it. The median of two is the faster.
//
// Where the host waits for the device, what is computed before that is hidden by copies that take
// longer. The step in which they were over soonest tells most. As far as it went on behind them for
// as long as beside them, it is computing; of one step alone, none of it. So the plan that is tried
// out has few copies there, and shows the rest.
class recorded_steps {
 public:
  void clear() { steps_.clear(); }

  // `drains` has one for each event, or none at all. Steps of other calls or shapes say nothing of
  // this one.
  void add(const profile& step, std::vector<drain> drains, bool first) {
    const auto same_call = [](const event& a, const event& b) {
      return a.kind == b.kind && a.index == b.index && a.chunk == b.chunk;
    };
    if (!steps_.empty() && ((step.shapes_vary && !first) ||
                            !std::ranges::equal(step.events, steps_.back().events, same_call))) {
      clear();
    }
    if (steps_.size() == constants::median_of) steps_.erase(steps_.begin());
    drains.resize(step.events.size());
    std::vector<double> own;
    double waits = step.rest_wait_us;
    for (const auto& each : step.events) {
      own.push_back(each.compute_us - each.wait_us);
      waits += each.wait_us;
    }
    // The recorder puts as much behind everything as is waited for other ranks.
    own.push_back(std::max(0.0, step.rest_us - step.rest_wait_us - waits));
    steps_.push_back({step.events, std::move(drains), std::move(own), first});
  }

  // Into the step that was added last, whose waits for other ranks stay.
  void merge_into(profile& step) const {
    auto own = own_times();
    auto found = own.back();
    for (std::size_t from = 0, to = 0; from < found.size(); from = to) {
      to = end_of_pass(step.events, from);
      const auto& chosen = own[usual(own, from, to)];
      std::copy(chosen.begin() + as_offset(from), chosen.begin() + as_offset(to),
                found.begin() + as_offset(from));
    }
    step.rest_us += found.back() - own.back().back();
    std::vector<event> calls;
    for (std::size_t i = 0; i < step.events.size(); ++i) {
      auto& each = step.events[i];
      each.compute_us = each.wait_us + found[i];
    }
    for (std::size_t i = 0; i < step.events.size(); ++i) {
      if (synchronises(i)) calls.push_back(split(step.events[timed(i)], least_after(i)));
      calls.push_back(step.events[i]);
    }
    step.events = std::move(calls);
  }

 private:
  struct recorded {
    std::vector<event> events;
    std::vector<drain> drains;
    std::vector<double> own;  // computing before each call and behind the last, without waits
    bool first = false;       // recorded from its first call on: what was before it is not known

    // Of what is computed before a call, with an end of a forward pass before it, beside copies.
    [[nodiscard]] double beside_us(std::size_t call, std::size_t at) const {
      return std::max(0.0, own[at] - drains[call].after_us);
    }
  };
  using times = std::vector<std::vector<double>>;  // of each step

  static std::ptrdiff_t as_offset(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }

  // In all steps of which it can be said, so that a host that was late by chance does not count;
  // and the copies that went on longest made the call late. One that comes behind its own work,
  // whatever copies there are, has not waited for them. One step alone cannot tell.
  [[nodiscard]] bool synchronises(std::size_t call) const {
    const auto saw = [&](drain::what what) {
      return std::ranges::any_of(
          steps_, [&](const recorded& each) { return each.drains[call].seen == what; });
    };
    if (!saw(drain::what::yes) || saw(drain::what::no)) return false;
    if (steps_.size() == 1) return true;
    const auto at = timed(call);
    const auto beside_us = [&](const recorded& each) { return each.beside_us(call, at); };
    const auto [least, most] = std::ranges::minmax_element(steps_, {}, beside_us);
    return 2 * (most->own[at] - least->own[at]) > beside_us(*most) - beside_us(*least);
  }
  [[nodiscard]] double least_after(std::size_t call) const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& each : steps_) {
      const auto& seen = each.drains[call];
      if (seen.seen == drain::what::yes) least = std::min(least, seen.after_us);
    }
    return least;
  }

  // The end of a forward pass is at no time: the call behind it has the computing.
  [[nodiscard]] std::size_t timed(std::size_t call) const {
    const auto& calls = steps_.back().events;
    while (call + 1 < calls.size() && calls[call].kind == event_kind::end_forward) ++call;
    return call;
  }

  [[nodiscard]] times own_times() const {
    times all;
    for (const auto& each : steps_) all.push_back(each.own);
    if (steps_.front().first && all.size() > 1) all.front().front() = all[1].front();
    for (std::size_t i = 0; i < steps_.back().events.size(); ++i) {
      if (!synchronises(i)) continue;
      const auto at = timed(i);
      const auto us = computing(i, at);
      for (auto& each : all) each[at] = us;
    }
    return all;
  }
  // Around a wait of the host's, which `at` has.
  [[nodiscard]] double computing(std::size_t call, std::size_t at) const {
    const auto after_us = least_after(call);
    const auto& most = *std::ranges::min_element(
        steps_, {}, [&](const recorded& each) { return each.beside_us(call, at); });
    const auto longer_us = most.drains[call].after_us - after_us;  // than the copies
    const auto beside_us = most.beside_us(call, at);
    const bool all = beside_us <= 0 || longer_us >= beside_us;
    return after_us + (most.own[at] - after_us) * (all ? 1 : std::max(0.0, longer_us) / beside_us);
  }

  // Calls of one chunk, forward or backward, with what is allocated and released between them.
  [[nodiscard]] static std::size_t end_of_pass(const std::vector<event>& calls, std::size_t from) {
    const event* first = nullptr;
    for (auto i = from; i < calls.size(); ++i) {
      const auto& each = calls[i];
      if (each.kind != event_kind::commit && each.kind != event_kind::restore) continue;
      if (first == nullptr) first = &each;
      if (each.kind != first->kind || each.chunk != first->chunk) return i;
    }
    return from < calls.size() ? calls.size() : from + 1;
  }

  // The latest step, or that which took the median over these calls; of an even number, the faster.
  [[nodiscard]] static std::size_t usual(const times& own, std::size_t from, std::size_t to) {
    std::vector<std::pair<double, std::size_t>> took;
    for (std::size_t k = 0; k < own.size(); ++k) {
      const auto* us = own[k].data();
      took.emplace_back(std::accumulate(us + from, us + to, 0.0), k);
    }
    const auto latest = took.back();
    std::ranges::sort(took);
    const auto median = took[(took.size() - 1) / 2];
    return latest.first <= constants::clock_drift * median.first ? latest.second : median.second;
  }

  // The computing up to where the host waits; the rest stays with the call.
  [[nodiscard]] static event split(event& call, double after_us) {
    const double before_us = std::max(0.0, call.compute_us - after_us);
    event waits{event_kind::synchronise, 0, 0, before_us, std::min(call.wait_us, before_us)};
    call.compute_us -= before_us;
    call.wait_us -= waits.wait_us;
    return waits;
  }

  std::vector<recorded> steps_;
};

}  // namespace tidepool::plan::detail
