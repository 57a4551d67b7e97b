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

/// Memory that a kernel says it touches, for whoever observes the virtual device.
struct kernel_access {
  const void* data = nullptr;  ///< where it begins
  std::size_t bytes = 0;       ///< how long it is
  bool writes = false;         ///< or only reads
};

}  // namespace tidepool

namespace tidepool::inline v0_3_0::detail {

// A position in a stream of the simulation: everything queued there before it.
struct sim_position {
  std::size_t stream = 0;
  std::uint64_t number = 0;
};

enum class operation_kind : std::uint8_t { kernel, copy, record, wait };

struct operation {
  static constexpr std::size_t no_event = static_cast<std::size_t>(-1);

  std::uint64_t number = 0;  // among those of all streams, in the order of issue
  operation_kind kind = operation_kind::kernel;
  bool started = false;
  copy_direction direction{};
  double duration = 0;  // of a kernel; latency left of a copy
  double at_least = 0;  // the time at which a kernel may end
  double left = 0;      // bytes of a copy still to move
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  copy_shape shape;
  std::size_t event = no_event;  // that a record sets
  sim_position until;
  std::function<void()> run;
  std::vector<kernel_access> touches;  // by a kernel

  // Half of the bytes move at the start and half at the end, so that a source that is not ready
  // yet and a source that changes too early both show in the data.
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
  std::optional<double> host_rate;  // the host itself does its work, at so many ns a byte
};

struct sim_event {
  sim_position recorded;
  std::uint64_t captured_by = 0;  // number of the capture that it is in
  double time = 0;
  bool done = false;
  bool dropped = false;  // what it stands for will never run
};

// Sees every operation as it is issued, and its position.
using operation_observer = std::function<void(const sim_position&, const operation&)>;

}  // namespace tidepool::detail
