#include "tidepool/trace/picture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "hostile_stream.hpp"
#include "tidepool/trace/detail/palette.hpp"

namespace {

using tidepool::trace::picture_options;
using tidepool::trace::record;
using tidepool::trace::span_kind;
namespace palette = tidepool::trace::detail;

struct element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;   // inside, titles left out, unescaped
  std::string title;  // of the element or of the group around it

  [[nodiscard]] double number(const std::string& attribute) const {
    return std::strtod(attributes.at(attribute).c_str(), nullptr);
  }
};

std::string unescaped(std::string text) {
  const std::pair<std::string, std::string> forms[]{
      {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [from, to] : forms) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

void check_characters(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 && byte != '\n') FAIL("a control character");
    if (byte == '<' || byte == '>') FAIL("a bare bracket in ", std::string(text));
    if (byte == '&' && text.substr(i, 4) != "&lt;" && text.substr(i, 4) != "&gt;" &&
        text.substr(i, 5) != "&amp;" && text.substr(i, 6) != "&quot;") {
      FAIL("a bare ampersand in ", std::string(text));
    }
  }
}

// Fails the test where `text` is not well-formed; the elements in order of their end.
std::vector<element> parsed(const std::string& text) {
  std::vector<element> done;
  std::vector<element> open;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto start = text.find('<', at);
    const auto between = text.substr(at, start - at);
    check_characters(between);
    if (open.empty()) {
      REQUIRE(between.find_first_not_of('\n') == std::string::npos);
    } else if (open.back().name == "title" && open.size() > 1) {
      open[open.size() - 2].title += unescaped(between);
    } else {
      open.back().text += unescaped(between);
    }
    if (start == std::string::npos) break;
    const auto end = text.find('>', start);
    REQUIRE(end != std::string::npos);
    auto tag = text.substr(start + 1, end - start - 1);
    at = end + 1;
    if (tag.starts_with('/')) {
      REQUIRE(!open.empty());
      REQUIRE(open.back().name == tag.substr(1));
      done.push_back(open.back());
      open.pop_back();
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.pop_back();
    element item;
    item.name = tag.substr(0, tag.find(' '));
    if (!open.empty() && open.back().name == "g") item.title = open.back().title;
    for (std::size_t i = item.name.size(); i < tag.size();) {
      REQUIRE(tag[i] == ' ');
      const auto equals = tag.find("=\"", i);
      REQUIRE(equals != std::string::npos);
      const auto quote = tag.find('"', equals + 2);
      REQUIRE(quote != std::string::npos);
      const auto value = tag.substr(equals + 2, quote - equals - 2);
      check_characters(value);
      const auto name = tag.substr(i + 1, equals - i - 1);
      REQUIRE(item.attributes.emplace(name, unescaped(value)).second);
      i = quote + 1;
    }
    (closed ? done : open).push_back(item);
  }
  REQUIRE(open.empty());
  return done;
}

std::string drawn(const record& step, const picture_options& options = {}) {
  std::ostringstream out;
  tidepool::trace::write_svg(out, step, options);
  return out.str();
}

std::vector<element> named(const std::vector<element>& all, std::string_view name) {
  std::vector<element> result;
  for (const auto& item : all) {
    if (item.name == name) result.push_back(item);
  }
  return result;
}

std::set<std::string> texts(const std::vector<element>& all) {
  std::set<std::string> result;
  for (const auto& item : named(all, "text")) result.insert(item.text);
  return result;
}

// The bars: what has a title.
std::vector<element> bars(const std::vector<element>& all, const std::string& fill = "") {
  std::vector<element> result;
  for (const auto& item : named(all, "rect")) {
    if (!item.title.empty() && (fill.empty() || item.attributes.at("fill") == fill)) {
      result.push_back(item);
    }
  }
  return result;
}

// The strips behind the lanes, from the top down.
std::vector<element> strips(const std::vector<element>& all) {
  std::vector<element> result;
  for (const auto& item : named(all, "rect")) {
    if (item.attributes.count("fill") != 0 && item.attributes.at("fill") == "#f3f4f6") {
      result.push_back(item);
    }
  }
  return result;
}

std::string colour_of(const std::string& module) {
  return palette::hex(palette::paints_of({module}).front().colour);
}

// Pixels that bars of a colour cover.
double area(const std::vector<element>& all, const std::string& fill) {
  double sum = 0;
  for (const auto& item : bars(all, fill)) sum += item.number("width") * item.number("height");
  return sum;
}

record one_step() {
  record step;
  step.title = "step 7";
  step.lanes = {"offload", "reload", "compute 0"};
  step.spans = {{span_kind::compute, 2, "forward", 0, 0, 0, 0, 40'000},
                {span_kind::compute, 2, "backward", 0, 0, 0, 60'000, 100'000},
                {span_kind::offload, 0, "core_attn", 3, 1, 1'100'000'000, 25'000, 45'000},
                {span_kind::stall, 2, "consumer", -1, -1, 0, 40'000, 60'000},
                {span_kind::reload, 1, "core_attn", 3, 1, 1'100'000'000, 50'000, 60'000},
                {span_kind::offload, 0, "moe_act", 4, 1, 5, 50'000, 55'000}};
  step.device_bytes = {{0, 0}, {25'000, std::size_t{3} << 30}, {45'000, std::size_t{1} << 30}};
  return step;
}

}  // namespace

TEST_CASE("a picture has a row for each lane and a bar for each span, at its time") {
  const auto all = parsed(drawn(one_step()));
  const auto rows = strips(all);
  REQUIRE(rows.size() == 3);
  for (const char* text : {"step 7", "offload", "reload", "compute 0"}) {
    CHECK(texts(all).count(text) == 1);
  }
  CHECK(bars(all).size() == 6);

  const auto attention = bars(all, colour_of("core_attn"));
  REQUIRE(attention.size() == 2);
  const double left = rows[0].number("x");
  const double width = rows[0].number("width");
  CHECK(attention[0].number("x") == doctest::Approx(left + 0.25 * width).epsilon(0.002));
  CHECK(attention[0].number("width") == doctest::Approx(0.2 * width).epsilon(0.005));
  CHECK(attention[0].number("y") == rows[0].number("y"));
  CHECK(attention[0].number("height") == rows[0].number("height"));
  CHECK(attention[1].number("y") == rows[1].number("y"));
  CHECK(attention[0].title ==
        "offload core_attn, layer 3, microbatch 1\n1.02 GiB at 55.0 GB/s\n20.0 ms from 25.0 ms");
  CHECK(texts(all).count("core_attn L3 m1") == 1);
}

TEST_CASE("stalls are hatched, compute is grey, and the legend names what there is") {
  const auto all = parsed(drawn(one_step()));
  const auto stalls = bars(all, "url(#tidepool-stall)");
  REQUIRE(stalls.size() == 1);
  CHECK(stalls[0].title == "stall: consumer\n20.0 ms from 40.0 ms");
  CHECK(bars(all, palette::hex(palette::compute_colours[0])).size() == 1);
  CHECK(bars(all, palette::hex(palette::compute_colours[1])).size() == 1);
  for (const char* name : {"core_attn", "moe_act", "forward", "backward", "stall"}) {
    CHECK(texts(all).count(name) == 1);
  }
  auto calm = one_step();
  calm.spans.erase(calm.spans.begin() + 3);
  CHECK(texts(parsed(drawn(calm))).count("stall") == 0);
}

TEST_CASE("a lane says how busy it was; time in a stall is not") {
  auto step = one_step();
  const auto all = texts(parsed(drawn(step)));
  CHECK(all.count("25%") == 1);  // offload
  CHECK(all.count("10%") == 1);  // reload
  CHECK(all.count("80%") == 1);  // compute
  CHECK(all.count("20% stall") == 1);

  step.spans.push_back({span_kind::compute, 2, "all of it", -1, -1, 0, 0, 100'000});
  CHECK(texts(parsed(drawn(step))).count("80%") == 1);
}

TEST_CASE("what is written in a bar keeps clear of the stalls in it") {
  record step;
  step.lanes = {"lane"};
  step.spans = {{span_kind::compute, 0, "forward", 7, 0, 0, 0, 1000},
                {span_kind::stall, 0, "cap", -1, -1, 0, 300, 1000},
                {span_kind::compute, 0, "backward", 8, 0, 0, 1000, 2000},
                {span_kind::stall, 0, "cap", -1, -1, 0, 1000, 1999}};
  const auto all = parsed(drawn(step));
  const auto row = strips(all).front();
  for (const auto& item : named(all, "text")) {
    if (!item.text.starts_with("forward L7")) continue;
    CHECK(item.number("x") ==
          doctest::Approx(row.number("x") + 0.075 * row.number("width")).epsilon(0.01));
  }
  CHECK(std::count_if(all.begin(), all.end(), [](const element& item) {
          return item.name == "text" && item.text.starts_with("forward L7");
        }) == 1);
  CHECK(std::count_if(all.begin(), all.end(), [](const element& item) {
          return item.name == "text" && (item.text == "backward" || item.text.starts_with("L8"));
        }) == 1);
}

TEST_CASE("below the lanes lie device bytes, their peak, and the time") {
  const auto all = parsed(drawn(one_step()));
  for (const char* text : {"peak held 3.00 GiB at 25.0 ms", "1 GiB", "2 GiB", "10 ms", "100 ms"}) {
    CAPTURE(text);
    CHECK(texts(all).count(text) == 1);
  }
  const auto mark = named(all, "circle");
  REQUIRE(mark.size() == 1);
  const auto row = strips(all).back();
  CHECK(mark[0].number("cx") ==
        doctest::Approx(row.number("x") + 0.25 * row.number("width")).epsilon(0.002));
  CHECK(mark[0].number("cy") > row.number("y") + row.number("height"));
  CHECK(named(all, "path").size() == 2);

  const auto bare = parsed(drawn(one_step(), {.curve_height = 0}));
  CHECK(named(bare, "path").empty());
  CHECK(texts(bare).count("10 ms") == 1);
}

TEST_CASE(
    "a budget is a line with its bytes, and what there would be without offload lies behind") {
  auto step = one_step();
  step.budget = std::size_t{4} << 30;
  step.device_bytes_without = {{0, 0}, {25'000, std::size_t{5} << 30}};
  const auto all = parsed(drawn(step));
  CHECK(texts(all).count("budget 4.00 GiB") == 1);
  CHECK(texts(all).count("without offload 5.00 GiB") == 1);
  CHECK(named(all, "path").size() == 4);
  // Both on the scale of the curve: 5 GiB above 4, above the peak of 3.
  const auto height = [](const auto& in, const std::string& prefix) {
    for (const auto& item : named(in, "text")) {
      if (item.text.starts_with(prefix)) return item.number("y");
    }
    return 0.0;
  };
  CHECK(height(all, "without") < height(all, "budget"));
  CHECK(height(all, "budget") < height(all, "peak held"));

  // A budget that is nearly taken: the words of the peak stand clear of its line and of the curve.
  step.budget = (std::size_t{3} << 30) + (std::size_t{1} << 26);
  const auto near = parsed(drawn(step));
  CHECK(height(near, "peak held") <= height(near, "budget"));

  step.budget = std::size_t{80} << 30;
  CHECK(texts(parsed(drawn(step))).count("budget 80.0 GiB, off the scale") == 1);
  std::erase_if(step.spans, [](const auto& each) { return each.kind == span_kind::offload; });
  CHECK(named(parsed(drawn(step)), "path").size() == 2);  // nothing left: the two are one
}

TEST_CASE("passes are a row of their own, forward and backward, in time") {
  auto step = one_step();
  step.passes = {
      {false, 0, 0, 0, 40'000}, {true, 0, 0, 60'000, 99'000}, {false, 1, 0, 99'000, 99'100}};
  const auto all = parsed(drawn(step));
  const auto forward = bars(all, "#d6e6f7");
  const auto backward = bars(all, "#f7e1c8");
  REQUIRE(forward.size() == 2);
  REQUIRE(backward.size() == 1);
  const auto row = strips(all).front();
  CHECK(backward[0].number("x") ==
        doctest::Approx(row.number("x") + 0.6 * row.number("width")).epsilon(0.002));
  CHECK(backward[0].number("y") + backward[0].number("height") < row.number("y"));
  for (const char* text : {"forward 0", "backward 0", "forward pass", "backward pass"}) {
    CHECK(texts(all).count(text) == 1);
  }
}

TEST_CASE("each stall says its reason, module and layer in visible text") {
  auto step = one_step();
  for (auto& each : step.spans) {
    if (each.kind != span_kind::stall) continue;
    each.module = "core_attn";
    each.layer = 3;
    each.microbatch = 1;
  }
  // One that is too narrow for words, and one at which nobody waited.
  step.spans.push_back(
      {span_kind::stall, 2, "device_reuse", 7, 1, 5, 70'000, 70'040, "expert_fc1"});
  step.spans.push_back({span_kind::stall, 2, "cap", -1, -1, 0, 80'000, 80'000});
  const auto all = texts(parsed(drawn(step)));
  CHECK(all.count("consumer core_attn L3 m1") == 1);
  CHECK(all.count("20.0 ms in 1 stall: consumer (what backward reads is not back yet), waits for "
                  "core_attn; the longest, 20.0 ms, at layer 3, microbatch 1") == 1);
  CHECK(all.count("40.0 \xc2\xb5s in 1 stall: device_reuse (no free device memory yet), waits for "
                  "expert_fc1; the longest, 40.0 \xc2\xb5s, at layer 7, microbatch 1") == 1);
  CHECK(all.count("Why it stalled: consumer 20.0 ms, device_reuse 40.0 \xc2\xb5s") == 1);
  for (const auto& text : all) CHECK(text.find("cap") == std::string::npos);
}

TEST_CASE("what is written in a stall stands in the middle of its bar") {
  auto step = one_step();
  for (auto& each : step.spans) {
    if (each.kind == span_kind::stall) each.layer = 3;
  }
  const auto all = parsed(drawn(step));
  const auto stalls = bars(all, "url(#tidepool-stall)");
  REQUIRE(stalls.size() == 1);
  const auto middle = stalls.front().number("y") + stalls.front().number("height") / 2;
  std::size_t written = 0;
  for (const auto& item : named(all, "text")) {
    if (item.text != "consumer L3") continue;
    ++written;
    CHECK(std::abs(item.number("y") - item.number("font-size") * 0.36 - middle) < 1);
  }
  CHECK(written == 1);
}

TEST_CASE("a lane whose compute nobody traced says so, and does not claim to be idle") {
  auto step = one_step();
  std::erase_if(step.spans, [](const auto& each) { return each.kind == span_kind::compute; });
  CHECK(texts(parsed(drawn(step))).count("0%") == 1);
  step.untraced = {false, false, true};
  const auto all = texts(parsed(drawn(step)));
  CHECK(all.count("not traced") == 1);
  CHECK(all.count("0%") == 0);
  CHECK(all.count("33% stall") == 1);
}

TEST_CASE("copies too narrow for words of their own share the name of their layers") {
  record step;
  step.lanes = {"offload"};
  double time = 0;
  for (int layer = 0; layer < 4; ++layer) {
    for (int module = 0; module < 10; ++module) {
      const auto name = "module_" + std::to_string(module);
      step.spans.push_back({span_kind::offload, 0, name, layer, 2, 7, time, time + 9});
      time += 9.5;
    }
  }
  step.spans.push_back({span_kind::offload, 0, "wide", 4, 2, 7, 900, 1100});
  auto all = texts(parsed(drawn(step)));
  for (const char* text : {"L0", "L1", "L2", "L3", "wide L4 m2"}) CHECK(all.count(text) == 1);
  step.spans.push_back({span_kind::offload, 0, "wide", 5, 3, 7, 5400, 5500});  // now narrower
  all = texts(parsed(drawn(step)));
  CHECK(all.count("L0 to L3 m2") == 1);
  CHECK(all.count("L0") == 0);
}

TEST_CASE("pictures of nothing, of one span, of one lane and of odd sizes are whole") {
  CHECK(texts(parsed(drawn({}))).count("Nothing was recorded.") == 1);

  record step;
  step.lanes = {"compute"};
  CHECK(texts(parsed(drawn(step))).count("Nothing was recorded.") == 1);

  step.spans = {{span_kind::compute, 0, "gemm", -1, -1, 0, 0, 0.42}};
  auto all = parsed(drawn(step));
  CHECK(bars(all).size() == 1);
  CHECK(texts(all).count("100%") == 1);
  CHECK(texts(all).count("400 ns") == 1);

  step.spans[0].end = 0;  // an instant is seen
  all = parsed(drawn(step));
  REQUIRE(bars(all).size() == 1);
  CHECK(bars(all)[0].number("width") > 0.5);

  record levels;
  levels.device_bytes = {{0, 0}};
  CHECK(named(parsed(drawn(levels)), "path").size() == 2);

  for (const double size : {-1.0, 0.0, 1e9}) {
    parsed(drawn(one_step(), {.width = size, .lane_height = size, .curve_height = size}));
  }
}

TEST_CASE("names of any length and content leave a picture well-formed") {
  record step;
  step.title = std::string(500, 'T') + "<&\">";
  step.lanes = {std::string(300, 'n') + "<b>", "\xff\x01\x1b[31m", "\xe8\xae\xa1\xe7\xae\x97"};
  for (int i = 0; i < 100; ++i) {
    step.spans.push_back({span_kind::offload, static_cast<std::size_t>(i % 3),
                          "<&\"'>" + std::to_string(i) + std::string(200, '&'), i, 0, 1, i * 1.0,
                          i + 1.0});
  }
  const auto all = parsed(drawn(step));
  CHECK(bars(all).size() == 100);
  CHECK(texts(all).count("and 60 more") == 1);
  CHECK(bars(all)[0].title.find("<&\"'>0") != std::string::npos);
  for (auto& span : step.spans) span.end = span.start += 1e-6;
  step.spans.push_back({span_kind::compute, 0, "<&>", -1, -1, 0, 0, 1e6});
  CHECK_FALSE(bars(parsed(drawn(step))).empty());  // now in runs
  for (const auto& row : strips(all)) CHECK(row.number("width") > 700);
}

TEST_CASE("spans without a place in time are left out, and all numbers are finite") {
  const double inf = std::numeric_limits<double>::infinity();
  auto step = one_step();
  const auto before = bars(parsed(drawn(step))).size();
  step.spans.push_back({span_kind::offload, 0, "core_attn", 0, 0, 0, std::nan(""), 1});
  step.spans.push_back({span_kind::offload, 0, "core_attn", 0, 0, 0, 0, inf});
  step.spans.push_back({span_kind::offload, 0, "core_attn", 0, 0, 0, 2, 1});
  step.spans.push_back({span_kind::offload, 3, "core_attn", 0, 0, 0, 0, 1});
  step.device_bytes.push_back({std::nan(""), 1});
  const auto text = drawn(step);
  CHECK(bars(parsed(text)).size() == before);
  CHECK(text.find("nan") == std::string::npos);
  CHECK(text.find("=\"inf") == std::string::npos);
}

TEST_CASE("narrow neighbours are drawn together, with their shares of the time as heights") {
  record step;
  step.lanes = {"lane"};
  step.spans = {{span_kind::compute, 0, "rest", -1, -1, 0, 1000, 10'000}};
  // A twentieth of a pixel each, half of the time nothing: 0.3 attention, 0.2 experts.
  for (int i = 0; i < 1000; ++i) {
    step.spans.push_back({span_kind::offload, 0, "core_attn", i, 0, 7, i * 1.0, i + 0.3});
    step.spans.push_back({span_kind::offload, 0, "moe_act", i, 0, 7, i + 0.5, i + 0.7});
  }
  const auto all = parsed(drawn(step));
  const auto row = strips(all).front();
  const auto attention = bars(all, colour_of("core_attn"));
  REQUIRE(attention.size() == 1);
  CHECK(attention[0].number("height") == doctest::Approx(0.3 * row.number("height")).epsilon(0.02));
  CHECK(attention[0].title.find("1000 of core_attn: 300 \xc2\xb5s, 6.84 KiB") == 0);
  CHECK(bars(all, colour_of("moe_act")).size() == 1);
}

TEST_CASE("a short copy is seen, a stall without length is not") {
  record step;
  step.lanes = {"lane"};
  step.spans = {{span_kind::offload, 0, "core_attn", 0, 0, 7, 5000, 5000.001},
                {span_kind::stall, 0, "cap", -1, -1, 0, 7000, 7000},
                {span_kind::compute, 0, "rest", -1, -1, 0, 9000, 10'000}};
  const auto all = parsed(drawn(step));
  REQUIRE(bars(all, colour_of("core_attn")).size() == 1);
  CHECK(bars(all, colour_of("core_attn"))[0].number("width") > 0.5);
  CHECK(bars(all).size() == 2);
  CHECK(texts(all).count("stall") == 0);
}

TEST_CASE("100 000 spans make less than 1 MB, and no time is lost") {
  const std::size_t count = 100'000;
  SUBCASE("narrow, of two modules, with stalls between") {
    record step;
    step.lanes = {"offload", "compute"};
    for (std::size_t i = 0; i < count / 4; ++i) {
      const auto t = static_cast<double>(i);
      const double part = 0.5 + 0.3 * std::sin(t / 3000);
      step.spans.push_back({span_kind::offload, 0, "core_attn", 1, 1, 9, t, t + part / 2});
      step.spans.push_back({span_kind::offload, 0, "moe_act", 1, 1, 9, t + 0.5, t + 0.8});
      step.spans.push_back({span_kind::compute, 1, "f", 1, 1, 0, t, t + 0.6});
      step.spans.push_back({span_kind::stall, 1, "cap", 1, 1, 0, t + 0.6, t + 1});
    }
    const auto text = drawn(step);
    CHECK(text.size() < 1'000'000);
    const auto all = parsed(text);
    const auto row = strips(all).front();
    const double whole = row.number("width") * row.number("height");
    CHECK(area(all, colour_of("core_attn")) / whole == doctest::Approx(0.25).epsilon(0.1));
    CHECK(area(all, colour_of("moe_act")) / whole == doctest::Approx(0.3).epsilon(0.05));
    CHECK(area(all, palette::hex(palette::compute_colours[0])) / whole ==
          doctest::Approx(0.6).epsilon(0.02));
    const double stalls =
        area(all, "url(#tidepool-stall)") + area(all, palette::hex(palette::stall_colour));
    CHECK(stalls / whole == doctest::Approx(0.4).epsilon(0.02));
  }
  SUBCASE("wide enough to be drawn, on many lanes, with gaps and changing modules") {
    record step;
    for (std::size_t lane = 0; lane < 60; ++lane) {
      step.lanes.push_back("lane " + std::to_string(lane));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto t = static_cast<double>(i / step.lanes.size());
      step.spans.push_back({span_kind::offload, i % step.lanes.size(),
                            "a_module_of_some_length_" + std::to_string(i * 7 % 64), 100, 100,
                            123'456'789, t, t + 0.6});
    }
    const auto text = drawn(step);
    CHECK(text.size() < 1'000'000);
    parsed(text);
  }
  SUBCASE("a curve of as many levels") {
    record step;
    step.lanes = {"lane"};
    for (std::size_t i = 0; i < count; ++i) {
      step.device_bytes.push_back({static_cast<double>(i), i * 7919 % 1'000'003});
    }
    step.device_bytes[count / 3].bytes = 5'000'000;
    const auto text = drawn(step);
    CHECK(text.size() < 1'000'000);
    const auto all = parsed(text);
    CHECK(texts(all).count("peak held 4.77 MiB at 33.3 ms") == 1);
    // The curve itself goes up to its peak.
    const auto line = named(all, "path").back().attributes.at("d");
    double top = 1e9;
    for (auto at = line.find('V'); at != std::string::npos; at = line.find('V', at + 1)) {
      top = std::min(top, std::strtod(line.c_str() + at + 1, nullptr));
    }
    CHECK(top == doctest::Approx(named(all, "circle").front().number("cy")).epsilon(0.001));
  }
}

TEST_CASE("a picture does not depend on the stream's locale and format") {
  tidepool::test::hostile_stream hostile;
  tidepool::trace::write_svg(hostile, one_step());
  CHECK(hostile.str() == drawn(one_step()));
}

TEST_CASE("a module has one colour in every picture, whatever else is seen and in which order") {
  using palette::paints_of;
  const auto alone = paints_of({"expert_fc1"}).front();
  CHECK(alone.stripes == 0);
  CHECK(paints_of({"own", "moe_act", "expert_fc1"})[2] == alone);

  // Standard modules leave the users' own where they are.
  std::vector<std::string> with_own{tidepool::standard_modules.begin(),
                                    tidepool::standard_modules.end()};
  for (const char* own : {"router", "conv", "expert_fc2"}) {
    with_own.emplace_back(own);
    CHECK(paints_of(with_own).back() == paints_of({own}).front());
    with_own.pop_back();
  }

  const auto forth = paints_of({"alpha", "beta", "core_attn"});
  const auto back = paints_of({"core_attn", "beta", "alpha"});
  CHECK(forth[0] == back[2]);
  CHECK(forth[1] == back[1]);

  // More than there are places for them, so that some must move.
  std::vector<std::string> many;
  for (char c = 'a'; c < 'm'; ++c) many.push_back(std::string("own_") + c);
  const auto up = paints_of(many);
  std::reverse(many.begin(), many.end());
  auto down = paints_of(many);
  std::reverse(down.begin(), down.end());
  CHECK(up == down);

  // As many as there are: no two are alike, and stripes tell the users' own from the standard ones.
  std::vector<std::string> names{tidepool::standard_modules.begin(),
                                 tidepool::standard_modules.end()};
  while (names.size() < palette::module_places)
    names.push_back("own_" + std::to_string(names.size()));
  std::set<std::pair<std::string, std::size_t>> seen;
  const auto paints = paints_of(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    seen.emplace(palette::hex(paints[i].colour), paints[i].stripes);
    CHECK((paints[i].stripes > 0) == (i >= tidepool::standard_modules.size()));
  }
  CHECK(seen.size() == names.size());
}

TEST_CASE("a module of the users' own is striped in its bars, its memory and the legend") {
  auto step = one_step();
  step.spans.push_back({span_kind::offload, 0, "router", 4, 1, 5, 60'000, 65'000});
  step.device_bytes_of = {{"router", {{0, 0}, {25'000, std::size_t{1} << 30}}},
                          {"core_attn", {{0, 0}, {25'000, std::size_t{2} << 30}}}};
  const auto text = drawn(step);
  const auto all = parsed(text);
  const auto id = named(all, "pattern").back().attributes.at("id");
  const auto fill = "url(#" + id + ")";
  CHECK(bars(all, fill).size() == 1);
  std::size_t swatches = 0;
  std::size_t areas = 0;
  for (const auto& each : all) {
    if (each.attributes.count("fill") == 0 || each.attributes.at("fill") != fill) continue;
    swatches += each.name == "rect" && each.title.empty() ? 1 : 0;
    areas += each.name == "path" ? 1 : 0;
  }
  CHECK(swatches == 1);
  CHECK(areas == 1);
}

TEST_CASE("the curve stacks the modules: each at its own height, all together at the sum") {
  auto step = one_step();
  step.device_bytes_of = {
      {"router", {{0, 0}, {25'000, std::size_t{1} << 30}, {45'000, 0}}},
      {"core_attn", {{0, 0}, {25'000, std::size_t{2} << 30}, {45'000, 1 << 30}}}};
  const auto all = parsed(drawn(step));
  const auto top_of = [&](const std::string& title) {
    for (const auto& each : named(all, "path")) {
      if (!each.title.starts_with(title)) continue;
      const auto& path = each.attributes.at("d");
      double top = 1e9;
      for (auto at = path.find('V'); at != std::string::npos; at = path.find('V', at + 1)) {
        top = std::min(top, std::strtod(path.c_str() + at + 1, nullptr));
      }
      return top;
    }
    FAIL("no area of ", title);
    return 0.0;
  };
  const double base = [&] {
    for (const auto& each : named(all, "text")) {
      if (each.text == "0") return each.number("y") - 4;
    }
    return 0.0;
  }();
  const double peak = named(all, "circle").front().number("cy");
  CHECK(top_of("router, at most 1.00 GiB") == doctest::Approx(peak).epsilon(0.002));
  CHECK(base - top_of("core_attn, at most 2.00 GiB") ==
        doctest::Approx((base - peak) * 2 / 3).epsilon(0.01));
}

// Björn Ottosson's OKLab, in which distances are about as people see them, after the matrices of
// Machado, Oliveira and Fernandes (2009) for vision without one kind of cone.
TEST_CASE("the colours of the standard modules can be told apart, also by the colour-blind") {
  using vector = std::array<double, 3>;
  using matrix = std::array<vector, 3>;
  const auto times = [](const matrix& m, const vector& v) {
    vector result{};
    for (std::size_t i = 0; i < 3; ++i) {
      result[i] = m[i][0] * v[0] + m[i][1] * v[1] + m[i][2] * v[2];
    }
    return result;
  };
  const matrix visions[]{{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
                         {{{0.152286, 1.052583, -0.204868},
                           {0.114503, 0.786281, 0.099216},
                           {-0.003882, -0.048116, 1.051998}}},
                         {{{0.367322, 0.860646, -0.227968},
                           {0.280085, 0.672501, 0.047413},
                           {-0.011820, 0.042940, 0.968881}}},
                         {{{1.255528, -0.076749, -0.178779},
                           {-0.078411, 0.930809, 0.147602},
                           {0.004733, 0.691367, 0.303900}}}};
  const matrix to_cones{{{0.4122214708, 0.5363325363, 0.0514459929},
                         {0.2119034982, 0.6806995451, 0.1073969566},
                         {0.0883024619, 0.2817188376, 0.6299787005}}};
  const matrix to_lab{{{0.2104542553, 0.7936177850, -0.0040720468},
                       {1.9779984951, -2.4285922050, 0.4505937099},
                       {0.0259040371, 0.7827717662, -0.8086757660}}};
  const auto seen = [&](const palette::rgb& colour, const matrix& vision) {
    const auto linear = [](std::uint8_t part) {
      const double c = part / 255.0;
      return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    auto light = times(vision, {linear(colour.red), linear(colour.green), linear(colour.blue)});
    for (auto& part : light) part = std::clamp(part, 0.0, 1.0);
    auto cones = times(to_cones, light);
    for (auto& part : cones) part = std::cbrt(part);
    return times(to_lab, cones);
  };
  const auto distance = [&](const palette::rgb& a, const palette::rgb& b) {
    double least = 1;
    for (const auto& vision : visions) {
      const auto x = seen(a, vision);
      const auto y = seen(b, vision);
      least = std::min(least, std::hypot(x[0] - y[0], x[1] - y[1], x[2] - y[2]));
    }
    return least;
  };

  for (std::size_t i = 0; i < palette::module_colours.size(); ++i) {
    const auto& colour = palette::module_colours[i];
    CAPTURE(i);
    for (std::size_t j = 0; j < i; ++j) {
      CAPTURE(j);
      CHECK(distance(colour, palette::module_colours[j]) > 0.12);
    }
    CHECK(distance(colour, palette::stall_colour) > 0.1);
    for (const auto& grey : palette::compute_colours) CHECK(distance(colour, grey) > 0.078);
  }
  // Two alike are found: red and green of one lightness, to whom one kind of cone is missing.
  CHECK(distance({0xa0, 0x78, 0x30}, {0x88, 0x80, 0x30}) < 0.06);
}
