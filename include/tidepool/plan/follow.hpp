/// A plan from elsewhere, made fit for an offloader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tidepool/plan/check.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::plan {

/// `recorded`, what `made` was planned for, with the modules numbered as in `names`.
///
/// Throws `profile_error` where plan and profile do not fit each other, a module that commits is
/// not among `names`, the plan recomputes, or it needs more than `device_budget` bytes.
[[nodiscard]] inline profile fitted(const step_plan& made, profile recorded,
                                    std::span<const std::string> names,
                                    std::optional<std::size_t> device_budget) {
  check(recorded);
  check(made, recorded);
  const auto fail = [](const std::string& what) { throw profile_error("tidepool: plan" + what); };
  if (device_budget && made.device_budget > *device_budget) {
    fail(": made for " + std::to_string(made.device_budget) +
         " bytes of device memory, but device_budget is " + std::to_string(*device_budget) +
         "; raise it, or plan for what there is");
  }
  for (std::size_t c = 0; c < recorded.chunks.size(); ++c) {
    auto& groups = recorded.chunks[c].groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto place =
          " at " + detail::place_of("chunks", c, "/groups") + "/" + std::to_string(g) + ": ";
      if (made.what[c][g] == action::recompute) {
        fail(place +
             "the group is to be recomputed, which an offloader does not do by itself; plan without"
             " recomputation, and name what the trainer recomputes in recompute_modules");
      }
      const auto& name = recorded.modules[static_cast<std::size_t>(groups[g].module)];
      const auto found = std::find(names.begin(), names.end(), name);
      if (found == names.end()) {
        fail(place + "'" + name + "' is no module of this offloader; plan a profile of its own");
      }
      groups[g].module = static_cast<module_id>(found - names.begin());
    }
  }
  recorded.modules.assign(names.begin(), names.end());
  return recorded;
}

}  // namespace tidepool::plan
