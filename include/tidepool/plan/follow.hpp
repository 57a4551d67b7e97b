/// A plan from elsewhere, made fit for an offloader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tidepool/plan/check.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan {

/// `recorded`, what `made` was planned for, with the modules numbered as in `names`.
///
/// Throws `profile_error` where plan and profile do not fit each other, a module that commits is
/// not among `names` or has no bit in `enabled`, the plan needs more than `device_budget` bytes or
/// more than `peer_budget` of a neighbour's, or it recomputes although `may_recompute` is false or
/// the profile knows no time for it.
[[nodiscard]] inline profile fitted(const step_plan& made, profile recorded,
                                    std::span<const std::string> names, std::uint64_t enabled,
                                    std::optional<std::size_t> device_budget,
                                    bool may_recompute = true, std::size_t peer_budget = 0) {
  check(recorded);
  check(made, recorded);
  const auto fail = [](const std::string& what) { throw profile_error("tidepool: plan" + what); };
  if (device_budget && made.device_budget > *device_budget) {
    fail(": made for " + std::to_string(made.device_budget) +
         " bytes of device memory, but device_budget is " + std::to_string(*device_budget) +
         "; raise it, or plan for what there is");
  }
  if (made.peer_budget > peer_budget) {
    fail(": made for " + std::to_string(made.peer_budget) +
         " bytes of a neighbour's memory, but there are " + std::to_string(peer_budget) +
         "; give --places=peer,host and --peer-budget, borrow as much before, or plan for what"
         " there is");
  }
  for (std::size_t c = 0; c < recorded.chunks.size(); ++c) {
    auto& groups = recorded.chunks[c].groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto place =
          " at " + detail::place_of("chunks", c, "/groups") + "/" + std::to_string(g) + ": ";
      if (made.what[c][g] == action::recompute && !may_recompute) {
        fail(place +
             "the group is to be recomputed, but recompute_by_plan is off; put it on, or plan"
             " without recomputation");
      }
      if (made.what[c][g] == action::recompute && !(groups[g].recompute_us > 0)) {
        fail(
            place +
            "the group is to be recomputed, but the profile has no recompute_us of it; plan without"
            " recomputation, or record a trainer that offers it by commit_or_discard");
      }
      const auto& name = recorded.modules[static_cast<std::size_t>(groups[g].module)];
      const auto found = std::find(names.begin(), names.end(), name);
      if (found == names.end()) {
        fail(place + "'" + name + "' is no module of this offloader; plan a profile of its own");
      }
      groups[g].module = static_cast<module_id>(found - names.begin());
      if ((enabled >> static_cast<unsigned>(groups[g].module) & 1U) == 0) {
        fail(place + "'" + name +
             "' is not offloaded in this run; add it to --offload-modules, or plan a profile of"
             " this run");
      }
    }
  }
  recorded.modules.assign(names.begin(), names.end());
  return recorded;
}

}  // namespace tidepool::plan
