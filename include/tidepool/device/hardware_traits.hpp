// What `hardware_of` asks of the type of a device beyond the concepts of device.hpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "tidepool/device/device.hpp"

namespace tidepool::inline v0_3_0::detail {

template <device Device>
inline constexpr char type_of_device = 0;  // its address is what counts

template <class Device>
concept batching_device = requires(Device& dev, std::span<const copy_item> items,
                                   copy_direction direction, typename Device::stream_ref on) {
  { dev.copy_batch(items, direction, on) } -> std::convertible_to<bool>;
};
template <class Device>
concept poisoning_device = requires(Device& dev, void* data, typename Device::stream_ref on) {
  { dev.poison(data, std::size_t{}, on) } -> std::same_as<bool>;
};
template <class Device>
concept dropping_device = requires(Device& dev, typename Device::stream_ref which) {
  dev.drop(which);
};
template <class Device>
concept counting_issues = requires(Device& dev, typename Device::stream_ref which) {
  dev.drop(which, dev.issued());
};
template <class Device>
concept join_dropping_device = requires(Device& dev, join_site site) {
  dev.leaves_out(site);
};
template <class Device>
concept simulating_device = Device::simulates_time;
template <class Device>
concept kernel_logging_device = requires(Device& dev, typename Device::stream_ref stream) {
  dev.log_kernels();
  dev.take_kernels();
  dev.now_ns();
  stream.index();
};

// What `at` of a device returns, which may be neither copied nor moved; and its graphs. Nothing
// where it has none.
struct no_type {};

template <class Device>
struct subject_type {
  using type = no_type;
};
template <order_checking_device Device>
struct subject_type<Device> {
  struct type {
    type(Device& dev, std::string_view module, int layer, int microbatch)
        : told(dev.at(module, layer, microbatch)) {}
    decltype(std::declval<Device&>().at(std::string_view(), 0, 0)) told;
  };
};

template <class Device>
struct graph_type {
  using type = no_type;
};
template <capturing_device Device>
struct graph_type<Device> {
  using type = typename Device::graph;
};

}  // namespace tidepool::detail
