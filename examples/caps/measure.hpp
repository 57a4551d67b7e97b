/// Measures caps on a device, or predicts them for a recorded step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <tidepool/decide/policy.hpp>
#include <tidepool/plan/forecast.hpp>
#include <tidepool/plan/profile.hpp>
#include <tidepool/trace/detail/print.hpp>
#include <vector>

#include "study.hpp"
#include "trainer.hpp"

namespace caps {

/// What is measured.
struct axes {
  std::vector<cap_limit> limits;  ///< one of them is none
  std::vector<double> ratios;     ///< compute time of a group over its copy time
  std::vector<int> depths;        ///< microbatches in flight
  workload work;                  ///< its schedule is not used
  int steps = 1;                  ///< timed, of which the middle one counts
};

/// Told before each part: which it is, how many are done, and how many there are.
using part_begins = std::function<void(const std::string&, std::size_t, std::size_t)>;

/// One microbatch at a time, or 1F1B with twice as many as are in flight.
[[nodiscard]] inline schedule schedule_of(int depth) { return {depth, depth == 1 ? 1 : 2 * depth}; }
[[nodiscard]] inline std::string name_of_depth(int depth) {
  return depth == 1 ? "one microbatch at a time" : "1F1B, depth " + std::to_string(depth);
}

/// One row: the middle of the timed steps, and one more that is traced.
template <class Machine>
row measure(Machine& machine, const workload& work, double compute_ns, const tp::options& opts,
            int steps) {
  trainer<Machine> train(machine, work, compute_ns, opts);
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) times.push_back(train.step_us());
  std::sort(times.begin(), times.end());
  const traced seen(train.traced_step());
  return {opts.max_inflight, times[times.size() / 2],      seen.stall_us,
          seen.cap_us,       train.counters().device_peak, seen.held};
}

/// All depths and ratios, in this order.
template <class Machine>
std::vector<series> measure(Machine& machine, const axes& all, const part_begins& begins) {
  std::vector<series> result;
  const auto whole = all.depths.size() * all.ratios.size() * all.limits.size();
  const auto copy = copy_ns(machine, all.work);
  std::size_t done = 0;
  for (const int depth : all.depths) {
    for (const double ratio : all.ratios) {
      auto work = all.work;
      work.order = schedule_of(depth);
      const auto compute_ns = ratio * copy;
      auto opts = options_for(work);
      const auto kept = measure(machine, work, compute_ns, opts, all.steps);
      series one{name_of_depth(depth),
                 "compute " + tidepool::trace::detail::trimmed(ratio, 3) + " x copy",
                 kept.step_us,
                 kept.taken,
                 {}};
      opts.offload_modules = {"expert_fc1"};
      for (const auto& limit : all.limits) {
        begins(one.order + ", " + one.ratio + ", cap " + name_of(limit), done++, whole);
        opts.max_inflight = limit;
        one.rows.push_back(measure(machine, work, compute_ns, opts, all.steps));
      }
      result.push_back(std::move(one));
    }
  }
  return result;
}

/// A recorded step under Megatron's rule, in a pool: the engine itself on the virtual device.
inline series predict(const tp::plan::profile& step, const std::vector<cap_limit>& limits,
                      const part_begins& begins) {
  tp::options opts;
  opts.device_step = std::size_t{2} << 20;
  tp::plan::residency everything;
  for (const auto& chunk : step.chunks) everything.emplace_back(chunk.groups.size(), true);
  const auto kept = tp::plan::forecast(step, opts, everything);
  series result{"as recorded", "", kept.expected.step_us, kept.reserved, {}};
  const auto stays = tp::plan::megatron_policy(step, opts);
  std::size_t done = 0;
  for (const auto& limit : limits) {
    begins("cap " + name_of(limit), done++, limits.size());
    opts.max_inflight = limit;
    const auto seen = tp::plan::forecast(step, opts, stays, true);
    const traced waits(seen.picture);
    result.rows.push_back(
        {limit, seen.expected.step_us, waits.stall_us, waits.cap_us, seen.reserved, waits.held});
  }
  return result;
}

}  // namespace caps
