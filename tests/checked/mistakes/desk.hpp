/// The desk of the planted mistakes: a device, checked or not, three streams and a small trainer
/// whose parts a case may replace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <tidepool/device/checked.hpp>
#include <tidepool/tidepool.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace mistakes {

namespace tp = tidepool;

constexpr int layers = 3;
constexpr std::size_t bytes = 16384;  // of each tensor

/// What a kernel touches.
struct use {
  void* data;
  std::size_t size;
  bool writes;
};
inline use reads(void* data, std::size_t size = bytes) { return {data, size, false}; }
inline use writes(void* data, std::size_t size = bytes) { return {data, size, true}; }
template <class Handle>
use reads(const Handle& of) requires requires {
  of.data();
}
{ return reads(of.data()); }
template <class Handle>
use writes(const Handle& of) requires requires {
  of.data();
}
{ return writes(of.data()); }

/// What kernels have read: a sum for each, by its name and how often that name was launched. On the
/// virtual device alone, whose kernels run on the host.
class readings {
 public:
  /// A number of the next launch of `name`.
  [[nodiscard]] std::size_t next(const std::string& name) {
    const auto key = name + " " + std::to_string(launched_[name]++);
    sums_.push_back({key, 0});
    return sums_.size() - 1;
  }
  void add(std::size_t launch, const unsigned char* data, std::size_t size) {
    auto& sum = sums_[launch].second;
    for (std::size_t i = 0; i < size; i += 64) sum = (sum ^ data[i]) * 1099511628211U + 1;
  }
  /// What that launch writes.
  [[nodiscard]] unsigned char value(std::size_t launch) const {
    return static_cast<unsigned char>(std::hash<std::string>()(sums_[launch].first) | 1U);
  }
  /// By name, whatever the order of the launches.
  [[nodiscard]] std::map<std::string, std::uint64_t> sums() const {
    return {sums_.begin(), sums_.end()};
  }

 private:
  std::map<std::string, int> launched_;
  std::deque<std::pair<std::string, std::uint64_t>> sums_;
};

/// A kernel that touches these bytes, and says nothing of it.
inline void launch(tp::virtual_device& dev, tp::virtual_device::stream_ref on, const use& what,
                   readings& seen, std::size_t number) {
  dev.launch(on, 1000, [what, &seen, number] {
    auto* const at = static_cast<unsigned char*>(what.data);
    if (what.writes) {
      std::memset(at, seen.value(number), what.size);
    } else {
      seen.add(number, at, what.size);
    }
  });
}
#if defined(__CUDACC__)
static __global__ void touch(unsigned char* at, std::size_t size, bool writes) {
  const auto i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  if (writes) {
    at[i] = 1;
  } else if (at[i] == 2) {  // a load that the compiler keeps
    at[i] = 2;
  }
}
inline void launch(tp::cuda_device&, tp::cuda_device::stream_ref on, const use& what, readings&,
                   std::size_t) {
  const auto blocks = static_cast<unsigned>((what.size + 255) / 256);
  touch<<<blocks, 256, 0, on.get()>>>(static_cast<unsigned char*>(what.data), what.size,
                                      what.writes);
}
#endif

template <class Device>
[[nodiscard]] auto made_with(std::uint64_t seed) {
  if constexpr (std::is_same_v<Device, tp::virtual_device>) {
    return tp::machine{.order_seed = seed};
  } else {
    return 0;  // the first GPU
  }
}

/// What a case does in place of the trainer; each is given the layer.
struct turns {
  using part = std::function<void(int)>;
  part forward = nullptr;
  part commit = nullptr;
  part committed = nullptr;  // nothing by default
  part restore = nullptr;
  part backward = nullptr;
  part reset = nullptr;
};

/// `Checked`: on a checked device. Without, the trainer runs as if nobody had heard of one.
template <class Device, bool Checked>
class desk {
 public:
  using device = std::conditional_t<Checked, tp::checked_device<Device>, Device>;
  using stream = typename device::stream_ref;
  using offloader = tp::offloader<device, tp::modules<"act", "attn">>;
  using buffer = typename offloader::buffer;
  using event = typename device::event;
  /// An event that the checker is told of by `recorded` and `waited`.
  using own_event = typename Device::event;

  /// `wrong`: the case makes its mistake. `seed`: another order of the virtual device.
  desk(bool is_wrong, std::size_t reload_ahead, std::uint64_t seed = 0)
      : wrong(is_wrong), dev(made_with<Device>(seed)) {
    if constexpr (Checked) {
      dev.name_stream(compute, "compute");
      dev.name_stream(side, "side");
      dev.name_stream(third, "third");
    }
    tp::options opts;
    opts.offload_modules = {"act"};
    opts.min_tensor_elements = 1;
    opts.margin = false;
    opts.device_step = opts.host_step = std::size_t{1} << 20;
    opts.reload_ahead = reload_ahead;
    off.emplace(dev, opts);
    kernel(compute, "init", {writes(weights), writes(grads)});
  }
  desk(const desk&) = delete;
  desk& operator=(const desk&) = delete;
  ~desk() { close(); }
  /// The offloader goes, and all that was queued runs.
  void close() noexcept {
    try {
      for (auto& each : pass) each = {};
      for (auto& each : x) each.clear();
      off.reset();
      dev.synchronize();
    } catch (const tp::error&) {
    }
  }

  // ---- what a trainer has ----

  void kernel(stream on, const char* name, std::initializer_list<use> touched) {
    for (const auto& each : touched) launch(dev, on, each, seen, seen.next(name));
    declare(on, name, touched);
  }
  /// Says of a kernel what it touches, and launches none: for bytes that are gone.
  void declare(stream on, const char* name, std::initializer_list<use> touched) {
    if constexpr (Checked) {
      for (const auto& each : touched) {
        if (each.writes) {
          dev.writes(each.data, each.size, on, name);
        } else {
          dev.reads(each.data, each.size, on, name);
        }
      }
    }
  }
  /// What comes next is about this part of the step, while the result lives.
  [[nodiscard]] auto part(int l, int mb) {
    if constexpr (Checked) {
      return dev.at("act", l, mb);
    } else {
      return std::pair(l, mb);
    }
  }
  /// `to` waits for what `from` was given so far.
  void join(stream from, stream to) {
    events.push_back(dev.make_event());
    dev.record(events.back(), from);
    dev.wait(to, events.back());
  }
  [[nodiscard]] own_event make_own() { return dev.Device::make_event(); }
  void record(own_event& which, stream on) {
    dev.Device::record(which, on);
    if constexpr (Checked) dev.recorded(&which, on);
  }
  void wait(stream waiter, const own_event& which) {
    dev.Device::wait(waiter, which);
    if constexpr (Checked) dev.waited(waiter, &which);
  }
  /// `cudaStreamSynchronize` and `cudaDeviceSynchronize` of the trainer's own.
  void own_synchronize(stream on) {
    dev.Device::synchronize(on);
    if constexpr (Checked) dev.host_waited(on);
  }
  void own_synchronize() {
    dev.Device::synchronize();
    if constexpr (Checked) dev.host_waited();
  }
  void copy(void* to, void* from, tp::copy_direction direction, stream on) {
    dev.copy(to, from, {bytes, 1, bytes, bytes}, direction, on);
  }
  void* pinned() { return dev.try_allocate_host(bytes); }
  void host_fill(void* to, const char* what) {
    std::memset(to, seen.value(seen.next(what)), bytes);
    if constexpr (Checked) dev.host_writes(to, bytes, what);
  }
  void host_look(void* at, const char* what) {
    seen.add(seen.next(what), static_cast<unsigned char*>(at), bytes);
    if constexpr (Checked) dev.host_reads(at, bytes, what);
  }
  /// A call that the device itself refuses.
  template <class Call>
  void may_be_refused(Call&& call) {
    try {
      call();
    } catch (const tp::error& error) {
      refusal = error.what();
    }
  }

  // ---- the trainer ----

  void forward_kernel(int l, int mb = 0) {
    [[maybe_unused]] const auto place = part(l, mb);
    kernel(compute, "fwd", {reads(weights), writes(at(l, mb))});
  }
  void forward(int l, int mb = 0) {
    at(l, mb) = off->allocate(bytes, compute);
    forward_kernel(l, mb);
  }
  void commit(int l, stream on, int mb = 0) { pass[mb].template commit<"act">(l, on, at(l, mb)); }
  void restore(int l, stream on, int mb = 0) { pass[mb].template restore<"act">(l, on, at(l, mb)); }
  void backward(int l, int mb = 0) {
    [[maybe_unused]] const auto place = part(l, mb);
    kernel(compute, "bwd", {reads(at(l, mb)), reads(grads), writes(grads)});
  }
  void forward_pass(const turns& other = {}, int mb = 0) {
    pass[mb] = off->begin({.microbatch = mb});
    for (int l = 0; l < layers; ++l) {
      other.forward ? other.forward(l) : forward(l, mb);
      other.commit ? other.commit(l) : commit(l, compute, mb);
      if (other.committed) other.committed(l);
    }
    pass[mb].end_forward();
  }
  void backward_pass(const turns& other = {}, int mb = 0) {
    for (int l = layers; l-- > 0;) {
      other.restore ? other.restore(l) : restore(l, compute, mb);
      other.backward ? other.backward(l) : backward(l, mb);
      other.reset ? other.reset(l) : at(l, mb).reset(compute);
    }
    pass[mb].finish();
  }
  void step(const turns& other = {}) {
    forward_pass(other);
    backward_pass(other);
    off->end_step();
  }
  buffer& at(int l, int mb = 0) { return x[mb][static_cast<std::size_t>(l)]; }

  bool wrong;
  std::string refusal;  // in words of the device
  readings seen;        // outlives what is queued
  device dev;
  typename device::stream made[3]{dev.make_stream(), dev.make_stream(), dev.make_stream()};
  stream compute = made[0].ref(), side = made[1].ref(), third = made[2].ref();
  std::deque<event> events;
  void* weights = dev.allocate(bytes);
  void* grads = dev.allocate(bytes);
  void* scratch = dev.allocate(bytes);  // the trainer's own
  tp::fixed_block block{dev.allocate(bytes), bytes};
  std::optional<offloader> off;
  std::vector<buffer> x[2]{std::vector<buffer>(layers), std::vector<buffer>(layers)};
  typename offloader::chunk pass[2];
};

}  // namespace mistakes
