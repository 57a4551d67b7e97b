// The bodies of report.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tidepool/core/escape.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/report_page.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/summary_tables.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/report.hpp"
#include "tidepool/trace/summary.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// A table of HTML; a head of nothing but blanks is left out.
class html_table {
 public:
  explicit html_table(const std::vector<std::string>& head) {
    text_ = "<table>\n<tr>";
    for (const auto& each : head) text_ += "<th>" + xml_text(each) + "</th>";
    text_ += "</tr>\n";
  }
  // `find` is what the bars of the row begin their hover text with; empty: none has any.
  void row(const std::vector<std::string>& cells, const std::string& find = {}) {
    text_ += find.empty() ? "<tr>" : "<tr data-find=\"" + xml_text(find) + "\">";
    for (const auto& each : cells) text_ += "<td>" + xml_text(each) + "</td>";
    text_ += "</tr>\n";
  }
  [[nodiscard]] std::string text() const { return text_ + "</table>\n"; }

 private:
  std::string text_;
};

// What one module did in the traced step.
struct module_traffic {
  std::string name;
  std::size_t copies[2]{};  // out, in
  std::size_t bytes[2]{};
  double time[2]{};
  double stalled = 0;
};

[[nodiscard]] inline std::vector<module_traffic> traffic_of(const trace::record& step) {
  std::vector<module_traffic> all;
  const auto of = [&](const std::string& name) -> module_traffic& {
    auto at =
        std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
    if (at == all.end()) {
      at = all.insert(at, module_traffic{});
      at->name = name;
    }
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
    own.bytes[way] += span.bytes;
    own.time[way] += time;
  }
  return all;
}

class report_writer {
 public:
  explicit report_writer(const trace::report& what) : what_(what) {}

  [[nodiscard]] std::string page() const {
    const auto title = what_.step.title.empty() ? "One step" : what_.step.title;
    std::string text =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Tidepool: " +
        xml_text(title) + "</title>\n<style>" + std::string(report_style) +
        "</style>\n</head>\n<body>\n<h1>" + xml_text(title) + "</h1>\n<p class=\"where\">" +
        xml_text(what_.where) + "</p>\n";
    text += picture();
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

  [[nodiscard]] std::string picture() const {
    std::ostringstream drawn;
    trace::write_svg(drawn, what_.step);
    return "<div id=\"zoom\"><button id=\"in\" title=\"closer\">+</button><button id=\"out\" "
           "title=\"further\">\xe2\x88\x92</button><button id=\"all\">all</button><span "
           "id=\"factor\"></span><span>wheel: zoom; drag: move; hover: what it is</span></div>\n"
           "<div id=\"frame\">\n" +
           drawn.str() + "</div>\n<div id=\"tip\" hidden></div>\n";
  }

  [[nodiscard]] std::string stalls() const {
    const auto sums = sum_stalls(what_.step);
    if (sums.empty()) return "<p>Compute never waited.</p>\n";
    html_table table(
        {"reason", "what it means", "waits for", "stalls", "time", "the longest", "at"});
    for (const auto& each : sums) {
      const auto& longest = *each.longest;
      std::string at = longest.layer >= 0 ? "layer " + std::to_string(longest.layer) : "";
      if (longest.microbatch >= 0) at += ", microbatch " + std::to_string(longest.microbatch);
      const auto waits = each.module.empty() ? "" : ", waits for " + each.module;
      table.row({each.reason, std::string(meaning_of(each.reason)), each.module,
                 std::to_string(each.count), duration_text(each.time),
                 duration_text(longest.end - longest.start), at},
                "stall: " + each.reason + waits);
    }
    return table.text() + "<p>A click on a row marks its stalls in the picture.</p>\n";
  }

  [[nodiscard]] std::string modules() const {
    const auto all = traffic_of(what_.step);
    if (all.empty()) return "<p>Nothing left the device.</p>\n";
    html_table table({"module", "offloads", "out", "time", "reloads", "in", "time", "waited for"});
    for (const auto& each : all) {
      table.row({each.name, std::to_string(each.copies[0]), bytes_text(each.bytes[0]),
                 duration_text(each.time[0]), std::to_string(each.copies[1]),
                 bytes_text(each.bytes[1]), duration_text(each.time[1]),
                 duration_text(each.stalled)});
    }
    return table.text();
  }

  [[nodiscard]] std::string planned() const {
    if (what_.planned.empty()) return {};
    html_table table({"", "planned", "measured", "miss"});
    for (const auto& each : what_.planned) {
      const auto value = [&](double number) {
        return each.in == trace::planned_figure::unit::time
                   ? duration_text(number)
                   : bytes_text(static_cast<std::size_t>(std::max(0.0, number)));
      };
      // A multiple of next to nothing tells less than the difference.
      const bool far = each.measured > 2 * each.planned;
      const auto miss = each.planned > 0 ? 100 * (each.measured / each.planned - 1) : 0.0;
      table.row({each.name, value(each.planned), value(each.measured),
                 far ? "+" + value(each.measured - each.planned)
                     : (miss >= 0.05 ? "+" : "") + fixed(miss, 1) + " %"});
    }
    return table.text();
  }

  [[nodiscard]] std::string totals() const {
    const auto& sum = what_.totals;
    if (sum.modules.empty()) return {};
    html_table table({"module", "groups", "offloaded", "resident", "recomputed", "out", "in",
                      "waits for the cap"});
    for (const auto& each : sum.modules) {
      if (each.groups == 0 && each.bytes_offloaded == 0) continue;
      table.row({each.name, std::to_string(each.groups), std::to_string(each.groups_offloaded),
                 std::to_string(each.groups_resident), std::to_string(each.groups_recomputed),
                 bytes_text(each.bytes_offloaded), bytes_text(each.bytes_reloaded),
                 std::to_string(each.cap_joins)});
    }
    std::string text = table.text() + "<pre>" + xml_text(memory_lines(sum)) + "</pre>\n";
    for (const auto& each : silent_messages(sum)) text += "<p>" + xml_text(each) + "</p>\n";
    return text;
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
