// Collects the spans of one step as timing events and turns them into a `trace::record`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/fence.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::detail {

// What a span is about, besides its times.
struct span_label {
  trace::span_kind kind = trace::span_kind::compute;
  std::string_view name;
  int layer = -1;
  int microbatch = -1;
  std::size_t bytes = 0;
};

template <device Device>
class tracer {
 public:
  static constexpr std::size_t off = static_cast<std::size_t>(-1);
  static constexpr std::size_t copy_lanes = 2;  // an offloader's own two come first

  explicit tracer(Device& dev) : dev_(&dev) {}

  [[nodiscard]] bool on() const { return on_; }

  // Blocks the host until the device is idle, so that all streams share one origin of time.
  void start(std::string title, std::size_t bytes_now, typename Device::stream_ref origin) {
    title_ = std::move(title);
    first_ += used_;
    used_ = 0;
    spans_.clear();
    levels_.clear();
    dev_->synchronize();
    on_ = true;
    bytes_at_start_ = bytes_now;
    mark(origin);
  }

  // An index to give to `end`, or `off`.
  [[nodiscard]] std::size_t begin(lane_id /*lane*/, typename Device::stream_ref stream) {
    return on_ ? mark(stream) : off;
  }

  void end(std::size_t from, lane_id lane, typename Device::stream_ref stream,
           const span_label& label) {
    if (from != off) add(from, lane, stream, label);
  }

  void end_stall(std::size_t from, lane_id lane, typename Device::stream_ref stream,
                 join_site site) noexcept {
    if (from == off || index_of(lane) < copy_lanes) return;
    try {
      add(from, lane, stream, {trace::span_kind::stall, name_of(site), -1, -1, 0});
    } catch (...) {  // a trace without this span; the wait is made
    }
  }

  // Device bytes taken (or given back) from here on.
  void level(typename Device::stream_ref stream, std::size_t taken, std::size_t given) noexcept {
    if (!on_) return;
    try {
      levels_.push_back({mark(stream), taken, given});
    } catch (...) {  // a curve without this step; memory is given back in destructors too
    }
  }

  // Blocks the host until the device is idle.
  [[nodiscard]] trace::record finish(std::size_t lane_count) {
    if (!on_) return {};
    dev_->synchronize();
    on_ = false;
    trace::record result;
    result.title = title_;
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      result.lanes.push_back(lane == 0   ? "offload"
                             : lane == 1 ? "reload"
                                         : "compute " + std::to_string(lane - copy_lanes));
    }
    for (auto& raw : spans_) {
      raw.span.start = time_of(raw.from);
      raw.span.end = time_of(raw.to);
      result.spans.push_back(std::move(raw.span));
    }
    result.device_bytes = curve();
    return result;
  }

 private:
  struct raw_span {
    trace::span span;
    std::size_t from = 0;
    std::size_t to = 0;
  };
  struct raw_level {
    std::size_t at;
    std::size_t taken;
    std::size_t given;
  };

  void add(std::size_t from, lane_id lane, typename Device::stream_ref stream,
           const span_label& label) {
    if (from < first_ || !on_) return;
    const auto to = mark(stream);
    auto& raw = spans_.emplace_back();
    raw.from = from;
    raw.to = to;
    raw.span.kind = label.kind;
    raw.span.lane = index_of(lane);
    raw.span.name = label.name;
    raw.span.layer = label.layer;
    raw.span.microbatch = label.microbatch;
    raw.span.bytes = label.bytes;
  }

  std::size_t mark(typename Device::stream_ref stream) {
    if (used_ == marks_.size()) marks_.push_back(dev_->make_event(true));
    dev_->record(marks_[used_], stream);
    return first_ + used_++;
  }

  [[nodiscard]] double time_of(std::size_t at) const {
    return std::max(0.0, static_cast<double>(dev_->elapsed_us(marks_[0], marks_[at - first_])));
  }

  [[nodiscard]] std::vector<trace::level> curve() const {
    std::vector<std::pair<double, const raw_level*>> steps;
    for (const auto& raw : levels_) steps.emplace_back(time_of(raw.at), &raw);
    std::stable_sort(steps.begin(), steps.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    auto bytes = bytes_at_start_;
    std::vector<trace::level> result{{0, bytes}};
    for (const auto& [time, raw] : steps) {
      bytes = bytes + raw->taken - std::min(raw->given, bytes + raw->taken);
      result.push_back({time, bytes});
    }
    return result;
  }

  Device* dev_;
  bool on_ = false;
  std::string title_;
  std::size_t bytes_at_start_ = 0;
  std::size_t first_ = 0;  // marks are numbered on from trace to trace, so that old ones show
  std::size_t used_ = 0;
  std::vector<typename Device::event> marks_;
  std::vector<raw_span> spans_;
  std::vector<raw_level> levels_;
};

}  // namespace tidepool::detail
