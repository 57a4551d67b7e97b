/// Whether the parts of a profile agree with each other. Places in messages are JSON pointers: they
/// are those of the file as well as of the members.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "tidepool/error.hpp"
#include "tidepool/plan/detail/demands.hpp"
#include "tidepool/plan/detail/event_check.hpp"
#include "tidepool/plan/detail/list_check.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan {

/// A profile or a machine that contradicts itself, or a plan that is not for the profile.
class profile_error : public error {
 public:
  using error::error;
};

/// A file of a profile, a plan or a machine that cannot be read or written; thrown by
/// `plan/json.hpp` and `plan/machine_json.hpp`.
class file_error : public profile_error {
 public:
  using profile_error::profile_error;
};

namespace detail {

// `refuse(place, problem, remedy)` throws.
template <class Refuse>
void expect_consistent(const profile& step, const Refuse& refuse) {
  const list_check lists(step, refuse);
  static_cast<void>(event_check(step, lists.found(), refuse));
}

// A plan whose time no planner could tell.
[[nodiscard]] inline std::string no_plan_fits(const step_plan& none) {
  return "no plan fits a device budget of " + std::to_string(none.device_budget) +
         " bytes; the planner finds one from " + std::to_string(none.expected.peak) + " on";
}

[[noreturn]] inline void refuse_profile(const std::string& place, const std::string& problem,
                                        std::string_view remedy) {
  throw profile_error("tidepool: profile at " + place + ": " + problem + "; " +
                      std::string(remedy));
}

}  // namespace detail

/// Throws `profile_error` where planning for `step` would make no sense.
inline void check(const profile& step) { detail::expect_consistent(step, detail::refuse_profile); }

/// Throws `profile_error` unless `chosen` has an action for each group of `step`, and finite times,
/// which it has not where no plan fits the budget.
inline void check(const step_plan& chosen, const profile& step) {
  const auto same = [&](const std::string& place, const char* what, std::size_t found,
                        std::size_t expected) {
    if (found == expected) return;
    throw profile_error("tidepool: plan at " + place + ": found " + std::to_string(found) + " " +
                        what + ", expected " + std::to_string(expected) +
                        " as in the profile; plan this profile anew");
  };
  same("/chunks", "chunks", chosen.what.size(), step.chunks.size());
  for (std::size_t c = 0; c < chosen.what.size(); ++c) {
    same(detail::place_of("chunks", c, "/groups"), "groups", chosen.what[c].size(),
         step.chunks[c].groups.size());
  }
  if (!chosen.expected.runs && !std::isfinite(chosen.expected.step_us)) {
    throw profile_error("tidepool: plan: " + detail::no_plan_fits(chosen) +
                        "; plan for as much or more");
  }
  const auto finite = [](double value, const char* place) {
    if (std::isfinite(value)) return;
    throw profile_error("tidepool: plan at " + std::string(place) + ": the time is " +
                        detail::number_text(value) + "; give finite microseconds");
  };
  finite(chosen.expected.step_us, "/expected/step_us");
  finite(chosen.expected.stall_us, "/expected/stall_us");
  finite(chosen.expected.extra_us, "/expected/extra_us");
  finite(chosen.bound_us, "/bound_us");
}

}  // namespace tidepool::plan
