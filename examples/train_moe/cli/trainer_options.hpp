/// The trainer's own options, and what they are read into (CLI11).
#pragma once

#include <string>
#include <tidepool/options.hpp>
#include <tidepool/parse.hpp>
#include <vector>

#include "../../tools/command_line.hpp"
#include "../model/config.hpp"

namespace moe {

/// What the command line says.
struct command_line {
  settings run;
  std::vector<tidepool::options> variants;  ///< one run each; with `compare`, first without offload
  std::string device = "auto";
  std::string pipeline, experts;  ///< empty, "true", or a number of ranks
  std::string optimizer_state = "device";
  std::string precision = "fp32", scaling = "block", codec = "none";
  std::string fp8_gemm;  ///< empty, "true" or "false", or a name
  std::string data;      ///< empty: the repository's own text
  std::string json;
  std::string timeline;
  std::string picture;
  std::string report;
  bool compare = false;
  bool check_order = false;
};

/// Which of the processes of a run this is.
struct process {
  int rank = 0;
  int count = 1;
  std::string launcher = {};  ///< that started them
};

namespace detail {

/// The preset must be known before the other options, whose defaults it gives.
inline const preset& preset_of(const std::vector<std::string>& words) {
  std::string name = "tiny";
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_option("--preset", name);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& e) {
    throw tidepool::option_error(tools::one_line(e.what()) + "; see --help");
  }
  return find_preset(name);
}

inline void add_trainer_options(tools::command_line& app, command_line& line) {
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
  app.add_flag("--expert-parallel", line.experts,
               "spread the experts and the microbatches over the ranks that a launcher starts; "
               "beside --pipeline, =N says how many share the experts of a stage");
  app.add_option("--expert-capacity", run.model.capacity_factor,
                 "most tokens of an expert, as a multiple of its fair share; default: no limit");
  number("--row-classes", run.model.row_classes,
         "sizes of routed tensors for each fair share of rows, so that sizes repeat; 0: any size");
  app.add_flag("--pipeline", line.pipeline,
               "spread the layers over the ranks that a launcher starts; beside "
               "--expert-parallel, =N says over how many");
  number("--virtual-stages", run.virtual_stages, "of each rank of the pipeline, interleaved");
  app.add_option("--layers-per-rank", run.layers_per_rank, "as 3,1; default: spread evenly")
      ->delimiter(',');
  app.add_size("--lend", run.lend,
               "of its GPU that a rank which holds few microbatches lends to one that holds many; "
               "with --pipeline and --offload-modules");
  number("--precision", line.precision, "fp32, bf16, fp16 or fp8, of GEMMs and saved operands");
  number("--fp8-scaling", line.scaling, "one scale for each tensor or block of 128; with fp8");
  app.add_flag("--fp8-gemm", line.fp8_gemm,
               "the experts' forward multiplies codes with codes, and with =both their backward "
               "too; with fp8");
  number("--codec", line.codec, "none or fp8: what saved inputs of experts become; with bf16");
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
  app.add_file("--data", line.data, "text; default: the repository's own text");
  app.add_option("--optimizer-state", line.optimizer_state, "where AdamW's moments are kept")
      ->capture_default_str();
  app.add_flag("--shard-optimizer", run.shard_optimizer,
               "each rank keeps its part of the moments of what all ranks hold; with "
               "--expert-parallel");
  app.add_file("--save", run.save, "for the state of training after the last step");
  number("--save-step", run.save_step,
         "steps after which training ends and saves, as an interruption would");
  app.add_file("--resume", run.resume, "of --save to go on from");
  app.add_option("--save-plan", run.save_plan,
                 "base of the files for the plan that --policy=automatic made");
  app.add_option("--plan", run.plan, "base of the files of --save-plan: follow that plan");
  app.add_file("--json", line.json, "for losses, times and bytes; -: standard output, JSON alone");
  app.add_file("--timeline", line.timeline,
               "for ui.perfetto.dev: the last step, or the last of --trace-step");
  app.add_file("--picture", line.picture, "for a drawing of this step (SVG)");
  app.add_file("--report", line.report, "for a page with its picture and tables (HTML)");
  app.add_flag("--compare", line.compare, "first without offload, then with; 1 if they differ");
  app.add_flag("--check-order", line.check_order,
               "look for accesses to memory without an order; 1 if there are any");
  app.add_library();
}

}  // namespace detail

}  // namespace moe
