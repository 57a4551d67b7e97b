// Operations, streams and events of the simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "tidepool/device/device.hpp"

namespace tidepool::inline v0_3_0 {

/// Memory that a kernel declares to touch, for observers of the virtual device.
struct kernel_access {
  const void* data = nullptr;  ///< its first byte
  std::size_t bytes = 0;       ///< number of bytes
  bool writes = false;         ///< false: the kernel only reads
};

}  // namespace tidepool

namespace tidepool::inline v0_3_0::detail {

// A position in a stream of the simulation. It stands for all operations queued there before it.
struct sim_position {
  std::size_t stream = 0;
  std::uint64_t number = 0;
};

enum class operation_kind : std::uint8_t { kernel, copy, record, wait };

struct operation {
  static constexpr std::size_t no_event = static_cast<std::size_t>(-1);

  std::uint64_t number = 0;  // its number over all streams, in the order of issue
  operation_kind kind = operation_kind::kernel;
  bool started = false;
  copy_direction direction{};
  double duration = 0;  // time of a kernel; latency left of a copy
  double at_least = 0;  // the time at which a kernel may end
  double left = 0;      // bytes of a copy still to move
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  copy_shape shape;
  std::size_t event = no_event;  // the event that a record sets
  sim_position until;
  std::function<void()> run;
  std::vector<kernel_access> touches;  // accesses of a kernel

  // Half of the bytes move at the start and half at the end. So the data shows a source that is not
  // ready yet, and a source that changes too early.
  void move_first_half() const {
    move_rows(0, shape.rows / 2);
    if (shape.rows == 1) move_bytes(0, shape.width / 2);
  }
  void move_second_half() const {
    if (shape.rows == 1) {
      move_bytes(shape.width / 2, shape.width);
    } else {
      move_rows(shape.rows / 2, shape.rows);
    }
  }

 private:
  void move_bytes(std::size_t from, std::size_t to) const {
    std::memcpy(target + from, source + from, to - from);
  }
  void move_rows(std::size_t from, std::size_t to) const {
    for (auto row = from; row < to; ++row) {
      std::memcpy(target + row * shape.target_pitch, source + row * shape.source_pitch,
                  shape.width);
    }
  }
};

struct sim_stream {
  std::deque<operation> queue;
  std::uint64_t pushed = 0;
  std::uint64_t finished = 0;
  bool retired = false;
  std::optional<double> host_rate;  // ns a byte, if the host does its work
};

struct sim_event {
  sim_position recorded;
  std::uint64_t captured_by = 0;  // number of the capture that recorded it
  double time = 0;
  bool done = false;
  bool dropped = false;  // its work will never run
};

// Called for every operation when it is issued, with its position.
using operation_observer = std::function<void(const sim_position&, const operation&)>;

}  // namespace tidepool::detail
