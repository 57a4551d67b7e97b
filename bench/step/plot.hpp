/// Overhead against driver memory, as a picture (SVG).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "results.hpp"

namespace bench {

namespace detail {

/// GiB of driver memory and percent of time, both above no offload of the same program.
struct point {
  double memory;
  double overhead;
  std::string name;
};

/// Field notes, measured on one H200 with PyTorch 2.11. Memory ranges are drawn at their middle,
/// and so is the time of no offload, 188 to 191 ms and 189 to 191 ms.
inline std::vector<point> peers(int depth) {
  const auto at = [](double none_ms, double none_gib, double ms, double gib, const char* name) {
    return point{gib - none_gib, 100 * (ms / none_ms - 1), name};
  };
  if (depth == 1) {
    return {at(189.5, 35.6, 216.6, 41.5, "Megatron, no cap"),
            at(189.5, 35.6, 219.5, 41.5, "Megatron, cap 1"),
            at(189.5, 35.6, 270.7, 41.5, "Megatron, cap 0"),
            at(189.5, 35.6, 241.7, 28.6, "recompute every layer, PyTorch")};
  }
  if (depth == 2) {
    return {at(190, 45.1, 191.7, 48.5, "Megatron, no cap"),
            at(190, 45.1, 225.7, 48.5, "Megatron, cap 1"),
            at(190, 45.1, 215.4, 48.5, "Megatron, cap 2")};
  }
  return {};
}

inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

class overhead_plot {
 public:
  explicit overhead_plot(const results& all) : peers_(peers(all.run.depth)) {
    const auto* none = find_kind(all, case_kind::none);
    for (const auto& each : all.cases) {
      if (none == nullptr || each.steps.empty() || each.plan.kind == case_kind::floor ||
          each.plan.kind == case_kind::by_hand) {
        continue;
      }
      const point at{(each.driver_bytes - none->driver_bytes) / gibibyte,
                     overhead(all.run, each, none), each.plan.name};
      (each.plan.kind == case_kind::offload ? ours_ : others_).push_back(at);
    }
    std::sort(ours_.begin(), ours_.end(),
              [](const point& a, const point& b) { return a.memory < b.memory; });
    for (const auto* group : {&ours_, &others_, &peers_}) {
      for (const auto& p : *group) {
        left_ = std::min(left_, p.memory);
        right_ = std::max(right_, p.memory);
        low_ = std::min(low_, p.overhead);
        high_ = std::max(high_, p.overhead);
      }
    }
    left_ = std::floor(left_ - 0.5);
    right_ = std::ceil(right_ + 0.5);
    low_ = low_ < -0.05 ? std::floor(low_) : 0;
    high_ = std::ceil(high_ * 1.08 + 0.5);
    title_ = "Overhead against driver memory, " +
             (all.run.depth == 1 ? std::string("one microbatch at a time")
                                 : "1F1B, depth " + std::to_string(all.run.depth)) +
             ", " + all.machine.gpu;
  }

  [[nodiscard]] std::string draw() {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"560\" viewBox=\"0 0 900"
        " 560\" font-family=\"system-ui, Helvetica, Arial, sans-serif\" font-size=\"12\""
        " fill=\"#24292f\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    label(70, 30, title_, "start", " font-size=\"17\" font-weight=\"600\"");
    label(70, 50,
          "Each program against its own run without offloading. Hollow: field notes, "
          "PyTorch 2.11.",
          "start", " fill=\"#656d76\"");
    axes();
    std::string path;
    for (const auto& p : ours_) {
      path += (path.empty() ? "M" : " L") + number(x(p.memory)) + " " + number(y(p.overhead));
    }
    if (!path.empty()) {
      put("<path d=\"" + path + "\" fill=\"none\" stroke=\"#0969da\" stroke-width=\"2\"/>\n");
    }
    for (const auto& p : peers_) mark(p, "#fff", "#9a3412");
    for (const auto& p : others_) mark(p, "#57606a", "#57606a");
    for (const auto& p : ours_) mark(p, "#0969da", "#0969da");
    put("</svg>\n");
    return text_;
  }

 private:
  static constexpr double from_x = 70;
  static constexpr double to_x = 870;
  static constexpr double from_y = 70;
  static constexpr double to_y = 500;

  [[nodiscard]] double x(double memory) const {
    return from_x + (to_x - from_x) * (memory - left_) / (right_ - left_);
  }
  [[nodiscard]] double y(double overhead) const {
    return to_y - (to_y - from_y) * (overhead - low_) / (high_ - low_);
  }
  static std::string number(double value) {
    char text[48];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
  }
  // 1, 2 or 5 times a power of ten, so that about eight of them fill `span`.
  static double tick(double span) {
    const auto power = std::pow(10.0, std::floor(std::log10(span / 8)));
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power * 8 >= span) return factor * power;
    }
    return 10 * power;
  }

  void put(const std::string& text) { text_ += text; }
  void label(double at_x, double at_y, const std::string& text, const char* anchor,
             const char* rest = "") {
    put("<text x=\"" + number(at_x) + "\" y=\"" + number(at_y) + "\" text-anchor=\"" + anchor +
        "\"" + rest + ">" + escaped(text) + "</text>\n");
  }
  void line(double x1, double y1, double x2, double y2, const char* colour) {
    put("<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
        "\" y2=\"" + number(y2) + "\" stroke=\"" + colour + "\"/>\n");
  }
  /// The nearest height above or below where no other name is in the way.
  double free_height(double at_x, double at_y) {
    for (const double shift : {-6.0, 15.0, -18.0, 27.0, -30.0, 39.0}) {
      const auto taken = [&](const std::pair<double, double>& other) {
        return std::abs(other.first - at_x) < 130 && std::abs(other.second - at_y - shift) < 11;
      };
      if (std::any_of(names_.begin(), names_.end(), taken)) continue;
      names_.emplace_back(at_x, at_y + shift);
      return at_y + shift;
    }
    return at_y - 6;
  }
  void mark(const point& p, const char* fill, const char* edge) {
    put("<circle cx=\"" + number(x(p.memory)) + "\" cy=\"" + number(y(p.overhead)) +
        "\" r=\"4.5\" fill=\"" + fill + "\" stroke=\"" + edge + "\" stroke-width=\"1.5\"/>\n");
    const bool at_right = x(p.memory) > to_x - 150;
    label(x(p.memory) + (at_right ? -9 : 9), free_height(x(p.memory), y(p.overhead)), p.name,
          at_right ? "end" : "start", " font-size=\"11\"");
  }

  void axes() {
    const auto step_x = tick(right_ - left_);
    for (auto at = std::ceil(left_ / step_x) * step_x; at <= right_; at += step_x) {
      line(x(at), from_y, x(at), to_y, std::abs(at) < step_x / 2 ? "#8c959f" : "#e1e4e8");
      label(x(at), to_y + 18, number(std::abs(at) < step_x / 2 ? 0 : at), "middle");
    }
    const auto step_y = tick(high_ - low_);
    for (auto at = std::ceil(low_ / step_y) * step_y; at <= high_; at += step_y) {
      line(from_x, y(at), to_x, y(at), std::abs(at) < step_y / 2 ? "#8c959f" : "#e1e4e8");
      label(from_x - 8, y(at) + 4, number(std::abs(at) < step_y / 2 ? 0 : at) + "%", "end");
    }
    label((from_x + to_x) / 2, to_y + 42, "memory the driver sees, GiB above no offload", "middle");
  }

  std::vector<point> ours_;
  std::vector<point> others_;  ///< none and recompute
  std::vector<point> peers_;
  double left_ = 0;
  double right_ = 0;
  double low_ = 0;
  double high_ = 1;
  std::vector<std::pair<double, double>> names_;  ///< where names have been put
  std::string title_;
  std::string text_;
};

}  // namespace detail

/// The whole picture, as text.
inline std::string plot(const results& all) { return detail::overhead_plot(all).draw(); }

}  // namespace bench
