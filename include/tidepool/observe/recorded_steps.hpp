// Makes one step of the last few recorded ones: drops events that came once, and finds the places
// at which the host waits for the whole device.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/decide/step_learner.hpp"
#include "tidepool/observe/settling.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

using tidepool::detail::stage;

// Tells if the host had waited for the whole device when a call came.
struct drain {
  enum class what : std::uint8_t {
    no,       // work was still to be done
    unknown,  // all work was over, perhaps without a wait
    yes       // the copies and the work of the call before are over
  };
  what seen = what::no;
  double after_us = 0;  // from the end of the last copy to the call

  friend bool operator==(const drain&, const drain&) = default;
};

// A pass is taken from the latest step; if it took longer there than a clock explains, from the
// step with its median time (of two steps, the faster). So delays that came once are dropped, such
// as a kernel's first use, which waited for all copies under way, or a host that came late: in a
// plan copies would hide in their time. Time that only moved from one call to another, as between
// two streams, stays; a median, or the least, of each call alone would lose it.
//
// Before a wait of the host for the device, longer copies hide the computing. The step whose copies
// were over soonest tells most. Its time beside the copies counts as computing as far as it went on
// longer after the copies than another step; a single step shows none. So the plan that is tried
// out has few copies there, and shows the rest.
class recorded_steps {
 public:
  // Keeps so many of the first steps beside the latest: they ran under other plans, and so show
  // where the host waits, which steps with the same copies do not.
  explicit recorded_steps(std::ptrdiff_t first = 0) : keeps_(first) {}
  void clear() { steps_.clear(); }

  // `drains` has one entry for each event, or none at all. Earlier steps with other calls or shapes
  // are dropped.
  void add(const profile& step, std::vector<drain> drains, bool first) {
    const auto same_call = [](const event& a, const event& b) {
      return a.kind == b.kind && a.index == b.index && a.chunk == b.chunk;
    };
    if (!steps_.empty() && ((step.shapes_vary && !first) ||
                            !std::ranges::equal(step.events, steps_.back().events, same_call))) {
      clear();
    }
    if (std::ssize(steps_) == keeps_ + std::ptrdiff_t{constants::median_of})
      steps_.erase(steps_.begin() + keeps_);
    drains.resize(step.events.size());
    std::vector<double> own;
    double waits = step.rest_wait_us;
    for (const auto& each : step.events) {
      own.push_back(each.compute_us - each.wait_us);
      waits += each.wait_us;
    }
    // The recorder puts as much behind all events as it counts as waits for other ranks.
    own.push_back(std::max(0.0, step.rest_us - step.rest_wait_us - waits));
    steps_.push_back({step.events, std::move(drains), std::move(own), first});
  }

  // The computing of the step that was added last.
  [[nodiscard]] double latest_us() const {
    const auto& us = steps_.back().own;
    return std::accumulate(us.begin(), us.end(), 0.0);
  }

  // Merges all steps into the one that was added last, and keeps its waits for other ranks.
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
    std::vector<double> own;  // computing before each call and after the last, without waits
    bool first = false;       // recorded from its first call on: the time before is not known

    // Computing before a call that ran beside copies; `at` is the call that has the time.
    [[nodiscard]] double beside_us(std::size_t call, std::size_t at) const {
      return std::max(0.0, own[at] - drains[call].after_us);
    }
  };
  using times = std::vector<std::vector<double>>;  // of each step

  static std::ptrdiff_t as_offset(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }

  // True if no step with a finding contradicts, so that a host that was late by chance does not
  // count, and if the copies that went on longest made the call late. A call that comes after its
  // own work, whatever copies there are, has not waited for them. A single step cannot tell.
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

  // The end of a forward pass takes no time: the call after it has the computing.
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
  // The computing around a wait of the host; call `at` has its time.
  [[nodiscard]] double computing(std::size_t call, std::size_t at) const {
    const auto after_us = least_after(call);
    const auto& most = *std::ranges::min_element(
        steps_, {}, [&](const recorded& each) { return each.beside_us(call, at); });
    const auto longer_us = most.drains[call].after_us - after_us;  // than the copies
    const auto beside_us = most.beside_us(call, at);
    const bool all = beside_us <= 0 || longer_us >= beside_us;
    return after_us + (most.own[at] - after_us) * (all ? 1 : std::max(0.0, longer_us) / beside_us);
  }

  // The end of the calls of one chunk, forward or backward, with allocations and releases between.
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

  // The latest step, or the step with the median time of these calls; of two medians, the faster.
  [[nodiscard]] static std::size_t usual(const times& own, std::size_t from, std::size_t to) {
    std::vector<std::pair<double, std::size_t>> took;
    for (auto k = own.size() - std::min(own.size(), constants::median_of); k < own.size(); ++k) {
      const auto* us = own[k].data();
      took.emplace_back(std::accumulate(us + from, us + to, 0.0), k);
    }
    const auto latest = took.back();
    std::ranges::sort(took);
    const auto median = took[(took.size() - 1) / 2];
    return latest.first <= constants::clock_drift * median.first ? latest.second : median.second;
  }

  // Splits off the computing before the host's wait; the rest stays with the call.
  [[nodiscard]] static event split(event& call, double after_us) {
    const double before_us = std::max(0.0, call.compute_us - after_us);
    event waits{event_kind::synchronise, 0, 0, before_us, std::min(call.wait_us, before_us)};
    call.compute_us -= before_us;
    call.wait_us -= waits.wait_us;
    return waits;
  }

  std::ptrdiff_t keeps_;
  std::vector<recorded> steps_;
};

// The steps that an automatic warm-up keeps, and the choice of those that plans are made of.
class warm_up_steps {
 public:
  // Steps that train until a plan is made although their computing has not settled, and where ranks
  // wait for each other, which must all plan at the end of the same step. Chosen.
  static constexpr int most = 40;
  static constexpr int of_ranks = 16;

  // None: the step by which computing has settled.
  explicit warm_up_steps(std::optional<int> timed_step)
      : timed_step_(timed_step), recorded_(timed_step ? 0 : std::bit_width(first_plans)) {}

  // Counts a step that has trained; returns true if its record is to be finished.
  [[nodiscard]] bool wants_record(bool waited_for_others) {
    ++trained_;
    // Other ranks follow new plans as well, and the waits for them become shorter each time.
    return !timed_step_ || !between() || soon() || waited_for_others;
  }
  // Notes that ranks wait for each other.
  void among_ranks() noexcept { alone_ = false; }
  // `step` is recorded, with storages of these sizes. `varied`: shapes varied in a step of this
  // warm-up, which one step cannot show. `drains` are of its events, if anything is known. Returns
  // `stage::step` where no plan is to be made of it.
  [[nodiscard]] stage learn(profile& step, bool varied, const std::vector<std::size_t>& sizes,
                            std::vector<drain> drains = {}) {
    const bool first = trained_ == 1;
    if (first) {
      first_ = step.chunks;
      first_sizes_ = sizes;
    }
    // A single step cannot show that shapes are constant.
    step.shapes_vary =
        first || varied || !same_shapes(first_, step.chunks) || first_sizes_ != sizes;
    recorded_.add(step, std::move(drains), first);
    computing_.add(recorded_.latest_us());
    const bool last = !between();
    if (!last && !timed_step_ && !soon()) return stage::step;
    recorded_.merge_into(step);
    if (last && !first) return stage::timed;
    computing_.begin_anew();  // the next steps follow another plan, and the clock follows that
    return first ? stage::first : stage::recorded;
  }

  // The time to compute a group again, as the first step measured it; 0: unknown.
  [[nodiscard]] double recompute_us(std::size_t chunk, std::size_t group, module_id module,
                                    int layer) const {
    if (chunk >= first_.size() || group >= first_[chunk].groups.size()) return 0;
    const auto& known = first_[chunk].groups[group];
    return known.module == module && known.layer == layer ? known.recompute_us : 0;
  }

 private:
  // Compares shapes, not times, which differ from step to step.
  [[nodiscard]] static bool same_shapes(const std::vector<chunk_profile>& a,
                                        const std::vector<chunk_profile>& b) {
    const auto same_group = [](const group_profile& x, const group_profile& y) {
      return x.module == y.module && x.layer == y.layer && x.bytes == y.bytes;
    };
    return std::ranges::equal(a, b, [&](const auto& x, const auto& y) {
      return x.model_chunk == y.model_chunk && x.microbatch == y.microbatch &&
             std::ranges::equal(x.groups, y.groups, same_group);
    });
  }
  // True of a step with the first plans: a GPU at its power limit computes faster in a step with
  // more stalls, so a plan has to come from a step much like those that follow it.
  [[nodiscard]] bool soon() const {
    return std::has_single_bit(static_cast<unsigned>(trained_)) &&
           (timed_step_ || trained_ <= static_cast<int>(first_plans));
  }
  [[nodiscard]] bool between() const {
    if (timed_step_) return trained_ > 1 && trained_ < *timed_step_;
    return trained_ < (alone_ ? most : of_ranks) && !(alone_ && computing_.settled());
  }

  static constexpr unsigned first_plans = 4;  // the last step of which a plan is made unsettled

  std::optional<int> timed_step_;
  bool alone_ = true;
  int trained_ = 0;                       // steps of the warm-up that trained
  std::vector<chunk_profile> first_;      // chunks of its first step
  std::vector<std::size_t> first_sizes_;  // sizes of all storages of that step
  recorded_steps recorded_;               // latest steps
  settling computing_;                    // of the steps since a plan was made
};

}  // namespace tidepool::plan::detail
