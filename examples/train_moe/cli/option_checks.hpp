/// Which of the trainer's options cannot go together. All throw `tidepool::option_error`, naming
/// option, value and remedy; `given` tells whether an option was named on the command line.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tidepool/error.hpp>
#include <tidepool/options.hpp>
#include <utility>

#include "../model/modules.hpp"
#include "trainer_options.hpp"

namespace moe::detail {

inline void check_ranks(const command_line& line) {
  const std::string option = line.run.pipeline ? "--pipeline" : "--expert-parallel";
#if !defined(TIDEPOOL_HAS_MPI) && !defined(TIDEPOOL_HAS_NCCL)
  throw tidepool::option_error(option +
                               ": this build has neither MPI nor NCCL; configure it with "
                               "TIDEPOOL_MPI=ON, or leave the option out");
#elif !defined(TIDEPOOL_HAS_MPI)
  if (line.device == "virtual") {
    throw tidepool::option_error("--device=virtual: the ranks of " + option +
                                 " have GPUs, as this build has no MPI; take --device=cuda, or "
                                 "configure it with TIDEPOOL_MPI=ON");
  }
#elif !defined(TIDEPOOL_HAS_NCCL)
  if (line.device == "cuda") {
    throw tidepool::option_error("--device=cuda: the ranks of " + option +
                                 " have virtual devices, as this build has no NCCL; take "
                                 "--device=virtual, or configure it with NCCL_ROOT");
  }
#endif
}

/// What experts that are spread over ranks cannot do.
inline void check_expert_options(const command_line& line, const tidepool::options& offload,
                                 bool capacity_given) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  const settings& run = line.run;
  const double factor = run.model.capacity_factor;
  if (capacity_given && !(factor > 0 && std::isfinite(factor))) {
    fail("--expert-capacity=" + std::to_string(factor) + ": must be a number above 0");
  }
  const auto needs_experts = [&](const std::string& given) {
    if (run.model.routed_layers() > 0) return;
    fail(given + ": is for experts, and --dense-layers=" + std::to_string(run.model.dense_layers) +
         " leaves no layer with any; lower that, or leave it out");
  };
  if (capacity_given) needs_experts("--expert-capacity=" + std::to_string(factor));
  if (run.model.row_classes > 0) {
    needs_experts("--row-classes=" + std::to_string(run.model.row_classes));
  }
  if (!run.expert_parallel) return;
  const auto& again = offload.recompute_modules;
  if (std::find(again.begin(), again.end(), "moe_permute") != again.end()) {
    fail(
        "--recompute-modules=moe_permute: with --expert-parallel the rows of an expert come from "
        "other ranks; leave it out, or offload expert_fc1 instead");
  }
  if (offload.memory == tidepool::memory_kind::slots) {
    fail(
        "--memory=slots: with --expert-parallel the number of rows that come is known in the step "
        "alone; take pool or arena");
  }
}

inline void check_no_pipeline(const command_line& line, const process& me, bool stages_given,
                              bool layers_given) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  if (stages_given) {
    fail("--virtual-stages=" + std::to_string(line.run.virtual_stages) +
         ": is for the ranks of a pipeline; add --pipeline");
  }
  if (layers_given) fail("--layers-per-rank: is for the ranks of a pipeline; add --pipeline");
  if (me.count > 1 && !line.run.expert_parallel) {
    fail(me.launcher + " started " + std::to_string(me.count) +
         " ranks, and each would train all of the model; add --pipeline or --expert-parallel, or "
         "start one");
  }
}

/// Memory that ranks lend to each other is a place of its own, and needs what goes there.
inline void check_lending(const command_line& line, const tidepool::options& offload) {
  if (line.run.lend == 0) return;
  const auto size = [](std::size_t bytes) {
    return tidepool::detail::text::bytes_format::write(bytes);
  };
  const auto fail = [&](const std::string& what) {
    throw tidepool::option_error("--lend=" + size(line.run.lend) + ": " + what);
  };
  if (!line.run.pipeline) fail("is for the ranks of a pipeline; add --pipeline, or leave it out");
  if (offload.offload_modules.empty()) {
    fail("nothing is offloaded that could go there; add --offload-modules, or leave it out");
  }
  const auto& places = offload.places;
  if (std::find(places.begin(), places.end(), tidepool::place_kind::peer) != places.end()) {
    fail("another rank's memory stands for the place 'peer'; take that out of --places");
  }
  if (offload.device_budget && *offload.device_budget <= line.run.lend) {
    fail("comes out of --device-budget=" + size(*offload.device_budget) +
         " of the rank that lends, and leaves it nothing; lend less");
  }
}

template <class Given>
void check_files(const command_line& line, const Given& given) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  const settings& run = line.run;
  for (const auto& [option, file] : {std::pair{"--data", &line.data},
                                     {"--save", &run.save},
                                     {"--resume", &run.resume},
                                     {"--plan", &run.plan},
                                     {"--save-plan", &run.save_plan}}) {
    if (given(option) && file->empty()) {
      fail(std::string(option) + " is empty; name a file, or leave the option out");
    }
  }
  if (given("--save-step") && run.save_step == 0) {
    fail("--save-step=0: use 1 to --steps=" + std::to_string(run.steps));
  }
}

/// Whether both are one file; devices and pipes, which keep nothing, are none.
inline bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code none;  // what is not there is compared by its path
  const fs::file_status there = fs::status(a, none);
  if (fs::exists(there) && !fs::is_regular_file(there)) return false;
  const auto whole = [&](const std::string& name) {
    return fs::weakly_canonical(fs::absolute(name, none), none);
  };
  const fs::path place = whole(a);
  return fs::equivalent(a, b, none) || (!place.empty() && place == whole(b));
}

/// Files are opened for writing before the training reads, so that a name given twice would cost
/// what is there. A training may be saved where it was resumed from.
inline void check_files_apart(const command_line& line) {
  struct use {
    std::string_view option;
    const std::string& value;
    std::string file;
    bool writes;
  };
  const settings& run = line.run;
  const std::array<use, 8> uses{{{"--data", line.data, line.data, false},
                                 {"--resume", run.resume, run.resume, false},
                                 {"--save", run.save, run.save, true},
                                 {"--save", run.save, run.save + ".partial", true},
                                 {"--json", line.json, line.json, true},
                                 {"--timeline", line.timeline, line.timeline, true},
                                 {"--picture", line.picture, line.picture, true},
                                 {"--report", line.report, line.report, true}}};
  for (const use& later : uses) {
    for (const use& earlier : uses) {
      if (&earlier == &later) break;
      if (!later.writes || later.value.empty() || earlier.value.empty()) continue;
      if (earlier.option == "--resume" && later.file == run.save) continue;
      if (earlier.option == later.option || !same_file(earlier.file, later.file)) continue;
      throw tidepool::option_error(
          std::string(later.option) + "=" + later.value + ": would write to " + later.file +
          ", the file of " + std::string(earlier.option) + "=" + earlier.value + "; name another");
    }
  }
}

/// What one of a few words is expected for.
inline void check_words(const command_line& line) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  if (line.optimizer_state != "device" && line.optimizer_state != "host") {
    fail("--optimizer-state=" + line.optimizer_state + ": use device or host");
  }
  if (line.run.shard_optimizer && !line.run.expert_parallel) {
    fail(
        "--shard-optimizer: is for ranks that hold the same tensors; add --expert-parallel, or "
        "leave "
        "it out");
  }
  if (line.check_order && line.run.grid.ranks() > 1) {
    fail("--check-order: the messages between ranks are not watched; start one process");
  }
  if (line.device != "auto" && line.device != "cuda" && line.device != "virtual") {
    fail("--device=" + line.device + ": use auto, cuda or virtual");
  }
}

inline void check_moments_on_host(const settings& run, const tidepool::options& offload) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  if (!run.moments_on_host) return;
  if (offload.memory == tidepool::memory_kind::slots) {
    fail("--optimizer-state=host: --memory=slots has no slots for what visits; take pool or arena");
  }
}

inline void check_recomputed(const tidepool::options& offload) {
  for (const std::string& name : offload.recompute_modules) {
    if (std::find(recomputable.begin(), recomputable.end(), name) != recomputable.end()) continue;
    throw tidepool::option_error("--recompute-modules=" + name +
                                 ": this trainer can compute layernorm, moe_act, moe_permute,"
                                 " mlp_act and shared_act again; take one of these");
  }
}

}  // namespace moe::detail
