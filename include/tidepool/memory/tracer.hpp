// Collects the spans of one step as timing events and turns them into a `trace::record`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/memory/stall_causes.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_2_0::detail {

// What a span is about, besides its times.
struct span_label {
  trace::span_kind kind = trace::span_kind::compute;
  std::string_view name;
  int layer = -1;
  int microbatch = -1;
  std::size_t bytes = 0;
};

class tracer {
 public:
  static constexpr std::size_t off = static_cast<std::size_t>(-1);
  explicit tracer(hardware& dev) : dev_(&dev), marks_(dev) {}

  bool on = false;  // read by who would otherwise have to call; written here alone

  // One of an offloader's own; others have no name.
  void name_copy_lane(lane_id lane, std::string name) {
    if (copy_lanes_.size() <= index_of(lane)) copy_lanes_.resize(index_of(lane) + 1);
    copy_lanes_[index_of(lane)] = std::move(name);
  }
  [[nodiscard]] bool copies(lane_id lane) const {
    return index_of(lane) < copy_lanes_.size() && !copy_lanes_[index_of(lane)].empty();
  }

  // Blocks the host until the device is idle, so that all streams share one origin of time, which
  // is taken on the stream that `origin` points to.
  void start(std::string title, std::size_t bytes_now, std::size_t without_now,
             const void* origin) {
    title_ = std::move(title);
    first_ += used_;
    used_ = 0;
    spans_.clear();
    levels_.clear();
    passes_.clear();
    dev_->synchronize();
    on = true;
    bytes_at_start_ = bytes_now;
    without_at_start_ = without_now;
    mark(origin);
    dev_->log_kernels();
    origin_ns_ = dev_->now_ns();
  }

  // An index to give to `end`, or `off`.
  [[nodiscard]] std::size_t begin(lane_id lane) { return on ? mark(lane) : off; }

  void end(std::size_t from, lane_id lane, const span_label& label) {
    if (from != off) add(from, lane, label);
  }

  void end_stall(std::size_t from, lane_id lane, join_site site) noexcept {
    if (from == off || copies(lane)) return;
    try {
      add(from, lane, {trace::span_kind::stall, name_of(site), -1, -1, 0});
    } catch (...) {  // a trace without this span; the wait is made
    }
  }

  // Device bytes taken (or given back) from here on; `without` is what there would be now without
  // offload, which only the trainer's own streams change.
  void level(lane_id lane, std::size_t taken, std::size_t given, std::size_t without) noexcept {
    if (!on) return;
    try {
      levels_.push_back({mark(lane), taken, given, without, !copies(lane)});
    } catch (...) {  // a curve without this step; memory is given back in destructors too
    }
  }

  // A pass begins, or ends, behind what `lane` has been given.
  void pass(lane_id lane, std::size_t chunk, bool backward, bool begins, int microbatch,
            int model_chunk) noexcept {
    if (!on) return;
    try {
      passes_.push_back({mark(lane), chunk, begins, {backward, microbatch, model_chunk, 0, 0}});
    } catch (...) {  // a picture without this pass
    }
  }

  // Blocks the host until the device is idle.
  [[nodiscard]] trace::record finish(std::size_t lane_count) {
    if (!on) return {};
    dev_->synchronize();
    on = false;
    trace::record result;
    result.title = title_;
    std::size_t computes = 0;
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      result.lanes.push_back(copies(static_cast<lane_id>(lane))
                                 ? copy_lanes_[lane]
                                 : "compute " + std::to_string(computes++));
    }
    for (auto& raw : spans_) {
      raw.span.start = time_of(raw.from);
      raw.span.end = time_of(raw.to);
      result.spans.push_back(std::move(raw.span));
    }
    result.device_bytes = curve();
    result.device_bytes_without = curve_without();
    result.passes = pass_spans();
    find_causes(result);
    add_kernels(result);
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
    std::size_t without;
    bool by_compute;
  };
  struct raw_pass {
    std::size_t at;
    std::size_t chunk;
    bool begins;
    trace::pass_span span;
  };

  void add(std::size_t from, lane_id lane, const span_label& label) {
    if (from < first_ || !on) return;
    const auto to = mark(lane);
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

  std::size_t mark(lane_id lane) { return mark(dev_->stream(lane)); }
  std::size_t mark(const void* stream) {
    marks_.record(used_, stream);
    return first_ + used_++;
  }

  [[nodiscard]] double time_of(std::size_t at) const {
    return std::max(0.0, marks_.elapsed_us(0, at - first_));
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

  [[nodiscard]] std::vector<trace::level> curve_without() const {
    std::vector<trace::level> result{{0, without_at_start_}};
    for (const auto& raw : levels_) {
      if (raw.by_compute) result.push_back({time_of(raw.at), raw.without});
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const auto& a, const auto& b) { return a.time < b.time; });
    return result;
  }

  // A pass that does not end within the trace, or began before it, is left out.
  [[nodiscard]] std::vector<trace::pass_span> pass_spans() const {
    std::vector<trace::pass_span> result;
    for (auto begin = passes_.begin(); begin != passes_.end(); ++begin) {
      if (!begin->begins) continue;
      const auto end = std::find_if(begin + 1, passes_.end(), [&](const raw_pass& other) {
        return other.chunk == begin->chunk && other.span.backward == begin->span.backward;
      });
      if (end == passes_.end() || end->begins) continue;
      result.push_back(begin->span);
      result.back().start = time_of(begin->at);
      result.back().end = time_of(end->at);
    }
    return result;
  }

  // What computes: as the device tells, where the trainer has not named it.
  void add_kernels(trace::record& into) {
    into.untraced.assign(into.lanes.size(), false);
    const auto kernels = dev_->take_kernels(into.lanes.size());
    for (std::size_t lane = 0; lane < into.lanes.size(); ++lane) {
      if (copies(static_cast<lane_id>(lane))) continue;
      if (dev_->can().logs_kernels) {
        std::vector<std::pair<double, double>> runs;
        for (const auto& run : kernels) {
          if (index_of(run.lane) != lane) continue;
          runs.emplace_back((run.start_ns - origin_ns_) / 1e3, (run.end_ns - origin_ns_) / 1e3);
        }
        add_unnamed_compute(into, lane, std::move(runs));
      } else {
        into.untraced[lane] =
            std::none_of(into.spans.begin(), into.spans.end(), [&](const trace::span& each) {
              return each.lane == lane && each.kind == trace::span_kind::compute;
            });
      }
    }
  }

  hardware* dev_;
  std::vector<std::string> copy_lanes_{"offload", "reload"};  // names by lane
  std::string title_;
  std::size_t bytes_at_start_ = 0;
  std::size_t without_at_start_ = 0;
  double origin_ns_ = 0;
  std::size_t first_ = 0;  // marks are numbered on from trace to trace, so that old ones show
  std::size_t used_ = 0;
  timing_events marks_;
  std::vector<raw_span> spans_;
  std::vector<raw_level> levels_;
  std::vector<raw_pass> passes_;
};

}  // namespace tidepool::detail
