/// A plan from elsewhere, made fit for an offloader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tidepool/plan/check.hpp"
#include "tidepool/plan/refusal.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

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
  const detail::subject of{"plan"};
  const auto most = device_budget.value_or(made.device_budget);
  of.require(
      made.device_budget <= most, {},
      {"made for {} bytes of device memory, but device_budget is {}", made.device_budget, most},
      "raise it, or plan for what there is");
  of.require(made.peer_budget <= peer_budget, {},
             {"made for {} bytes of a neighbour's memory, but there are {}", made.peer_budget,
              peer_budget},
             "give --places=peer,host and --peer-budget, borrow as much before, or plan for what"
             " there is");
  for (std::size_t c = 0; c < recorded.chunks.size(); ++c) {
    auto& groups = recorded.chunks[c].groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const detail::phrase place{"/chunks/{}/groups/{}", c, g};
      const bool again = made.what[c][g] == action::recompute;
      of.require(!again || may_recompute, place,
                 "the group is to be recomputed, but recompute_by_plan is off",
                 "put it on, or plan without recomputation");
      of.require(!again || groups[g].recompute_us > 0, place,
                 "the group is to be recomputed, but the profile has no recompute_us of it",
                 "plan without recomputation, or record a trainer that offers it by"
                 " commit_or_discard");
      const auto& name = recorded.modules[static_cast<std::size_t>(groups[g].module)];
      const auto found = std::find(names.begin(), names.end(), name);
      of.require(found != names.end(), place, {"'{}' is no module of this offloader", name},
                 "plan a profile of its own");
      groups[g].module = static_cast<module_id>(found - names.begin());
      of.require((enabled >> static_cast<unsigned>(groups[g].module) & 1U) != 0, place,
                 {"'{}' is not offloaded in this run", name},
                 "add it to --offload-modules, or plan a profile of this run");
    }
  }
  recorded.modules.assign(names.begin(), names.end());
  return recorded;
}

}  // namespace tidepool::plan
