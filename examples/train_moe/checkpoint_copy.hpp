/// A training's weights to and from its file: see `checkpoint.hpp` for what the file is.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <tidepool/device/device.hpp>

#include "checkpoint.hpp"
#include "device_array.hpp"
#include "parameters.hpp"

namespace moe {
namespace detail {

inline std::size_t bytes_of(const parameter& p) {
  return 3 * static_cast<std::size_t>(p.count) * sizeof(float) + sizeof(std::uint64_t);
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
  start.seq = wide(m.seq);
  start.batch = wide(m.batch);
  start.precision = wide(run.precision);
  start.scaling = wide(run.scaling);
  start.loss_scale = wide(run.loss_scale.scale);
  start.loss_scale_window = wide(run.loss_scale.window);
  start.good_steps = wide(run.loss_scale.good);
  start.skipped_steps = wide(run.loss_scale.skipped);
  return start;
}

}  // namespace detail

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
