/// The trainer's flags (CLI11); everything else goes to Tidepool's own parser.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/validate.hpp>
#include <utility>
#include <vector>

#include "config.hpp"
#include "layout.hpp"
#include "plan_files.hpp"
#include "precision_options.hpp"
#include "rings.hpp"

namespace moe {

/// What the command line says.
struct command_line {
  settings run;
  std::vector<tidepool::options> variants;  ///< one run each; with `compare`, first without offload
  std::string device = "auto";
  std::string optimizer_state = "device";
  std::string precision = "fp32", scaling = "block";
  std::string data;  ///< empty: the repository's own text
  std::string json;
  std::string timeline;
  std::string picture;
  bool compare = false;
  bool summary = false;
};

/// Which of the processes of a run this is.
struct process {
  int rank = 0;
  int count = 1;
};

/// Text for `--help`.
struct help_wanted {
  std::string text;
};

namespace detail {

/// The preset must be known before the other options, whose defaults it gives.
inline const preset& preset_of(std::vector<std::string> arguments) {
  std::string name = "tiny";
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_option("--preset", name);
  app.parse(arguments);
  return find_preset(name);
}

inline void add_trainer_options(CLI::App& app, command_line& line) {
  settings& run = line.run;
  const auto number = [&](const char* name, auto& value, const char* what) {
    app.add_option(name, value, what)->capture_default_str();
  };
  app.add_option("--preset", "tiny (default), small: for a CPU; medium, large: for a GPU");
  app.add_option("--device", line.device, "auto (a GPU if there is one), cuda or virtual")
      ->capture_default_str();
  number("--layers", run.model.layers, "of the model");
  number("--hidden", run.model.hidden, "width of the residual stream");
  number("--heads", run.model.heads, "of attention");
  number("--experts", run.model.experts, "of each layer");
  number("--top-k", run.model.top_k, "experts of each token");
  number("--ffn", run.model.ffn, "width of one expert");
  number("--dense-layers", run.model.dense_layers,
         "the first ones, which have an MLP, not experts");
  app.add_option("--dense-ffn", run.model.dense_ffn, "width of that MLP; default: top-k times ffn");
  number("--shared-experts", run.model.shared_experts, "of each layer, on every token");
  number("--mtp", run.model.mtp, "tokens that each place predicts beyond the next one");
  number("--seq", run.model.seq, "bytes in one sequence");
  number("--batch", run.model.batch, "sequences in one microbatch");
  number("--steps", run.steps, "of training");
  number("--microbatches", run.microbatches, "of one step");
  number("--in-flight", run.in_flight, "depth of the 1F1B schedule");
  app.add_flag("--expert-parallel", run.expert_parallel,
               "spread the experts and the microbatches over the ranks that mpirun starts");
  app.add_option("--expert-capacity", run.model.capacity_factor,
                 "most tokens of an expert, as a multiple of its fair share; default: no limit");
  app.add_flag("--pipeline", run.pipeline, "spread the layers over the ranks that mpirun starts");
  number("--virtual-stages", run.virtual_stages, "of each rank of the pipeline, interleaved");
  app.add_option("--layers-per-rank", run.layers_per_rank, "as 3,1; default: spread evenly")
      ->delimiter(',');
  number("--precision", line.precision, "fp32, bf16, fp16 or fp8, of GEMMs and saved operands");
  number("--fp8-scaling", line.scaling, "one scale for each tensor or block of 128; with fp8");
  number("--initial-loss-scale", run.loss_scale.scale, "a power of two; with fp16");
  number("--loss-scale-window", run.loss_scale.window,
         "steps without an overflow after which it doubles; with fp16");
  number("--lr", run.learning_rate, "highest learning rate");
  number("--eval-every", run.eval_every, "steps between evaluations; 0: never");
  app.add_option("--seed", run.seed, "of weights and data")
      ->capture_default_str()
      ->check([](const std::string& text) {  // CLI11 would wrap a negative number around
        return text.starts_with('-') ? text + " is negative; give 0 or more" : std::string();
      });
  app.add_option("--data", line.data, "text file; default: the repository's own text");
  app.add_option("--optimizer-state", line.optimizer_state, "where AdamW's moments are kept")
      ->capture_default_str();
  app.add_option("--save", run.save, "file for the state of training after the last step");
  number("--save-step", run.save_step,
         "steps after which training ends and saves, as an interruption would");
  app.add_option("--resume", run.resume, "file of --save to go on from");
  app.add_option("--save-plan", run.save_plan,
                 "base of the files for the plan that --policy=automatic made");
  app.add_option("--plan", run.plan, "base of the files of --save-plan: follow that plan");
  app.add_option("--json", line.json, "file for losses, times and bytes");
  app.add_option("--timeline", line.timeline, "file for ui.perfetto.dev");
  app.add_option("--picture", line.picture, "file for a drawing of a step (SVG)");
  app.add_option("--trace-step", run.trace_step, "the step of both; default: the last");
  app.add_flag("--compare", line.compare, "first without offload, then with; 1 if they differ");
  app.add_flag("--summary", line.summary, "print Tidepool's table by module");
  app.footer("Tidepool's options:\n" + tidepool::options_help());
}

inline void check_ranks(const command_line& line) {
  const std::string option = line.run.pipeline ? "--pipeline" : "--expert-parallel";
#if !defined(TIDEPOOL_HAS_MPI)
  throw tidepool::option_error(option +
                               ": this build has no MPI; configure it with TIDEPOOL_MPI=ON, or "
                               "leave the option out");
#endif
#if !defined(TIDEPOOL_HAS_NCCL)
  if (line.device == "cuda") {
    throw tidepool::option_error("--device=cuda: the ranks of " + option +
                                 " have virtual devices, as this build has no NCCL; take "
                                 "--device=virtual, or configure it with NCCL_ROOT");
  }
#endif
}

inline void check_pipeline(const command_line& line, bool in_flight_given) {
  if (line.run.expert_parallel) {
    throw tidepool::option_error(
        "--expert-parallel: the ranks of --pipeline hold layers, not experts; leave one of them "
        "out");
  }
  if (in_flight_given) {
    throw tidepool::option_error("--in-flight=" + std::to_string(line.run.in_flight) +
                                 ": the schedule of --pipeline decides it; leave one of them out");
  }
}

/// What neither the ranks nor the file of a training know of yet.
inline void check_expert_options(const command_line& line, const tidepool::options& offload,
                                 bool capacity_given) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  const settings& run = line.run;
  const double factor = run.model.capacity_factor;
  if (capacity_given && !(factor > 0 && std::isfinite(factor))) {
    fail("--expert-capacity=" + std::to_string(factor) + ": must be a number above 0");
  }
  if (!run.save.empty() || !run.resume.empty()) {
    const std::string option = run.save.empty() ? "--resume=" + run.resume : "--save=" + run.save;
    if (run.expert_parallel) {
      fail(option +
           ": with --expert-parallel no rank has the experts that a file needs; leave one "
           "of the options out");
    }
    if (capacity_given) {
      fail(option +
           ": the file does not know --expert-capacity, which changes the losses; leave "
           "one of the options out");
    }
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

inline void check_no_pipeline(const command_line& line, bool stages_given, bool layers_given) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  if (stages_given) {
    fail("--virtual-stages=" + std::to_string(line.run.virtual_stages) +
         ": is for the ranks of a pipeline; add --pipeline");
  }
  if (layers_given) fail("--layers-per-rank: is for the ranks of a pipeline; add --pipeline");
  if (line.run.ranks > 1 && !line.run.expert_parallel) {
    fail("mpirun started " + std::to_string(line.run.ranks) +
         " ranks, and each would train all of the model; add --pipeline or --expert-parallel, or "
         "start one");
  }
}

}  // namespace detail

/// Reads the arguments. Later sources win: the preset, `TIDEPOOL_…` in the environment, flags.
/// Throws `help_wanted`, or `tidepool::option_error` naming option, value and remedy.
inline command_line read_command_line(int argc, const char* const* argv, const process& me = {}) {
  const tidepool::known_options known = tidepool::parse_known_options(argc, argv);
  const std::vector<std::string> rest(known.rest.rbegin(), known.rest.rend());  // CLI11 wants it so

  command_line line;
  tidepool::options defaults;
  CLI::App app{"Trains a byte-level mixture-of-experts transformer with Tidepool.", "train_moe"};
  try {
    const preset base = detail::preset_of(rest);
    line.run = settings_of(base);
    defaults.min_tensor_elements = base.min_tensor_elements;
    defaults.device_step = base.device_step;
    defaults.host_step = base.host_step;
    detail::add_trainer_options(app, line);
    app.allow_extras();
    app.parse(std::vector<std::string>(rest));
  } catch (const CLI::CallForHelp&) {
    throw help_wanted{app.help()};
  } catch (const CLI::ParseError& e) {
    throw tidepool::option_error(std::string(e.what()) + "; see --help");
  }
  for (const std::string& extra : app.remaining()) {
    const std::string near = tidepool::nearest_option(extra.substr(0, extra.find('=')));
    throw tidepool::option_error(extra + ": no such option; " +
                                 (near.empty() ? "see --help" : "did you mean " + near + "?"));
  }
  const auto given = [&](const char* option) { return app.count(option) > 0; };
  settings& run = line.run;
  run.ranks = me.count;
  run.rank = me.rank;
  run.progress = me.rank == 0;
  if (run.pipeline || run.expert_parallel) detail::check_ranks(line);
  if (run.pipeline) {
    detail::check_pipeline(line, given("--in-flight"));
  } else {
    detail::check_no_pipeline(line, given("--virtual-stages"), given("--layers-per-rank"));
  }
  read_precision_options(run, line.precision, line.scaling, given);
  // Of the two that must fit each other, the one that was given decides.
  if (!given("--microbatches")) run.microbatches = std::max(run.microbatches, run.in_flight);
  if (!given("--in-flight")) run.in_flight = std::min(run.in_flight, run.microbatches);
  if (run.expert_parallel) {
    validate_expert_parallel(run, given("--in-flight"));
    run.in_flight = std::min(run.in_flight, run.own_microbatches());
  }
  if (!given("--trace-step")) run.trace_step = run.end_step() - 1;
  if (given("--dense-ffn") && run.model.dense_layers == 0) {
    throw tidepool::option_error("--dense-ffn=" + std::to_string(run.model.dense_ffn) +
                                 ": no layer is dense; add --dense-layers, or leave it out");
  }
  if (!given("--dense-ffn") && run.model.dense_layers > 0) {
    run.model.dense_ffn = run.model.top_k * run.model.ffn;
  }
  validate(run);
  if (run.pipeline) {
    validate_layout(run);
    run.in_flight = deepest(steps_of_rank(shape_of(run), run.rank));
  }
  if (given("--data") && line.data.empty()) {
    throw tidepool::option_error("--data is empty; give a text file, or leave the option out");
  }
  for (const auto& [option, file] : {std::pair{"--save", &run.save},
                                     {"--resume", &run.resume},
                                     {"--plan", &run.plan},
                                     {"--save-plan", &run.save_plan}}) {
    if (given(option) && file->empty()) {
      throw tidepool::option_error(std::string(option) +
                                   " is empty; name a file, or leave the option out");
    }
  }
  if (given("--save-step") && run.save_step == 0) {
    throw tidepool::option_error("--save-step=0: use 1 to --steps=" + std::to_string(run.steps));
  }
  if (line.optimizer_state != "device" && line.optimizer_state != "host") {
    throw tidepool::option_error("--optimizer-state=" + line.optimizer_state +
                                 ": use device or host");
  }
  run.moments_on_host = line.optimizer_state == "host";
  if (run.moments_on_host && (given("--save") || given("--resume"))) {
    throw tidepool::option_error(
        "--optimizer-state=host: --save and --resume need AdamW's moments on the device; leave it"
        " out, or train without saving");
  }
  if (line.device != "auto" && line.device != "cuda" && line.device != "virtual") {
    throw tidepool::option_error("--device=" + line.device + ": use auto, cuda or virtual");
  }

  tidepool::options offload =
      tidepool::parse_known_options(argc, argv, tidepool::from_environment(defaults)).value;
  if (offload.pipeline_rank == 0 && run.pipeline) offload.pipeline_rank = run.rank;
  if (line.compare && offload.offload_modules.empty()) offload.offload_modules = {"all"};
  if (offload.memory == tidepool::memory_kind::slots && run.moments_on_host) {
    throw tidepool::option_error(
        "--optimizer-state=host: --memory=slots has no slots for what visits; take pool or arena");
  }
  detail::check_expert_options(line, offload, given("--expert-capacity"));
  if (offload.memory == tidepool::memory_kind::slots && offload.slots.empty()) {
    offload.slots = rings_for(run, offload);
  }
  tidepool::validate(offload, saving_modules::names, saving_modules::open);
  for (const std::string& name : offload.recompute_modules) {
    if (std::find(recomputable.begin(), recomputable.end(), name) == recomputable.end()) {
      throw tidepool::option_error("--recompute-modules=" + name +
                                   ": this trainer can compute layernorm, moe_act, moe_permute,"
                                   " mlp_act and shared_act again; take one of these");
    }
  }
  validate_plan(run, offload);
  if (line.compare) line.variants.push_back(defaults);
  line.variants.push_back(offload);
  return line;
}

}  // namespace moe
