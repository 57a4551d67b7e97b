/// A traced step as plain data: spans on lanes, and the device bytes in use, with times in
/// microseconds.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::inline v0_3_0::trace {

/// The activity of a lane during a span.
enum class span_kind : std::uint8_t {
  compute,  ///< the trainer's own work, under its name
  offload,  ///< a device-to-host copy of one group
  reload,   ///< a host-to-device copy of one group
  stall     ///< a compute stream's wait at a join; `name` is the join, the reason
};

/// An interval on one lane. Times are microseconds since the record began.
struct span {
  span_kind kind = span_kind::compute;  ///< the activity
  std::size_t lane = 0;                 ///< index into `record::lanes`
  std::string name;       ///< module of a copy, name given to compute, join of a stall
  int layer = -1;         ///< -1 if there is none
  int microbatch = -1;    ///< -1 if there is none
  std::size_t bytes = 0;  ///< bytes of a copy, or of the copy that a stall waited for
  double start = 0;       ///< start of the span
  double end = 0;         ///< end of the span
  /// The module of the copy that a stall waited for. The stall's `layer`, `microbatch` and `bytes`
  /// are those of the copy, too. Empty if the stall waited for no copy.
  std::string module{};
  std::size_t spared = 0;  ///< bytes of `bytes` that packing kept off the link
};

/// A forward or backward pass of one chunk, as it ran on the compute stream.
struct pass_span {
  bool backward = false;  ///< true for a backward pass
  int microbatch = -1;    ///< microbatch of the chunk
  int model_chunk = 0;    ///< model chunk of the chunk
  double start = 0;       ///< start of the pass
  double end = 0;         ///< end of the pass
};

/// Device bytes held by saved tensors from `time` on (microseconds since the record began).
struct level {
  double time = 0;        ///< start of the level
  std::size_t bytes = 0;  ///< bytes held from then on
};

/// Device bytes held by the saved tensors of one module.
struct module_levels {
  std::string module;        ///< its name; empty: tensors that no group saved
  std::vector<level> bytes;  ///< in order of time
};

/// A traced step.
struct record {
  std::string title;                ///< the title of `start_trace`
  std::vector<std::string> lanes;   ///< one name per stream, in order of first use
  std::vector<span> spans;          ///< in order of issue, not of time
  std::vector<level> device_bytes;  ///< in order of time
  /// The bytes that `device_bytes` would show if nothing had been offloaded, at the times of this
  /// step; may be empty.
  std::vector<level> device_bytes_without{};
  std::size_t budget = 0;           ///< device bytes for saved tensors; 0: no budget
  std::vector<pass_span> passes{};  ///< in order of their start
  /// True for lanes whose compute is not in `spans`: the trainer named none, and the device reports
  /// none.
  std::vector<bool> untraced{};
  /// `device_bytes` by module, in order of the modules' ids; may be empty.
  std::vector<module_levels> device_bytes_of{};
  std::string device{};  ///< type of the device

  /// True if compute of the lane is in `spans`.
  [[nodiscard]] bool traced(std::size_t lane) const {
    return lane >= untraced.size() || !untraced[lane];
  }
};

/// True if a level can be drawn on the time axis: its time is a number within 30 years.
[[nodiscard]] inline bool placed(const level& item) { return std::abs(item.time) < 1e15; }

/// True if a pass has a place: its times are numbers and in order.
[[nodiscard]] inline bool placed(const pass_span& item) {
  return std::abs(item.start) < 1e15 && std::abs(item.end) < 1e15 && item.start <= item.end;
}

/// True if a span has a place: its lane exists, its times are numbers and in order.
[[nodiscard]] inline bool placed(const record& of, const span& item) {
  return item.lane < of.lanes.size() && std::abs(item.start) < 1e15 && std::abs(item.end) < 1e15 &&
         item.start <= item.end;
}

}  // namespace tidepool::trace
