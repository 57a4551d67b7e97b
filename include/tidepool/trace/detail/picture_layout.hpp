/// The layout of a step's picture: positions in pixels and colours of its spans, from times in
/// microseconds.
#pragma once

#include <algorithm>
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
inline constexpr double most_bars = 3600;

// The style of one kind of span, and its entry in the legend.
struct drawing_style {
  std::string name;
  std::string fill;
  bool listed = true;  // in the legend
};

struct lane_layout {
  std::vector<bar> work;
  std::vector<bar> stalls;
  double busy = 0;     // microseconds of work without stalls
  double stalled = 0;  // microseconds
};

class picture_layout {
 public:
  static constexpr std::size_t stall_style = 0;

  // `detail`: how far a page stretches the time.
  picture_layout(const trace::record& record, double width, double detail) : detail_(detail) {
    place(record);
    columns(record, width);
    style(record);
    merge();
  }

  [[nodiscard]] double from() const { return from_; }
  [[nodiscard]] double to() const { return to_; }
  [[nodiscard]] double left() const { return left_; }
  [[nodiscard]] double right() const { return right_; }
  [[nodiscard]] double x_of(double time) const {
    return left_ + (time - from_) / (to_ - from_) * (right_ - left_);
  }
  // The time of one pixel, in microseconds.
  [[nodiscard]] double pixel() const { return (to_ - from_) / (right_ - left_); }
  [[nodiscard]] double detail() const { return detail_; }

  [[nodiscard]] const std::vector<const trace::span*>& spans() const { return spans_; }
  [[nodiscard]] const std::vector<trace::level>& levels() const { return levels_; }
  [[nodiscard]] const std::vector<trace::level>& without() const { return without_; }
  [[nodiscard]] const std::vector<const trace::pass_span*>& passes() const { return passes_; }
  [[nodiscard]] const std::vector<drawing_style>& styles() const { return styles_; }
  // Those for the legend; stalls, which come first in `styles`, are the last.
  [[nodiscard]] std::vector<const drawing_style*> listed() const {
    std::vector<const drawing_style*> result;
    for (std::size_t i = 1; i <= styles_.size(); ++i) {
      const auto& each = styles_[i % styles_.size()];
      if (each.listed) result.push_back(&each);
    }
    return result;
  }
  // The style of a module's memory; null for tensors that no group saved.
  [[nodiscard]] const drawing_style* style_of(const std::string& module) const {
    const auto at = module_index_.find(module);
    return at == module_index_.end() ? nullptr : &styles_[1 + at->second];
  }
  [[nodiscard]] const std::vector<lane_layout>& lanes() const { return lanes_; }
  [[nodiscard]] const drawing_style& style_of(const trace::pass_span& pass) const {
    return styles_[styles_.size() - (pass.backward ? 1 : 2)];
  }
  // The patterns that fills refer to.
  [[nodiscard]] std::string patterns() const {
    return "<defs><pattern id=\"tidepool-stall\" width=\"6\" height=\"6\" "
           "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" "
           "height=\"6\" fill=\"#fbdcdc\"/><rect width=\"2.6\" height=\"6\" fill=\"" +
           hex(stall_colour) + "\"/></pattern>" + patterns_ + "</defs>\n";
  }

 private:
  // Takes the spans, levels and passes that can be drawn, and sorts them by time.
  void place(const trace::record& record) {
    const auto take_levels = [](const std::vector<trace::level>& of, auto& into) {
      for (const auto& level : of) {
        if (trace::placed(level)) into.push_back(level);
      }
      std::stable_sort(into.begin(), into.end(),
                       [](const auto& a, const auto& b) { return a.time < b.time; });
    };
    take_levels(record.device_bytes, levels_);
    // If nothing was offloaded, both curves are the same, so the second is left out.
    take_levels(record.device_bytes_without, without_);
    if (std::none_of(record.spans.begin(), record.spans.end(), [](const trace::span& each) {
          return each.kind == trace::span_kind::offload;
        })) {
      without_.clear();
    }
    for (const auto& pass : record.passes) {
      if (trace::placed(pass)) passes_.push_back(&pass);
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
    // The longer of two spans that start together comes first, so it is drawn below the shorter.
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

  // Stripes are a pattern.
  [[nodiscard]] std::string fill_of(const paint& of) {
    const auto colour = hex(of.colour);
    if (of.stripes == 0) return colour;
    const auto name = "tidepool-" + colour.substr(1) + "-" + std::to_string(of.stripes);
    svg tile;
    tile.rectangle({0, 0, 8, 7}, colour);
    tile.rectangle({0, 0, 8, 2}, of.stripes == 1 ? "#fff" : "#000");
    patterns_ += "<pattern id=\"" + name +
                 "\" width=\"8\" height=\"7\" patternUnits=\"userSpaceOnUse\">" + tile.text() +
                 "</pattern>";
    return "url(#" + name + ")";
  }

  // A style for stalls, one for each module, and up to three greys for what computes.
  void style(const trace::record& record) {
    std::vector<std::string> modules;
    std::vector<std::string> computes;
    std::map<std::string_view, std::size_t> compute_index;
    const auto number = [](auto& index, auto& names, const std::string& name) {
      if (index.emplace(name, names.size()).second) names.push_back(name);
    };
    for (const auto* span : spans_) {
      if (span->kind == trace::span_kind::stall) continue;
      if (span->kind == trace::span_kind::compute) {
        number(compute_index, computes, span->name);
      } else {
        number(module_index_, modules, span->name);
      }
    }
    for (const auto& each : record.device_bytes_of) {
      if (!each.module.empty()) number(module_index_, modules, each.module);
    }

    styles_.push_back({"stall", "url(#tidepool-stall)", false});
    const auto paints = paints_of(modules);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      styles_.push_back({modules[i], fill_of(paints[i])});
    }
    // If there are more names than greys, the greys only separate neighbours, and one entry stands
    // for all of them.
    constexpr std::size_t greys = compute_colours.size();
    const bool few = computes.size() <= greys;
    for (std::size_t i = 0; i < std::min(greys, computes.size()); ++i) {
      styles_.push_back(
          {few ? computes[i] : "compute, in three greys", hex(compute_colours[i]), few || i == 0});
    }
    styles_.push_back({"forward pass", "#d6e6f7", false});
    styles_.push_back({"backward pass", "#f7e1c8", false});
    for (const auto* pass : passes_)
      styles_[styles_.size() - (pass->backward ? 1 : 2)].listed = true;

    work_.resize(record.lanes.size());
    stalls_.resize(record.lanes.size());
    for (const auto* span : spans_) {
      switch (span->kind) {
        case trace::span_kind::stall:
          // Every join leaves a span; a join at which nobody waited is no stall.
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
          work_[span->lane].push_back({span, 1 + module_index_[span->name]});
          break;
      }
    }
  }

  // Merges spans into bars. A span gets a bar of its own from a width of one pixel on (half a pixel
  // would be possible, but looks like noise). The width is doubled until the number of shapes is
  // small enough.
  void merge() {
    for (double narrow = pixel() / detail_;; narrow *= 2) {
      lanes_.assign(work_.size(), {});
      double shapes = 0;
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        lanes_[i].work = merge_spans(work_[i], narrow);
        lanes_[i].stalls = merge_spans(stalls_[i], narrow);
        for (const auto& bar : lanes_[i].work) shapes += static_cast<double>(bar.shares.size());
        shapes += static_cast<double>(lanes_[i].stalls.size());
      }
      if (shapes <= most_bars * std::min(detail_, 4.0) || narrow > to_ - from_) break;
    }
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      std::vector<std::pair<double, double>> stalls;
      for (const auto& item : stalls_[i]) stalls.emplace_back(item.span->start, item.span->end);
      auto all = stalls;
      for (const auto& item : work_[i]) all.emplace_back(item.span->start, item.span->end);
      lanes_[i].stalled = covered(std::move(stalls));
      // A trainer's span may include joins; a stalled stream is not busy, so stalls are subtracted.
      lanes_[i].busy = covered(std::move(all)) - lanes_[i].stalled;
    }
  }

  double detail_;
  double from_ = 0;  // microseconds
  double to_ = 0;
  double left_ = 0;  // pixels
  double right_ = 0;
  std::vector<const trace::span*> spans_;
  std::vector<trace::level> levels_;
  std::vector<trace::level> without_;
  std::vector<const trace::pass_span*> passes_;
  std::vector<drawing_style> styles_;
  std::string patterns_;
  std::map<std::string, std::size_t, std::less<>> module_index_;
  std::vector<std::vector<styled_span>> work_;  // by lane
  std::vector<std::vector<styled_span>> stalls_;
  std::vector<lane_layout> lanes_;
};

}  // namespace tidepool::trace::detail
