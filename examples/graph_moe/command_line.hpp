/// The trainer's own flags; Tidepool's are taken out before.
#pragma once

#include <string>

#include "../tools/command_line.hpp"
#include "../train_moe/model/config.hpp"
#include "layer.hpp"
#include "tidepool/parse.hpp"

namespace graph_moe {

/// Eager steps before the capture: in the first ones blocks of memory find their places.
inline constexpr int warm_up = 3;

struct command_line {
  moe::settings run;
  tidepool::options offload;
  std::string device = "auto", precision = "fp32", data;
  double room = 1.5, plan = 1.4;
  int rounds = 1, skewed = 6;
  std::uint64_t order = 0;
  bool mistake = false;

  /// A factor of an expert's fair share, in rows.
  [[nodiscard]] index rows(double factor) const {
    const auto& m = run.model;
    const auto share = static_cast<double>(m.tokens() * m.top_k) / static_cast<double>(m.experts);
    return std::min(padded(static_cast<index>(factor * share)), padded(m.tokens()));
  }
  [[nodiscard]] row_limits limits() const { return {rows(room), rows(plan)}; }
};

/// The model and the rates of the virtual device, where no flag says something else.
inline moe::settings default_run() {
  moe::settings run;
  run.model = {.layers = 4, .hidden = 32, .heads = 1, .experts = 4, .top_k = 2, .ffn = 64};
  run.model.seq = 64;
  run.model.batch = 8;
  run.speed = {1e13, 3e12, 200};  // copies take longer than kernels, so that a missing wait shows
  run.steps = 12;
  run.learning_rate = 0.05F;
  return run;
}

namespace detail {

inline void settle(command_line& line) {
  const auto& m = line.run.model;
  for (const auto& [name, value] : {std::pair{"--hidden", m.hidden}, {"--ffn", m.ffn}}) {
    if (value % 8 == 0) continue;
    throw tidepool::option_error(std::string(name) + "=" + std::to_string(value) +
                                 ": it must be a multiple of 8");
  }
  if (m.top_k > m.experts) {
    throw tidepool::option_error("--top-k=" + std::to_string(m.top_k) +
                                 ": it is more than --experts");
  }
  if (line.plan > line.room) {
    throw tidepool::option_error("--plan: it is larger than --room; copies move what is there");
  }
  if (line.run.steps <= warm_up) {
    throw tidepool::option_error("--steps=" + std::to_string(line.run.steps) +
                                 ": a graph is captured after " + std::to_string(warm_up) +
                                 " eager steps; give more");
  }
  if (line.precision == "bf16") line.run.precision = moe::precision_kind::bf16;
}

}  // namespace detail

/// Throws `tools::answer` for --help and --version, and `tidepool::option_error`.
inline command_line read_command_line(int argc, char** argv) {
  command_line line;
  line.run = default_run();
  tidepool::options base;
  base.min_tensor_elements = 1;  // every tensor is a whole expert's
  base.offload_modules = {"mlp_norm", "expert_fc1", "moe_act"};
  line.offload = tidepool::take_options(argc, argv, tidepool::from_environment(base));
  tools::command_line app(
      {"graph_moe", "Trains a mixture of experts whose whole step is a CUDA graph."});
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
  const auto factor = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::Range(0.1, 64.0))->capture_default_str();
  };
  auto& m = line.run.model;
  word("--device", line.device, "Where it trains; auto: on a GPU, if there is one",
       {"auto", "cuda", "virtual"});
  word("--precision", line.precision, "Of operands and of what is saved", {"fp32", "bf16"});
  app.add_file("--data", line.data, "A text; default: the repository's own documents");
  number("--steps", line.run.steps, "Of training");
  number("--layers", m.layers, "Of the model");
  number("--hidden", m.hidden, "Width of the residual stream");
  number("--experts", m.experts, "Of a layer");
  number("--top-k", m.top_k, "Experts of a token");
  number("--ffn", m.ffn, "Width of one expert");
  number("--seq", m.seq, "Bytes in one sequence");
  number("--batch", m.batch, "Sequences in one step");
  factor("--room", line.room, "Rows of an expert in a graph, as a factor of the mean");
  factor("--plan", line.plan, "Rows that copies move in a graph, as a factor of the mean");
  app.add_option("--lr", line.run.learning_rate, "Learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--skewed", line.skewed,
                 "Each N-th step overflows, because it reads one byte alone; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("N")
      ->capture_default_str();
  number("--rounds", line.rounds, "Of trainings in turn");
  app.add_option("--order", line.order, "Seed of the virtual device's order; 0: by its clock");
  app.add_flag("--mistake", line.mistake, "Repeat no step that overflowed, to see it fail");
  app.add_library();
  app.read(argc, argv);
  detail::settle(line);
  return line;
}

}  // namespace graph_moe
