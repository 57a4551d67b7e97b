/// A training's weights to and from its file: see `checkpoint.hpp` for what the file is.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tidepool/device/device.hpp>

#include "../model/device_array.hpp"
#include "../model/parameters.hpp"
#include "checkpoint.hpp"

namespace moe {
namespace detail {

inline std::size_t bytes_of_floats(index count) {
  return static_cast<std::size_t>(count) * sizeof(float);
}

/// On all ranks together, with the hashes.
inline std::size_t bytes_of(const parameter& p) {
  return 3 * bytes_of_floats(p.whole) + static_cast<std::size_t>(p.parts) * sizeof(std::uint64_t);
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
  start.dense_layers = wide(m.dense_layers);
  start.dense_ffn = wide(m.dense_ffn);
  start.shared_experts = wide(m.shared_experts);
  start.mtp = wide(m.mtp);
  start.expert_capacity = std::bit_cast<std::uint64_t>(m.capacity_factor);
  start.seq = wide(m.seq);
  start.batch = wide(m.batch);
  start.precision = wide(run.precision);
  start.scaling = wide(run.scaling);
  start.fp8_gemm = wide(run.fp8_gemm);
  start.codec = wide(run.codec);
  start.loss_scale = wide(run.loss_scale.scale);
  start.loss_scale_window = wide(run.loss_scale.window);
  start.good_steps = wide(run.loss_scale.good);
  start.skipped_steps = wide(run.loss_scale.skipped);
  return start;
}

}  // namespace detail

/// Copies the state of tensors between the device and a file, in pieces through pinned memory.
/// Moments that live on the host visit the device for it.
template <class Device, class Kernels>
class checkpoint_copier {
 public:
  checkpoint_copier(Device& dev, Kernels& kernels, typename Device::stream_ref stream)
      : dev_(dev),
        kernels_(kernels),
        stream_(stream),
        staging_(dev, index{1} << 18, "checkpoint") {}

  /// Fills the tensors; throws `tidepool::option_error` when one of them is damaged.
  void load(parameters<Device>& weights, const state_file& file) {
    each(weights, moments_use::change, [&](const piece& part) {
      const auto hash = pieces(part, [&](float* on_device, std::size_t at, std::size_t bytes) {
        file.read(at, staging_.data(), bytes);
        copy(on_device, staging_.data(), bytes, tidepool::copy_direction::host_to_device);
      });
      std::uint64_t saved = 0;
      file.read(part.hash_at, &saved, sizeof saved);
      if (saved != hash) file.fail_damaged("in " + part.name);
    });
  }

  /// Writes the tensors; those that every rank holds only with `shared_too`.
  void save(parameters<Device>& weights, const state_file& file, bool shared_too) {
    each(weights, moments_use::read, [&](const piece& part) {
      if (!part.split && !shared_too) return;
      const auto hash = pieces(part, [&](float* on_device, std::size_t at, std::size_t bytes) {
        copy(staging_.data(), on_device, bytes, tidepool::copy_direction::device_to_host);
        file.write(at, staging_.data(), bytes);
      });
      file.write(part.hash_at, &hash, sizeof hash);
    });
  }

 private:
  /// What has a hash of its own: a tensor, or one expert's part of it.
  struct piece {
    std::string name;
    bool split;
    index count;
    std::array<float*, 3> state;    ///< weights, momentum, variance
    std::array<std::size_t, 3> at;  ///< the same in the file
    std::size_t hash_at;
  };

  /// Calls `body(piece)` for all that is here.
  template <class Body>
  void each(parameters<Device>& weights, moments_use use, Body body) {
    const parameter* next = weights.all().data();
    std::size_t at = detail::checkpoint_tensors_at;
    const auto visit = [&](const parameter& p, const moment_pair& moments) {
      while (next != &p) at += detail::bytes_of(*next++);
      const index count = p.whole / p.parts;
      for (index done = 0; done < p.count; done += count) {
        const index first = p.first + done;
        const auto number = static_cast<std::size_t>(first / count);
        const std::size_t weight_at = at + detail::bytes_of_floats(first);
        const std::size_t whole = detail::bytes_of_floats(p.whole);
        body(piece{p.parts > 1 ? p.name + " of expert " + std::to_string(number) : p.name,
                   p.split,
                   count,
                   {p.weight + done, moments.momentum + done, moments.variance + done},
                   {weight_at, weight_at + whole, weight_at + 2 * whole},
                   at + 3 * whole + number * sizeof(std::uint64_t)});
      }
    };
    weights.each_with_whole_moments(dev_, kernels_, use, visit);
  }

  /// Calls `move(device memory, place in the file, bytes)` for as much as the staging memory holds,
  /// then hashes what is there.
  template <class Move>
  std::uint64_t pieces(const piece& part, Move move) {
    std::uint64_t hash = 0;
    for (std::size_t kind = 0; kind < part.state.size(); ++kind) {
      for (index done = 0; done < part.count; done += staging_.size()) {
        const std::size_t bytes =
            detail::bytes_of_floats(std::min(staging_.size(), part.count - done));
        move(part.state[kind] + done, part.at[kind] + detail::bytes_of_floats(done), bytes);
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
  Kernels& kernels_;
  typename Device::stream_ref stream_;
  device_array<Device, float, side::host> staging_;
};

/// Brings the weights to where `run.resume` left them.
template <class Device, class Kernels>
void resume_from(Device& dev, Kernels& kernels, typename Device::stream_ref stream,
                 const settings& run, parameters<Device>& weights) {
  checkpoint_copier<Device, Kernels>(dev, kernels, stream)
      .load(weights, state_file("--resume", run.resume, state_file::use::read));
}

/// Writes `run.save`, as a whole or not at all. Each rank writes what it holds; of what all ranks
/// of a group hold, with the same bits, the first one.
template <class Device, class Kernels, class Link>
void save_to(Device& dev, Kernels& kernels, typename Device::stream_ref stream, Link& link,
             const settings& run, const corpus& text, parameters<Device>& weights) {
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
  checkpoint_copier<Device, Kernels>(dev, kernels, stream).save(weights, file, run.member() == 0);
  file.flush();
  link.barrier();
  if (run.rank == 0) file.commit();
}

}  // namespace moe
