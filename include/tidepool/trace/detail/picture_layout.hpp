/// Where and in which colour everything of a step goes in its picture.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/trace/detail/bars.hpp"
#include "tidepool/trace/detail/palette.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// Shapes in all lanes together; each takes some 240 bytes of the file.
inline constexpr std::size_t most_bars = 3600;

// How one kind of thing is drawn, and its entry in the legend.
struct drawing_style {
  std::string name;
  std::string fill;
  bool light = false;  // dark letters read well on it
  bool listed = true;  // in the legend
};

struct lane_layout {
  std::vector<bar> work;
  std::vector<bar> stalls;
  double busy = 0;     // microseconds in which it worked, stalls left out
  double stalled = 0;  // microseconds
};

class picture_layout {
 public:
  static constexpr std::size_t stall_style = 0;

  picture_layout(const trace::record& record, double width) {
    place(record);
    columns(record, width);
    style(record.lanes.size());
    merge();
  }

  [[nodiscard]] double from() const { return from_; }
  [[nodiscard]] double to() const { return to_; }
  [[nodiscard]] double left() const { return left_; }
  [[nodiscard]] double right() const { return right_; }
  [[nodiscard]] double x_of(double time) const {
    return left_ + (time - from_) / (to_ - from_) * (right_ - left_);
  }
  // The time that one pixel stands for.
  [[nodiscard]] double pixel() const { return (to_ - from_) / (right_ - left_); }

  [[nodiscard]] const std::vector<const trace::span*>& spans() const { return spans_; }
  [[nodiscard]] const std::vector<trace::level>& levels() const { return levels_; }
  [[nodiscard]] const std::vector<trace::level>& without() const { return without_; }
  [[nodiscard]] const std::vector<const trace::pass_span*>& passes() const { return passes_; }
  [[nodiscard]] const std::vector<drawing_style>& styles() const { return styles_; }
  [[nodiscard]] const std::vector<lane_layout>& lanes() const { return lanes_; }

 private:
  // What has a place in time, in order of time.
  void place(const trace::record& record) {
    const auto take_levels = [](const std::vector<trace::level>& of, auto& into) {
      for (const auto& level : of) {
        if (trace::placed(level)) into.push_back(level);
      }
      std::stable_sort(into.begin(), into.end(),
                       [](const auto& a, const auto& b) { return a.time < b.time; });
    };
    take_levels(record.device_bytes, levels_);
    // Where nothing left, the two are one.
    take_levels(record.device_bytes_without, without_);
    if (std::none_of(record.spans.begin(), record.spans.end(), [](const trace::span& each) {
          return each.kind == trace::span_kind::offload;
        })) {
      without_.clear();
    }
    for (const auto& pass : record.passes) {
      if (std::abs(pass.start) < 1e15 && std::abs(pass.end) < 1e15 && pass.start <= pass.end) {
        passes_.push_back(&pass);
      }
    }
    for (const auto& span : record.spans) {
      if (!trace::placed(record, span)) continue;
      spans_.push_back(&span);
      from_ = std::min(from_, span.start);
      to_ = std::max(to_, span.end);
    }
    if (!levels_.empty()) {
      from_ = std::min(from_, levels_.front().time);
      to_ = std::max(to_, levels_.back().time);
    }
    if (!(to_ > from_)) to_ = from_ + 1;
    // Of two that start together the longer is below the shorter.
    std::stable_sort(spans_.begin(), spans_.end(), [](const auto* a, const auto* b) {
      return a->start != b->start ? a->start < b->start : a->end > b->end;
    });
  }

  void columns(const trace::record& record, double width) {
    double names = 62;
    for (const auto& name : record.lanes) names = std::max(names, text_width(name, 12));
    left_ = 20 + std::min(names, width * 0.16) + 12;
    right_ = width - 76;
  }

  // One style for stalls, one for each module, and up to three greys for what computes.
  void style(std::size_t lane_count) {
    std::vector<std::string> modules;
    std::vector<std::string> computes;
    std::map<std::string_view, std::size_t> module_index;
    std::map<std::string_view, std::size_t> compute_index;
    for (const auto* span : spans_) {
      if (span->kind == trace::span_kind::stall) continue;
      const bool compute = span->kind == trace::span_kind::compute;
      auto& names = compute ? computes : modules;
      auto& index = compute ? compute_index : module_index;
      if (index.emplace(span->name, names.size()).second) names.push_back(span->name);
    }

    styles_.push_back({"stall", "url(#tidepool-stall)", true, false});
    const auto colours = colours_of(modules);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      styles_.push_back({modules[i], hex(colours[i]), is_light(colours[i]), true});
    }
    // More names than greys: the greys only keep neighbours apart, and one entry stands for all.
    constexpr std::size_t greys = compute_colours.size();
    const bool few = computes.size() <= greys;
    for (std::size_t i = 0; i < std::min(greys, computes.size()); ++i) {
      styles_.push_back({few ? computes[i] : "compute, in three greys", hex(compute_colours[i]),
                         is_light(compute_colours[i]), few || i == 0});
    }

    work_.resize(lane_count);
    stalls_.resize(lane_count);
    for (const auto* span : spans_) {
      switch (span->kind) {
        case trace::span_kind::stall:
          // Every join leaves a span; those at which nobody waited are no stalls.
          if (!(span->end > span->start)) break;
          styles_[stall_style].listed = true;
          stalls_[span->lane].push_back({span, stall_style});
          break;
        case trace::span_kind::compute:
          work_[span->lane].push_back(
              {span, 1 + modules.size() + compute_index[span->name] % greys});
          break;
        case trace::span_kind::offload:
        case trace::span_kind::reload:
          work_[span->lane].push_back({span, 1 + module_index[span->name]});
          break;
      }
    }
  }

  // A pixel is the least that a span among others must have to be drawn for itself (half a pixel
  // would do, and looks like noise); more where the lanes would have too many shapes.
  void merge() {
    for (double narrow = pixel();; narrow *= 2) {
      lanes_.assign(work_.size(), {});
      std::size_t shapes = 0;
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        lanes_[i].work = merge_spans(work_[i], narrow);
        lanes_[i].stalls = merge_spans(stalls_[i], narrow);
        for (const auto& bar : lanes_[i].work) shapes += bar.shares.size();
        shapes += lanes_[i].stalls.size();
      }
      if (shapes <= most_bars || narrow > to_ - from_) break;
    }
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      std::vector<std::pair<double, double>> stalls;
      for (const auto& item : stalls_[i]) stalls.emplace_back(item.span->start, item.span->end);
      auto all = stalls;
      for (const auto& item : work_[i]) all.emplace_back(item.span->start, item.span->end);
      lanes_[i].stalled = covered(std::move(stalls));
      // A trainer's span may reach over the joins within it: a stalled stream is not busy.
      lanes_[i].busy = covered(std::move(all)) - lanes_[i].stalled;
    }
  }

  double from_ = 0;  // microseconds
  double to_ = 0;
  double left_ = 0;  // pixels
  double right_ = 0;
  std::vector<const trace::span*> spans_;
  std::vector<trace::level> levels_;
  std::vector<trace::level> without_;
  std::vector<const trace::pass_span*> passes_;
  std::vector<drawing_style> styles_;
  std::vector<std::vector<styled_span>> work_;  // by lane
  std::vector<std::vector<styled_span>> stalls_;
  std::vector<lane_layout> lanes_;
};

}  // namespace tidepool::trace::detail
