/// The tables of a summary: one by module, one about memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/table.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

struct ranked {
  std::string rank;
  const trace::counters* totals = nullptr;
};

// Adds the members that `of` names.
template <class Counts, class... Member>
void add(Counts& to, const Counts& from, Member... of) {
  ((to.*of += from.*of), ...);
}

// All but the name.
inline void add(trace::module_counters& to, const trace::module_counters& from) {
  using of = trace::module_counters;
  to.by_all = from.enabled ? from.by_all && (to.by_all || !to.enabled) : to.by_all;
  to.enabled = to.enabled || from.enabled;
  add(to, from, &of::groups, &of::groups_offloaded, &of::groups_resident, &of::groups_recomputed,
      &of::groups_held, &of::tensors_offloaded, &of::tensors_shared, &of::tensors_small,
      &of::tensors_elsewhere, &of::tensors_excluded, &of::bytes_offloaded, &of::bytes_reloaded,
      &of::bytes_packed, &of::bytes_on_link, &of::records_seen, &of::records_raw,
      &of::bytes_recomputed, &of::cap_joins, &of::step_bytes);
}

inline void add(trace::place_counters& to, const trace::place_counters& from) {
  using of = trace::place_counters;
  add(to, from, &of::bytes_offloaded, &of::bytes_reloaded, &of::budget, &of::reserved, &of::peak,
      &of::allocations);
}

inline void add(trace::recompute_counters& to, const trace::recompute_counters& from) {
  add(to, from, &trace::recompute_counters::tensors, &trace::recompute_counters::bytes);
}

// By name, in order of first appearance.
template <class Counts>
void add(std::vector<Counts>& to, const std::vector<Counts>& from) {
  for (const auto& each : from) {
    auto at = std::ranges::find(to, each.name, &Counts::name);
    if (at == to.end()) {
      at = to.emplace(at);
      at->name = each.name;
    }
    add(*at, each);
  }
}

// True if a module gets a row. A module that was neither seen nor asked for would only be a row of
// zeros.
[[nodiscard]] inline bool worth_a_row(const trace::module_counters& count) {
  const bool seen = count.groups > 0 || count.bytes_offloaded > 0 || count.tensors_elsewhere > 0 ||
                    count.tensors_excluded > 0;
  return seen || (count.enabled && !count.by_all);  // `all` names modules that a model may not have
}

// MiB, with as many digits as suit the largest number of the table.
[[nodiscard]] inline std::string mebibytes(std::size_t bytes, std::size_t largest) {
  const int decimals = largest >= (std::size_t{100} << 20) ? 1 : 3;
  const double least = decimals == 1 ? 0.1 : 0.001;
  const double value = static_cast<double>(bytes) / 0x1p20;
  // A small number must not look like zero.
  return bytes > 0 && value < least ? "<" + fixed(least, decimals) : fixed(value, decimals);
}

[[nodiscard]] inline std::string share_text(std::size_t part, std::size_t whole) {
  if (whole == 0) return "";
  return fixed(100 * static_cast<double>(part) / static_cast<double>(whole), 1) + "%";
}

// A row for each module and, if `by_rank`, for each of its ranks. `sum` is over all ranks.
[[nodiscard]] inline std::string module_table(std::span<const ranked> ranks,
                                              const trace::counters& sum, bool by_rank) {
  trace::module_counters total;
  total.name = "total";
  for (const auto& module : sum.modules) add(total, module);
  const std::size_t largest = std::max(total.bytes_offloaded, total.bytes_reloaded);

  std::vector<std::string> head{"module"};
  if (by_rank) head.emplace_back("rank");
  for (const char* name : {"groups", "offloaded", "resident", "tensors", "MiB out", "MiB in",
                           "shared", "small", "cap joins", "last step MiB"}) {
    head.emplace_back(name);
  }
  text_table table(std::move(head), by_rank ? 2 : 1);
  const auto row = [&](const trace::module_counters& of, const std::string& rank) {
    std::vector<std::string> cells{of.name};
    if (by_rank) cells.push_back(rank);
    for (const auto number :
         {of.groups, of.groups_offloaded, of.groups_resident, of.tensors_offloaded}) {
      cells.push_back(std::to_string(number));
    }
    cells.push_back(mebibytes(of.bytes_offloaded, largest));
    cells.push_back(mebibytes(of.bytes_reloaded, largest));
    for (const auto number : {of.tensors_shared, of.tensors_small, of.cap_joins}) {
      cells.push_back(std::to_string(number));
    }
    cells.push_back(mebibytes(of.step_bytes, largest));
    table.row(std::move(cells));
  };

  if (std::none_of(sum.modules.begin(), sum.modules.end(), worth_a_row)) {
    const bool by_all = std::ranges::any_of(sum.modules, &trace::module_counters::enabled);
    return by_all ? "No module of --offload-modules=all had a commit.\n"
                  : "No module was asked for.\n";
  }
  table.rule();
  for (const auto& module : sum.modules) {
    for (const auto& rank : ranks) {
      for (const auto& own : rank.totals->modules) {
        if (own.name == module.name && worth_a_row(own)) row(own, rank.rank);
      }
    }
  }
  table.rule();
  row(total, "all");
  return table.text();
}

// Stall time by module, the longest first.
[[nodiscard]] inline std::string stall_table(const trace::record& step) {
  std::vector<std::pair<double, std::vector<stall_sum>>> modules;
  for (const auto& each : sum_stalls(step)) {
    auto at = std::ranges::find_if(
        modules, [&](const auto& of) { return of.second.front().module == each.module; });
    if (at == modules.end()) at = modules.insert(at, {0, {}});
    at->first += each.time;
    at->second.push_back(each);
  }
  if (modules.empty()) return "never stalled in " + step.title + "\n";
  std::ranges::stable_sort(modules, std::greater<>(), [](const auto& of) { return of.first; });
  text_table table({"stalled in " + step.title, "time", "by reason"});
  for (const auto& [time, of] : modules) {
    const auto& name = of.front().module;
    table.row({name.empty() ? "no copy" : name, duration_text(time), reasons_text(of)});
  }
  return table.text();
}

// Adds a row for each place, unless the host is the only place.
inline void add_places(text_table& table, const trace::counters& totals) {
  if (totals.places.size() == 1 && totals.places.front().name == "host") return;
  for (const auto& each : totals.places) {
    table.row({"offloaded to " + each.name, bytes_text(each.bytes_offloaded),
               "peak " + bytes_text(each.peak) + " of " + bytes_text(each.budget)});
  }
}

// A line for each figure of memory.
[[nodiscard]] inline std::string memory_lines(const trace::counters& totals) {
  text_table table({"peak taken", bytes_text(totals.device_peak)});
  if (totals.borrowed_peak > 0) {
    std::vector<std::string> cells{"peak borrowed", bytes_text(totals.borrowed_peak)};
    if (totals.takes_borrowed) cells.emplace_back("with what was taken");
    table.row(std::move(cells));
  }
  table.row({"peak needed", bytes_text(totals.live_peak)});
  table.row({"without offload", bytes_text(totals.live_peak_without)});
  table.row(
      {"saved", bytes_text(totals.saved()), share_text(totals.saved(), totals.live_peak_without)});
  table.row({"host reserved", bytes_text(totals.host_reserved)});
  if (!totals.host_memory.empty()) table.row({"host memory", totals.host_memory});
  if (!totals.host_budget.empty()) table.row({"host budget", totals.host_budget});
  add_places(table, totals);
  for (const auto& each : totals.recomputed) {
    table.row({"recomputed " + each.name, bytes_text(each.bytes),
               tidepool::detail::text::count_of(each.tensors, "tensor")});
  }
  for (const auto& each : totals.modules) {
    if (each.groups_recomputed == 0) continue;
    table.row({"recomputed by plan: " + each.name, bytes_text(each.bytes_recomputed),
               tidepool::detail::text::count_of(each.groups_recomputed, "group")});
  }
  for (const auto& each : totals.modules) {
    if (each.bytes_packed == 0) continue;
    const auto raw = share_text(each.records_raw, each.records_seen);
    table.row({"packed " + each.name, bytes_text(each.bytes_packed),
               "as " + bytes_text(each.bytes_on_link) + (raw.empty() ? raw : ", raw " + raw)});
  }
  if (totals.state_written > 0) {
    table.row({"host state fetched", bytes_text(totals.state_fetched)});
    table.row({"  and written back", bytes_text(totals.state_written)});
  }
  if (totals.arena_waits > 0) table.row({"arena waits", std::to_string(totals.arena_waits)});
  if (totals.evictions > 0) table.row({"reloads undone", std::to_string(totals.evictions)});
  return table.text();
}

// Writes unformatted, because the stream's locale, width and base must have no effect.
inline void write_summary(std::ostream& out, const std::string& head, const std::string& modules,
                          const std::string& memory, const std::vector<std::string>& messages) {
  std::string text = head + "\n\n" + modules + "\n" + memory;
  if (!messages.empty()) text += "\n";
  for (const auto& message : messages) text += message + "\n";
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

// A row for each rank, because each rank has its own memory, and a row for the sum.
[[nodiscard]] inline std::string memory_table(std::span<const ranked> ranks,
                                              const trace::counters& sum) {
  text_table table({"rank", "peak taken", "without offload", "saved", "share", "host reserved"});
  const auto row = [&](const std::string& rank, const trace::counters& of, std::size_t saved) {
    table.row({rank, bytes_text(of.device_peak), bytes_text(of.live_peak_without),
               bytes_text(saved), share_text(saved, of.live_peak_without),
               bytes_text(of.host_reserved)});
  };
  std::size_t saved = 0;
  table.rule();
  for (const auto& rank : ranks) {
    saved += rank.totals->saved();
    row(rank.rank, *rank.totals, rank.totals->saved());
  }
  table.rule();
  row("all", sum, saved);
  text_table places({"all ranks"});
  add_places(places, sum);
  return table.text() + (places.rows() > 1 ? "\n" + places.text() : "");
}

}  // namespace tidepool::trace::detail
