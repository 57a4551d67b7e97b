/// A training on file: what it holds, how it is written and read, and whether it fits a run.
///
/// The file is a magic word, a `checkpoint_start` and its hash; then for each tensor, in the order
/// of `parameters::all`, its weights, momentum and variance, and the hash of the three. All of it
/// in the byte order of the machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tidepool/device/device.hpp>
#include <tidepool/error.hpp>
#include <vector>

#include "data.hpp"
#include "device_array.hpp"
#include "parameters.hpp"
#include "state_file.hpp"

namespace moe {

/// What a run must have in common with the one that it goes on with, and how far that one got.
struct checkpoint_start {
  std::uint64_t version = 1;
  std::uint64_t step = 0;   ///< steps that are done
  std::uint64_t bytes = 0;  ///< of the whole file
  std::uint64_t text = 0;   ///< its fingerprint
  std::uint64_t steps = 0, microbatches = 0, seed = 0;
  std::uint64_t learning_rate = 0;  ///< its bits
  std::uint64_t layers = 0, hidden = 0, heads = 0, experts = 0, top_k = 0, ffn = 0, seq = 0,
                batch = 0;
};

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

inline std::size_t bytes_of(const parameter& p) {
  return 3 * static_cast<std::size_t>(p.count) * sizeof(float) + sizeof(std::uint64_t);
}

/// The fewest digits that give the same number back.
inline std::string digits_of(float value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

template <class Device>
checkpoint_start start_of(const settings& run, const corpus& text,
                          const parameters<Device>& weights, int done) {
  const model_sizes& m = run.model;
  const auto wide = [](auto value) { return static_cast<std::uint64_t>(value); };
  checkpoint_start start;
  start.step = wide(done);
  start.bytes = checkpoint_tensors_at;
  for (const parameter& p : weights.all()) start.bytes += bytes_of(p);
  start.text = text.fingerprint();
  start.steps = wide(run.steps);
  start.microbatches = wide(run.microbatches);
  start.seed = run.seed;
  start.learning_rate = std::bit_cast<std::uint32_t>(run.learning_rate);
  start.layers = wide(m.layers);
  start.hidden = wide(m.hidden);
  start.heads = wide(m.heads);
  start.experts = wide(m.experts);
  start.top_k = wide(m.top_k);
  start.ffn = wide(m.ffn);
  start.seq = wide(m.seq);
  start.batch = wide(m.batch);
  return start;
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
  number("--seq", file.seq, m.seq);
  number("--batch", file.batch, m.batch);
  number("--steps", file.steps, run.steps);
  number("--microbatches", file.microbatches, run.microbatches);
  number("--seed", file.seed, run.seed);
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
  if (static_cast<std::uint64_t>(run.trace_step) < file.step) {
    fail("has " + std::to_string(file.step) +
         " steps behind it; give a --trace-step of at least that");
  }
}

/// Copies the state of tensors between the device and a file, in pieces through pinned memory.
template <class Device>
class checkpoint_copier {
 public:
  checkpoint_copier(Device& dev, typename Device::stream_ref stream)
      : dev_(dev), stream_(stream), staging_(dev, index{1} << 18, "checkpoint") {}

  /// Fills the tensors; throws `tidepool::option_error` when one of them is damaged.
  void load(const parameters<Device>& weights, const state_file& file) {
    each(weights, [&](const parameter& p, std::size_t at) {
      const auto hash = pieces(weights, p, [&](float* on_device, std::size_t bytes) {
        file.read(at, staging_.data(), bytes);
        copy(on_device, staging_.data(), bytes, tidepool::copy_direction::host_to_device);
        at += bytes;
      });
      std::uint64_t saved = 0;
      file.read(at, &saved, sizeof saved);
      if (saved != hash) file.fail_damaged("in " + p.name);
    });
  }

  void save(const parameters<Device>& weights, const state_file& file) {
    each(weights, [&](const parameter& p, std::size_t at) {
      const auto hash = pieces(weights, p, [&](float* on_device, std::size_t bytes) {
        copy(staging_.data(), on_device, bytes, tidepool::copy_direction::device_to_host);
        file.write(at, staging_.data(), bytes);
        at += bytes;
      });
      file.write(at, &hash, sizeof hash);
    });
  }

 private:
  /// Calls `body(tensor, its place in the file)`.
  template <class Body>
  void each(const parameters<Device>& weights, Body body) {
    std::size_t at = detail::checkpoint_tensors_at;
    for (const parameter& p : weights.all()) {
      if (p.held) body(p, at);
      at += detail::bytes_of(p);
    }
  }

  /// Calls `move(device memory, bytes)` for each piece, then hashes what is in the staging memory.
  template <class Move>
  std::uint64_t pieces(const parameters<Device>& weights, const parameter& p, Move move) {
    std::uint64_t hash = 0;
    for (float* const state : weights.state(p)) {
      for (index done = 0; done < p.count; done += staging_.size()) {
        const index count = std::min(staging_.size(), p.count - done);
        const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
        move(state + done, bytes);
        hash = detail::hash_of(staging_.data(), bytes, hash);
      }
    }
    return hash;
  }

  void copy(void* to, const void* from, std::size_t bytes, tidepool::copy_direction direction) {
    dev_.copy(to, from, {.width = bytes}, direction, stream_);
    dev_.synchronize(stream_);
  }

  Device& dev_;
  typename Device::stream_ref stream_;
  device_array<Device, float, side::host> staging_;
};

/// Brings the weights to where `run.resume` left them.
template <class Device>
void resume_from(Device& dev, typename Device::stream_ref stream, const settings& run,
                 const parameters<Device>& weights) {
  checkpoint_copier<Device>(dev, stream)
      .load(weights, state_file("--resume", run.resume, state_file::use::read));
}

/// Writes `run.save`, as a whole or not at all; each rank of a pipeline writes what it holds.
template <class Device, class Link>
void save_to(Device& dev, typename Device::stream_ref stream, Link& link, const settings& run,
             const corpus& text, const parameters<Device>& weights) {
  const auto& magic = detail::checkpoint_magic;
  const checkpoint_start start = detail::start_of(run, text, weights, run.end_step());
  const std::uint64_t hash = detail::hash_of(&start, sizeof start, 0);
  if (run.rank != 0) link.barrier();
  state_file file("--save", run.save,
                  run.rank == 0 ? state_file::use::write : state_file::use::join);
  if (run.rank == 0) {
    file.write(0, magic.data(), magic.size());
    file.write(magic.size(), &start, sizeof start);
    file.write(magic.size() + sizeof start, &hash, sizeof hash);
    link.barrier();
  }
  checkpoint_copier<Device>(dev, stream).save(weights, file);
  file.flush();
  link.barrier();
  if (run.rank == 0) file.commit();
}

}  // namespace moe
