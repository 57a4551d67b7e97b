/// Collects the spans of one step as timing events and turns them into a `trace::record`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/observe/stall_causes.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::detail {

// Listens while a trace is recorded. If a mark fails, because an event is refused or memory is
// short, its span is missing in the trace, and the step goes on.
class tracer final : public observer {
 public:
  // `dev` and `copy_lanes`, the offloader's own lanes, must outlive this object.
  tracer(hardware& dev, const std::vector<lane_id>& copy_lanes)
      : dev_(&dev), copy_lanes_(&copy_lanes), marks_(dev) {}

  void on(const happening& what) noexcept override {
    try {
      hear(what);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }

  // Blocks the host until the device is idle, so that all streams share one origin of time. The
  // origin is marked on the stream that `origin` points to; null: on a copy stream.
  void start(std::string title, std::size_t bytes_now, std::size_t without_now,
             const void* origin) {
    title_ = std::move(title);
    first_ += used_;
    used_ = 0;
    spans_.clear();
    levels_.clear();
    passes_.clear();
    dev_->synchronize();
    bytes_at_start_ = bytes_now;
    without_at_start_ = without_now;
    mark(origin != nullptr ? origin : dev_->stream(copy_lanes_->front()));
    dev_->log_kernels();
    origin_ns_ = dev_->now_ns();
  }

  // Blocks the host until the device is idle. `lanes` are the names of all; lanes that compute have
  // an empty name. `modules` are names by id.
  [[nodiscard]] trace::record finish(std::vector<std::string> lanes,
                                     const std::vector<std::string>& modules) {
    dev_->synchronize();
    trace::record result;
    result.title = title_;
    result.device = dev_->name();
    result.lanes = std::move(lanes);
    std::size_t computes = 0;
    for (auto& name : result.lanes) {
      if (name.empty()) name = "compute " + std::to_string(computes++);
    }
    for (auto& raw : spans_) {
      raw.span.start = time_of(raw.from);
      raw.span.end = time_of(raw.to);
      result.spans.push_back(std::move(raw.span));
    }
    result.device_bytes = curve(bytes_at_start_, [](const raw_level&) { return true; });
    result.device_bytes_of = curves(modules);
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
    level_change change;
    bool by_compute;
    std::uint64_t storage;
    int module;
  };
  struct raw_pass {
    std::size_t at;
    std::size_t chunk;
    bool begins;
    trace::pass_span span;
  };

  void hear(const happening& what) {
    switch (what.what) {
      case happened::span_begun:
        *what.mark = mark(what.lane);
        return;
      case happened::span_over:
        return add(*what.mark, what.lane, *what.label);
      case happened::memory_changed:
        levels_.push_back({mark(what.lane), what.level, !copies(what.lane), what.tensor->number,
                           what.tensor->module});
        return;
      case happened::pass_begun:
      case happened::pass_over:
        return pass(what, what.what == happened::pass_begun);
      default:
        return;
    }
  }

  [[nodiscard]] bool copies(lane_id lane) const {
    return std::ranges::find(*copy_lanes_, lane) != copy_lanes_->end();
  }

  // A pass begins and ends on the trainer's stream, after the work given so far.
  void pass(const happening& what, bool begins) {
    if (copies(what.lane)) return;
    const auto& info = what.chunk->info;
    passes_.push_back({mark(what.lane),
                       what.chunk->ordinal,
                       begins,
                       {what.backward, info.microbatch, info.model_chunk, 0, 0}});
  }

  // Waits of the copy streams do not count as stalls.
  void add(std::size_t from, lane_id lane, const span_label& label) {
    if (from < first_ || (label.kind == trace::span_kind::stall && copies(lane))) return;
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
    raw.span.spared = label.spared;
  }

  std::size_t mark(lane_id lane) { return mark(dev_->stream(lane)); }
  std::size_t mark(const void* stream) {
    marks_.record(used_, stream);
    return first_ + used_++;
  }

  [[nodiscard]] double time_of(std::size_t at) const {
    return std::max(0.0, marks_.elapsed_us(0, at - first_));
  }

  // The bytes over time: `bytes` at first, then the changes that `counts` accepts.
  template <class Counts>
  [[nodiscard]] std::vector<trace::level> curve(std::size_t bytes, const Counts& counts) const {
    std::vector<std::pair<double, const raw_level*>> steps;
    for (const auto& raw : levels_) {
      if (counts(raw)) steps.emplace_back(time_of(raw.at), &raw);
    }
    std::stable_sort(steps.begin(), steps.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<trace::level> result{{0, bytes}};
    for (const auto& [time, raw] : steps) {
      bytes += raw->change.taken;
      bytes -= std::min(raw->change.given, bytes);
      result.push_back({time, bytes});
    }
    return result;
  }

  // By module. A storage takes memory before a commit names its module, so that its last change
  // tells. Bytes that were there before the trace are those that a sum falls below zero without.
  [[nodiscard]] std::vector<trace::module_levels> curves(
      const std::vector<std::string>& modules) const {
    std::map<std::uint64_t, std::size_t> saved_by;
    for (const auto& raw : levels_) {
      saved_by[raw.storage] = std::min(static_cast<std::size_t>(raw.module), modules.size());
    }
    std::vector<std::size_t> now(modules.size() + 1), before(modules.size() + 1);
    for (const auto& raw : levels_) {
      const auto module = saved_by[raw.storage];
      now[module] += raw.change.taken;
      before[module] += raw.change.given - std::min(raw.change.given, now[module]);
      now[module] -= std::min(raw.change.given, now[module]);
    }
    std::vector<trace::module_levels> result;
    for (std::size_t m = 0; m <= modules.size(); ++m) {
      auto levels =
          curve(before[m], [&](const raw_level& raw) { return saved_by.at(raw.storage) == m; });
      if (levels.size() == 1 && before[m] == 0) continue;
      result.push_back({m < modules.size() ? modules[m] : "", std::move(levels)});
    }
    return result;
  }

  [[nodiscard]] std::vector<trace::level> curve_without() const {
    std::vector<trace::level> result{{0, without_at_start_}};
    for (const auto& raw : levels_) {
      if (raw.by_compute) result.push_back({time_of(raw.at), raw.change.without});
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

  // Adds computing that the device logged and the trainer has not named.
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
  const std::vector<lane_id>* copy_lanes_;
  std::string title_;
  std::size_t bytes_at_start_ = 0;
  std::size_t without_at_start_ = 0;
  double origin_ns_ = 0;
  std::size_t first_ = 0;  // numbers go on from trace to trace, so that old marks are recognized
  std::size_t used_ = 0;
  timing_events marks_;
  std::vector<raw_span> spans_;
  std::vector<raw_level> levels_;
  std::vector<raw_pass> passes_;
};

}  // namespace tidepool::detail
