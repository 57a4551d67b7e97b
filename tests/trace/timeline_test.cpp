#include "tidepool/trace/timeline.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "hostile_stream.hpp"
#include "tidepool/version.hpp"

namespace {

using nlohmann::json;
using tidepool::trace::record;
using tidepool::trace::span_kind;

json parsed(const std::string& text) { return json::parse(text).at("traceEvents"); }

json written(const std::vector<record>& steps) {
  std::ostringstream out;
  tidepool::trace::write_chrome_trace(out, std::span<const record>(steps));
  return parsed(out.str());
}

std::vector<json> events(const json& all, const std::string& phase) {
  std::vector<json> result;
  for (const auto& event : all) {
    if (event.at("ph") == phase) result.push_back(event);
  }
  return result;
}

// The name of each thread.
std::map<int, std::string> threads(const json& all) {
  std::map<int, std::string> names;
  for (const auto& event : events(all, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  return names;
}

json only(const json& all, const std::string& name) {
  std::vector<json> found;
  for (const auto& event : events(all, "X")) {
    if (event.at("name") == name) found.push_back(event);
  }
  REQUIRE(found.size() == 1);
  return found.front();
}

record small_step() {
  record step;
  step.title = "step 7";
  step.lanes = {"offload", "reload", "compute 0"};
  step.spans = {{span_kind::compute, 2, "forward", 0, 0, 0, 0, 10.5},
                {span_kind::offload, 0, "core_attn", 3, 1, 1'000'000, 10.5, 30.5},
                {span_kind::stall, 2, "consumer", 3, 1, 1'000'000, 12.25, 20, "core_attn"},
                {span_kind::stall, 2, "consumer", -1, -1, 0, 25, 25},
                {span_kind::reload, 1, "core_attn", 3, 1, 1'000'000, 40, 60}};
  step.device_bytes = {{0, 0}, {10.5, 5'000'000'000}, {61, 7}};
  return step;
}

}  // namespace

TEST_CASE("a timeline names its lanes and holds every span with its arguments") {
  const auto all = written({small_step()});
  const auto names = threads(all);
  const auto lane_of = [&](const json& event) { return names.at(event.at("tid")); };
  CHECK(names.size() == 4);

  const auto offload = only(all, "offload core_attn");
  CHECK(lane_of(offload) == "offload");
  CHECK(offload.at("cat") == "offload");
  CHECK(offload.at("ts").get<double>() == doctest::Approx(10.5));
  CHECK(offload.at("dur").get<double>() == doctest::Approx(20));
  CHECK(offload.at("args").at("layer") == 3);
  CHECK(offload.at("args").at("microbatch") == 1);
  CHECK(offload.at("args").at("bytes") == 1'000'000);
  CHECK(offload.at("args").at("GB/s").get<double>() == doctest::Approx(50));

  CHECK(lane_of(only(all, "reload core_attn")) == "reload");
  CHECK(lane_of(only(all, "stall consumer")) == "compute 0");
  const auto stall = only(all, "stall consumer").at("args");
  CHECK(stall.at("reason") == "consumer");
  CHECK(stall.at("module") == "core_attn");
  CHECK(stall.at("layer") == 3);
  CHECK(stall.at("bytes") == 1'000'000);
  CHECK(stall.count("GB/s") == 0);
  CHECK(offload.at("args").at("module") == "core_attn");
  CHECK(only(all, "forward").at("cat") == "compute");

  const auto step = only(all, "step 7");
  CHECK(lane_of(step) == "steps");
  CHECK(step.at("dur").get<double>() == doctest::Approx(61));
}

TEST_CASE("no event is of zero length, and each stall and copy says what it is about") {
  auto step = small_step();
  step.spans.push_back({span_kind::reload, 1, "core_attn", 3, 1, 8, 60, 60.0001});
  const auto all = written({step});
  std::size_t instants = 0;
  for (const auto& event : all) {
    if (event.at("ph") == "X") CHECK(event.at("dur").get<double>() > 0);
    instants += event.at("ph") == "i" ? 1 : 0;
    const auto kind = event.value("cat", "");
    if (kind != "stall" && kind != "offload" && kind != "reload") continue;
    CHECK(event.at("args").count("module") == 1);
    CHECK(event.at("args").count("layer") == 1);
    CHECK(event.at("args").count("bytes") == 1);
    CHECK(event.at("args").count("reason") == (kind == "stall" ? 1 : 0));
  }
  CHECK(instants == 1);  // the last reload; the stall at which nobody waited is none
}

TEST_CASE("arrows lead from each offload to its reload, and from each stall to its copy") {
  auto step = small_step();
  // Another group, whose reload lies before its offload: there is no arrow back in time.
  step.spans.push_back({span_kind::offload, 0, "moe_act", 3, 1, 7, 80, 90});
  step.spans.push_back({span_kind::reload, 1, "moe_act", 3, 1, 7, 70, 75});
  const auto all = written({step, step});
  const auto from = events(all, "s");
  const auto to = events(all, "f");
  REQUIRE(from.size() == 4);  // two in each step
  REQUIRE(to.size() == 4);
  std::set<int> ids;
  const auto around = [&](const json& end) {
    for (const auto& slice : events(all, "X")) {
      const double start = slice.at("ts");
      const double at = end.at("ts");
      if (slice.at("tid") == end.at("tid") && start <= at &&
          at < start + slice.at("dur").get<double>())
        return slice.at("name").get<std::string>();
    }
    return std::string();
  };
  std::map<std::string, std::size_t> arrows;
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].at("id") == to[i].at("id"));
    CHECK(from[i].at("name") == to[i].at("name"));
    CHECK(from[i].at("cat") == to[i].at("cat"));
    CHECK(from[i].at("ts").get<double>() <= to[i].at("ts").get<double>());
    CHECK(to[i].at("bp") == "e");
    ids.insert(from[i].at("id").get<int>());
    ++arrows[around(from[i]) + " -> " + around(to[i])];
  }
  CHECK(ids.size() == 4);
  // The copy nearest to the end of the stall is the offload here.
  CHECK(arrows == std::map<std::string, std::size_t>{{"offload core_attn -> reload core_attn", 2},
                                                     {"stall consumer -> offload core_attn", 2}});
}

TEST_CASE("passes are slices, one above the other where they overlap") {
  auto step = small_step();
  step.passes = {{false, 0, 0, 0, 20}, {false, 1, 2, 15, 30}, {true, 0, 0, 30, 60}};
  const auto all = written({step});
  const auto names = threads(all);
  CHECK(names.at(only(all, "forward 0").at("tid")) == "passes");
  CHECK(names.at(only(all, "forward 1").at("tid")) == "passes");
  CHECK(only(all, "forward 1").at("tid") != only(all, "forward 0").at("tid"));
  CHECK(only(all, "backward 0").at("tid") == only(all, "forward 0").at("tid"));
  CHECK(only(all, "forward 1").at("args").at("microbatch") == 1);
  CHECK(only(all, "forward 1").at("args").at("chunk") == 2);
  CHECK(only(all, "backward 0").at("dur").get<double>() == doctest::Approx(30));
}

TEST_CASE("a timeline says which device and which version it is of") {
  auto step = small_step();
  step.device = "a \"device\"";
  std::ostringstream out;
  tidepool::trace::write_chrome_trace(out, step);
  const auto about = json::parse(out.str()).at("metadata");
  CHECK(about.at("device") == "a \"device\"");
  const tidepool::version now;
  CHECK(about.at("tidepool") == std::to_string(now.major) + "." + std::to_string(now.minor) + "." +
                                    std::to_string(now.patch));
}

TEST_CASE("device bytes are a counter") {
  const auto levels = events(written({small_step()}), "C");
  REQUIRE(levels.size() == 3);
  CHECK(levels[1].at("ts").get<double>() == doctest::Approx(10.5));
  CHECK(levels[1].at("args").at("bytes") == 5'000'000'000);

  auto step = small_step();
  step.device_bytes_without = {{0, 9}, {2, 8}};
  step.budget = 77;
  step.device_bytes_of = {{"core_attn", {{0, 1}, {5, 2}}}, {"", {{0, 3}}}};
  std::map<std::string, std::size_t> names;
  for (const auto& level : events(written({step}), "C")) ++names[level.at("name")];
  CHECK(names == std::map<std::string, std::size_t>{{"saved tensors on the device", 3},
                                                    {"saved tensors without offload", 2},
                                                    {"on the device: core_attn", 2},
                                                    {"on the device: saved by none", 1},
                                                    {"device budget", 1}});
}

TEST_CASE("several steps follow one another on the same lanes") {
  auto second = small_step();
  second.title.clear();
  second.lanes = {"compute 0", "offload", "compute 0"};  // another order, and a name twice
  second.spans = {{span_kind::compute, 0, "a", -1, -1, 0, 1, 2},
                  {span_kind::compute, 2, "b", -1, -1, 0, 1, 2}};
  const auto all = written({small_step(), second});
  const auto names = threads(all);
  CHECK(names.size() == 5);
  CHECK(only(all, "step 1").at("ts").get<double>() == doctest::Approx(61));
  CHECK(only(all, "a").at("ts").get<double>() == doctest::Approx(62));
  CHECK(only(all, "a").at("tid") == only(all, "forward").at("tid"));
  CHECK(only(all, "b").at("tid") != only(all, "a").at("tid"));
  CHECK(names.at(only(all, "b").at("tid")) == "compute 0");
}

TEST_CASE("an empty record and no record make a loadable timeline") {
  CHECK(events(written({record{}}), "i").size() == 1);  // the step itself, of no length
  CHECK(events(written({}), "X").empty());
}

TEST_CASE("names with quotes, control characters and broken UTF-8 load") {
  record step;
  step.title = "\"\\\n\t\x01";
  step.lanes = {"a\"b\\c", "\xff\xc3"};
  step.spans = {{span_kind::offload, 0, "\x7f</script>\"\\", 0, 0, 1, 0, 1}};
  const auto all = written({step});
  const auto names = threads(all);
  CHECK(names.at(1) == "a\"b\\c");
  CHECK(names.at(2) == "\xef\xbf\xbd\xef\xbf\xbd");
  only(all, "\"\\\n\t\x01");
  only(all, "offload \x7f</script>\"\\");
}

TEST_CASE("spans without a place in time are left out, and all numbers are finite") {
  const double inf = std::numeric_limits<double>::infinity();
  record step;
  step.lanes = {"lane"};
  step.spans = {{span_kind::compute, 0, "nan", 0, 0, 0, std::nan(""), 1},
                {span_kind::compute, 0, "inf", 0, 0, 0, 0, inf},
                {span_kind::compute, 0, "huge", 0, 0, 0, 0, 1e300},
                {span_kind::compute, 0, "backwards", 0, 0, 0, 2, 1},
                {span_kind::compute, 1, "no lane", 0, 0, 0, 0, 1},
                {span_kind::offload, 0, "at once", 0, 0, 100, 1, 1}};
  step.device_bytes = {{std::nan(""), 1}, {inf, 1}, {3, 1}};
  const auto all = written({step});
  CHECK(events(all, "X").size() == 1);
  const auto instants = events(all, "i");
  REQUIRE(instants.size() == 1);
  CHECK(instants[0].at("name") == "offload at once");
  CHECK(instants[0].at("args").count("GB/s") == 0);
  CHECK(events(all, "C").size() == 1);
}

TEST_CASE("neighbours never overlap by rounding") {
  record step;
  step.lanes = {"lane"};
  double time = 0;
  for (int i = 0; i < 1000; ++i) {
    const double next = time + 0.0004 + 0.1 * (i % 7);
    step.spans.push_back({span_kind::compute, 0, "k", i, 0, 0, time, next});
    time = next;
  }
  const auto in_nanoseconds = [](const json& value) {
    return std::llround(value.get<double>() * 1000);
  };
  long long end = 0;
  for (const auto& event : events(written({step}), "X")) {
    if (event.at("name") != "k") continue;
    CHECK(in_nanoseconds(event.at("ts")) == end);
    end = in_nanoseconds(event.at("ts")) + in_nanoseconds(event.at("dur"));
  }
}

TEST_CASE("a timeline does not depend on the stream's locale and format") {
  std::ostringstream plain;
  tidepool::test::hostile_stream hostile;
  tidepool::trace::write_chrome_trace(plain, small_step());
  tidepool::trace::write_chrome_trace(hostile, small_step());
  CHECK(plain.str() == hostile.str());
  CHECK_FALSE(parsed(plain.str()).empty());
}
