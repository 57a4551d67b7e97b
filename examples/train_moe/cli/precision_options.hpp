/// The options of `--precision`, read and checked.
#pragma once

#include <string>
#include <tidepool/codec/fp8_numbers.hpp>
#include <tidepool/error.hpp>
#include <utility>

#include "../model/precision.hpp"

namespace moe {
namespace detail {

/// Only what is saved as codes can be multiplied as such, and only in sizes that cuBLASLt takes.
inline void check_fp8_gemm(const settings& run) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  const model_sizes& m = run.model;
  if (run.precision != precision_kind::fp8) {
    fail("--fp8-gemm: multiplies the codes that --precision=fp8 saves, and --precision=" +
         name_of(run.precision) + " saves none; add --precision=fp8, or leave it out");
  }
  if (m.dense_layers == m.layers) {
    fail("--fp8-gemm: multiplies in experts alone, and --dense-layers=" +
         std::to_string(m.dense_layers) + " leaves no layer with any; lower that, or leave it out");
  }
  const bool blocks = run.scaling == fp8_scaling::block;
  const index unit = blocks ? scale_block : 16;
  for (const auto& [option, width] : {std::pair{"--hidden", m.hidden}, {"--ffn", m.ffn}}) {
    if (width % unit == 0) continue;
    fail(std::string(option) + "=" + std::to_string(width) +
         ": with --fp8-gemm and --fp8-scaling=" + name_of(run.scaling) +
         " it must be a multiple of " + std::to_string(unit) + "; give " +
         std::to_string((width / unit + 1) * unit) +
         (blocks && m.hidden % 16 == 0 && m.ffn % 16 == 0 ? ", or take --fp8-scaling=tensor" : ""));
  }
}

/// What is saved as codes becomes codes once; and a block that two experts' rows share depends on
/// which experts a rank has.
inline void check_codec(const settings& run) {
  const auto fail = [](const std::string& what) { throw tidepool::option_error(what); };
  const model_sizes& m = run.model;
  if (run.precision != precision_kind::bf16) {
    fail("--codec=fp8: takes bf16, and --precision=" + name_of(run.precision) +
         (run.precision == precision_kind::fp8 ? " saves codes already" : " saves none") +
         "; add --precision=bf16, or leave --codec out");
  }
  if (m.dense_layers == m.layers) {
    fail("--codec=fp8: is for the inputs of experts, and --dense-layers=" +
         std::to_string(m.dense_layers) + " leaves no layer with any; lower that, or leave it out");
  }
  if (!run.expert_parallel) return;
  // Then an expert's padded rows are whole blocks, on whichever rank.
  constexpr index unit = static_cast<index>(tidepool::codec::block) / row_padding;
  for (const auto& [option, width] : {std::pair{"--hidden", m.hidden}, {"--ffn", m.ffn}}) {
    if (width % unit == 0) continue;
    fail(std::string(option) + "=" + std::to_string(width) +
         ": with --codec=fp8 and --expert-parallel it must be a multiple of " +
         std::to_string(unit) +
         ", or numbers that share a scale would depend on the number of ranks; give " +
         std::to_string((width / unit + 1) * unit));
  }
}

}  // namespace detail

/// As the command line has them.
struct precision_words {
  const std::string &precision, &scaling, &products, &codec;
};

/// Fills in `run`; `given` says which options the command line has. Throws
/// `tidepool::option_error`.
template <class Given>
void read_precision_options(settings& run, const precision_words& words, Given given) {
  run.precision = read_precision(words.precision);
  run.scaling = read_scaling(words.scaling);
  run.fp8_gemm = read_products(words.products);
  run.codec = read_codec(words.codec);
  const auto needs = [&](const char* option, precision_kind wanted) {
    if (given(option) && run.precision != wanted) {
      throw tidepool::option_error(std::string(option) +
                                   ": has no effect with --precision=" + words.precision +
                                   "; add --precision=" + name_of(wanted) + ", or leave it out");
    }
  };
  needs("--fp8-scaling", precision_kind::fp8);
  needs("--initial-loss-scale", precision_kind::fp16);
  needs("--loss-scale-window", precision_kind::fp16);
  if (given("--initial-loss-scale") && !run.resume.empty()) {
    throw tidepool::option_error(
        "--initial-loss-scale: --resume goes on with the scale of the file; leave it out");
  }
  if (run.expert_parallel && run.precision == precision_kind::fp8 &&
      run.scaling == fp8_scaling::tensor) {
    throw tidepool::option_error(
        "--fp8-scaling=tensor: with --expert-parallel the losses would depend on the number of "
        "ranks, of which each has a tensor of its own; take block");
  }
  if (run.fp8_gemm != fp8_products::none) detail::check_fp8_gemm(run);
  if (run.codec == codec_kind::fp8) detail::check_codec(run);
  validate(run.loss_scale);
}

}  // namespace moe
