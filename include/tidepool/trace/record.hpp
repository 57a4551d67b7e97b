/// What one traced step did, as plain data: spans on lanes and the level of device memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::inline v0_2_0::trace {

/// What a lane was doing during a span.
enum class span_kind : std::uint8_t {
  compute,  ///< the trainer's own work, as it named it
  offload,  ///< a device-to-host copy of one group
  reload,   ///< a host-to-device copy of one group
  stall     ///< a compute stream waiting at a join; `name` is the join's name, the reason
};

/// One interval on one lane. Times are microseconds since the record began.
struct span {
  span_kind kind = span_kind::compute;  ///< what it shows
  std::size_t lane = 0;                 ///< index into `record::lanes`
  std::string name;  ///< the module of a copy, the trainer's text of compute, the join of a stall
  int layer = -1;    ///< -1 where it has none
  int microbatch = -1;    ///< -1 where it has none
  std::size_t bytes = 0;  ///< of a copy, and of what a stall waited for
  double start = 0;       ///< when it began
  double end = 0;         ///< when it ended
  /// Of a stall: the module of the copy that it waited for, whose are `layer`, `microbatch` and
  /// `bytes` too; empty where it waited for none.
  std::string module{};
};

/// One forward or backward pass of one chunk, in the time of the compute stream.
struct pass_span {
  bool backward = false;  ///< or forward
  int microbatch = -1;    ///< of its chunk
  int model_chunk = 0;    ///< of its chunk
  double start = 0;       ///< when it began
  double end = 0;         ///< when it ended
};

/// Device bytes held by saved tensors from `time` on (microseconds since the record began).
struct level {
  double time = 0;        ///< from which on it holds
  std::size_t bytes = 0;  ///< held from then on
};

/// One traced step.
struct record {
  std::string title;                ///< as `start_trace` was given it
  std::vector<std::string> lanes;   ///< one name per stream, in order of first use
  std::vector<span> spans;          ///< in order of issue, not of time
  std::vector<level> device_bytes;  ///< in order of time
  /// The same had nothing been offloaded, at the times of this step; empty where nobody knows.
  std::vector<level> device_bytes_without{};
  std::size_t budget = 0;           ///< of device memory for saved tensors; 0: none
  std::vector<pass_span> passes{};  ///< in order of their beginning
  /// Lanes whose compute is not in `spans`: nobody named it, and the device does not tell.
  std::vector<bool> untraced{};

  /// Whether compute of the lane is in `spans`.
  [[nodiscard]] bool traced(std::size_t lane) const {
    return lane >= untraced.size() || !untraced[lane];
  }
};

/// Whether a level has a place on the time axis: its time is a number, within 30 years.
[[nodiscard]] inline bool placed(const level& item) { return std::abs(item.time) < 1e15; }

/// Whether a span has a place: its lane exists, its times are numbers and in order.
[[nodiscard]] inline bool placed(const record& of, const span& item) {
  return item.lane < of.lanes.size() && std::abs(item.start) < 1e15 && std::abs(item.end) < 1e15 &&
         item.start <= item.end;
}

}  // namespace tidepool::trace
