/// Measures what the link between a device and the host gives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/device/device.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan {

namespace detail {

// Out, in, and both.
inline constexpr int link_measurements = 3;

// Copies of one direction, one behind the other, each with the time of its end.
template <device Device>
class link_lane {
 public:
  static constexpr std::size_t bytes = std::size_t{32} << 20;
  // The same in all that measure at once, for as long as each other: what a host's memory gives
  // several GPUs for 20 ms, it does not give them for long.
  static constexpr std::size_t copies = 192;
  // Of host memory, in turns: the same 32 MiB over and over would come from a cache of the host's.
  static constexpr std::size_t most_blocks = copies / 3;

  // To or from the host, or the neighbour of that number; or `lent`, `bytes` of somebody's memory.
  link_lane(Device& dev, copy_direction direction, int peer = 0, void* lent = nullptr)
      : dev_(&dev), direction_(direction), peer_(peer), lent_(lent), stream_(dev.make_stream()) {
    for (std::size_t i = 0; i < copies; ++i) ends_.push_back(dev.make_event(true));
  }
  link_lane(const link_lane&) = delete;
  link_lane& operator=(const link_lane&) = delete;
  ~link_lane() {
    if (on_device_ != nullptr) dev_->deallocate(on_device_);
    give_back();
  }

  // False where there is no memory for one block of the device and as many of the other side.
  [[nodiscard]] bool reserve(std::size_t blocks) {
    if (on_device_ == nullptr) on_device_ = dev_->try_allocate(bytes);
    if (on_device_ == nullptr) return false;
    give_back();
    blocks_ = blocks;
    if (lent_ != nullptr) return (there_ = lent_) != nullptr;
    if constexpr (peer_device<Device>) {
      if (to_peer()) return (there_ = dev_->try_allocate_peer(peer_, blocks * bytes)) != nullptr;
    }
    return (there_ = dev_->try_allocate_host(blocks * bytes)) != nullptr;
  }
  [[nodiscard]] auto stream() const { return stream_.ref(); }

  void copy(std::size_t i) {
    const bool out = is_offload(direction_);
    void* const there = static_cast<std::byte*>(there_) + i % blocks_ * bytes;
    dev_->copy(out ? there : on_device_, out ? on_device_ : there, {bytes, 1, bytes, bytes},
               direction_, stream());
    dev_->record(ends_[i], stream());
  }

  // Microseconds from an event to the end of copy `i`.
  [[nodiscard]] double end_us(const typename Device::event& since, std::size_t i) const {
    return static_cast<double>(dev_->elapsed_us(since, ends_[i]));
  }

  // Copies and parts of one that were through after so many microseconds.
  [[nodiscard]] double through(const typename Device::event& since, double us) const {
    double before = 0;
    for (std::size_t i = 0; i < copies; ++i) {
      const auto end = end_us(since, i);
      if (end > us) return static_cast<double>(i) + (us - before) / (end - before);
      before = end;
    }
    return static_cast<double>(copies);
  }

 private:
  [[nodiscard]] bool to_peer() const { return direction_ >= copy_direction::device_to_peer; }

  void give_back() noexcept {
    auto* const there = std::exchange(there_, nullptr);
    if (there == nullptr || there == lent_) return;
    if constexpr (peer_device<Device>) {
      if (to_peer()) return dev_->deallocate_peer(peer_, there);
    }
    dev_->deallocate_host(there);
  }

  Device* dev_;
  copy_direction direction_;
  int peer_;
  void* lent_;
  typename Device::stream stream_;
  void* on_device_ = nullptr;
  void* there_ = nullptr;  // on the other side
  std::size_t blocks_ = 0;
  std::vector<typename Device::event> ends_;
};

// Gigabytes a second of all lanes together in the middle third of their copies. In the first third
// others that measure may not have begun, in the last some may have ended, and so may a lane.
template <device Device>
double link_rate(Device& dev, std::initializer_list<link_lane<Device>*> lanes) {
  using lane = link_lane<Device>;
  auto begin = dev.make_event(true);
  dev.record(begin, (*lanes.begin())->stream());
  for (auto* each : lanes) dev.wait(each->stream(), begin);
  for (std::size_t i = 0; i < lane::copies; ++i) {
    for (auto* each : lanes) each->copy(i);
  }
  dev.synchronize();
  double from = std::numeric_limits<double>::infinity();
  double to = from;
  for (const auto* each : lanes) {
    from = std::min(from, each->end_us(begin, lane::copies / 3 - 1));
    to = std::min(to, each->end_us(begin, 2 * lane::copies / 3 - 1));
  }
  if (!(to > from)) return 0;
  double moved = 0;
  for (const auto* each : lanes) moved += each->through(begin, to) - each->through(begin, from);
  return moved * static_cast<double>(lane::bytes) / (to - from) / 1e3;
}

// Of both lanes, which have memory, alone and together.
template <device Device>
link_rates rates_of(Device& dev, link_lane<Device>& out, link_lane<Device>& in,
                    const std::function<void()>& meet) {
  out.copy(0);
  in.copy(0);
  dev.synchronize();
  link_rates rates;
  meet();
  rates.out = link_rate(dev, {&out});
  meet();
  rates.in = link_rate(dev, {&in});
  meet();
  rates.both = link_rate(dev, {&out, &in});
  if (rates.out > 0 && rates.in > 0 && rates.both > 0) return rates;
  return {};
}

template <device Device>
link_rates measured_link(Device& dev, const std::function<void()>& meet, std::size_t host_bytes) {
  using lane = link_lane<Device>;
  lane out(dev, copy_direction::device_to_host);
  lane in(dev, copy_direction::host_to_device);
  auto blocks = std::clamp<std::size_t>(host_bytes / 2 / lane::bytes, 1, lane::most_blocks);
  while (blocks > 0 && !(out.reserve(blocks) && in.reserve(blocks))) blocks /= 2;
  if (blocks == 0) {
    for (int i = 0; i < link_measurements; ++i) meet();  // others wait for this one
    return {};
  }
  return rates_of(dev, out, in, meet);
}

template <device Device>
std::optional<link_rates> measured_peer_link(Device& dev, int peer, void* lent_out, void* lent_in) {
  link_lane<Device> out(dev, copy_direction::device_to_peer, peer, lent_out);
  link_lane<Device> in(dev, copy_direction::peer_to_device, peer, lent_in);
  if (!out.reserve(1) || !in.reserve(1)) return {};
  const auto rates = rates_of(dev, out, in, [] {});
  if (rates == link_rates{}) return {};
  return rates;
}

}  // namespace detail

/// Rates of pinned copies of 32 MiB, queued back to back, in each direction alone and in both:
/// those of the middle third of 192 copies.
///
/// Takes two such blocks of the device, and up to `host_bytes` of the host's memory, half of it
/// where it has no more, and so on: at least two blocks, at most 4 GiB. Give it much where the
/// training takes much: beside other GPUs, copies to and from memory are slower than those that
/// stay in the host's cache. Blocks the host, for half a second on a PCIe 5 link and as long again
/// to pin 4 GiB. Where there is no memory for two blocks, or the device has no clock, the answer is
/// the default. A virtual device says what it was made with. Throws `device_error`, and what `meet`
/// throws.
///
/// `meet` is called before each of the three measurements, always and on every device, with
/// nothing under way on this one. GPUs of a host share its memory: where it returns at about the
/// same time in all that measure, as from a barrier, each is told what it gets beside the others.
/// Some may begin late, by a quarter of what their own measurement takes (30 ms).
template <device Device>
[[nodiscard]] link_rates measure_link(
    Device& dev, const std::function<void()>& meet = [] {},
    std::size_t host_bytes = std::size_t{512} << 20) {
  if (!meet)
    return measure_link(
        dev, [] {}, host_bytes);
  if constexpr (requires { dev.model().both_rate; }) {
    for (int i = 0; i < detail::link_measurements; ++i) meet();
    const auto& model = dev.model();
    return {model.offload_rate, model.reload_rate, model.both_rate, model.copy_latency_ns / 1e3};
  } else {
    return detail::measured_link(dev, meet, host_bytes);
  }
}

/// The same for the link to a neighbour's memory, of which it takes 64 MiB for a moment. Meets
/// nobody. None where there is no such neighbour, no memory for that, or the device has no clock.
template <device Device>
[[nodiscard]] std::optional<link_rates> measure_peer_link(Device& dev, int peer) {
  if constexpr (!peer_device<Device>) {
    return {};
  } else if constexpr (requires { dev.model().peer_both_rate; }) {
    const auto& model = dev.model();
    if (model.peer_shares_link) {
      return link_rates{model.offload_rate, model.reload_rate, model.both_rate,
                        model.peer_latency_ns / 1e3};
    }
    return link_rates{model.peer_offload_rate, model.peer_reload_rate, model.peer_both_rate,
                      model.peer_latency_ns / 1e3};
  } else {
    if (!dev.why_no_peer(peer).empty()) return {};
    return detail::measured_peer_link(dev, peer, nullptr, nullptr);
  }
}

/// The same in memory that a process lends, of which nothing is in use; it is written to. None
/// where that is less than 64 MiB.
template <device Device>
[[nodiscard]] std::optional<link_rates> measure_lent_link(Device& dev, void* memory,
                                                          std::size_t bytes) {
  if constexpr (requires { dev.model().peer_both_rate; }) {
    return measure_peer_link(dev, 1);
  } else {
    constexpr auto block = detail::link_lane<Device>::bytes;
    if (bytes < 2 * block) return {};
    return detail::measured_peer_link(dev, 0, memory, static_cast<std::byte*>(memory) + block);
  }
}

}  // namespace tidepool::plan
