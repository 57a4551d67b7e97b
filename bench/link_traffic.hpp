/// What the benches of the link run: raw copies, and the same bytes through an offloader.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <tidepool/tidepool.hpp>
#include <utility>
#include <vector>

namespace bench {

namespace tp = tidepool;
using offloader = tp::offloader<tp::cuda_device, tp::modules<"expert_fc1">>;

constexpr std::size_t mib = std::size_t{1} << 20;

inline double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw tp::device_error(std::string(call) + ": " + cudaGetErrorString(code),
                         static_cast<int>(code));
}

/// Raw copies of one GPU: the reference.
class raw_copies {
 public:
  raw_copies(tp::cuda_device& dev, std::size_t bytes)
      : dev_(&dev),
        bytes_(bytes),
        device_{dev.allocate(bytes), dev.allocate(bytes)},
        host_{dev.try_allocate_host(bytes), dev.try_allocate_host(bytes)},
        streams_{dev.make_stream(), dev.make_stream()} {}
  raw_copies(const raw_copies&) = delete;
  raw_copies& operator=(const raw_copies&) = delete;
  ~raw_copies() {
    for (auto* each : device_) dev_->deallocate(each);
    for (auto* each : host_) dev_->deallocate_host(each);
  }
  void run(bool out, bool in, int count) {
    for (int i = 0; i < count; ++i) {
      if (out) copy(host_[0], device_[0], tp::copy_direction::device_to_host, 0);
      if (in) copy(device_[1], host_[1], tp::copy_direction::host_to_device, 1);
    }
    for (auto& each : streams_) dev_->synchronize(each.ref());
  }

 private:
  void copy(void* to, const void* from, tp::copy_direction which, std::size_t stream) {
    dev_->copy(to, from, {bytes_, 1, bytes_, bytes_}, which, streams_[stream].ref());
  }
  tp::cuda_device* dev_;
  std::size_t bytes_;
  void* device_[2];
  void* host_[2];
  tp::cuda_device::stream streams_[2];
};

/// The same bytes through an offloader, with nothing to compute.
class groups_of {
 public:
  groups_of(tp::cuda_device& dev, int groups, int tensors, std::size_t bytes)
      : dev_(&dev), stream_(dev.make_stream()), tensors_(tensors), bytes_(bytes) {
    tp::options opts;
    opts.offload_modules = {"expert_fc1"};
    opts.min_tensor_elements = 1;
    opts.margin = false;
    opts.reload_ahead = static_cast<std::size_t>(groups);
    off_ = std::make_unique<offloader>(dev, opts);
    passes_.resize(2);
    for (auto& each : passes_) each.saved.resize(static_cast<std::size_t>(groups));
  }

  void forward(int which) {
    auto& at = passes_[static_cast<std::size_t>(which)];
    at.chunk = off_->begin({.microbatch = which});
    int layer = 0;
    for (auto& group : at.saved) {
      group.clear();
      for (int t = 0; t < tensors_; ++t) group.push_back(off_->allocate(bytes_, stream_.get()));
      commit(at.chunk, layer++, group);
    }
  }
  void backward(int which) {
    auto& at = passes_[static_cast<std::size_t>(which)];
    at.chunk.end_forward();
    for (auto layer = static_cast<int>(at.saved.size()); layer-- > 0;) {
      auto& group = at.saved[static_cast<std::size_t>(layer)];
      restore(at.chunk, layer, group);
      for (auto& each : group) each.reset(stream_.get());
    }
    at.chunk.finish();
  }
  void end_step() { off_->end_step(); }
  void settle() { dev_->synchronize(); }

  /// GB/s while busy, by events around each copy, as the trace has them.
  [[nodiscard]] tp::trace::record traced(const std::function<void()>& step) {
    off_->start_trace("step", stream_.get());
    step();
    return off_->finish_trace();
  }

 private:
  struct pass {
    offloader::chunk chunk;
    std::vector<std::vector<offloader::buffer>> saved;
  };

  // A commit takes its handles as arguments; many tensors go as several of a layer's groups would.
  template <std::size_t... I>
  void commit_all(offloader::chunk& chunk, int layer, std::vector<offloader::buffer>& group,
                  std::index_sequence<I...>) {
    chunk.commit<"expert_fc1">(layer, stream_.get(), group[I]...);
  }
  template <std::size_t... I>
  void restore_all(offloader::chunk& chunk, int layer, std::vector<offloader::buffer>& group,
                   std::index_sequence<I...>) {
    chunk.restore<"expert_fc1">(layer, stream_.get(), group[I]...);
  }
  void commit(offloader::chunk& chunk, int layer, std::vector<offloader::buffer>& group) {
    if (tensors_ == 1) return commit_all(chunk, layer, group, std::make_index_sequence<1>());
    commit_all(chunk, layer, group, std::make_index_sequence<256>());
  }
  void restore(offloader::chunk& chunk, int layer, std::vector<offloader::buffer>& group) {
    if (tensors_ == 1) return restore_all(chunk, layer, group, std::make_index_sequence<1>());
    restore_all(chunk, layer, group, std::make_index_sequence<256>());
  }

  tp::cuda_device* dev_;
  tp::cuda_device::stream stream_;
  int tensors_;
  std::size_t bytes_;
  std::unique_ptr<offloader> off_;
  std::vector<pass> passes_;
};

}  // namespace bench
