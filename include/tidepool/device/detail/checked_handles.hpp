// Events and graphs of a device that checks the order of accesses: each has one of the device
// below, and its number or steps in the log.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tidepool/device/detail/order_log.hpp"
#include "tidepool/device/device.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// The part of a step that accesses belong to while it lives.
class [[nodiscard]] checked_place {
 public:
  checked_place(order_log& log, std::string_view module, int layer, int microbatch)
      : log_(&log), before_(log.at(module, layer, microbatch)) {}
  checked_place(const checked_place&) = delete;
  checked_place& operator=(const checked_place&) = delete;
  ~checked_place() { log_->go_back(before_); }

 private:
  order_log* log_;
  order_log::subject before_;
};

template <class Event>
class checked_event {
 public:
  checked_event(Event&& made, order_log& log)
      : inner(std::move(made)), number(log.add_event()), log_(&log, removal{number}) {}

  Event inner;
  std::uint32_t number;

 private:
  struct removal {
    void operator()(order_log* log) const { log->remove_event(number); }
    std::uint32_t number;
  };
  std::unique_ptr<order_log, removal> log_;
};

template <class Graph>
class checked_graph {
 public:
  checked_graph(Graph&& made, order_log::graph&& kept, order_log& log)
      : inner(std::move(made)), log_(&log, removal{std::move(kept)}) {}

  [[nodiscard]] order_log::graph& steps() { return log_.get_deleter().steps; }

  Graph inner;

 private:
  struct removal {
    void operator()(order_log* log) { log->drop(steps); }
    order_log::graph steps;
  };
  std::unique_ptr<order_log, removal> log_;
};

template <class Device>
struct graph_checked {
  using type = void;
};
template <capturing_device Device>
struct graph_checked<Device> {
  using type = checked_graph<typename Device::graph>;
};

// An object with an address and a size in bytes, such as a buffer.
template <class Memory>
concept has_bytes = requires(const Memory& memory) {
  { memory.data() } -> std::convertible_to<const void*>;
  requires std::is_void_v<std::remove_pointer_t<decltype(memory.data())>>;
  { memory.size() } -> std::convertible_to<std::size_t>;
};

}  // namespace detail

}  // namespace tidepool
