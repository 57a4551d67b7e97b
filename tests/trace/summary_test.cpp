#include "tidepool/trace/summary.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "hostile_stream.hpp"

namespace {

using tidepool::trace::counters;
using tidepool::trace::module_counters;
using tidepool::trace::rank_counters;

constexpr std::size_t mib = std::size_t{1} << 20;

module_counters module(const std::string& name, bool enabled = true) {
  module_counters result;
  result.name = name;
  result.enabled = enabled;
  return result;
}

counters two_modules() {
  counters totals;
  totals.steps = 12;
  auto attention = module("core_attn");
  attention.groups = 96;
  attention.groups_offloaded = 84;
  attention.groups_resident = 12;
  attention.tensors_offloaded = 168;
  attention.tensors_shared = 3;
  attention.tensors_small = 4;
  attention.bytes_offloaded = 1200 * mib;
  attention.bytes_reloaded = 1199 * mib;
  attention.cap_joins = 7;
  attention.step_bytes = 100 * mib;
  auto experts = attention;
  experts.name = "expert_fc1";
  experts.bytes_offloaded = 3 * mib;
  totals.modules = {attention, module("moe_act", false), experts};
  totals.device_peak = 3072 * mib;
  totals.live_peak_without = 4096 * mib;
  totals.host_reserved = 512 * mib;
  return totals;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string line_with(const std::string& text, std::string_view start) {
  for (const auto& line : lines_of(text)) {
    if (line.starts_with(start)) return line;
  }
  FAIL("no line begins with ", start, " in\n", text);
  return {};
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

template <class Counters>
std::string summary_of(const Counters& totals) {
  std::ostringstream out;
  tidepool::trace::write_summary(out, totals);
  return out.str();
}

using words = std::vector<std::string>;

}  // namespace

TEST_CASE("a summary has a row for each module asked for, and a row of totals") {
  const auto text = summary_of(two_modules());
  CHECK(words_of(line_with(text, "core_attn")) ==
        words{"core_attn", "96", "84", "12", "168", "1200.0", "1199.0", "3", "4", "7", "100.0"});
  CHECK(words_of(line_with(text, "expert_fc1"))[5] == "3.0");
  CHECK(words_of(line_with(text, "total")) ==
        words{"total", "192", "168", "24", "336", "1203.0", "2398.0", "6", "8", "14", "200.0"});
  CHECK(text.find("moe_act") == std::string::npos);
  CHECK(text.starts_with("Tidepool, 12 steps\n"));
}

TEST_CASE("the columns of a summary end at the same place in all rows") {
  const auto text = summary_of(two_modules());
  const auto head = line_with(text, "module");
  for (const char* row : {"core_attn", "expert_fc1", "total"}) {
    const auto line = line_with(text, row);
    CHECK(line.size() == head.size());
    for (const char* name : {"groups", "offloaded", "resident", "tensors", "MiB out", "MiB in",
                             "shared", "small", "cap joins", "last step MiB"}) {
      const auto end = head.find(name) + std::string_view(name).size();
      CAPTURE(name);
      CHECK(line[end - 1] != ' ');
      CHECK((end == line.size() || line[end] == ' '));
    }
  }
}

TEST_CASE("a summary says what was saved") {
  const auto text = summary_of(two_modules());
  CHECK(words_of(line_with(text, "peak taken")) == words{"peak", "taken", "3.00", "GiB"});
  CHECK(words_of(line_with(text, "without offload")) == words{"without", "offload", "4.00", "GiB"});
  CHECK(words_of(line_with(text, "saved")) == words{"saved", "1.00", "GiB", "25.0%"});
  CHECK(words_of(line_with(text, "host reserved")) == words{"host", "reserved", "512", "MiB"});
  CHECK(text.find("arena waits") == std::string::npos);
  auto waited = two_modules();
  waited.arena_waits = 5;
  CHECK(words_of(line_with(summary_of(waited), "arena waits")) == words{"arena", "waits", "5"});
}

TEST_CASE("a few bytes do not look like none") {
  auto totals = two_modules();
  totals.modules[2].bytes_offloaded = 100;
  CHECK(words_of(line_with(summary_of(totals), "expert_fc1"))[5] == "<0.1");
  totals.modules.erase(totals.modules.begin());
  totals.modules[1].bytes_reloaded = mib / 4;
  const auto row = words_of(line_with(summary_of(totals), "expert_fc1"));
  CHECK(row[5] == "<0.001");
  CHECK(row[6] == "0.250");
}

TEST_CASE("a rank's summary carries its label; nothing asked for is said so") {
  std::ostringstream out;
  tidepool::trace::write_summary(out, two_modules(), "3 of 8");
  CHECK(out.str().starts_with("Tidepool, rank 3 of 8, 12 steps\n"));
  CHECK(summary_of(counters{}).find("No module was asked for.") != std::string::npos);
}

TEST_CASE("a summary does not depend on the stream's locale and format") {
  tidepool::test::hostile_stream hostile;
  tidepool::trace::write_summary(hostile, two_modules());
  CHECK(hostile.str() == summary_of(two_modules()));
}

TEST_CASE("several ranks make one table with a rank column") {
  auto other = two_modules();
  other.steps = 11;
  other.modules.erase(other.modules.begin());  // core_attn: this rank has none
  other.device_peak = 5000 * mib;              // more than without: saved nothing
  const std::vector<rank_counters> ranks{{"0", two_modules()}, {"1", other}};
  const auto text = summary_of(std::span<const rank_counters>(ranks));
  CHECK(text.starts_with("Tidepool, 2 ranks, 12 steps\n"));

  std::vector<words> rows;
  for (const auto& line : lines_of(text)) rows.push_back(words_of(line));
  const auto has = [&](const std::string& name, const std::string& rank) {
    return std::any_of(rows.begin(), rows.end(), [&](const words& row) {
      return row.size() == 12 && row[0] == name && row[1] == rank;
    });
  };
  CHECK(has("core_attn", "0"));
  CHECK_FALSE(has("core_attn", "1"));
  CHECK(has("expert_fc1", "0"));
  CHECK(has("expert_fc1", "1"));
  CHECK(words_of(line_with(text, "total"))[2] == "288");
  CHECK(words_of(line_with(text, "all")) ==
        words{"all", "7.88", "GiB", "8.00", "GiB", "1.00", "GiB", "12.5%", "1.00", "GiB"});
}

TEST_CASE("memory of other allocators is not saved, and memory taken from one counts once") {
  auto totals = two_modules();
  totals.borrowed_peak = 512 * mib;
  CHECK(words_of(line_with(summary_of(totals), "peak borrowed"))[2] == "512");
  CHECK(words_of(line_with(summary_of(totals), "saved"))[1] == "512");
  totals.takes_borrowed = true;
  totals.borrowed_peak = 3072 * mib;
  CHECK(line_with(summary_of(totals), "peak borrowed").ends_with("with what was taken"));
  CHECK(words_of(line_with(summary_of(totals), "saved"))[1] == "1.00");
}

TEST_CASE("merging adds up, takes the furthest step and joins modules by name") {
  auto first = two_modules();
  first.evictions = 1;
  first.arena_waits = 2;
  first.placed_elsewhere = 8;
  first.device_allocations = 3;
  first.host_allocations = 4;
  first.device_reserved = 5;
  first.live_peak = 6;
  first.host_peak = 7;
  first.borrowed_peak = 512 * mib;
  const std::vector<rank_counters> ranks{{"a", first}, {"b", first}};
  const auto sum = tidepool::trace::merge(ranks);
  CHECK(sum.steps == 12);
  CHECK(sum.evictions == 2);
  CHECK(sum.arena_waits == 4);
  CHECK(sum.placed_elsewhere == 16);
  CHECK(sum.device_allocations == 6);
  CHECK(sum.host_allocations == 8);
  CHECK(sum.device_reserved == 10);
  CHECK(sum.live_peak == 12);
  CHECK(sum.host_peak == 14);
  CHECK(sum.device_peak == 2 * first.device_peak);
  CHECK(sum.borrowed_peak == 1024 * mib);
  CHECK(sum.saved() == 2 * first.saved());
  CHECK(sum.live_peak_without == 2 * first.live_peak_without);
  CHECK(sum.host_reserved == 2 * first.host_reserved);
  REQUIRE(sum.modules.size() == 3);
  auto twice = first.modules[0];
  for (auto* number :
       {&twice.groups, &twice.groups_offloaded, &twice.groups_resident, &twice.tensors_offloaded,
        &twice.tensors_shared, &twice.tensors_small, &twice.bytes_offloaded, &twice.bytes_reloaded,
        &twice.cap_joins, &twice.step_bytes}) {
    *number *= 2;
  }
  CHECK(sum.modules[0] == twice);
  CHECK_FALSE(sum.modules[1].enabled);
}

TEST_CASE("a module that was asked for and moved no byte is silent, and its message says why") {
  counters totals;
  totals.steps = 1;
  auto absent = module("core_atn");
  auto resident = module("attn_proj");
  resident.groups = resident.groups_resident = 8;
  auto small = module("mlp_norm");
  small.groups = 8;
  small.tensors_small = 16;
  auto both = small;
  both.name = "attn_norm";
  both.groups_resident = 2;
  auto shared = module("qkv_linear");
  shared.groups = 8;
  shared.tensors_shared = 8;
  auto kept = module("expert_fc1");
  kept.groups = 8;
  auto moved = module("moe_act");
  moved.groups = moved.groups_offloaded = 8;
  moved.bytes_offloaded = 1;
  auto reloaded = shared;  // its tensors left under another name, and came back under this
  reloaded.name = "fused_group_mlp";
  reloaded.bytes_reloaded = 1;
  totals.modules = {
      absent, resident, small, both, shared, kept, moved, reloaded, module("own", false)};

  CHECK(tidepool::trace::silent_modules(totals) ==
        words{"core_atn", "attn_proj", "mlp_norm", "attn_norm", "qkv_linear", "expert_fc1"});

  const auto messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 6);
  const auto says = [&](std::size_t index, std::string_view text) {
    CAPTURE(messages[index]);
    CHECK(messages[index].find(text) != std::string::npos);
  };
  says(0, "module 'core_atn' was asked for and moved no byte in 1 step: ");
  says(0, "check the spelling");
  says(1, "all its 8 groups were kept on the device by --offload-layers");
  says(2, "16 tensors had fewer elements than --min-tensor-elements");
  CHECK(messages[2].find("--margin") == std::string::npos);
  says(3, "2 of its 8 groups were kept");
  says(3, "--min-tensor-elements");
  says(4, "8 tensors had been saved before");
  says(5, "keep_resident");

  const auto text = summary_of(totals);
  for (const auto& message : messages) CHECK(text.find(message) != std::string::npos);
}

TEST_CASE("a silent module whose tensors lie on another device is said to be there") {
  counters totals;
  totals.steps = 2;
  auto there = module("expert_fc1");
  there.tensors_elsewhere = 6;
  auto by_all = there;
  by_all.name = "moe_act";
  by_all.by_all = true;
  by_all.tensors_elsewhere = 1;
  auto partly = module("attn_proj");
  partly.groups = 4;
  partly.groups_resident = 1;
  partly.tensors_elsewhere = 3;
  totals.modules = {there, by_all, partly};
  const auto messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 3);
  CHECK(messages[0] ==
        "tidepool: module 'expert_fc1' was asked for and moved no byte in 2 steps: 6 tensors lie on"
        " another device than the offloader's; make the offloader for the device that the module"
        " runs on");
  CHECK(messages[1].find("1 tensor lies on another device") != std::string::npos);
  CHECK(messages[2].find("1 of its 4 groups were kept") != std::string::npos);
  CHECK(messages[2].find("in the others, 3 tensors lie on another") != std::string::npos);
  const std::vector<tidepool::trace::rank_counters> two{{"0", totals}, {"1", totals}};
  CHECK(tidepool::trace::merge(two).modules[0].tensors_elsewhere == 12);
}

TEST_CASE("a module that was asked for and never committed is named with the nearest name") {
  counters totals;
  totals.steps = 1;
  auto committed = module("expert_fc1");
  committed.groups = committed.bytes_offloaded = 8;
  totals.modules = {committed, module("expert_fc2"), module("moe_act"), module("moe_acts", false),
                    module("far")};
  const auto messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 3);
  CAPTURE(messages);
  CHECK(messages[0].starts_with("tidepool: module 'expert_fc2' was asked for"));
  CHECK(messages[0].ends_with(". The nearest name that has commits is 'expert_fc1'"));
  CHECK(messages[0].find("strict_modules") != std::string::npos);
  CHECK(messages[1].ends_with(". The nearest name that was not asked for is 'moe_acts'"));
  CHECK(messages[2].find("nearest") == std::string::npos);
  // One that was committed has another reason, and needs no other name.
  totals.modules[1].groups = totals.modules[1].groups_resident = 1;
  CHECK(tidepool::trace::silent_messages(totals)[0].find("nearest") == std::string::npos);
}

TEST_CASE("of modules that were asked for by all, those that the model has not are one line") {
  counters totals;
  totals.steps = 2;
  totals.modules = {module("core_attn"), module("moe_act"), module("mlp_norm"),
                    module("qkv_linear")};
  for (auto& each : totals.modules) each.by_all = true;
  totals.modules[0].groups = totals.modules[0].bytes_offloaded = 4;
  totals.modules[3].groups = totals.modules[3].groups_resident = 4;
  auto messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].find("module 'qkv_linear' was asked for") != std::string::npos);
  CHECK(messages[1] ==
        "tidepool: --offload-modules=all stands for 'moe_act', 'mlp_norm' too, and nothing was"
        " committed under those names in 2 steps; that is as it should be where the model has no"
        " such module");
  CHECK(summary_of(totals).find("spelling") == std::string::npos);
  // They have no row either.
  CHECK(summary_of(totals).find("\ncore_attn ") != std::string::npos);
  CHECK(summary_of(totals).find("\nqkv_linear ") != std::string::npos);
  CHECK(summary_of(totals).find("\nmoe_act ") == std::string::npos);
  counters nothing = totals;
  nothing.modules = {totals.modules[1]};
  CHECK(summary_of(nothing).find("No module of --offload-modules=all had a commit.") !=
        std::string::npos);
  // Asked for by its name on one rank, it is missed.
  auto named = totals;
  named.modules[1].by_all = false;
  const std::vector<rank_counters> ranks{{"0", totals}, {"1", named}};
  messages = tidepool::trace::silent_messages(tidepool::trace::merge(ranks));
  REQUIRE(messages.size() == 3);
  CHECK(messages[0].find("'moe_act' was asked for") != std::string::npos);
  CHECK(messages[0].find("check the spelling") != std::string::npos);
}

TEST_CASE("a silent module has its true reason: excluded, computed again, or never trained") {
  counters totals;
  totals.steps = totals.passes = 2;
  auto excluded = module("expert_fc1");
  excluded.tensors_excluded = 6;
  auto partly = module("attn_proj");
  partly.groups = 2;
  partly.tensors_excluded = 1;
  totals.modules = {excluded, partly, module("qkv_linear")};
  totals.recomputed = {{"layernorm", 4, 64}, {"moe_act"}};
  auto messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 4);  // with moe_act, of which nothing was discarded
  CAPTURE(messages);
  CHECK(messages[0].find("6 tensors were excluded (exclude, exclude_if)") != std::string::npos);
  CHECK(messages[1].find("1 tensor was excluded") != std::string::npos);
  CHECK(messages[0].find("spelling") == std::string::npos);
  CHECK(messages[2].find("forward_only, no gradients") != std::string::npos);
  CHECK(messages[2].find("discarded tensors of 'layernorm' to compute them again") !=
        std::string::npos);
  totals.passes_forward_only = 3;  // beside those that train
  CHECK(tidepool::trace::silent_messages(totals) == messages);
  const std::vector<rank_counters> two{{"0", totals}, {"1", totals}};
  CHECK(tidepool::trace::merge(two).modules[0].tensors_excluded == 12);
  totals.passes = 0;
  messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].find("all passes so far were forward_only") != std::string::npos);
  CHECK(tidepool::trace::merge(two).passes_forward_only == 6);
}

TEST_CASE("over several ranks a module is silent when it is so on all") {
  counters moved;
  moved.modules = {module("core_attn")};
  counters silent = moved;
  moved.modules[0].groups = moved.modules[0].bytes_offloaded = 1;
  const std::vector<rank_counters> one{{"0", silent}, {"1", moved}};
  const std::vector<rank_counters> all{{"0", silent}, {"1", silent}};
  const auto report = [](const std::vector<rank_counters>& ranks) {
    return summary_of(std::span<const rank_counters>(ranks));
  };
  CHECK(report(one).find("moved no byte") == std::string::npos);
  CHECK(report(all).find("moved no byte") != std::string::npos);
}

TEST_CASE("where no step has ended the summary says so, and of no module that it is silent") {
  counters totals;
  totals.modules = {module("core_attn"), module("moe_act")};
  CHECK(tidepool::trace::silent_messages(totals).size() == 2);  // nothing was trained either
  totals.modules[0].groups = 4;                                 // as evaluation leaves it
  CHECK(tidepool::trace::silent_messages(totals).size() == 2);
  totals.modules[0].groups_offloaded = 4;
  const auto messages = tidepool::trace::silent_messages(totals);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].find("no step has ended: call end_step()") != std::string::npos);
  CHECK(summary_of(totals).find(messages[0]) != std::string::npos);
  totals.steps = 1;
  CHECK(tidepool::trace::silent_messages(totals).size() == 2);
}

TEST_CASE("stall time by module stands below the summary, the longest first, with its reasons") {
  using tidepool::trace::span_kind;
  tidepool::trace::record step;
  step.title = "step 7";
  step.lanes = {"compute 0"};
  step.spans = {{span_kind::stall, 0, "consumer", 3, 1, 8, 0, 20, "core_attn"},
                {span_kind::stall, 0, "consumer", 3, 1, 8, 20, 50, "moe_act"},
                {span_kind::stall, 0, "device_reuse", 3, 1, 8, 50, 75, "core_attn"},
                {span_kind::stall, 0, "after_launch", -1, -1, 0, 80, 81},
                {span_kind::stall, 0, "cap", -1, -1, 0, 90, 90}};
  std::ostringstream out;
  tidepool::trace::write_summary(out, {}, step);
  const auto text = out.str();
  CHECK(text.substr(text.find("stalled in")) ==
        "stalled in step 7     time                               by reason\n"
        "core_attn          45.0 µs  device_reuse 25.0 µs, consumer 20.0 µs\n"
        "moe_act            30.0 µs                        consumer 30.0 µs\n"
        "no copy            1.00 µs                    after_launch 1.00 µs\n");
  step.spans.clear();
  std::ostringstream calm;
  tidepool::trace::write_summary(calm, {}, step);
  CHECK(calm.str().ends_with("\nnever stalled in step 7\n"));
}
