#include "tidepool/trace/report.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <sstream>
#include <string>

namespace {

using tidepool::trace::planned_figure;
using tidepool::trace::report;
using tidepool::trace::span_kind;

report one_report() {
  report page;
  page.where = "a device";
  page.options = "--max-inflight=1 --offload-modules=core_attn,moe_act";
  page.step.title = "step 7";
  page.step.lanes = {"offload", "reload", "compute 0"};
  page.step.spans = {
      {span_kind::compute, 2, "forward", 0, 0, 0, 0, 40'000},
      {span_kind::offload, 0, "core_attn", 3, 1, 1'100'000'000, 25'000, 45'000},
      {span_kind::stall, 2, "consumer", 3, 1, 1'100'000'000, 40'000, 60'000, "core_attn"},
      {span_kind::reload, 1, "core_attn", 3, 1, 1'100'000'000, 50'000, 60'000}};
  page.step.device_bytes = {{0, 0}, {25'000, std::size_t{3} << 30}, {90'000, 0}};
  page.step.device_bytes_of = {{"core_attn", {{0, 0}, {25'000, std::size_t{2} << 30}, {90'000, 0}}},
                               {"", {{0, 0}, {20'000, std::size_t{1} << 30}, {90'000, 0}}}};
  page.step.budget = std::size_t{4} << 30;
  page.planned = {{"step", 50'000, 60'000},
                  {"stalls", 50, 290},
                  {"none", 0, 0},
                  {"peak needed", 0x1p30, 0x1p30, planned_figure::unit::bytes}};
  auto& module = page.totals.modules.emplace_back();
  module.name = "core_attn";
  module.enabled = true;
  module.groups = 12;
  module.groups_offloaded = 11;
  module.bytes_offloaded = 11 << 20;
  page.totals.steps = 2;
  page.totals.device_peak = std::size_t{5} << 30;
  return page;
}

// Without the class of cells that hold names.
std::string written(const report& page) {
  std::ostringstream out;
  tidepool::trace::write_report(out, page);
  auto text = out.str();
  const std::string name = " class=\"name\"";
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    text.erase(at, name.size());
  }
  return text;
}

std::size_t count(const std::string& in, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = in.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

std::string row(std::initializer_list<std::string> cells) {
  std::string text;
  for (const auto& each : cells) text += "<td>" + each + "</td>";
  return text + "</tr>";
}

}  // namespace

TEST_CASE("a report has the picture, and each stall, module, figure and option of its step") {
  const auto page = written(one_report());
  CHECK(count(page, "<div id=\"frame\"><svg ") == 1);
  CHECK(count(page, ">budget 4.00 GiB</text>") == 1);
  CHECK(count(page, "<tr data-times=\"40000.000,60000.000\">" +
                        row({"consumer", "what backward reads is not back yet", "core_attn", "1",
                             "20.0 ms", "20.0 ms", "layer 3, microbatch 1"})) == 1);
  CHECK(count(page, "<title>stall: consumer, waits for core_attn, layer 3, microbatch 1") == 1);
  // The first line says what to change: the reload began 10 ms late, with nothing before it.
  CHECK(count(page,
              "<body>\n<p id=\"advice\">core_attn waits 20.0 ms for reloads, and the link stands "
              "still before its reloads: raise --reload-ahead, or --device-budget where no memory "
              "is free.</p>") == 1);
  CHECK(count(page, row({"core_attn", "2.00 GiB", "1", "1.02 GiB", "20.0 ms", "1", "1.02 GiB",
                         "10.0 ms", "20.0 ms"})) == 1);
  CHECK(count(page, row({"saved by none", "1.00 GiB", "0", "0 B", "0 µs", "0", "0 B", "0 µs",
                         "0 µs"})) == 1);
  CHECK(count(page, "<title>core_attn, at most 2.00 GiB</title>") == 1);
  CHECK(count(page, row({"step", "50.0 ms", "60.0 ms", "+20.0 %"})) == 1);
  CHECK(count(page, row({"stalls", "50.0 µs", "290 µs", "+240 µs"})) == 1);
  CHECK(count(page, row({"none", "0 µs", "0 µs", "0.0 %"})) == 1);
  CHECK(count(page, row({"peak needed", "1.00 GiB", "1.00 GiB", "0.0 %"})) == 1);
  CHECK(count(page, "core_attn      12         11") == 1);  // as the summary has it
  CHECK(count(page, "peak taken       5.00 GiB") == 1);
  CHECK(count(page, "<code>--max-inflight=1</code>") == 1);
  CHECK(count(page, "<code>--offload-modules=core_attn,moe_act</code>") == 1);
}

TEST_CASE("a report stands alone, whatever its names, and without all but a record") {
  auto named = one_report();
  named.step.title = "</title><script>alert(1)</script>";
  named.where = "<b>&";
  named.options = "--x=<script>";
  named.totals.modules[0].name = "<script>";
  for (auto& each : named.step.spans) {
    each.name += "\"><script>";
    each.module += "\"><script>";
  }
  for (const auto& page : {written(named), written({})}) {
    CHECK(count(page, "<script>") == 1);  // its own
    CHECK(count(page, "</html>") == 1);
    CHECK(count(page, "http") == count(page, "http://www.w3.org/2000/svg"));
    CHECK(count(page, "src=") == 0);
    CHECK(count(page, "<link") == 0);
  }
  CHECK(count(written({}), "Compute never waited.") == 1);
  CHECK(count(written({}), "<p id=\"advice\" class=\"calm\">Nothing waits") == 1);
  CHECK(count(written({}), "id=\"plan\"") == 0);
}
