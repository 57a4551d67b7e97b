/// The tables and the JSON file.
#include "report.hpp"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "plot.hpp"

namespace bench {
namespace {

using json = nlohmann::ordered_json;

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}
std::string number_or_dash(double value, int digits) {
  return value == 0 ? "-" : number(value, digits);
}
std::string percent(double value) { return (value >= 0 ? "+" : "") + number(value, 2); }

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto width = static_cast<int>(widths[i]);
      std::printf(i == 0 ? "%-*s" : "  %*s", width, row[i].c_str());
    }
    std::printf("\n");
  }
}

/// What the case saves of the driver's memory against `none`, in bytes.
double saved(const case_result& of, const case_result& none) {
  return none.driver_bytes - of.driver_bytes;
}
/// What its own books say that it saves.
double claimed(const case_result& of, const case_result& none) {
  return static_cast<double>(none.counters.device_reserved) -
         static_cast<double>(of.counters.device_reserved);
}
double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

std::vector<std::string> times_head() {
  return {"case",  "ms",       "min .. max", "% none",  "% floor", "whole step", "bound",
          "ratio", "stall ms", "out GB/s",   "in GB/s", "host us", "all us"};
}

std::vector<std::string> times_row(const results& all, const case_result& each) {
  if (each.steps.empty()) {
    std::vector<std::string> row(times_head().size(), "-");
    row[0] = each.plan.name;
    row[1] = each.failure.empty() ? "not yet" : each.full ? "out of memory" : "does not run";
    return row;
  }
  const auto values = headlines(all.run, each);
  const auto least = bound(all, each);
  const auto middle = median(values);
  const auto* none = find_kind(all, case_kind::none);
  const auto* floor = floor_of(all, each);
  return {each.plan.name,
          number(middle, 2),
          number(*std::min_element(values.begin(), values.end()), 2) + " .. " +
              number(*std::max_element(values.begin(), values.end()), 2),
          none != nullptr ? percent(overhead(all.run, each, none)) : "-",
          floor != nullptr ? percent(overhead(all.run, each, floor)) : "-",
          number(median_of(each, [](const step_times& s) { return s.whole; }), 2),
          number_or_dash(least, 2),
          number_or_dash(ratio(middle, least), 3),
          number(each.link.stall, 2),
          number_or_dash(each.link.out, 2),
          number_or_dash(each.link.in, 2),
          number_or_dash(each.host.pair, 2),
          number_or_dash(each.host.total, 2)};
}

std::vector<std::string> memory_row(const results& all, const case_result& each,
                                    const case_result& none) {
  const auto reserved = static_cast<double>(each.counters.device_reserved);
  const auto gain = saved(each, none);
  const auto books = claimed(each, none);
  return {each.plan.name,
          number((all.baseline_bytes + each.driver_bytes) / gibibyte, 2),
          number(each.driver_bytes / gibibyte, 2),
          number(reserved / gibibyte, 2),
          number(100 * ratio(reserved, each.plan.held_bytes * all.run.depth), 1),
          number(gain / gibibyte, 2),
          number(100 * ratio(gain, none.driver_bytes), 1),
          number(100 * ratio(gain, all.baseline_bytes + none.driver_bytes), 1),
          books == 0 ? "-" : percent(100 * (ratio(gain, books) - 1)),
          number(each.moved_bytes / gibibyte, 2),
          number(static_cast<double>(each.counters.host_reserved) / gibibyte, 2),
          std::to_string(each.counters.arena_waits),
          std::to_string(each.counters.evictions),
          std::to_string(each.late_allocations)};
}

json to_json(const results& all, const case_result& each) {
  json out;
  out["name"] = each.plan.name;
  out["kind"] = name_of(each.plan.kind);
  out["options"] = each.plan.text;
  out["options_in_full"] = tidepool::to_text(each.plan.options);
  if (!each.failure.empty()) {
    out["does_not_run"] = each.failure;
    out["out_of_memory"] = each.full;
  }
  if (each.steps.empty()) return out;  // it failed before, or its first turn is to come
  const auto* none = find_kind(all, case_kind::none);
  const auto* floor = floor_of(all, each);
  const auto values = headlines(all.run, each);
  out["ms"] = {{"median", median(values)},
               {"min", *std::min_element(values.begin(), values.end())},
               {"max", *std::max_element(values.begin(), values.end())}};
  if (none != nullptr) out["overhead_percent_over_none"] = overhead(all.run, each, none);
  if (floor != nullptr) {
    out["floor"] = floor->plan.name;
    out["overhead_percent_over_floor"] = overhead(all.run, each, floor);
  }
  const auto least = bound(all, each);
  if (least > 0) {
    out["bound_ms"] = least;
    out["ratio_to_bound"] = median(values) / least;
  }
  for (const auto& s : each.steps) {
    out["samples"].push_back({{"whole_ms", s.whole},
                              {"steady_ms", s.steady},
                              {"forward_ms", s.forward},
                              {"backward_ms", s.backward},
                              {"first_group_ready_ms", s.ready}});
  }
  if (each.peer_rates.out > 0) {
    out["peer_gbs_of_large_groups"] = {{"out", each.peer_rates.out}, {"in", each.peer_rates.in}};
  }
  if (!each.lender_ms.empty()) out["neighbours_gemms_ms"] = each.lender_ms;
  out["host_us_per_commit_and_restore"] = {{"these_two", each.host.pair},
                                           {"all_calls", each.host.total},
                                           {"these_two_with_full_queues", each.host.ahead}};
  out["traced_step"] = {{"offload_gbs_while_busy", each.link.out},
                        {"reload_gbs_while_busy", each.link.in},
                        {"stall_ms", each.link.stall},
                        {"stall_ms_by_join", each.link.joins}};
  if (each.forecast_ms > 0) {
    out["forecast"] = {{"ms", each.forecast_ms},
                       {"stall_ms", each.forecast_stall_ms},
                       {"warm_up_ms", each.warm_ms},
                       {"certified_gap", each.forecast_gap}};
  }
  if (!each.graph.graph.empty()) {
    out["as_graph"] = {{"ms", each.graph.graph},
                       {"by_calls_ms", each.graph.eager},
                       {"launch_us", each.graph.launch_us},
                       {"launch_behind_us", each.graph.launch_behind_us}};
  }
  const auto& c = each.counters;
  out["bytes"] = {{"driver_above_baseline", each.driver_bytes},
                  {"driver", all.baseline_bytes + each.driver_bytes},
                  {"moved_each_way_per_microbatch", each.moved_bytes},
                  {"to_neighbour_per_microbatch", each.peer_bytes},
                  {"held_per_microbatch", each.plan.held_bytes},
                  {"device_reserved", c.device_reserved},
                  {"device_peak", c.device_peak},
                  {"live_peak", c.live_peak},
                  {"live_peak_without", c.live_peak_without},
                  {"host_reserved", c.host_reserved},
                  {"host_peak", c.host_peak}};
  out["counts"] = {{"steps", c.steps},
                   {"arena_waits", c.arena_waits},
                   {"evictions", c.evictions},
                   {"device_allocations", c.device_allocations},
                   {"host_allocations", c.host_allocations},
                   {"allocations_after_warm_up", each.late_allocations}};
  return out;
}

json to_json(const results& all) {
  const auto& n = all.run.sizes;
  const auto* none = find_kind(all, case_kind::none);
  const auto of_none = [&](auto read) { return none == nullptr ? 0.0 : median_of(*none, read); };
  json out;
  out["benchmark"] = "bench_step";
  out["date"] = all.machine.date;
  out["command"] = all.run.command;
  out["hardware"] = {{"gpu", all.machine.gpu},       {"device_bytes", all.machine.device_bytes},
                     {"driver", all.machine.driver}, {"cuda_runtime", all.machine.runtime},
                     {"cublas", all.machine.blas},   {"host", all.machine.host}};
  out["sizes"] = {{"layers", n.layers},
                  {"tokens", n.tokens},
                  {"hidden", n.hidden},
                  {"experts", n.experts},
                  {"top_k", n.top_k},
                  {"ffn", n.ffn},
                  {"attention", n.attention},
                  {"heads", n.heads},
                  {"head_size", n.head_size},
                  {"query_block", n.query_block},
                  {"shared_weights", n.shared_weights}};
  out["schedule"] = {
      {"depth", all.run.depth},           {"microbatches", all.run.microbatches},
      {"pairs", all.run.pairs},           {"steps_per_turn", all.run.steps},
      {"settling_steps", all.run.settle}, {"headline", all.run.depth > 1 ? "steady" : "whole"},
      {"cases_stay_built", all.alive}};
  out["raw_gbs"] = {{"out", all.rates.out}, {"in", all.rates.in}, {"both", all.rates.both}};
  out["raw_peer_gbs"] = {
      {"out", all.peer_rates.out}, {"in", all.peer_rates.in}, {"both", all.peer_rates.both}};
  const auto* by_hand = find_kind(all, case_kind::by_hand);
  out["host_us_by_hand"] = by_hand == nullptr ? 0.0 : by_hand->host.pair;
  out["none_ms"] = {{"forward", of_none([](const step_times& s) { return s.forward; })},
                    {"backward", of_none([](const step_times& s) { return s.backward; })},
                    {"first_group_ready", of_none([](const step_times& s) { return s.ready; })}};
  out["baseline_bytes"] = all.baseline_bytes;
  out["cases"] = json::array();
  for (const auto& each : all.cases) out["cases"].push_back(to_json(all, each));
  return out;
}

bool write(const std::string& path, const std::string& text) {
  if (path.empty()) return true;
  std::ofstream file(path);
  file << text;
  if (file.flush()) return true;
  std::cerr << "bench_step: " << path << ": could not be written\n";
  return false;
}

}  // namespace

namespace {

/// How far turns of the same work lie apart; a difference below that says nothing.
void print_spread(const char* what, const std::vector<double>& of) {
  if (of.empty()) return;
  const auto middle = median(of);
  std::printf("%s: %s %% .. %s %% of their median\n", what,
              percent(100 * (*std::min_element(of.begin(), of.end()) / middle - 1)).c_str(),
              percent(100 * (*std::max_element(of.begin(), of.end()) / middle - 1)).c_str());
}

/// Where compute stood still, for the cases that are not at their bound.
void print_stalls(const results& all) {
  for (const auto& each : all.cases) {
    if (each.link.stall < 0.01) continue;
    std::printf("%s stood still, ms of a traced microbatch:", each.plan.name.c_str());
    for (const auto& [join, ms] : each.link.joins) std::printf(" %s %.2f", join.c_str(), ms);
    std::printf("\n");
  }
}

/// What plans predicted when they were made, against the steps that followed. `still` is how much
/// of it compute stands still; measured in the traced microbatches alone. `at once` is the step
/// right after the plan: a GPU that grows warm later is slower then.
void print_forecasts(const results& all) {
  std::vector<std::vector<std::string>> rows{{"plan", "predicted ms", "still ms", "at once ms",
                                              "measured ms", "still ms", "miss %",
                                              "certified gap %", "reserved GiB", "budget GiB"}};
  for (const auto& each : all.cases) {
    if (each.forecast_ms <= 0 || each.steps.empty()) continue;
    const auto measured = median_of(each, [](const step_times& s) { return s.whole; });
    rows.push_back(
        {each.plan.name, number(each.forecast_ms, 2), number(each.forecast_stall_ms, 2),
         number(each.warm_ms.back(), 2), number(measured, 2), number(each.link.stall, 2),
         percent(100 * (measured / each.forecast_ms - 1)), number(100 * each.forecast_gap, 2),
         number(static_cast<double>(each.counters.device_reserved) / gibibyte, 3),
         number(static_cast<double>(each.plan.options.device_budget.value_or(0)) / gibibyte, 3)});
  }
  if (rows.size() == 1) return;
  std::printf("\nForecasts, ms of a microbatch of the whole step\n");
  print_table(rows);
}

/// Large groups on their way to the neighbour and back, beside raw copies of as many bytes: alone,
/// and beside the same step.
void print_neighbour(const results& all) {
  if (all.peer_rates.out <= 0) return;
  std::vector<std::vector<std::string>> rows{{"neighbour's link, GB/s", "out", "in", "out, % raw",
                                              "in, % raw", "out, % floor", "in, % floor"}};
  rows.push_back({"raw copies alone", number(all.peer_rates.out, 1), number(all.peer_rates.in, 1),
                  "-", "-", "-", "-"});
  for (const auto& each : all.cases) {
    const auto& rates = each.peer_rates;
    if (rates.out <= 0) continue;
    const auto* floor = floor_of(all, each);
    const auto beside = floor == nullptr ? raw_rates{} : floor->peer_rates;
    rows.push_back({each.plan.name, number(rates.out, 1), number(rates.in, 1),
                    number(100 * ratio(rates.out, all.peer_rates.out), 1),
                    number(100 * ratio(rates.in, all.peer_rates.in), 1),
                    number_or_dash(100 * ratio(rates.out, beside.out), 1),
                    number_or_dash(100 * ratio(rates.in, beside.in), 1)});
  }
  std::printf("\nGroups of 64 MiB and more; medians\n");
  print_table(rows);
}

/// What the neighbour's own GEMMs lose by the traffic of each case.
void print_lender(const results& all) {
  const auto* none = find_kind(all, case_kind::none);
  if (none == nullptr || none->lender_ms.empty()) return;
  std::vector<std::vector<std::string>> rows{{"neighbour's GEMMs beside", "ms", "% none"}};
  for (const auto& each : all.cases) {
    if (each.lender_ms.empty()) continue;
    rows.push_back({each.plan.name, number(median(each.lender_ms), 2),
                    percent(percent_over(each.lender_ms, none->lender_ms))});
  }
  std::printf("\n");
  print_table(rows);
  print_spread("turns beside none", none->lender_ms);
}

void print_graphs(const results& all) {
  std::vector<std::vector<std::string>> rows{{"whole step", "graph ms", "by calls ms",
                                              "graph/calls", "launch us", "% of the step",
                                              "behind another us"}};
  for (const auto& each : all.cases) {
    const auto& times = each.graph;
    if (times.graph.empty()) continue;
    const auto step_us = median(times.graph) * all.run.microbatches * 1e3;
    rows.push_back({each.plan.name, number(median(times.graph), 2), number(median(times.eager), 2),
                    number(ratio(median(times.graph), median(times.eager)), 4),
                    number(median(times.launch_us), 1),
                    number(100 * ratio(median(times.launch_us), step_us), 4),
                    number(median(times.launch_behind_us), 1)});
  }
  if (rows.size() == 1) return;
  std::printf("\nWhole steps as CUDA graphs, ms of a microbatch, filling and draining included\n");
  print_table(rows);
}

}  // namespace

std::vector<std::vector<std::string>> time_rows(const results& all) {
  std::vector<std::vector<std::string>> rows{times_head()};
  for (const auto& each : all.cases) rows.push_back(times_row(all, each));
  return rows;
}

void print(const results& all) {
  const auto* none = find_kind(all, case_kind::none);
  std::vector<std::vector<std::string>> memory{
      {"case", "driver GiB", "case GiB", "reserved", "% of none", "saved GiB", "% of act.",
       "% of all", "books %", "moved GiB", "pinned GiB", "waits", "evicted", "late alloc"}};
  for (const auto& each : all.cases) {
    if (none != nullptr && !each.steps.empty()) memory.push_back(memory_row(all, each, *none));
  }
  std::printf("\nTime of a microbatch, depth %d, %d microbatches a step, %d rounds; %s\n",
              all.run.depth, all.run.microbatches, 2 * all.run.pairs,
              all.run.depth > 1 ? "ms while the pipeline is full" : "ms of the whole step");
  print_table(time_rows(all));
  if (none != nullptr) print_spread("turns of none", headlines(all.run, *none));
  std::printf(
      "host us: of a commit and its restore, the least of all turns; by hand: the same CUDA"
      " calls in the same places\n");
  std::printf("\nMemory; baseline %.2f GiB; books: the driver's saving against the arena's own\n",
              all.baseline_bytes / gibibyte);
  print_table(memory);
  print_stalls(all);
  print_neighbour(all);
  print_lender(all);
  print_forecasts(all);
  print_graphs(all);
  bool full = false;
  for (const auto& each : all.cases) {
    if (each.failure.empty()) continue;
    std::printf("%s does not run%s: %s\n", each.plan.name.c_str(),
                each.steps.empty() ? "" : " any further", each.failure.c_str());
    full = full || each.full;
  }
  if (full && all.alive) {
    std::printf("--alive off builds one case at a time, each with all of the memory\n");
  }
}

bool write_files(const results& all) {
  const bool to_stdout = all.run.json == "-";
  const bool json_written = to_stdout || write(all.run.json, to_json(all).dump(2) + "\n");
  return write(all.run.plot, all.run.plot.empty() ? "" : plot(all)) && json_written;
}

void fill(tools::json_file& out, const results& all) { out.fill(to_json(all)); }

}  // namespace bench
