/// Text of the options that hold several values, and of file names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/config/formats.hpp"

namespace tidepool::inline v0_3_0::detail::text {

/// The largest layer, and the largest step to record. A larger one is refused as a typing error,
/// because a range up to it could fill the memory.
inline constexpr int max_layer = 999'999;

/// Items between commas. An empty item is refused as a typing error.
[[nodiscard]] inline std::vector<std::string_view> comma_items(const setting& given) {
  std::vector<std::string_view> items = split(given.value, ',');
  for (const std::string_view item : items) {
    if (item.empty()) {
      refuse(given, "an item between commas is empty", "take the surplus comma out");
    }
  }
  return items;
}

/// Items between commas or blanks: `a,b`, `a b`, `a, b`.
[[nodiscard]] inline std::vector<std::string_view> list_items(const setting& given) {
  std::vector<std::string_view> items;
  for (const std::string_view part : comma_items(given)) {
    for (const std::string_view word : split_blanks(part)) items.push_back(word);
  }
  return items;
}

/// Module names, or `none`; with `TakesAll` also `all`.
template <bool TakesAll>
struct names_format {
  static std::vector<std::string> read(const setting& given) {
    const std::vector<std::string_view> items = list_items(given);
    for (const std::string_view word : {"all", "none"}) {
      if (std::find(items.begin(), items.end(), word) == items.end()) continue;
      if (items.size() > 1) {
        refuse(given, in_quotes(word) + " cannot stand beside other names",
               "give either " + in_quotes(word) + " alone or the names");
      }
      if (word == "none") return {};
      if (!TakesAll) refuse(given, "'all' is for --offload-modules alone", "name the modules");
    }
    return {items.begin(), items.end()};
  }
  static std::string write(const std::vector<std::string>& names) {
    return names.empty() ? "none" : join(names, ",");
  }
};

/// Numbers of `What` from `Least` on, and ranges: `0,2,4-7`. `Empty` stands for an empty list, and
/// `Hint` ends the remedy.
template <fixed_string What, fixed_string Empty, int Least, fixed_string Hint = "">
struct numbers_format {
  static std::vector<int> read(const setting& given) {
    if (given.value == Empty.view()) return {};
    const auto name = std::string(What.view());
    const auto least = std::to_string(Least);
    const auto remedy = "give " + name + "s from " + least + " on such as " + least +
                        ",2,4-7, or " + std::string(Empty.view()) + std::string(Hint.view());
    std::vector<int> numbers;
    for (const std::string_view item : list_items(given)) {
      const std::size_t dash = item.find('-', 1);
      const int first = read_integer<int>(given, item.substr(0, dash), remedy);
      const int last = dash == std::string_view::npos
                           ? first
                           : read_integer<int>(given, item.substr(dash + 1), remedy);
      if (last < first) refuse(given, "the range " + in_quotes(item) + " runs backwards", remedy);
      if (first < Least) refuse(given, name + "s begin at " + least, remedy);
      if (last > max_layer) {
        refuse(given, name + " " + std::to_string(last) + " is above " + std::to_string(max_layer),
               remedy);
      }
      for (int each = first; each <= last; ++each) numbers.push_back(each);
      if (numbers.size() > static_cast<std::size_t>(max_layer) + 1) {
        refuse(given, "the list repeats " + name + "s without end", remedy);
      }
    }
    return numbers;
  }
  static std::string write(const std::vector<int>& numbers) {
    if (numbers.empty()) return std::string(Empty.view());
    std::vector<std::string> items;
    for (std::size_t i = 0; i < numbers.size();) {
      std::size_t end = i + 1;
      // The comparison comes first, because code may hold any numbers, and their difference may
      // overflow.
      while (end < numbers.size() && numbers[end] > numbers[end - 1] &&
             numbers[end] - 1 == numbers[end - 1]) {
        ++end;
      }
      items.push_back(std::to_string(numbers[i]));
      if (end - i > 1) items.back().append("-").append(std::to_string(numbers[end - 1]));
      i = end;
    }
    return join(items, ",");
  }
};

using layers_format =
    numbers_format<"layer", "all", 0, "; to offload nothing use --offload-modules=none">;
using steps_format = numbers_format<"step", "none", 1>;

/// The beginning of file names, or `none`.
struct prefix_format {
  static std::string read(const setting& given) {
    if (given.value.find_first_of(" \t\n\r\v\f") != std::string_view::npos) {
      refuse(given, "it has a blank, which ends a value elsewhere", "give a path without blanks");
    }
    return given.value == "none" ? std::string() : std::string(given.value);
  }
  static std::string write(const std::string& prefix) { return prefix.empty() ? "none" : prefix; }
};

/// Rings of slots, `64MiBx4,1MiBx2`, or `none`.
struct rings_format {
  static std::vector<slot_ring> read(const setting& given) {
    constexpr std::string_view remedy = "give SIZExCOUNT such as 64MiBx4,1MiBx2, or none";
    if (given.value == "none") return {};
    std::vector<slot_ring> rings;
    for (const std::string_view item : comma_items(given)) {
      const std::size_t times = item.find_last_of("xX*");
      if (times == std::string_view::npos || times == 0 || times + 1 == item.size()) {
        refuse(given, in_quotes(item) + " is not a size and a count", remedy);
      }
      rings.push_back({.bytes = bytes_format::read(given, item.substr(0, times)),
                       .count = read_integer<std::size_t>(given, item.substr(times + 1), remedy)});
    }
    return rings;
  }
  static std::string write(const std::vector<slot_ring>& rings) {
    std::vector<std::string> items;
    items.reserve(rings.size());
    for (const slot_ring& ring : rings) {
      items.push_back(bytes_format::write(ring.bytes) + "x" + count_text(ring.count));
    }
    return items.empty() ? "none" : join(items, ",");
  }
};

/// The general cap, caps of single modules, or both: `2`, `none`, `core_attn:1,expert_fc1:4`,
/// `2,core_attn:1`. The text replaces all caps: caps that it does not name are removed.
struct inflight_format {
  static void read(options& into, const setting& given) {
    constexpr std::string_view remedy =
        "give a number such as 2, 0 to wait at each commit, none for no cap, or caps by module "
        "such as core_attn:1,expert_fc1:4";
    std::optional<std::size_t> general;
    std::map<std::string, std::size_t> by_module;
    bool seen = false;
    for (const std::string_view item : list_items(given)) {
      const std::size_t colon = item.rfind(':');
      if (colon == std::string_view::npos) {
        if (seen) refuse(given, "two caps for every module", remedy);
        seen = true;
        if (item != "none") general = read_integer<std::size_t>(given, item, remedy);
        continue;
      }
      const std::string module(item.substr(0, colon));
      const std::string_view cap = item.substr(colon + 1);
      if (module.empty()) refuse(given, in_quotes(item) + " names no module", remedy);
      if (cap == "none") {
        refuse(given, "a cap of 'none' holds for every module or for none",
               "leave " + printable(module) + " out and cap the others by name");
      }
      if (!by_module.emplace(module, read_integer<std::size_t>(given, cap, remedy)).second) {
        refuse(given, "two caps for " + in_quotes(module), "keep one of them");
      }
    }
    into.max_inflight = general;
    into.module_max_inflight = std::move(by_module);
  }
  static std::string write(const options& from) {
    std::vector<std::string> items;
    if (from.max_inflight) items.push_back(count_text(*from.max_inflight));
    for (const auto& [module, cap] : from.module_max_inflight) {
      items.push_back(module + ":" + count_text(cap));
    }
    return items.empty() ? "none" : join(items, ",");
  }
  static bool negative(const options& from) {
    return from.max_inflight > most ||
           std::ranges::any_of(from.module_max_inflight,
                               [](const auto& each) { return each.second > most; });
  }
};

}  // namespace tidepool::detail::text
