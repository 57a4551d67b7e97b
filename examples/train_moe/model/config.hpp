/// Sizes of the model and of a run, the presets that fill them in, and the check of both.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>
#include <vector>

#include "../parallel/grid.hpp"

namespace moe {

#ifdef __CUDACC__
#define MOE_HOST_DEVICE __host__ __device__
#else
#define MOE_HOST_DEVICE
#endif

/// Counts and positions; signed, so that differences and loops downwards need no care.
using index = std::int64_t;

inline constexpr index vocabulary = 256;  ///< bytes
inline constexpr index row_padding = 8;   ///< each expert's rows are padded to a multiple of it

/// What matrices are multiplied in, and what is saved of their operands.
enum class precision_kind { fp32, bf16, fp16, fp8 };
/// What saved inputs of experts go through before they leave.
enum class codec_kind { none, fp8 };

/// What one scale of FP8 covers: a whole tensor, or 128 numbers of a row.
enum class fp8_scaling { tensor, block };

/// Which GEMMs of experts multiply codes of FP8.
enum class fp8_products { none, forward, both };

/// The factor that keeps gradients within fp16, and how it came to be what it is.
struct loss_scaling {
  float scale = 65536;  ///< a power of two
  int window = 1000;    ///< steps without an overflow after which it doubles
  int good = 0;         ///< such steps since it changed
  int skipped = 0;      ///< steps whose update an overflow prevented
  int at_least = 0;     ///< of them, the last ones in a row, with a scale of 1

  static constexpr float most = 0x1p40F;
};

/// Shape of the model and of one microbatch.
struct model_sizes {
  index layers = 0;
  index hidden = 0;
  index heads = 0;
  index experts = 0;
  index top_k = 0;
  index ffn = 0;               ///< width of one expert
  index seq = 0;               ///< bytes of text in one sequence
  index batch = 0;             ///< sequences in one microbatch
  index dense_layers = 0;      ///< the first ones, with an MLP instead of routed experts
  index dense_ffn = 0;         ///< width of that MLP
  index shared_experts = 0;    ///< beside the routed ones, as one MLP of as many times their width
  index mtp = 0;               ///< depths of multi-token prediction behind the last layer
  double capacity_factor = 0;  ///< of an expert's fair share of a microbatch; 0: no limit
  index row_classes = 0;       ///< sizes of routed tensors for each fair share; 0: any size

  [[nodiscard]] index tokens() const { return batch * seq; }
  [[nodiscard]] index head_size() const { return hidden / heads; }
  [[nodiscard]] index shared_ffn() const { return shared_experts * ffn; }
  [[nodiscard]] bool is_dense(index layer) const { return layer < dense_layers; }
  /// Those of multi-token prediction are as the last one.
  [[nodiscard]] index routed_layers() const {
    return dense_layers == layers ? 0 : layers - dense_layers + mtp;
  }
  /// How far ahead training knows the text of a sequence.
  [[nodiscard]] index ahead() const { return 1 + mtp; }
  /// Most tokens of one microbatch that an expert takes.
  [[nodiscard]] index expert_capacity() const {
    if (capacity_factor <= 0) return tokens();
    const double share = static_cast<double>(tokens() * top_k) / static_cast<double>(experts);
    const double limit = std::ceil(capacity_factor * share * (1 - 1e-12));
    return limit < static_cast<double>(tokens()) ? static_cast<index>(limit) : tokens();
  }
  /// A declared capacity makes every step's tensors of one size: the next one fits where the last
  /// one was. So do classes of sizes, mostly, and waste less.
  [[nodiscard]] bool same_sizes() const { return capacity_factor > 0 && row_classes == 0; }
  /// Rows that memory is made for. As many as the tokens choose lie in the middle of a class.
  [[nodiscard]] index roomy(index rows) const {
    if (row_classes == 0) return rows;
    const index share = tokens() * top_k / (2 * row_classes);
    const index middle = std::max<index>(1, (share + row_padding - 1) / row_padding) * row_padding;
    const index over = std::max<index>(0, rows - middle);
    return (over + 2 * middle - 1) / (2 * middle) * (2 * middle) + middle;
  }
  /// Most rows that dispatch can make of one microbatch, whatever the router decides.
  [[nodiscard]] index max_rows() const {
    const index padded_capacity = (expert_capacity() + row_padding - 1) / row_padding * row_padding;
    return std::min(tokens() * top_k + experts * (row_padding - 1), experts * padded_capacity);
  }
};

/// The imaginary accelerator behind the CPU kernels: it decides how long the virtual clock lets
/// each of them run. The rates of a preset make its copies and its compute of the same order, as
/// they are on a real machine with a larger model.
struct accelerator {
  double flops = 1e12;      ///< per second
  double bandwidth = 1e12;  ///< bytes per second of its memory
  double launch_ns = 200;   ///< least duration of a kernel
};

/// Everything the trainer itself decides; the library's options are `tidepool::options`.
struct settings {
  model_sizes model;
  accelerator speed;
  int steps = 0;
  int microbatches = 0;
  int in_flight = 0;
  float learning_rate = 0;
  precision_kind precision = precision_kind::fp32;
  fp8_scaling scaling = fp8_scaling::block;    ///< with fp8
  fp8_products fp8_gemm = fp8_products::none;  ///< with fp8
  codec_kind codec = codec_kind::none;         ///< with bf16
  loss_scaling loss_scale;                     ///< with fp16
  std::uint64_t seed = 1;
  std::string save;              ///< file for the state after the last step; empty: none
  bool shard_optimizer = false;  ///< over the ranks of `expert_parallel`: AdamW's moments
  bool moments_on_host = false;  ///< AdamW's, which then visit the device layer by layer
  std::string resume;            ///< file to go on from; empty: from the start
  std::string plan;              ///< base of the files of the plan that is followed; empty: none
  std::string save_plan;         ///< base of the files for the plan that was made; empty: none
  int save_step = 0;   ///< steps after which the run ends as if interrupted; 0: all of them
  int first_step = 0;  ///< steps that `resume` has behind it
  bool pipeline = false;
  bool expert_parallel = false;        ///< each rank has its microbatches and a share of experts
  rank_grid grid;                      ///< of the ranks of both
  int rank = 0;                        ///< of them
  int virtual_stages = 1;              ///< of each rank of the pipeline
  bool pairs = false;                  ///< a pipeline's backward runs beside the next forward
  std::vector<index> layers_per_rank;  ///< empty: spread
  std::size_t lend = 0;                ///< bytes that a rank of the pipeline lends to a fuller one
  int eval_every = 0;                  ///< steps between evaluations on held-out text; 0: never
  bool progress = true;

  /// Its places in its line and in its group.
  [[nodiscard]] int stage() const { return grid.stage_of(rank); }
  [[nodiscard]] int member() const { return grid.member_of(rank); }
  /// Those of a step that this rank takes: each group shares them out.
  [[nodiscard]] int own_microbatches() const { return microbatches / grid.experts; }
  /// The number, among all of a step, of one of this rank's.
  [[nodiscard]] int microbatch_of_step(int own) const { return own * grid.experts + member(); }
  /// The step before which the run ends.
  [[nodiscard]] int end_step() const { return save_step > 0 ? save_step : steps; }
};

/// A named set of defaults.
struct preset {
  std::string_view name;
  model_sizes model;
  accelerator speed;
  int steps;
  int microbatches;
  int in_flight;
  float learning_rate;
  // Of `tidepool::options`, whose own defaults suit models that fill a GPU.
  std::size_t min_tensor_elements;
  std::size_t device_step;
  std::size_t host_step;
};

inline constexpr std::size_t mib = std::size_t{1} << 20;

// clang-format off
/// `tiny` and `small` are for a CPU, `medium` and `large` for a GPU.
inline constexpr std::array<preset, 4> presets{{
    // layers, hidden, heads, experts, top-k, ffn, seq, batch; the accelerator;
    // steps, microbatches, in flight, learning rate; smallest tensor, device step, host step
    {"tiny", {4, 64, 4, 4, 2, 64, 64, 8}, {1.2e12, 4e11, 500},
     250, 4, 2, 3e-3F, 1, 4 * mib, 4 * mib},
    {"small", {6, 192, 6, 8, 2, 192, 128, 8}, {4e12, 6e11, 500},
     100, 4, 2, 2e-3F, 1, 16 * mib, 32 * mib},
    {"medium", {8, 1024, 16, 8, 2, 1024, 1024, 4}, {5e13, 3e12, 1000},
     100, 4, 2, 6e-4F, mib, 32 * mib, 256 * mib},
    {"large", {12, 2048, 16, 16, 2, 2048, 2048, 2}, {5e13, 3e12, 1000},
     20, 4, 2, 3e-4F, mib, 32 * mib, 256 * mib},
}};
// clang-format on

/// Finds a preset, or says which there are.
inline const preset& find_preset(std::string_view name) {
  std::string known;
  for (const preset& p : presets) {
    if (p.name == name) return p;
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  throw tidepool::option_error("--preset=" + std::string(name) + ": no such preset; use one of " +
                               known);
}

/// The run that a preset stands for.
inline settings settings_of(const preset& base) {
  settings run;
  run.model = base.model;
  run.speed = base.speed;
  run.steps = base.steps;
  run.microbatches = base.microbatches;
  run.in_flight = base.in_flight;
  run.learning_rate = base.learning_rate;
  return run;
}

/// Throws `tidepool::option_error`, naming option, value and remedy, unless the run can start.
inline void validate(const settings& run) {
  const auto fail = [](std::string_view option, auto value, const std::string& remedy) {
    throw tidepool::option_error(std::string(option) + "=" + std::to_string(value) + ": " + remedy);
  };
  const auto within = [&](std::string_view option, index value, index most) {
    if (value < 1) fail(option, value, "must be at least 1");
    if (value > most) fail(option, value, "must be at most " + std::to_string(most));
  };
  const model_sizes& m = run.model;
  within("--layers", m.layers, 4096);
  within("--hidden", m.hidden, 65536);
  within("--heads", m.heads, 65536);
  within("--experts", m.experts, 256);
  within("--top-k", m.top_k, 16);
  within("--ffn", m.ffn, 65536);
  if (m.row_classes < 0 || m.row_classes > 4096) {
    fail("--row-classes", m.row_classes, "use 0 to 4096");
  }
  if (m.dense_layers < 0 || m.dense_layers > m.layers) {
    fail("--dense-layers", m.dense_layers, "use 0 to --layers=" + std::to_string(m.layers));
  }
  if (m.dense_layers > 0) within("--dense-ffn", m.dense_ffn, 1 << 20);
  if (m.shared_experts < 0 || m.shared_experts > 64) {
    fail("--shared-experts", m.shared_experts, "use 0 to 64");
  }
  if (m.shared_experts > 0 && m.dense_layers == m.layers) {
    fail("--shared-experts", m.shared_experts,
         "--dense-layers=" + std::to_string(m.dense_layers) +
             " leaves no layer with experts; lower that, or leave this out");
  }
  if (m.mtp < 0 || m.mtp > 16) fail("--mtp", m.mtp, "use 0 to 16");
  within("--seq", m.seq, 1 << 20);
  within("--batch", m.batch, 65536);
  within("--steps", run.steps, 1'000'000'000);
  within("--microbatches", run.microbatches, 4096);
  within("--in-flight", run.in_flight, 4096);
  if (m.hidden % m.heads != 0) {
    fail("--heads", m.heads, "must divide --hidden=" + std::to_string(m.hidden));
  }
  if (m.hidden % 4 != 0) fail("--hidden", m.hidden, "must be a multiple of 4");
  if (m.top_k > m.experts) {
    fail("--top-k", m.top_k,
         "is more than --experts=" + std::to_string(m.experts) + "; lower it or add experts");
  }
  if (m.max_rows() > std::numeric_limits<std::int32_t>::max()) {
    fail("--batch", m.batch, "--batch times --seq times --top-k must stay below 2^31");
  }
  if (run.in_flight > run.microbatches) {
    fail("--in-flight", run.in_flight,
         "is more than --microbatches=" + std::to_string(run.microbatches) +
             "; lower it or raise --microbatches");
  }
  if (!(run.learning_rate > 0) || !std::isfinite(run.learning_rate)) {
    fail("--lr", run.learning_rate, "must be a number above 0");
  }
  if (run.eval_every < 0) fail("--eval-every", run.eval_every, "must be 0 (never) or more");
  if (run.save_step < 0 || run.save_step > run.steps) {
    fail("--save-step", run.save_step, "use 1 to --steps=" + std::to_string(run.steps));
  }
  if (run.save_step > 0 && run.save.empty()) {
    fail("--save-step", run.save_step, "nothing would be saved; add --save=FILE");
  }
}

}  // namespace moe
