// Writes the page of a report: the implementation of report.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tidepool/core/escape.hpp"
#include "tidepool/trace/detail/advice.hpp"
#include "tidepool/trace/detail/picture_impl.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/report_page.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/detail/table.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/report.hpp"
#include "tidepool/trace/summary.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// The copies and stalls of one module in the traced step.
struct module_traffic {
  std::string name;
  std::size_t copies[2]{};  // out, in
  traffic moved[2]{};
  double time[2]{};
  double stalled = 0;
  std::size_t at_peak = 0;  // bytes on the device when most were held
};

[[nodiscard]] inline std::vector<module_traffic> traffic_of(const trace::record& step) {
  std::vector<module_traffic> all;
  const auto of = [&](const std::string& name) -> module_traffic& {
    auto at = std::ranges::find(all, name, &module_traffic::name);
    if (at == all.end()) at = all.insert(at, module_traffic{.name = name});
    return *at;
  };
  for (const auto& span : step.spans) {
    if (!trace::placed(step, span) || span.kind == trace::span_kind::compute) continue;
    const double time = span.end - span.start;
    if (span.kind == trace::span_kind::stall) {
      if (time > 0 && !span.module.empty()) of(span.module).stalled += time;
      continue;
    }
    auto& own = of(span.name);
    const std::size_t way = span.kind == trace::span_kind::reload ? 1 : 0;
    ++own.copies[way];
    own.moved[way].add(span);
    own.time[way] += time;
  }
  if (step.device_bytes.empty()) return all;
  const auto peak = peak_of(step.device_bytes).time;
  for (const auto& [module, levels] : step.device_bytes_of) {
    auto& own = of(module);
    for (const auto& level : levels) {
      if (level.time <= peak) own.at_peak = level.bytes;
    }
  }
  return all;
}

class report_writer {
 public:
  explicit report_writer(const trace::report& what) : what_(what) {}

  [[nodiscard]] std::string page() const {
    const auto title = what_.step.title.empty() ? "One step" : what_.step.title;
    const auto device = what_.step.device.empty() || !what_.where.empty()
                            ? what_.where
                            : "device " + what_.step.device;
    picture drawn(what_.step, {.curve_height = 180}, 8);
    const bool calm = sum_stalls(what_.step).empty();
    std::string text =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
        "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Tidepool: " +
        xml_text(title) + "</title>\n<style>" + std::string(report_style) +
        "</style>\n</head>\n<body>\n<p id=\"advice\"" + (calm ? " class=\"calm\">" : ">") +
        xml_text(advice(what_.step)) + "</p>\n<h1>" + xml_text(title) +
        "</h1>\n<p class=\"where\">" + xml_text(device) + "</p>\n<p class=\"where\">" +
        xml_text(drawn.facts()) + "</p>\n" + std::string(report_buttons) + drawn.part();
    section(text, "stalls", "Stalls by reason", stalls());
    section(text, "modules", "Modules in this step", modules());
    section(text, "plan", "Plan against measured", planned());
    section(text, "totals", "Since the offloader was made", totals());
    section(text, "options", "Options in force", options());
    return text + "<script>" + std::string(report_script) + "</script>\n</body>\n</html>\n";
  }

 private:
  static void section(std::string& text, const char* id, const char* head,
                      const std::string& content) {
    if (content.empty()) return;
    text.append("<section id=\"").append(id).append("\">\n<h2>").append(head).append("</h2>\n");
    text += content + "</section>\n";
  }

  [[nodiscard]] std::string stalls() const {
    const auto sums = sum_stalls(what_.step);
    if (sums.empty()) return "<p>Compute never waited.</p>\n";
    text_table table(
        {"reason", "what it means", "waits for", "stalls", "time", "the longest", "at"}, 3);
    std::vector<std::string> times;
    for (const auto& each : sums) {
      const auto& longest = *each.stalls.front();
      table.row({each.reason, std::string(meaning_of(each.reason)), each.module,
                 std::to_string(each.stalls.size()), duration_text(each.time),
                 duration_text(longest.end - longest.start), place_text(longest)});
      std::string list;
      for (std::size_t i = 0; i < std::min<std::size_t>(each.stalls.size(), 100); ++i) {
        list += (i == 0 ? "" : " ") + fixed(each.stalls[i]->start, 3) + "," +
                fixed(each.stalls[i]->end, 3);
      }
      times.push_back(svg::attribute("data-times", list));
    }
    return table.html(times) +
           "<p>A click on a row goes to its longest stall, another click to "
           "the next.</p>\n";
  }

  [[nodiscard]] std::string modules() const {
    const auto all = traffic_of(what_.step);
    if (all.empty()) return "<p>Nothing left the device.</p>\n";
    text_table table({"module", "at the peak", "offloads", "out", "time", "reloads", "in", "time",
                      "waited for"});
    for (const auto& each : all) {
      table.row({each.name.empty() ? "saved by none" : each.name, bytes_text(each.at_peak),
                 std::to_string(each.copies[0]), each.moved[0].text(), duration_text(each.time[0]),
                 std::to_string(each.copies[1]), each.moved[1].text(), duration_text(each.time[1]),
                 duration_text(each.stalled)});
    }
    return table.html();
  }

  [[nodiscard]] std::string planned() const {
    if (what_.planned.empty()) return {};
    text_table table({"", "planned", "measured", "miss"});
    for (const auto& each : what_.planned) {
      const auto value = [&](double number) {
        return each.in == trace::planned_figure::unit::time
                   ? duration_text(number)
                   : bytes_text(static_cast<std::size_t>(std::max(0.0, number)));
      };
      // If the measured value is more than twice the planned one, the difference is clearer than a
      // percentage.
      const bool far = each.measured > 2 * each.planned;
      const auto miss = each.planned > 0 ? 100 * (each.measured / each.planned - 1) : 0.0;
      table.row({each.name, value(each.planned), value(each.measured),
                 far ? "+" + value(each.measured - each.planned)
                     : (miss >= 0.05 ? "+" : "") + fixed(miss, 1) + " %"});
    }
    return table.html();
  }

  [[nodiscard]] std::string totals() const {
    if (what_.totals.modules.empty()) return {};
    std::ostringstream summary;
    trace::write_summary(summary, what_.totals);
    return "<pre>" + xml_text(summary.str()) + "</pre>\n";
  }

  [[nodiscard]] std::string options() const {
    std::istringstream words(what_.options);
    std::string text;
    for (std::string word; words >> word;) text += "<code>" + xml_text(word) + "</code>\n";
    return text.empty() ? text : "<p>" + text + "</p>\n";
  }

  const trace::report& what_;
};

}  // namespace tidepool::trace::detail

namespace tidepool::inline v0_3_0::trace {

TIDEPOOL_INLINE void write_report(std::ostream& out, const report& what) {
  const auto text = detail::report_writer(what).page();
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace tidepool::trace
