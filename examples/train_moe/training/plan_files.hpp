/// The files of a plan: what becomes of each group, and the recorded step that it was made for.
#pragma once

#include <filesystem>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/options.hpp>
#include <tidepool/plan/json.hpp>

#include "../model/config.hpp"

namespace moe {

/// `base` as in `--plan`; each rank has a plan of its own.
struct plan_files {
  plan_files(const settings& run, const std::string& base)
      : profile(base + of_rank(run) + ".profile.json"), plan(base + of_rank(run) + ".plan.json") {}

  std::string profile, plan;

 private:
  static std::string of_rank(const settings& run) {
    return run.grid.ranks() > 1 ? "." + std::to_string(run.rank) : "";
  }
};

/// Throws `tidepool::option_error` where the files cannot be read, or the plan is not for this
/// offloader. That it is for these steps shows in the first one.
template <class Offloader>
void follow_plan(Offloader& offloader, const settings& run) try {
  const plan_files files(run, run.plan);
  const auto recorded = tidepool::plan::load_profile(files.profile);
  offloader.follow(tidepool::plan::load_plan(files.plan), recorded);
} catch (const tidepool::plan::profile_error& problem) {
  throw tidepool::option_error("--plan=" + run.plan + ": " + problem.what());
}

/// Throws `tidepool::option_error` where the files cannot be written.
template <class Offloader>
void save_plan(const Offloader& offloader, const settings& run) try {
  if (!offloader.current_plan()) {
    throw tidepool::option_error(
        "--save-plan=" + run.save_plan +
        ": no plan was made; let there be more steps, or give --timed-step");
  }
  const plan_files files(run, run.save_plan);
  tidepool::plan::save(offloader.profile(), files.profile);
  tidepool::plan::save(*offloader.current_plan(), offloader.profile(), files.plan);
} catch (const tidepool::plan::profile_error& problem) {
  throw tidepool::option_error("--save-plan=" + run.save_plan + ": " + problem.what());
}

/// Throws `tidepool::option_error` where these options cannot go together.
inline void validate_plan(const settings& run, const tidepool::options& offload) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  if (!run.plan.empty() && offload.offload_modules.empty()) {
    fail("--plan=" + run.plan + ": nothing may leave; add --offload-modules");
  }
  if (run.save_plan.empty()) return;
  if (offload.offload_modules.empty()) {
    fail("--save-plan=" + run.save_plan + ": nothing may leave; add --offload-modules");
  }
  if (run.plan.empty() && offload.policy != tidepool::policy_kind::automatic) {
    fail("--save-plan=" + run.save_plan +
         ": this policy makes no plan; add --policy=automatic with a --device-budget");
  }
  const int timed_step = offload.timed_step.value_or(2);
  if (run.plan.empty() && run.end_step() <= timed_step) {
    fail("--save-plan=" + run.save_plan +
         ": no plan would be made, since --timed-step=" + std::to_string(timed_step) +
         " is not below the " + std::to_string(run.end_step()) + " steps of training");
  }
  const std::filesystem::path folder = std::filesystem::path(run.save_plan).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    fail("--save-plan=" + run.save_plan + ": there is no folder " + folder.string() +
         "; make it, or name another");
  }
}

}  // namespace moe
