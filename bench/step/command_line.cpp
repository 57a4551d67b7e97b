/// Flags by CLI11, and what the sizes must satisfy.
#include "command_line.hpp"

#include <algorithm>
#include <string_view>
#include <tidepool/error.hpp>

#include "../../examples/tools/command_line.hpp"

namespace bench {
namespace {

model_sizes small_sizes() {
  model_sizes sizes;
  sizes.layers = 4;
  sizes.tokens = 1024;
  sizes.hidden = 1024;
  sizes.experts = 8;
  sizes.top_k = 2;
  sizes.ffn = 512;
  sizes.heads = 4;
  sizes.query_block = 256;
  return sizes;
}

void add_sizes(CLI::App& app, model_sizes& sizes) {
  const auto size = [&](const char* flag, index& value, const char* help) {
    app.add_option(flag, value, help)
        ->capture_default_str()
        ->check(CLI::PositiveNumber)
        ->group("Model");
  };
  size("--layers", sizes.layers, "Layers");
  size("--tokens", sizes.tokens, "Tokens of one microbatch, one causal sequence");
  size("--hidden", sizes.hidden, "Width of the residual stream");
  size("--experts", sizes.experts, "Experts of a layer");
  size("--top-k", sizes.top_k, "Experts of a token");
  size("--ffn", sizes.ffn, "Width inside an expert");
  size("--heads", sizes.heads, "Attention heads");
  size("--head-size", sizes.head_size, "Width of a head");
  size("--query-block", sizes.query_block, "Queries whose scores are in memory at once");
  app.add_flag("--attention,!--no-attention", sizes.attention, "With attention (default)")
      ->group("Model");
  app.add_flag("--shared-weights", sizes.shared_weights, "One set of weights for all layers")
      ->group("Model");
}

void add_rest(tools::command_line& app, settings& run) {
  app.add_option("--depth", run.depth, "Microbatches in flight: 1 is one at a time, more is 1F1B")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--microbatches", run.microbatches,
                 "Microbatches of a step; 0: twice the depth and four")
      ->capture_default_str();
  app.add_option("--pairs", run.pairs, "Rounds over all cases, each once forward, once in reverse")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--steps", run.steps, "Measured steps of a case in each round")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--settle", run.settle, "Unmeasured steps before them")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--synchronise", run.synchronise,
                 "Times in a step that the host waits for the whole device, as trainers with timers"
                 " do")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--case", run.cases,
                 "NAME: OPTIONS, in Tidepool's own form; --device-budget=75% is a share of what no"
                 " offload holds. Repeat it for more")
      ->allow_extra_args(false);
  app.add_option("--budgets", run.budgets, "Arena cases for expert_fc1 and moe_act, in percent")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--budget-options", run.budget_options, "More options of these cases");
  app.add_flag("!--no-recompute", run.recompute, "Leave the recompute case out");
  app.add_flag("!--no-floor", run.floor, "Leave the interference floor out, and calls by hand");
  app.add_flag("!--no-by-hand", run.by_hand, "Leave out the calls by hand alone");
  app.add_flag("--lender", run.lender,
               "Also time GEMMs of the neighbour itself beside each measured step");
  app.add_option("--alive", run.alive,
                 "Keep all cases built (on), one at a time (off), or as memory allows (auto)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_file("--json", run.json, "For all samples (JSON); -: standard output, JSON alone");
  app.add_file("--plot", run.plot, "For overhead against driver memory (SVG)");
  app.add_option("--pictures", run.pictures, "Write each case's traced step into this folder")
      ->check(CLI::ExistingDirectory)
      ->type_name("FOLDER");
  app.add_flag("--check", run.check,
               "Compare gradients, bit by bit, with and without offloading, at small sizes and"
               " depths 1, 2 and 4; bench_step_checked does it while the order of all accesses is"
               " judged");
  app.add_flag("--graph", run.graph, "Also run each offload case with whole steps as CUDA graphs");
}

std::string mistake_in(const settings& run) {
  const auto& n = run.sizes;
  for (const auto value : {n.tokens, n.hidden, n.ffn, n.head_size, n.query_block}) {
    if (value % 8 != 0) {
      return "--tokens, --hidden, --ffn, --head-size and --query-block must be multiples of 8";
    }
  }
  if (n.experts % n.top_k != 0 || n.tokens % (n.experts / n.top_k) != 0) {
    return "routing is balanced: --experts must be a multiple of --top-k, and --tokens one of"
           " --experts / --top-k";
  }
  if (run.graph && run.synchronise > 0)
    return "--synchronise cannot go into a graph; leave one out";
  if (run.microbatches <= run.depth) return "--microbatches must be more than --depth";
  return {};
}

}  // namespace

settings read_command_line(const std::string& program, int argc, char** argv) {
  settings run;
  // Known first, because it changes the defaults of the sizes.
  run.check =
      std::any_of(argv + 1, argv + argc, [](std::string_view word) { return word == "--check"; });
  if (run.check) run.sizes = small_sizes();
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = word.find_first_of(" \"'") == std::string::npos;
    run.command += (i > 0 ? " " : "") + (plain ? word : "'" + word + "'");
  }

  tools::command_line app(
      {program, "What offloading costs on a DeepSeek-V3-like MoE stack, measured on one GPU."});
  add_sizes(app, run.sizes);
  add_rest(app, run);
  app.read(argc, argv);
  if (run.microbatches == 0) run.microbatches = 2 * run.depth + 4;
  if (const auto mistake = mistake_in(run); !mistake.empty()) {
    throw tidepool::option_error(mistake);
  }
  return run;
}

}  // namespace bench
