/// The trainer's own flags; Tidepool's are taken out before.
#pragma once

#include <string>

#include "../tools/command_line.hpp"
#include "../train_moe/model/config.hpp"
#include "tidepool/parse.hpp"

namespace gpt {

struct command_line {
  moe::settings run;
  tidepool::options offload;
  std::string device = "auto", precision = "fp32", data, json;
  int rounds = 1;
  bool compare = false;
  bool mistake = false;
};

/// The model and the rates of the virtual device, where no flag says something else.
inline moe::settings default_run() {
  moe::settings run;
  run.model = {.layers = 4, .hidden = 64, .heads = 4, .experts = 1, .top_k = 1, .ffn = 1};
  run.model.seq = 64;
  run.model.batch = 8;
  run.model.dense_ffn = 192;
  run.speed = {1e13, 3e12, 200};  // copies take longer than kernels, so that a missing wait shows
  run.steps = 20;
  run.learning_rate = 3e-3F;
  return run;
}

namespace detail {

inline void settle(command_line& line) {
  auto& m = line.run.model;
  m.dense_layers = m.layers;
  if (m.hidden % (8 * m.heads) != 0) {
    throw tidepool::option_error(
        "--hidden=" + std::to_string(m.hidden) +
        ": it must be a multiple of 8 times --heads=" + std::to_string(m.heads));
  }
  if (m.dense_ffn % 8 != 0) {
    throw tidepool::option_error("--ffn=" + std::to_string(m.dense_ffn) +
                                 ": it must be a multiple of 8");
  }
  if (line.mistake && line.device == "cuda") {
    throw tidepool::option_error("--mistake: a GPU makes none; take --device=virtual");
  }
  if (line.precision == "bf16") line.run.precision = moe::precision_kind::bf16;
  if (line.mistake) line.device = "virtual";
}

}  // namespace detail

/// Throws `tools::answer` for --help and --version, and `tidepool::option_error`.
inline command_line read_command_line(int argc, char** argv) {
  command_line line;
  line.run = default_run();
  tidepool::options base;
  base.min_tensor_elements = 1;  // every block is a whole module's
  line.offload = tidepool::take_options(argc, argv, tidepool::from_environment(base));
  tools::command_line app({"gpt", "Trains a dense GPT whose activations are arrays of layers."});
  const auto number = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::Range(1, 1 << 20))
        ->type_name("N")
        ->capture_default_str();
  };
  const auto word = [&](const char* name, std::string& value, const char* help,
                        const std::vector<std::string>& known) {
    app.add_option(name, value, help)->check(CLI::IsMember(known))->capture_default_str();
  };
  auto& m = line.run.model;
  word("--device", line.device, "Where it trains; auto: on a GPU, if there is one",
       {"auto", "cuda", "virtual"});
  word("--precision", line.precision, "Of operands and of what is saved of them", {"fp32", "bf16"});
  app.add_file("--data", line.data, "A text; default: the repository's own documents");
  number("--steps", line.run.steps, "Of training");
  number("--layers", m.layers, "Of the model");
  number("--hidden", m.hidden, "Width of the residual stream");
  number("--heads", m.heads, "Of attention");
  number("--ffn", m.dense_ffn, "Width of the MLP");
  number("--seq", m.seq, "Bytes in one sequence");
  number("--batch", m.batch, "Sequences in one step");
  app.add_option("--lr", line.run.learning_rate, "Learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--compare", line.compare,
               "Train with plain arrays, with Tidepool, and with its options; 1 if a bit differs");
  number("--rounds", line.rounds, "Of trainings in turn");
  app.add_flag("--mistake", line.mistake,
               "Read layers without waiting for their reload (virtual device), to see it fail");
  app.add_file("--json", line.json, "Every step as JSON; - for standard output");
  app.add_library();
  app.read(argc, argv);
  detail::settle(line);
  return line;
}

}  // namespace gpt
