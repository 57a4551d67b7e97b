/// Checks that the parts of a profile agree with each other, and that a plan matches its profile.
/// Planning and following call these checks first, so that wrong data is refused with a message
/// instead of giving a wrong plan.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>

#include "tidepool/core/text.hpp"
#include "tidepool/plan/detail/profile_check.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/refusal.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

namespace detail {

// The message for a budget that no plan fits.
[[nodiscard]] inline std::string no_plan_fits(const step_plan& none) {
  using tidepool::detail::text::size_text;
  return "no plan fits a device budget of " + size_text(none.device_budget) +
         "; the planner finds one from " + size_text(none.expected.peak) +
         " on (--device-budget=" + std::to_string(none.expected.peak) + "B)";
}

}  // namespace detail

/// Throws `profile_error` if the profile contradicts itself, so that planning for it would make no
/// sense.
inline void check(const profile& step) {
  static_cast<void>(detail::profile_check(step, {"profile"}));
}

/// Throws `profile_error` unless `chosen` has an action for each group of `step`, and finite times.
/// The times are infinite if no plan fits the budget.
inline void check(const step_plan& chosen, const profile& step) {
  using detail::phrase;
  const detail::subject of{"plan"};
  const auto same = [&](const phrase& place, const char* problem, std::size_t found,
                        std::size_t expected) {
    of.require(found == expected, place, {problem, found, expected}, "plan this profile anew");
  };
  same("/chunks", "found {} chunks, expected {} as in the profile", chosen.what.size(),
       step.chunks.size());
  for (std::size_t c = 0; c < chosen.what.size(); ++c) {
    same({"/chunks/{}/groups", c}, "found {} groups, expected {} as in the profile",
         chosen.what[c].size(), step.chunks[c].groups.size());
  }
  if (!chosen.expected.runs && !std::isfinite(chosen.expected.step_us)) {
    of.refuse({}, detail::no_plan_fits(chosen), "plan for as much or more");
  }
  const auto finite = [&](double value, const phrase& place) {
    of.require(std::isfinite(value), place, {"the time is {}", value}, "give finite microseconds");
  };
  finite(chosen.expected.step_us, "/expected/step_us");
  finite(chosen.expected.stall_us, "/expected/stall_us");
  finite(chosen.expected.extra_us, "/expected/extra_us");
  finite(chosen.bound_us, "/bound_us");
}

}  // namespace tidepool::plan
