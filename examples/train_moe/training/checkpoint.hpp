/// A training on file: what it holds, how it is written and read, and whether it fits a run.
///
/// The file is a magic word, a `checkpoint_start` and its hash; then for each tensor, in the order
/// of `parameters::all`, its weights, momentum and variance, and the hash of the three: for the
/// tensors of experts one hash each, so that whoever holds an expert can write and check it alone.
/// All of it in the byte order of the machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>

#include "../model/precision.hpp"
#include "data.hpp"
#include "state_file.hpp"

namespace moe {

/// What a run must have in common with the one that it goes on with, and how far that one got.
struct checkpoint_start {
  std::uint64_t version = 5;
  std::uint64_t step = 0;   ///< steps that are done
  std::uint64_t bytes = 0;  ///< of the whole file
  std::uint64_t text = 0;   ///< its fingerprint
  std::uint64_t steps = 0, microbatches = 0, seed = 0;
  std::uint64_t learning_rate = 0;  ///< its bits
  std::uint64_t layers = 0, hidden = 0, heads = 0, experts = 0, top_k = 0, ffn = 0, seq = 0,
                batch = 0;
  std::uint64_t dense_layers = 0, dense_ffn = 0, shared_experts = 0, mtp = 0;
  std::uint64_t expert_capacity = 0;         ///< the bits of its factor; 0: no limit
  std::uint64_t precision = 0, scaling = 0;  ///< numbers of the names in `precision.hpp`
  std::uint64_t fp8_gemm = 0, codec = 0;
  std::uint64_t loss_scale = 0, loss_scale_window = 0, good_steps = 0, skipped_steps = 0;
};

/// Where the scale of the loss was when the file was written.
inline loss_scaling loss_scale_of(const checkpoint_start& start) {
  return {static_cast<float>(start.loss_scale), static_cast<int>(start.loss_scale_window),
          static_cast<int>(start.good_steps), static_cast<int>(start.skipped_steps)};
}

namespace detail {

inline constexpr std::string_view checkpoint_magic = "tidepool.moe.ckp";
inline constexpr std::size_t checkpoint_tensors_at =
    checkpoint_magic.size() + sizeof(checkpoint_start) + sizeof(std::uint64_t);

inline std::uint64_t hash_of(const void* data, std::size_t bytes, std::uint64_t hash) {
  const auto* const at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; i += 4) {
    const std::uint64_t word = at[i] | std::uint64_t{at[i + 1]} << 8 |
                               std::uint64_t{at[i + 2]} << 16 | std::uint64_t{at[i + 3]} << 24;
    hash = mix(hash ^ word);
  }
  return hash;
}

/// The fewest digits that give the same number back.
template <class Number>
std::string digits_of(Number value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace detail

/// Reads the start of a file that `--save` wrote; throws `tidepool::option_error` when it is none,
/// is not whole, or has another version.
inline checkpoint_start read_checkpoint_start(const std::string& name) {
  const auto& magic = detail::checkpoint_magic;
  const state_file file("--resume", name, state_file::use::read);
  std::array<char, detail::checkpoint_magic.size()> word{};
  const std::size_t there = file.size();
  if (there > 0) file.read(0, word.data(), std::min(there, word.size()));
  if (there == 0 || std::string_view(word.data(), std::min(there, word.size())) !=
                        magic.substr(0, std::min(there, word.size()))) {
    file.fail("is no checkpoint of train_moe; name a file that --save wrote");
  }
  const auto cut = [&](std::size_t whole) {
    file.fail("is cut off: " + std::to_string(there) + " of " + std::to_string(whole) +
              " bytes are there; save it again, or leave --resume out to start anew");
  };
  checkpoint_start start;
  if (there >= magic.size() + sizeof start.version) {  // another version has another start
    file.read(magic.size(), &start.version, sizeof start.version);
    if (start.version != checkpoint_start{}.version) {
      file.fail("has version " + std::to_string(start.version) + ", and this program reads " +
                std::to_string(checkpoint_start{}.version) +
                "; resume with the program that saved it, or leave --resume out to start anew");
    }
  }
  if (there < detail::checkpoint_tensors_at) cut(detail::checkpoint_tensors_at);
  std::uint64_t hash = 0;
  file.read(magic.size(), &start, sizeof start);
  file.read(magic.size() + sizeof start, &hash, sizeof hash);
  if (hash != detail::hash_of(&start, sizeof start, 0)) file.fail_damaged("at its start");
  if (there < start.bytes) cut(start.bytes);
  if (there > start.bytes) file.fail_damaged("behind its end at " + std::to_string(start.bytes));
  return start;
}

/// Throws `tidepool::option_error`, naming what differs, unless the file belongs to this run; the
/// steps to come have the bits of an unbroken run only if all of it is the same.
inline void check_fits(const checkpoint_start& file, const settings& run, const corpus& text) {
  const auto fail = [&](const std::string& what) {
    throw tidepool::option_error("--resume=" + run.resume + ": " + what);
  };
  const auto same = [&](const std::string& option, const std::string& saved,
                        const std::string& now) {
    if (saved == now) return;
    fail("was saved with " + option + "=" + saved + ", and this run has " + option + "=" + now +
         "; give " + option + "=" + saved + ", or a file of this run");
  };
  const model_sizes& m = run.model;
  const auto number = [&](const std::string& option, std::uint64_t saved, auto now) {
    same(option, std::to_string(saved), std::to_string(now));
  };
  number("--layers", file.layers, m.layers);
  number("--hidden", file.hidden, m.hidden);
  number("--heads", file.heads, m.heads);
  number("--experts", file.experts, m.experts);
  number("--top-k", file.top_k, m.top_k);
  number("--ffn", file.ffn, m.ffn);
  number("--dense-layers", file.dense_layers, m.dense_layers);
  number("--dense-ffn", file.dense_ffn, m.dense_ffn);
  number("--shared-experts", file.shared_experts, m.shared_experts);
  number("--mtp", file.mtp, m.mtp);
  const auto capacity = std::bit_cast<double>(file.expert_capacity);
  if (capacity > 0 && m.capacity_factor > 0) {
    same("--expert-capacity", detail::digits_of(capacity), detail::digits_of(m.capacity_factor));
  } else if (capacity > 0) {
    const std::string saved = "--expert-capacity=" + detail::digits_of(capacity);
    fail("was saved with " + saved + ", and this run has no limit; give " + saved +
         ", or a file of this run");
  } else if (m.capacity_factor > 0) {
    fail("was saved without --expert-capacity, and this run has --expert-capacity=" +
         detail::digits_of(m.capacity_factor) + "; leave it out, or give a file of this run");
  }
  number("--seq", file.seq, m.seq);
  number("--batch", file.batch, m.batch);
  number("--steps", file.steps, run.steps);
  number("--microbatches", file.microbatches, run.microbatches);
  number("--seed", file.seed, run.seed);
  const auto precision = static_cast<precision_kind>(file.precision);
  same("--precision", name_of(precision), name_of(run.precision));
  if (precision == precision_kind::fp8) {
    same("--fp8-scaling", name_of(static_cast<fp8_scaling>(file.scaling)), name_of(run.scaling));
    same("--fp8-gemm", name_of(static_cast<fp8_products>(file.fp8_gemm)), name_of(run.fp8_gemm));
  }
  if (precision == precision_kind::bf16) {
    same("--codec", name_of(static_cast<codec_kind>(file.codec)), name_of(run.codec));
  }
  if (precision == precision_kind::fp16) {
    number("--loss-scale-window", file.loss_scale_window, run.loss_scale.window);
  }
  const auto rate = std::bit_cast<float>(static_cast<std::uint32_t>(file.learning_rate));
  if (rate != run.learning_rate) {
    same("--lr", detail::digits_of(rate), detail::digits_of(run.learning_rate));
  }
  if (file.text != text.fingerprint()) {
    fail("was saved while training on another text than " + text.name() +
         "; give that text with --data, or a file of this run");
  }
  if (file.step >= file.steps) {
    fail("all of its --steps=" + std::to_string(file.steps) +
         " are done; nothing is left to resume");
  }
  if (file.step >= static_cast<std::uint64_t>(run.end_step())) {
    fail("has " + std::to_string(file.step) + " steps behind it; give a --save-step above that");
  }
}

}  // namespace moe
