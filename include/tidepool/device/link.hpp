/// Measures what the link between a device and the host gives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan {

namespace detail {

using tidepool::detail::hardware;
using tidepool::detail::timing_events;
using tidepool::detail::timing_id;

// Copies of one direction, one behind the other, each with the time of its end.
class link_lane {
 public:
  static constexpr std::size_t bytes = std::size_t{32} << 20;
  // The same in all that measure at once, for as long as each other: what a host's memory gives
  // several GPUs for 20 ms, it does not give them for long.
  static constexpr std::size_t copies = 192;
  // Of host memory, in turns: the same 32 MiB over and over would come from a cache of the host's.
  static constexpr std::size_t most_blocks = copies / 3;

  // On the lane `on`, between the device and memory of `other`; or `lent`, `bytes` of somebody's.
  link_lane(hardware& dev, lane_id on, copy_direction direction,
            std::unique_ptr<page_allocator> other, void* lent = nullptr)
      : dev_(&dev),
        on_(on),
        direction_(direction),
        lent_(lent),
        device_(dev.device_pages()),
        other_(std::move(other)),
        ends_(dev) {}
  link_lane(const link_lane&) = delete;
  link_lane& operator=(const link_lane&) = delete;
  ~link_lane() {
    if (on_device_ != nullptr) device_->deallocate(on_device_);
    give_back();
  }

  // False where there is no memory for one block of the device and as many of the other side.
  [[nodiscard]] bool reserve(std::size_t blocks) {
    if (on_device_ == nullptr) on_device_ = device_->try_allocate(bytes);
    if (on_device_ == nullptr) return false;
    give_back();
    blocks_ = blocks;
    there_ = lent_ != nullptr ? lent_ : other_->try_allocate(blocks * bytes);
    return there_ != nullptr;
  }
  [[nodiscard]] const void* stream() const { return dev_->stream(on_); }

  void copy(std::size_t i) {
    const bool out = is_offload(direction_);
    void* const there = static_cast<std::byte*>(there_) + i % blocks_ * bytes;
    dev_->copy(out ? there : on_device_, out ? on_device_ : there, {bytes, 1, bytes, bytes},
               direction_, on_);
    ends_.record(i, stream());
  }

  // Microseconds from an event to the end of copy `i`.
  [[nodiscard]] double end_us(timing_id since, std::size_t i) const {
    return dev_->elapsed_us(since, ends_[i]);
  }

  // Copies and parts of one that were through after so many microseconds.
  [[nodiscard]] double through(timing_id since, double us) const {
    double before = 0;
    for (std::size_t i = 0; i < copies; ++i) {
      const auto end = end_us(since, i);
      if (end > us) return static_cast<double>(i) + (us - before) / (end - before);
      before = end;
    }
    return static_cast<double>(copies);
  }

 private:
  void give_back() noexcept {
    auto* const there = std::exchange(there_, nullptr);
    if (there != nullptr && there != lent_) other_->deallocate(there);
  }

  hardware* dev_;
  lane_id on_;
  copy_direction direction_;
  void* lent_;
  std::unique_ptr<page_allocator> device_;
  std::unique_ptr<page_allocator> other_;
  void* on_device_ = nullptr;
  void* there_ = nullptr;  // on the other side
  std::size_t blocks_ = 0;
  timing_events ends_;
};

// Gigabytes a second of all lanes together in the middle third of their copies. In the first third
// others that measure may not have begun, in the last some may have ended, and so may a lane.
// Nothing is under way before it.
inline double link_rate(hardware& dev, std::initializer_list<link_lane*> lanes) {
  timing_events begun(dev);
  begun.record(0, (*lanes.begin())->stream());
  const auto begin = begun[0];
  for (std::size_t i = 0; i < link_lane::copies; ++i) {
    for (auto* each : lanes) each->copy(i);
  }
  dev.synchronize();
  double from = std::numeric_limits<double>::infinity();
  double to = from;
  for (const auto* each : lanes) {
    from = std::min(from, each->end_us(begin, link_lane::copies / 3 - 1));
    to = std::min(to, each->end_us(begin, 2 * link_lane::copies / 3 - 1));
  }
  if (!(to > from)) return 0;
  double moved = 0;
  for (const auto* each : lanes) moved += each->through(begin, to) - each->through(begin, from);
  return moved * static_cast<double>(link_lane::bytes) / (to - from) / 1e3;
}

// Measures two lanes that have memory, each alone and then both together. Returns the default if
// the device has no clock.
inline link_rates rates_of(hardware& dev, link_lane& out, link_lane& in,
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

}  // namespace detail

/// Where to measure: nothing is under way there.
struct link_lanes {
  lane_id out;  ///< from the device
  lane_id in;   ///< to it
};

/// Rates of pinned copies of 32 MiB, queued back to back, in each direction alone and in both:
/// those of the middle third of 192 copies.
///
/// Takes two such blocks of the device, and up to `host_bytes` of the host's
/// memory, half of it where it has no more, and so on: at least two blocks, at most 4 GiB. Give it
/// much where the training takes much: beside other GPUs, copies to and from memory are slower than
/// those that stay in the host's cache. Blocks the host, for half a second on a PCIe 5 link and as
/// long again to pin 4 GiB. Where there is no memory for two blocks, or the device has no clock,
/// the answer is the default. A virtual device says what it was made with. Throws `device_error`,
/// and what `meet` throws.
///
/// `meet` is called before each of the three measurements, always and on every device, with
/// nothing under way on this one. GPUs of a host share its memory: where it returns at about the
/// same time in all that measure, as from a barrier, each is told what it gets beside the others.
/// Some may begin late, by a quarter of what their own measurement takes (30 ms).
[[nodiscard]] inline link_rates measure_link(tidepool::detail::hardware& dev, link_lanes on,
                                             const std::function<void()>& meet,
                                             std::size_t host_bytes) {
  using lane = detail::link_lane;
  const auto meet_only = [&] {  // others wait for this one
    for (int i = 0; i < 3; ++i) meet();
  };
  if (const auto known = dev.known_link(false)) return meet_only(), *known;
  lane out(dev, on.out, copy_direction::device_to_host, dev.host_pages({}));
  lane in(dev, on.in, copy_direction::host_to_device, dev.host_pages({}));
  auto blocks = std::clamp<std::size_t>(host_bytes / 2 / lane::bytes, 1, lane::most_blocks);
  while (blocks > 0 && !(out.reserve(blocks) && in.reserve(blocks))) blocks /= 2;
  if (blocks == 0) return meet_only(), link_rates{};
  return detail::rates_of(dev, out, in, meet);
}

/// Measures the link to the neighbour `peer` like `measure_link`, in 64 MiB of its memory; or
/// for `bytes` at `lent`, which a process lends, and which is written to. Meets nobody. None where
/// there is no such neighbour, less memory than that, or the device has no clock.
[[nodiscard]] inline std::optional<link_rates> measure_peer_link(tidepool::detail::hardware& dev,
                                                                 link_lanes on, int peer,
                                                                 void* lent = nullptr,
                                                                 std::size_t bytes = 0) {
  using lane = detail::link_lane;
  if (const auto known = dev.known_link(true)) return known;
  if (lent != nullptr ? bytes < 2 * lane::bytes : !dev.why_no_peer(peer).empty()) return {};
  const auto pages = [&] { return lent != nullptr ? nullptr : dev.peer_pages(peer); };
  void* const behind = lent != nullptr ? static_cast<std::byte*>(lent) + lane::bytes : nullptr;
  lane out(dev, on.out, copy_direction::device_to_peer, pages(), lent);
  lane in(dev, on.in, copy_direction::peer_to_device, pages(), behind);
  if (!out.reserve(1) || !in.reserve(1)) return {};
  const auto rates = detail::rates_of(dev, out, in, [] {});
  return rates == link_rates{} ? std::nullopt : std::optional(rates);
}

}  // namespace tidepool::plan
