/// Measures what the link between a device and the host gives.
#pragma once

#include <cstddef>
#include <functional>

#include "tidepool/device/device.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::plan {

namespace detail {

// Out, in, and both.
inline constexpr int link_measurements = 3;

template <device Device>
link_rates measured_link(Device& dev, const std::function<void()>& meet) {
  constexpr std::size_t bytes = std::size_t{32} << 20;
  constexpr int copies = 8;
  struct blocks {
    Device* dev;
    void* device[2]{};
    void* host[2]{};
    explicit blocks(Device& on) : dev(&on) {
      for (int i = 0; i < 2; ++i) {
        device[i] = dev->try_allocate(bytes);
        host[i] = dev->try_allocate_host(bytes);
      }
    }
    blocks(const blocks&) = delete;
    blocks& operator=(const blocks&) = delete;
    ~blocks() {
      for (auto* each : device) {
        if (each != nullptr) dev->deallocate(each);
      }
      for (auto* each : host) {
        if (each != nullptr) dev->deallocate_host(each);
      }
    }
    [[nodiscard]] bool there() const {
      return device[0] != nullptr && device[1] != nullptr && host[0] != nullptr &&
             host[1] != nullptr;
    }
  };
  const auto out = dev.make_stream();
  const auto in = dev.make_stream();
  auto begin = dev.make_event(true);
  auto out_end = dev.make_event(true);
  auto in_end = dev.make_event(true);
  const blocks memory(dev);
  link_rates rates;
  if (!memory.there()) {
    for (int i = 0; i < link_measurements; ++i) meet();  // others wait for this one
    return rates;
  }
  const copy_shape whole{bytes, 1, bytes, bytes};
  const auto copy_out = [&] {
    dev.copy(memory.host[0], memory.device[0], whole, copy_direction::device_to_host, out.ref());
  };
  const auto copy_in = [&] {
    dev.copy(memory.device[1], memory.host[1], whole, copy_direction::host_to_device, in.ref());
  };
  copy_out();
  copy_in();
  dev.synchronize();
  const auto gigabytes_a_second = [&](double us) {
    return static_cast<double>(bytes) * copies / us / 1e3;
  };
  meet();
  dev.record(begin, out.ref());
  for (int i = 0; i < copies; ++i) copy_out();
  dev.record(out_end, out.ref());
  dev.synchronize();
  const auto out_us = static_cast<double>(dev.elapsed_us(begin, out_end));
  meet();
  dev.record(begin, in.ref());
  for (int i = 0; i < copies; ++i) copy_in();
  dev.record(in_end, in.ref());
  dev.synchronize();
  const auto in_us = static_cast<double>(dev.elapsed_us(begin, in_end));
  meet();
  dev.record(begin, out.ref());
  dev.wait(in.ref(), begin);
  for (int i = 0; i < copies; ++i) {
    copy_out();
    copy_in();
  }
  dev.record(out_end, out.ref());
  dev.record(in_end, in.ref());
  dev.synchronize();
  const auto out_both = static_cast<double>(dev.elapsed_us(begin, out_end));
  const auto in_both = static_cast<double>(dev.elapsed_us(begin, in_end));
  if (!(out_us > 0 && in_us > 0 && out_both > 0 && in_both > 0)) return rates;
  rates.out = gigabytes_a_second(out_us);
  rates.in = gigabytes_a_second(in_us);
  // While the slower direction ends alone, it runs at its own rate; that does not count.
  const bool out_last = out_both > in_both;
  const auto together = out_last ? in_both : out_both;
  const auto alone = (out_last ? out_both - in_both : in_both - out_both) / 1e6 *
                     (out_last ? rates.out : rates.in);
  const auto moved = 2 * static_cast<double>(bytes) * copies / 1e9;
  rates.both = (moved - alone) / (together / 1e6);
  return rates;
}

}  // namespace detail

/// Rates of pinned copies of 32 MiB, queued back to back, in each direction alone and in both.
///
/// Takes two such blocks of the device and of the host, for about 20 ms on a PCIe 5 link, and
/// blocks the host. Where there is no memory for them, or the device has no clock, the answer is
/// the default. A virtual device says what it was made with. Throws `device_error`, and what
/// `meet` throws.
///
/// `meet` is called before each of the three measurements, always and on every device, with
/// nothing under way on this one. GPUs of a host share its memory: where it returns at once in all
/// that measure, as from a barrier, each is told what it gets beside the others.
template <device Device>
[[nodiscard]] link_rates measure_link(
    Device& dev, const std::function<void()>& meet = [] {}) {
  if constexpr (requires { dev.model().both_rate; }) {
    for (int i = 0; i < detail::link_measurements; ++i) meet();
    const auto& model = dev.model();
    return {model.offload_rate, model.reload_rate, model.both_rate, model.copy_latency_ns / 1e3};
  } else {
    return detail::measured_link(dev, meet);
  }
}

}  // namespace tidepool::plan
