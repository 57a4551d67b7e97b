/// What bench_step is asked to do: sizes of the model, schedule, cases.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

using index = std::int64_t;

/// What the model commits; the same as `modules` in session.hpp.
inline constexpr std::array<std::string_view, 3> module_names{"core_attn", "expert_fc1", "moe_act"};

inline constexpr double gibibyte = 1024.0 * 1024.0 * 1024.0;

/// The model: DeepSeek-V3-like layers. Saved tensors are bf16, two bytes an element.
struct model_sizes {
  index layers = 8;
  index tokens = 4096;
  index hidden = 7168;
  index experts = 16;
  index top_k = 8;
  index ffn = 2048;
  index heads = 28;
  index head_size = 128;
  index query_block = 1024;  ///< queries whose scores are in memory at once
  bool attention = true;
  bool shared_weights = false;  ///< all layers use the weights (and gradients) of one

  [[nodiscard]] index rows() const { return tokens * top_k; }
  [[nodiscard]] index rows_per_expert() const { return rows() / experts; }
  [[nodiscard]] index attention_width() const { return heads * head_size; }
  [[nodiscard]] index weight_sets() const { return shared_weights ? 1 : layers; }

  // What one module saves in one layer of one microbatch.
  [[nodiscard]] std::size_t fc1_bytes() const { return bytes(rows() * hidden); }
  [[nodiscard]] std::size_t act_bytes() const { return bytes(rows() * 2 * ffn); }
  [[nodiscard]] std::size_t attn_bytes() const { return bytes(tokens * 3 * attention_width()); }

  /// What `expert_fc1` and `moe_act` save in one microbatch.
  [[nodiscard]] std::size_t expert_bytes() const {
    return static_cast<std::size_t>(layers) * (fc1_bytes() + act_bytes());
  }

 private:
  static std::size_t bytes(index elements) { return static_cast<std::size_t>(elements) * 2; }
};

/// Everything from the command line.
struct settings {
  model_sizes sizes;
  int depth = 1;         ///< microbatches in flight
  int microbatches = 0;  ///< of one step; 0: twice the depth and four
  int pairs = 5;         ///< of rounds, one in the order of the cases and one in reverse
  int steps = 1;         ///< measured in each turn of a case
  int settle = 1;        ///< run before them, unmeasured
  int synchronise = 0;   ///< of a step's passes, those after which the host waits for the device
  std::vector<std::string> cases;
  std::vector<double> budgets;  ///< percent of what no offload holds; each becomes an arena case
  std::string budget_options;   ///< more options of those cases
  bool recompute = true;
  bool floor = true;
  bool by_hand = true;
  bool lender = false;
  bool check = false;
  bool graph = false;
  std::string alive = "auto";  ///< on: all cases stay built; off: one at a time
  std::string json;
  std::string plot;
  std::string pictures;  ///< a folder
  std::string command;   ///< as it was given
};

}  // namespace bench
