// What happened once in a recorded step and says nothing of the steps to come.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Computing before each call, without waits for other ranks.
[[nodiscard]] inline std::vector<double> computing_us(const profile& step) {
  std::vector<double> us;
  us.reserve(step.events.size());
  for (const auto& each : step.events) us.push_back(each.compute_us - each.wait_us);
  return us;
}

// Takes computing that was much longer than in the recorded step before as it was there: a kernel
// was used for the first time and waited for all copies under way, or the host came late. In a plan
// it would be time in which copies can hide. Steps of other calls cannot be compared, and what
// another call had in that step has only moved, as between two streams.
inline void leave_out_one_offs(profile& step, const profile& before) {
  constexpr auto nearby = constants::one_off_calls;
  const auto same_call = [](const event& a, const event& b) {
    return a.kind == b.kind && a.index == b.index && a.chunk == b.chunk;
  };
  if (step.shapes_vary || !std::ranges::equal(step.events, before.events, same_call)) return;

  auto now = computing_us(step);
  auto then = computing_us(before);
  if (!now.empty()) then[0] = now[0];  // a first step is recorded from its first call on
  const auto around = [](const std::vector<double>& us, std::ptrdiff_t at) {
    const auto count = static_cast<std::ptrdiff_t>(us.size());
    return std::accumulate(us.begin() + std::max<std::ptrdiff_t>(at - nearby, 0),
                           us.begin() + std::min(at + nearby + 1, count), 0.0);
  };
  std::vector<std::size_t> longest_first;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] > constants::one_off * then[i] + constants::one_off_us) longest_first.push_back(i);
  }
  std::ranges::sort(longest_first, std::greater{}, [&](auto i) { return now[i] - then[i]; });
  for (const auto i : longest_first) {
    const double longer = now[i] - then[i];
    const auto at = static_cast<std::ptrdiff_t>(i);
    if (around(now, at) - around(then, at) < longer / 2) continue;
    now[i] = then[i];
    step.events[i].compute_us -= longer;
  }
}

}  // namespace tidepool::plan::detail
