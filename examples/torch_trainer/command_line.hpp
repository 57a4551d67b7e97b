/// The trainer's own flags; Tidepool's are taken out before.
#pragma once

#include <string>

#include "../tools/command_line.hpp"
#include "model.hpp"
#include "tidepool/error.hpp"
#include "tidepool/parse.hpp"

namespace gpt {

struct command_line {
  sizes model;
  std::string device = "virtual";
  std::string data;
  int steps = 4;
  int microbatches = 2;
  int in_flight = 1;  // microbatches whose backward has not run
  int order = 0;      // seed of the order of copies on the virtual device; 0: by its clock
  bool autocast = false;
  bool compare = false;
  bool check_order = false;
  tidepool::options offload;
};

/// Throws `tools::answer` for --help and --version, and `tidepool::option_error`.
inline command_line read_command_line(int argc, char** argv) {
  command_line line;
  tidepool::options base;
  base.own_modules = {"fc1", "act", "fc2", "expert_fc2"};
  line.offload = tidepool::take_options(argc, argv, tidepool::from_environment(base));
  tools::command_line app({"torch_trainer", "Trains a GPT with mixtures of experts, on libtorch."});
  app.add_option("--device", line.device, "virtual (CPU tensors) or cuda (a GPU)")
      ->check(CLI::IsMember({"virtual", "cuda"}))
      ->capture_default_str();
  app.add_file("--data", line.data, "A text; default: the repository's own documents");
  const auto number = [&](const char* name, int& value, const char* help, int least = 1) {
    app.add_option(name, value, help)
        ->check(CLI::Range(least, 1 << 30))
        ->type_name("N")
        ->capture_default_str();
  };
  number("--steps", line.steps, "Of training");
  number("--microbatches", line.microbatches, "Of one step");
  number("--in-flight", line.in_flight, "Microbatches whose backward has not run");
  number("--order", line.order, "Seed of the order of copies on the virtual device; 0: none", 0);
  number("--layers", line.model.layers, "Of the model");
  number("--hidden", line.model.hidden, "Width of the residual stream");
  number("--heads", line.model.heads, "Of attention");
  number("--ffn", line.model.ffn, "Width of one expert");
  number("--experts", line.model.experts, "Of each layer; 0: an MLP", 0);
  number("--top-k", line.model.top_k, "Experts of each token");
  number("--seq", line.model.sequence, "Bytes in one sequence");
  number("--batch", line.model.batch, "Sequences in one microbatch");
  app.add_flag("--autocast", line.autocast, "Matrix products in bfloat16");
  app.add_flag("--compare", line.compare, "Train without offload as well; 1 where a bit differs");
  app.add_flag("--check-order", line.check_order,
               "Look for accesses to memory without an order; 1 if there are any");
  app.add_library();
  app.read(argc, argv);
  if (line.model.hidden % line.model.heads != 0) {
    throw tidepool::option_error(
        "--hidden=" + std::to_string(line.model.hidden) +
        ": it must be a multiple of --heads=" + std::to_string(line.model.heads));
  }
  return line;
}

}  // namespace gpt
