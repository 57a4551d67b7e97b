// Profiles and plans to JSON and back, and what is said of files that are wrong.
#if __has_include(<nlohmann/json.hpp>)

#include "tidepool/plan/json.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <typeinfo>
#include <vector>

#include "sanitizers.hpp"
#include "tidepool/core/text.hpp"

namespace {

using namespace tidepool::plan;
using tidepool::module_id;

class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_(seed) {}

  std::size_t below(std::size_t end) { return engine_() % end; }
  bool half() { return below(2) == 0; }
  // Of every magnitude.
  std::size_t size() { return engine_() >> below(64); }
  std::size_t bytes() { return engine_() >> (12 + below(52)); }  // sums must fit as well
  int number() { return static_cast<int>(static_cast<std::uint32_t>(engine_())); }
  // Any bits, but not so large that a sum is infinite; denormal ones too.
  double time() {
    const auto bits = engine_();
    const auto exponent = bits >> 52 & 0x7ff;
    const auto small = below(8) == 0 ? 0 : exponent % 2000;
    return std::bit_cast<double>((bits & 0xfffffffffffff) | small << 52);
  }
  double rate() { return time() + 1e-300; }

 private:
  std::mt19937_64 engine_;
};

profile random_profile(dice& roll) {
  profile step;
  const std::vector<std::string> names{
      "core_attn", "expert_fc1", "a/b~c", "line\nfeed \"\\", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\x8a",
      "\x7f"};
  for (std::size_t n = 1 + roll.below(names.size()); n > 0; --n) {
    step.modules.push_back(names[n - 1]);
  }
  struct place {
    std::uint32_t chunk, group;
  };
  std::vector<place> groups;
  const auto chunks = static_cast<std::uint32_t>(roll.below(4));
  for (std::uint32_t c = 0; c < chunks; ++c) {
    chunk_profile chunk;
    chunk.model_chunk = roll.number();
    chunk.microbatch = roll.number();
    const auto count = static_cast<std::uint32_t>(roll.below(5));
    for (std::uint32_t g = 0; g < count; ++g) {
      chunk.groups.push_back({static_cast<module_id>(roll.below(step.modules.size())),
                              roll.number(), roll.bytes(), roll.half() ? roll.time() : 0});
      groups.push_back({c, g});
    }
    step.chunks.push_back(chunk);
    step.passes.push_back({c, false});
    if (roll.half()) step.passes.push_back({c, true});
  }
  std::vector<std::uint32_t> of_groups;
  std::vector<std::uint32_t> loose;
  for (std::size_t n = roll.below(6); n > 0; --n) {
    const auto index = static_cast<std::uint32_t>(step.storages.size());
    if (groups.empty() || roll.half()) {
      step.storages.push_back({roll.bytes(), none, none});
      loose.push_back(index);
    } else {
      const auto where = groups[roll.below(groups.size())];
      step.storages.push_back({roll.bytes(), where.chunk, where.group});
      of_groups.push_back(index);
    }
  }
  if (roll.below(4) != 0) {
    const auto add = [&](event_kind kind, std::uint32_t index, std::uint32_t chunk) {
      step.events.push_back({kind, index, chunk, roll.time()});
    };
    for (const auto each : loose) add(event_kind::allocate, each, 0);
    for (const auto each : of_groups) add(event_kind::allocate, each, 0);
    for (const auto each : groups) add(event_kind::commit, each.group, each.chunk);
    for (const auto each : loose) add(event_kind::release, each, 0);
    for (std::uint32_t c = 0; c < chunks; ++c) add(event_kind::end_forward, 0, c);
    for (const auto each : groups) add(event_kind::restore, each.group, each.chunk);
    for (const auto each : of_groups) add(event_kind::release, each, 0);
  }
  step.rest_us = roll.time();
  step.stream_ordered = roll.half();
  step.link = {roll.rate(), roll.rate(), roll.rate(), roll.time()};
  if (roll.half()) {
    step.peer_link = {roll.rate(), roll.rate(), roll.rate(), roll.time()};
    step.peer_shares_link = roll.half();
  }
  return step;
}

step_plan random_plan(dice& roll, const profile& step) {
  step_plan chosen;
  for (const auto& chunk : step.chunks) {
    auto& row = chosen.what.emplace_back();
    for (std::size_t g = 0; g < chunk.groups.size(); ++g) {
      row.push_back(static_cast<action>(roll.below(4)));
    }
  }
  chosen.device_budget = roll.size();
  chosen.reload_ahead = roll.size();
  chosen.reload_ahead_bytes = roll.size();
  chosen.expected = {roll.half(), roll.time(), -roll.time(), roll.time(), roll.size(), roll.size()};
  chosen.bound_us = roll.time();
  chosen.limited_by = static_cast<limit>(roll.below(4));
  if (roll.half()) chosen.peer_budget = roll.size();
  return chosen;
}

// A small step in which nearly everything occurs.
profile usual_profile() {
  profile step;
  step.modules = {"core_attn", "expert_fc1"};
  step.chunks = {{0, {{module_id{0}, 0, 4096, 2.5}, {module_id{1}, 0, 512, 0}}, 0},
                 {1, {{module_id{0}, 1, 4096, 2.5}}, 7}};
  step.passes = {{0, false}, {1, false}, {1, true}, {0, true}};
  step.storages = {{4096, 0, 0}, {512, 0, 1}, {4096, 1, 0}, {64, none, none}};
  step.events = {{event_kind::allocate, 0, 0, 1},    {event_kind::commit, 0, 0, 10},
                 {event_kind::allocate, 1, 0, 1},    {event_kind::commit, 1, 0, 11},
                 {event_kind::end_forward, 0, 0, 0}, {event_kind::allocate, 2, 0, 1},
                 {event_kind::commit, 0, 1, 12},     {event_kind::allocate, 3, 0, 1},
                 {event_kind::end_forward, 0, 1, 0}, {event_kind::restore, 0, 1, 0.25},
                 {event_kind::release, 2, 0, 24, 4}, {event_kind::restore, 1, 0, 0},
                 {event_kind::release, 1, 0, 22},    {event_kind::restore, 0, 0, 0},
                 {event_kind::release, 0, 0, 20},    {event_kind::release, 3, 0, 0}};
  step.rest_us = 5;
  step.rest_wait_us = 1;
  return step;
}

step_plan usual_plan() {
  step_plan chosen;
  chosen.what = {{action::offload, action::keep}, {action::recompute}};
  chosen.device_budget = 8192;
  chosen.expected = {true, 130.5, 2, 2.5, 8192, 4096};
  chosen.bound_us = 128;
  chosen.limited_by = limit::memory;
  return chosen;
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What `body` says when it throws exactly `Error`.
template <class Error>
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(typeid(error) == typeid(Error));
    return error.what();
  }
  return "nothing was refused";
}

std::string profile_refusal(const std::string& text) {
  return refusal<file_error>([&] { static_cast<void>(profile_from_json(text, "p.json")); });
}
std::string plan_refusal(const std::string& text) {
  return refusal<file_error>([&] { static_cast<void>(plan_from_json(text, "p.json")); });
}

struct edit {
  std::string from;
  std::string to;
  std::string place;
  std::string problem;
};

std::filesystem::path fresh_folder() {
  static int count = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    ("tidepool-json-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  std::filesystem::create_directories(path);
  return path;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    names.push_back(each.path().filename().string());
  }
  return names;
}

}  // namespace

TEST_CASE("json: what outlives its commit comes back from a file") {
  auto step = usual_profile();
  step.events.insert(step.events.begin() + 2, {event_kind::drop, 0, 0, 3, 2});
  CHECK(profile_from_json(to_json(step)) == step);
}

TEST_CASE("json: what two groups save comes back from a file, whichever was first") {
  for (const std::uint32_t first : {0U, 1U}) {
    CAPTURE(first);
    auto step = usual_profile();
    step.storages[0].group = first;
    step.shared = {{0, 0, 1 - first, 2}};
    step.events.insert(step.events.begin() + 12, {event_kind::drop, 0, 0, 3});
    step.events.insert(step.events.begin() + 4, {event_kind::drop, 0, 0, 3});
    CHECK(profile_from_json(to_json(step)) == step);
  }
}

TEST_CASE("json: random profiles come back equal, and to the bit") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    dice roll(seed);
    const auto step = random_profile(roll);
    const auto text = to_json(step);
    const auto again = profile_from_json(text);
    REQUIRE(again == step);
    REQUIRE(to_json(again) == text);
    for (std::size_t i = 0; i < step.events.size(); ++i) {
      REQUIRE(std::bit_cast<std::uint64_t>(again.events[i].compute_us) ==
              std::bit_cast<std::uint64_t>(step.events[i].compute_us));
    }
  }
}

TEST_CASE("json: random plans come back equal") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    dice roll(seed);
    const auto step = random_profile(roll);
    const auto chosen = random_plan(roll, step);
    const auto text = to_json(chosen, step);
    REQUIRE(plan_from_json(text) == chosen);
    REQUIRE(to_json(plan_from_json(text), step) == text);
  }
}

TEST_CASE("json: a file from before there were places says nothing of a neighbour") {
  const auto step = usual_profile();
  const auto text = to_json(step);
  CHECK(!has(text, "peer"));
  CHECK(!profile_from_json(text).peer_link);
  const auto plan = to_json(usual_plan(), step);
  CHECK(!has(plan, "peer"));
  CHECK(plan_from_json(plan).peer_budget == 0);
  auto with = usual_plan();
  with.what[0][0] = action::offload_to_peer;
  CHECK(has(to_json(with, step), "\"offload_to_peer\""));
}

TEST_CASE("json: the largest and the smallest") {
  auto chosen = usual_plan();
  chosen.device_budget = std::numeric_limits<std::size_t>::max();
  chosen.reload_ahead = (std::size_t{1} << 53) + 1;  // no double holds it
  chosen.expected.peak = (std::size_t{1} << 63) + 1;
  chosen.expected.step_us = std::numeric_limits<double>::max();
  chosen.expected.stall_us = std::numeric_limits<double>::denorm_min();
  chosen.expected.extra_us = 0.1 + 0.2;
  CHECK(plan_from_json(to_json(chosen, usual_profile())) == chosen);

  auto step = usual_profile();
  step.chunks[0].groups[0].bytes = std::numeric_limits<std::size_t>::max() / 2 - 512 - 4096;
  step.chunks[0].groups[0].layer = std::numeric_limits<int>::min();
  step.chunks[0].microbatch = std::numeric_limits<int>::max();
  step.rest_us = -0.0;
  step.rest_wait_us = 0;
  const auto again = profile_from_json(to_json(step));
  CHECK(again == step);
  CHECK(std::signbit(again.rest_us));
}

TEST_CASE("json: a row of text for each event, group, pass and storage") {
  const auto text = to_json(usual_profile());
  CHECK(text.starts_with("{\n \"tidepool_profile\": 1,\n \"modules\": [\"core_attn\", "));
  CHECK(has(text, "\n  [\"restore\", 0, 1, 0.25],\n"));
  CHECK(has(text, "\n  [\"backward\", 1],\n"));
  CHECK(has(text, "\n  {\"bytes\": 64}\n"));
  CHECK(has(text,
            "\n    {\"module\": \"expert_fc1\", \"layer\": 0, \"bytes\": 512, "
            "\"recompute_us\": 0.0}\n"));
  CHECK(text.ends_with("}\n"));
  CHECK(has(to_json(usual_plan(), usual_profile()),
            "\n    {\"module\": \"core_attn\", \"layer\": 1, \"microbatch\": 7, "
            "\"action\": \"recompute\"}\n"));
}

TEST_CASE("json: what has a default may be left out") {
  const auto step = profile_from_json(
      R"({"tidepool_profile": 1, "modules": ["x"], "chunks": [{"groups": [{"module": "x", "bytes": 3}]}],
          "events": [["commit", 0, 0, 2]]})");
  profile expected;
  expected.modules = {"x"};
  expected.chunks = {{0, {{module_id{0}, -1, 3, 0}}, 0}};
  expected.events = {{event_kind::commit, 0, 0, 2}};
  CHECK(step == expected);
  CHECK(profile_from_json("\xef\xbb\xbf{\"tidepool_profile\": 1}") == profile{});
  step_plan chosen;
  chosen.what = {{action::keep}};
  CHECK(plan_from_json(R"({"tidepool_plan": 1, "groups_per_chunk": [1],
                           "chunks": [{"groups": [{"action": "keep"}]}]})") == chosen);
}

TEST_CASE("json: text that is no JSON is refused with line and column") {
  CHECK(has(profile_refusal("{\"tidepool_profile\": 1,\n \"modules\": [}"),
            "tidepool: profile 'p.json' at line 2, column 14: this is no JSON: "));
  CHECK(has(profile_refusal("{\n\n\"\xc3\xa9\xc3\xa9\": nope}"), "line 3, column 8"));
  CHECK(has(profile_refusal("{\"rest_us\": 1e999}"), "line 1, column 17"));
  CHECK(has(profile_refusal("{} {}"), "line 1, column 4"));
  CHECK(has(profile_refusal("{"), "line 1, column 2"));
  CHECK(has(profile_refusal("{\"\xff\": 1}"), "line 1, column 3"));
  CHECK(has(plan_refusal("[1,\n2,\nNaN]"), "tidepool: plan 'p.json' at line 3, column 1"));
  for (const char* const text : {"", " \n\t\n"}) {
    CHECK(has(profile_refusal(text), "tidepool: profile 'p.json': it is empty"));
    CHECK(has(plan_refusal(text), "tidepool: plan 'p.json': it is empty"));
  }
}

TEST_CASE("json: a bad value is refused with its place, what was found and what was expected") {
  const auto good = to_json(usual_profile());
  const std::string any_size = ", expected a whole number from 0 to 18446744073709551615";
  const std::string any_index = ", expected a whole number from 0 to 4294967295";
  const std::vector<edit> edits{
      {"512, \"rec", "-4, \"rec", "/chunks/0/groups/1/bytes", "found -4" + any_size},
      {"512, \"rec", "0.5, \"rec", "/chunks/0/groups/1/bytes", "found 0.5" + any_size},
      {"512, \"rec", "512.0, \"rec", "/chunks/0/groups/1/bytes", "found 512.0" + any_size},
      {"512, \"rec", "18446744073709551616, \"rec", "/chunks/0/groups/1/bytes", any_size},
      {"512, \"rec", "\"512\", \"rec", "/chunks/0/groups/1/bytes", "found \"512\"" + any_size},
      {"512, \"rec", "null, \"rec", "/chunks/0/groups/1/bytes", "found null" + any_size},
      {"\"layer\": 1", "\"layer\": 2147483648", "/chunks/1/groups/0/layer",
       "found 2147483648, expected a whole number from -2147483648 to 2147483647"},
      {"\"layer\": 1", "\"layer\": -2147483649", "/chunks/1/groups/0/layer", "found -2147483649"},
      {"\"microbatch\": 7", "\"microbatch\": true", "/chunks/1/microbatch", "found true"},
      {"\"recompute_us\": 2.5", "\"recompute_us\": []", "/chunks/0/groups/0/recompute_us",
       "found an array, expected a number"},
      {"\"module\": \"exp", "\"module\": \"Exp", "/chunks/0/groups/1/module",
       "'Expert_fc1' is not one of the modules"},
      {"\"module\": \"core_attn\"", "\"module\": {}", "/chunks/0/groups/0/module",
       "found an object, expected a string"},
      {"[\"core_attn\"", "[7", "/modules/0", "found 7, expected a string"},
      {"[\"restore\", 0, 1", "[\"restor\", 0, 1", "/events/9/0",
       "found \"restor\", expected one of allocate, commit, end_forward, restore, release, "
       "drop, synchronise; did you "
       "mean 'restore'?"},
      {"[\"restore\", 0, 1", "[3, 0, 1", "/events/9/0", "found 3, expected one of"},
      {"[\"restore\", 0, 1", "[\"restore\", 4294967296, 1", "/events/9/1", any_index},
      {"[\"restore\", 0, 1", "[\"restore\", 0, -1", "/events/9/2", "found -1" + any_index},
      {"0.25]", "\"x\"]", "/events/9/3", "found \"x\", expected a number"},
      {"0.25]", "0.25, 0, 1]", "/events/9", "found 6 parts; give [kind, index, chunk, compute_us]"},
      {"0.25]", "0.25, 1]", "/events/9", "it waits 1 us for other ranks"},
      {"24.0, 4.0]", "24.0, []]", "/events/10/4", "found an array, expected a number"},
      {"[\"allocate\", 0, 0, 1.0]", "{}", "/events/0", "found an object, expected an array"},
      {"[\"backward\", 1]", "[\"back\", 1]", "/passes/2/0", "expected one of forward, backward"},
      {"[\"backward\", 1]", "[\"backward\"]", "/passes/2", "found 1 parts"},
      {"[\"backward\", 1]", "[\"backward\", 1.5]", "/passes/2/1", "found 1.5" + any_size},
      {"\"group\": 1}", "\"group\": 4294967295}", "/storages/1/group",
       "expected a whole number from 0 to 4294967294"},
      {"\"chunk\": 0, \"group\": 1}", "\"chunk\": 0}", "/storages/1",
       "chunk and group must both be there"},
      {"\"chunk\": 0, \"group\": 1}", "\"group\": 1}", "/storages/1",
       "chunk and group must both be there"},
      {"\"bytes\": 64", "\"bytes\": 64e0", "/storages/3/bytes", "found 64.0" + any_size},
      {"\"rest_us\": 5.0", "\"rest_us\": null", "/rest_us", "found null, expected a number"},
      {"\"shapes_vary\": false", "\"shapes_vary\": 1", "/shapes_vary", "found 1, expected"},
      {"\"in\": 55.2", "\"in\": false", "/link/in", "found false, expected a number"},
      {"{\"out\"", "[{\"out\"", "line 55", "this is no JSON"},
      {"\"tidepool_profile\": 1", "\"tidepool_profile\": 1.0", "/tidepool_profile", "found 1.0"},
  };
  for (const auto& each : edits) {
    CAPTURE(each.to);
    const auto said = profile_refusal(changed(good, each.from, each.to));
    CHECK_MESSAGE(has(said, "tidepool: profile 'p.json' at " + each.place), said);
    CHECK_MESSAGE(has(said, each.problem), said);
  }

  const auto plan = to_json(usual_plan(), usual_profile());
  const std::vector<edit> plan_edits{
      {"\"keep\"", "\"keeps\"", "/chunks/0/groups/1/action",
       "found \"keeps\", expected one of keep, offload, recompute, offload_to_peer; did you mean "
       "'keep'?"},
      {"\"keep\"", "1", "/chunks/0/groups/1/action", "found 1, expected one of"},
      {", \"action\": \"keep\"", "", "/chunks/0/groups/1", "the key 'action' is missing"},
      {"budget\": 8192", "budget\": -1", "/device_budget", "found -1" + any_size},
      {"\"reload_ahead\": 2", "\"reload_ahead\": 2.0", "/reload_ahead", "found 2.0" + any_size},
      {"\"runs\": true", "\"runs\": 1", "/expected/runs", "found 1, expected true or false"},
      {"\"moved\": 4096", "\"moved\": {}", "/expected/moved", "found an object"},
      {"\"memory\"", "\"disk\"", "/limited_by", "expected one of nothing, compute, link, memory"},
      {"[2, 1]", "[2, 1, 1]", "/chunks", "found 2 chunks, expected 3 as in groups_per_chunk"},
      {"[2, 1]", "[2, 2]", "/chunks/1/groups", "found 1 groups, expected 2 as in groups_per_chunk"},
      {"[2, 1]", "[2, \"1\"]", "/groups_per_chunk/1", "found \"1\"" + any_size},
      {" \"groups_per_chunk\": [2, 1],", "", "its top level",
       "the key 'groups_per_chunk' is missing"},
  };
  for (const auto& each : plan_edits) {
    CAPTURE(each.to);
    const auto said = plan_refusal(changed(plan, each.from, each.to));
    CHECK_MESSAGE(has(said, "tidepool: plan 'p.json' at " + each.place + ": "), said);
    CHECK_MESSAGE(has(said, each.problem), said);
  }
}

TEST_CASE("json: unknown, missing and repeated keys are refused by name") {
  const auto good = to_json(usual_profile());
  const std::vector<edit> edits{
      {"\"rest_us\"", "\"rest\"", "its top level", "no key 'rest' here; did you mean 'rest_us'?"},
      {"\"rest_us\"", "\"zzzzzzzz\"", "its top level", "here; the keys are tidepool_profile, "},
      {"\"microbatch\": 7", "\"micro_batch\": 7", "/chunks/1", "did you mean 'microbatch'?"},
      {"\"layer\": 1", "\"later\": 1", "/chunks/1/groups/0", "did you mean 'layer'?"},
      {"\"bytes\": 64", "\"byte\": 64", "/storages/3", "did you mean 'bytes'?"},
      {"\"latency_us\"", "\"latency\"", "/link", "did you mean 'latency_us'?"},
      {"\"bytes\": 512, ", "", "/chunks/0/groups/1", "the key 'bytes' is missing"},
      {"\"bytes\": 64", "", "/storages/3", "the key 'bytes' is missing"},
      {"\"module\": \"expert_fc1\", ", "", "/chunks/0/groups/1", "the key 'module' is missing"},
      {"\"layer\": 1", "\"layer\": 1, \"layer\": 1", "/chunks/1/groups/0",
       "the key 'layer' stands twice"},
      {"\"rest_us\"", "\"a/b~\": {\"x\": 1, \"x\": 2}, \"rest_us\"", "/a~1b~0",
       "the key 'x' stands twice"},
  };
  for (const auto& each : edits) {
    CAPTURE(each.to);
    const auto said = profile_refusal(changed(good, each.from, each.to));
    CHECK_MESSAGE(has(said, "tidepool: profile 'p.json' at " + each.place + ": "), said);
    CHECK_MESSAGE(has(said, each.problem), said);
  }
  const auto plan = to_json(usual_plan(), usual_profile());
  CHECK(has(plan_refusal(changed(plan, "\"bound_us\"", "\"bound\"")), "did you mean 'bound_us'?"));
  CHECK(has(plan_refusal(changed(plan, "\"peak\"", "\"peek\"")), "at /expected: "));
  CHECK(has(plan_refusal(changed(plan, "\"module\"", "\"modul\"")), "at /chunks/0/groups/0: "));
}

TEST_CASE("json: another version, another kind of file") {
  const auto good = to_json(usual_profile());
  const auto plan = to_json(usual_plan(), usual_profile());
  const std::string says = ": it is of version 2; this build reads version 1; ";
  CHECK(has(profile_refusal(changed(good, "profile\": 1", "profile\": 2")),
            "at /tidepool_profile" + says));
  CHECK(has(plan_refusal(changed(plan, "plan\": 1", "plan\": 2")), "at /tidepool_plan" + says));
  // A later version may have other keys; that is not what should be complained of.
  CHECK(has(profile_refusal("{\"tidepool_profile\": 2, \"new\": 1}"), says));
  CHECK(has(profile_refusal(plan), "'tidepool_profile' is missing; this is a plan"));
  CHECK(has(plan_refusal(good), "'tidepool_plan' is missing; this is a profile"));
  for (const char* const text : {"[]", "{}", "1", "null", "\"x\""}) {
    CHECK(has(profile_refusal(text), "its top level: the key 'tidepool_profile' is missing"));
  }
}

TEST_CASE("json: too deep, too many keys, too large") {
  const std::string begin = "{\"tidepool_profile\": 1, \"modules\": ";
  CHECK(has(profile_refusal(begin + std::string(15, '[') + std::string(15, ']') + "}"),
            "at /modules/0: found an array"));
  CHECK(has(profile_refusal(begin + std::string(16, '[') + std::string(16, ']') + "}"),
            "at /modules/0/0/0/0/0/0/0/0/0/0/0/0/0/0: it is nested more than 16 deep"));
  CHECK(has(profile_refusal(std::string(1'000'000, '[')), "more than 16 deep"));
  std::string keys = "{";
  for (int i = 0; i < 65; ++i) keys += "\"" + std::to_string(i) + "\": 0,";
  CHECK(has(profile_refusal(keys), "more than 64 keys in one object; take out '64'"));
  CHECK(
      has(profile_refusal(std::string((std::size_t{256} << 20) + 1, ' ')), "larger than 256 MiB"));
}

TEST_CASE("json: texts and arrays that are too long") {
  const std::string begin = "{\"tidepool_profile\": 1, \"modules\": [\"";
  CHECK_NOTHROW(static_cast<void>(
      tidepool::plan::profile_from_json(begin + std::string(4096, 'a') + "\"]}")));
  CHECK(has(profile_refusal(begin + std::string(4097, 'a') + "\"]}"),
            "a text has 4097 bytes; give 4096 or fewer"));
  CHECK(has(profile_refusal("{\"" + std::string(4097, 'a') + "\": 1}"), "a text has 4097 bytes"));
  std::string many = "{\"tidepool_profile\": 1, \"modules\": [0";
  constexpr std::size_t most = std::size_t{1} << 22;
  many.reserve(many.size() + 2 * most);
  for (std::size_t i = 0; i < most; ++i) many += ",0";
  CHECK(has(profile_refusal(many), "more than 4194304 parts in one array"));
}

TEST_CASE("json: profiles that contradict themselves are refused with the place") {
  using change = std::function<void(profile&)>;
  struct fault {
    change make;
    std::string place;
    std::string problem;
    bool in_file = true;  // whether a file can say it
  };
  constexpr auto infinite = std::numeric_limits<double>::infinity();
  constexpr auto no_number = std::numeric_limits<double>::quiet_NaN();
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  const auto at = [](std::size_t i, event_kind kind, std::uint32_t index, std::uint32_t chunk) {
    return [=](profile& p) {
      p.events[i].kind = kind, p.events[i].index = index, p.events[i].chunk = chunk;
    };
  };
  using enum event_kind;
  const std::vector<fault> faults{
      {[](auto& p) { p.modules[1] = ""; }, "/modules/1", "the name is empty"},
      {[](auto& p) { p.modules[1] = "core_attn"; }, "/modules/1", "'core_attn' stands twice"},
      {[](auto& p) { p.modules[1] = "\xc3"; }, "/modules/1", "the name is not UTF-8", false},
      {[](auto& p) {
         for (int i = 2; i < 65; ++i) p.modules.push_back(std::to_string(i));
       },
       "/modules", "there are 65 names"},
      {[](auto& p) { p.modules.pop_back(); }, "/chunks/0/groups/1/module",
       "module 1 has no name: there are 1", false},
      {[](auto& p) { p.chunks[1].groups[0].recompute_us = -1; }, "/chunks/1/groups/0",
       "recompute_us is -1"},
      {[](auto& p) { p.chunks[1].groups[0].recompute_us = no_number; }, "/chunks/1/groups/0",
       "recompute_us is nan", false},
      {[](auto& p) { p.chunks[1].groups[0].bytes = most; }, "/chunks/1/groups/0/bytes",
       "the bytes add up to more than 9223372036854775807"},
      {[](auto& p) { p.chunks[0].groups[1].bytes = p.chunks[1].groups[0].bytes = most / 2 - 4096; },
       "/chunks/1/groups/0/bytes", "the bytes add up to more"},
      {[](auto& p) { p.passes[2].chunk = 2; }, "/passes/2", "there is no chunk 2, only 2"},
      {[](auto& p) { p.passes[2].chunk = most; }, "/passes/2", "there is no chunk 1844"},
      {[](auto& p) { p.passes[3].chunk = 1; }, "/passes/3", "chunk 1 has a second backward pass"},
      {[](auto& p) { p.passes[1].chunk = 0; }, "/passes/1", "chunk 0 has a second forward pass"},
      {[](auto& p) { p.passes[0].backward = true; }, "/passes/0",
       "chunk 0 goes backward before forward"},
      {[](auto& p) { p.storages[3].bytes = most - 100; }, "/storages/3/bytes", "add up to more"},
      {[](auto& p) { p.storages[1].chunk = 2; }, "/storages/1", "there is no chunk 2, only 2"},
      {[](auto& p) { p.storages[1].group = 2; }, "/storages/1",
       "there is no group 2 in chunk 0, only 2"},
      {[](auto& p) { p.storages[1].group = none; }, "/storages/1",
       "chunk and group must both be there", false},
      {[](auto& p) { p.storages[1].chunk = none; }, "/storages/1",
       "chunk and group must both be there", false},
      {[](auto& p) {
         p.shared = {{4, 0, 1}};
       },
       "/shared/0", "there is no storage 4, only 4"},
      {[](auto& p) {
         p.shared = {{0, 2, 0}};
       },
       "/shared/0", "there is no chunk 2, only 2"},
      {[](auto& p) {
         p.shared = {{0, 0, 2}};
       },
       "/shared/0", "there is no group 2 in chunk 0"},
      {[](auto& p) {
         p.shared = {{0, 0, 0}};
       },
       "/shared/0", "group 0 of chunk 0 is no second group that saves storage 0"},
      {[](auto& p) {
         p.shared = {{0, 0, 1}, {0, 0, 1}};
       },
       "/shared/1", "no second group"},
      {[](auto& p) {
         p.shared = {{3, 0, 1}};
       },
       "/shared/0", "no second group"},
      {[](auto& p) {
         p.shared = {{1, 0, 0}};
       },
       "/events/1", "group 0 of chunk 0 is committed before all its storages are allocated"},
      {[&](auto& p) {
         p.storages[0].group = 1, p.shared = {{0, 0, 0}};
         at(12, release, 0, 0)(p);
       },
       "/events/12", "storage 0 is released before its group is restored"},
      {[](auto& p) { p.link.out = 0; }, "/link/out", "the rate is 0"},
      {[](auto& p) { p.link.in = -5; }, "/link/in", "the rate is -5"},
      {[](auto& p) { p.link.both = infinite; }, "/link/both", "the rate is inf", false},
      {[](auto& p) { p.link.out = no_number; }, "/link/out", "the rate is nan", false},
      {[](auto& p) { p.link.latency_us = -1; }, "/link/latency_us", "the latency is -1"},
      {[](auto& p) {
         p.peer_link = {0, 1, 1, 1};
       },
       "/peer_link/out", "the rate is 0"},
      {[](auto& p) { p.rest_us = -0.5; }, "/rest_us", "the rest is -0.5"},
      {[](auto& p) { p.rest_us = infinite; }, "/rest_us", "the rest is inf", false},
      {[](auto& p) { p.rest_wait_us = p.rest_us + 1; }, "/rest_wait_us", "it waits 6 us"},
      {[](auto& p) { p.events[4].wait_us = 1e-9; }, "/events/4", "it waits 1e-09 us"},
      {[](auto& p) { p.events[1].wait_us = -1; }, "/events/1", "the wait for other ranks is -1",
       false},
      {[](auto& p) { p.events[4].compute_us = -3; }, "/events/4", "compute_us is -3"},
      {[](auto& p) { p.events[4].compute_us = no_number; }, "/events/4", "compute_us is nan",
       false},
      {[](auto& p) { p.events[4].compute_us = p.events[5].compute_us = 1e308; }, "/events",
       "the computing of all is inf"},
      {at(0, allocate, 4, 0), "/events/0", "there is no storage 4, only 4"},
      {at(0, release, 4, 0), "/events/0", "there is no storage 4, only 4"},
      {at(0, allocate, 0, 1), "/events/0", "storage 0 has a chunk, 1, in its event"},
      {at(7, allocate, 2, 0), "/events/7", "storage 2 is allocated twice"},
      {at(7, release, 3, 0), "/events/7", "storage 3 is released before it is allocated"},
      {at(15, release, 0, 0), "/events/15", "storage 0 is released twice"},
      {at(10, release, 0, 0), "/events/10", "storage 0 is released before its group is restored"},
      {at(0, drop, 0, 0), "/events/0", "storage 0 is dropped before it is allocated"},
      {at(1, drop, 0, 0), "/events/1", "storage 0 is dropped, but its group does not hold it"},
      {at(14, drop, 0, 0), "/events/14", "storage 0 is dropped, but its group"},
      {at(8, drop, 3, 0), "/events/8", "storage 3 is dropped, but its group"},
      {at(1, commit, 2, 0), "/events/1", "there is no group 2 in chunk 0, only 2"},
      {at(1, commit, 0, 2), "/events/1", "there is no chunk 2, only 2"},
      {at(1, commit, 1, 0), "/events/1",
       "group 1 of chunk 0 is committed before all its storages are allocated"},
      {[](auto& p) { std::swap(p.events[6], p.events[8]); }, "/events/8",
       "group 0 of chunk 1 is committed after its chunk's forward pass"},
      {[](auto& p) { std::swap(p.events[3], p.events[13]); }, "/events/11",
       "group 1 of chunk 0 is restored before it is committed"},
      {at(3, commit, 0, 0), "/events/3", "group 0 of chunk 0 is committed twice"},
      {at(9, restore, 1, 1), "/events/9", "there is no group 1 in chunk 1, only 1"},
      {at(4, restore, 0, 1), "/events/4", "group 0 of chunk 1 is restored before it is committed"},
      {at(11, restore, 0, 1), "/events/11", "group 0 of chunk 1 is restored twice"},
      {at(4, end_forward, 0, 2), "/events/4", "there is no chunk 2, only 2"},
      {at(4, end_forward, 1, 0), "/events/4", "the end of a forward pass has the index 1"},
      {at(8, end_forward, 0, 0), "/events/8", "the forward pass of chunk 0 ends twice"},
      {at(8, synchronise, 1, 0), "/events/8", "the host's wait for the device has an index"},
      {at(8, static_cast<event_kind>(7), 0, 0), "/events/8", "this is no kind of event", false},
  };
  check(usual_profile());
  for (const auto& each : faults) {
    CAPTURE(each.problem);
    auto step = usual_profile();
    each.make(step);
    const auto said = refusal<profile_error>([&] { check(step); });
    CHECK_MESSAGE(has(said, "tidepool: profile at " + each.place + ": "), said);
    CHECK_MESSAGE(has(said, each.problem), said);
    CHECK(refusal<profile_error>([&] { static_cast<void>(to_json(step)); }) == said);
    if (!each.in_file) continue;
    const auto text = detail::finished(detail::document_of(step));
    const auto read = profile_refusal(text);
    CHECK_MESSAGE(has(read, "tidepool: profile 'p.json' at " + each.place + ": "), read);
    CHECK_MESSAGE(has(read, each.problem), read);
  }
}

TEST_CASE("json: a plan is written for its own profile only") {
  const auto step = usual_profile();
  const auto says = [&](const step_plan& chosen) {
    return refusal<profile_error>([&] { static_cast<void>(to_json(chosen, step)); });
  };
  auto chosen = usual_plan();
  chosen.what.pop_back();
  CHECK(
      has(says(chosen), "tidepool: plan at /chunks: found 1 chunks, expected 2 as in the profile"));
  chosen = usual_plan();
  chosen.what[1].push_back(action::keep);
  CHECK(has(says(chosen), "plan at /chunks/1/groups: found 2 groups, expected 1"));
  const std::vector<std::pair<double*, std::string>> times{
      {&chosen.expected.step_us, "/expected/step_us"},
      {&chosen.expected.stall_us, "/expected/stall_us"},
      {&chosen.expected.extra_us, "/expected/extra_us"},
      {&chosen.bound_us, "/bound_us"}};
  for (const auto& [time, place] : times) {
    chosen = usual_plan();
    *time = std::numeric_limits<double>::infinity();
    CHECK(has(says(chosen), "plan at " + place + ": the time is inf"));
  }
}

TEST_CASE("json: a file cut anywhere is refused, or equal") {
  const auto step = usual_profile();
  const auto text = to_json(step);
  const auto plan = to_json(usual_plan(), step);
  std::size_t read = 0;
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    try {
      const auto cut = profile_from_json(text.substr(0, size));
      REQUIRE(cut == step);
      ++read;
    } catch (const file_error&) {
    }
  }
  CHECK(read == 1);  // without the line feed at its end
  for (std::size_t size = 0; size < plan.size(); ++size) {
    CAPTURE(size);
    try {
      const auto cut = plan_from_json(plan.substr(0, size));
      REQUIRE(cut == usual_plan());
      ++read;
    } catch (const file_error&) {
    }
  }
  CHECK(read == 2);
}

TEST_CASE("json: a file with one wrong byte is refused, or a sound object") {
  const auto step = usual_profile();
  const auto text = to_json(step);
  const auto plan = to_json(usual_plan(), step);
  dice roll(1);
  const auto each_flip = [&](const std::string& good, const auto& read) {
    for (std::size_t i = 0; i < good.size(); i += tidepool::test::thinned_if_short) {
      for (const auto mask : {std::size_t{1}, std::size_t{2}, std::size_t{0x10}, std::size_t{0x20},
                              std::size_t{0x80}, 1 + roll.below(255)}) {
        auto bad = good;
        bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ mask);
        CAPTURE(i);
        CAPTURE(mask);
        try {
          read(bad);
        } catch (const file_error& refused) {
          REQUIRE(typeid(refused) == typeid(file_error));
        }
      }
    }
  };
  std::size_t sound = 0;
  each_flip(text, [&](const std::string& bad) {
    const auto other = profile_from_json(bad);
    check(other);
    const auto again = profile_from_json(to_json(other));
    REQUIRE(again == other);
    ++sound;
  });
  CHECK(sound > 100 / tidepool::test::thinned_if_short);  // another digit, another name
  each_flip(plan, [&](const std::string& bad) {
    const auto other = plan_from_json(bad);
    const auto again = plan_from_json(to_json(other, step));
    REQUIRE(again == other);
  });
}

TEST_CASE("json: files are saved, replaced and loaded") {
  const auto folder = fresh_folder();
  const auto path = (folder / "step.json").string();
  auto step = usual_profile();
  save(step, path);
  CHECK(load_profile(path) == step);
  step.rest_us = 6;
  save(step, path);
  CHECK(load_profile(path) == step);
  const auto plan_path = (folder / "plan.json").string();
  save(usual_plan(), step, plan_path);
  CHECK(load_plan(plan_path) == usual_plan());
  CHECK(names_in(folder).size() == 2);  // nothing is left beside them

  // Larger than the pieces in which a file is read.
  for (std::uint32_t i = 0; i < 5000; ++i) {
    step.storages.push_back({i, none, none});
    step.events.push_back({event_kind::allocate, i + 4, 0, 0.1 * i});
  }
  save(step, path);
  CHECK(std::filesystem::file_size(path) > (1U << 16) * 3);
  CHECK(load_profile(path) == step);

  // A refused save leaves what was there.
  auto bad = step;
  bad.rest_us = -1;
  CHECK_THROWS_AS(save(bad, path), profile_error);
  CHECK(load_profile(path) == step);
  std::filesystem::remove_all(folder);
}

TEST_CASE("json: files that cannot be read or written") {
  const auto folder = fresh_folder();
  const auto path = folder.string();
  const auto missing = path + "/missing.json";
  const auto load = [](const std::string& name) {
    return refusal<file_error>([&] { static_cast<void>(load_profile(name)); });
  };
  CHECK(has(load(missing), "it cannot be read: No such file or directory; give "));
  CHECK(has(load(path), "it cannot be read: Is a directory"));
  CHECK(
      has(refusal<file_error>([&] { static_cast<void>(load_plan(missing)); }), "tidepool: plan '"));
  std::ofstream(path + "/empty.json").close();
  CHECK(has(load(path + "/empty.json"), "it is empty"));
  CHECK(has(load(path + "/empty.json"), tidepool::detail::text::in_quotes(path + "/empty.json")));

  const auto store = [&](const std::string& name) {
    return refusal<file_error>([&] { save(usual_profile(), name); });
  };
  CHECK(
      has(store(path + "/none/x.json"), "it cannot be written: No such file or directory; give "));
  // The new name is taken by a folder: what was written beside it goes again.
  std::filesystem::create_directories(folder / "taken" / "inside");
  CHECK(has(store(path + "/taken"), "it cannot be written: "));
  CHECK(names_in(folder).size() == 2);
  std::filesystem::remove_all(folder);
}

#endif
