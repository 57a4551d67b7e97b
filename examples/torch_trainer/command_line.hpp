/// The trainer's own flags; Tidepool's are taken out before.
#pragma once

#include <charconv>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

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

inline constexpr std::string_view help_text =
    R"(torch_trainer: a GPT with mixtures of experts, on libtorch
  --device virtual|cuda   CPU tensors and the virtual device, or a GPU
  --data FILE             a text; the repository's own documents without it
  --steps N --microbatches N --in-flight N --order SEED
  --layers N --hidden N --heads N --ffn N --experts N --top-k N --seq N --batch N
  --autocast              matrix products in bfloat16
  --compare               trains without offload as well; exits with 1 where a bit differs
  --check-order           says which accesses to memory have no order, and exits with 1 then
)";

inline int to_number(const std::string& flag, const std::string& text, int least = 1) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw tidepool::option_error("--" + flag + "=" + text + ": it must be a number from " +
                                 std::to_string(least) + " on");
  }
  return value;
}

/// Exits after `--help`.
inline command_line read_command_line(int argc, char** argv) {
  command_line line;
  tidepool::options base;
  base.own_modules = {"fc1", "act", "fc2", "expert_fc2"};
  line.offload = tidepool::take_options(argc, argv, tidepool::from_environment(base));
  std::map<std::string, int*> numbers{
      {"steps", &line.steps},           {"microbatches", &line.microbatches},
      {"in-flight", &line.in_flight},   {"order", &line.order},
      {"layers", &line.model.layers},   {"hidden", &line.model.hidden},
      {"heads", &line.model.heads},     {"ffn", &line.model.ffn},
      {"experts", &line.model.experts}, {"top-k", &line.model.top_k},
      {"seq", &line.model.sequence},    {"batch", &line.model.batch}};
  const std::map<std::string, bool*> switches{{"--compare", &line.compare},
                                              {"--autocast", &line.autocast},
                                              {"--check-order", &line.check_order}};
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--help") {
      std::cout << help_text << '\n' << tidepool::options_help();
      std::exit(0);
    }
    if (const auto at = switches.find(words[i]); at != switches.end()) {
      *at->second = true;
      continue;
    }
    const auto equals = words[i].find('=');
    const auto flag = words[i].substr(0, equals).substr(words[i].starts_with("--") ? 2 : 0);
    const bool known = numbers.contains(flag) || flag == "device" || flag == "data";
    if (!known || (equals == std::string::npos && i + 1 == words.size())) {
      const auto near = tidepool::nearest_option(words[i]);
      throw tidepool::option_error("argument '" + words[i] + "' is not known, or has no value; " +
                                   (near.empty() ? "see --help" : "did you mean " + near + "?"));
    }
    const auto value = equals == std::string::npos ? words[++i] : words[i].substr(equals + 1);
    if (flag == "device") {
      line.device = value;
    } else if (flag == "data") {
      line.data = value;
    } else {
      *numbers[flag] = to_number(flag, value, flag == "experts" || flag == "order" ? 0 : 1);
    }
  }
  if (line.model.hidden % line.model.heads != 0) {
    throw tidepool::option_error(
        "--hidden=" + std::to_string(line.model.hidden) +
        ": it must be a multiple of --heads=" + std::to_string(line.model.heads));
  }
  return line;
}

}  // namespace gpt
