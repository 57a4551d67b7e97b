/// Text of the options that hold several values: modules, layers, rings, caps.
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

/// The largest layer. A larger one is refused as a typing error, or a range could fill the memory.
inline constexpr int max_layer = 999'999;

/// Items between commas; an empty one is a typing error.
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

/// Layer numbers and ranges, `0,2,4-7`; `all` stands for no restriction.
struct layers_format {
  static std::vector<int> read(const setting& given) {
    constexpr std::string_view remedy =
        "give layers from 0 on such as 0,2,4-7, or all; to offload nothing use "
        "--offload-modules=none";
    if (given.value == "all") return {};
    std::vector<int> layers;
    for (const std::string_view item : list_items(given)) {
      const std::size_t dash = item.find('-', 1);
      const int first = read_integer<int>(given, item.substr(0, dash), remedy);
      const int last = dash == std::string_view::npos
                           ? first
                           : read_integer<int>(given, item.substr(dash + 1), remedy);
      if (last < first) refuse(given, "the range " + in_quotes(item) + " runs backwards", remedy);
      if (last > max_layer) {
        refuse(given, "layer " + std::to_string(last) + " is above " + std::to_string(max_layer),
               remedy);
      }
      for (int layer = first; layer <= last; ++layer) layers.push_back(layer);
      if (layers.size() > static_cast<std::size_t>(max_layer) + 1) {
        refuse(given, "the list repeats layers without end", remedy);
      }
    }
    return layers;
  }
  static std::string write(const std::vector<int>& layers) {
    if (layers.empty()) return "all";
    std::vector<std::string> items;
    for (std::size_t i = 0; i < layers.size();) {
      std::size_t end = i + 1;
      // Compared first: code may hold any numbers, and a difference of those may overflow.
      while (end < layers.size() && layers[end] > layers[end - 1] &&
             layers[end] - 1 == layers[end - 1]) {
        ++end;
      }
      items.push_back(std::to_string(layers[i]));
      if (end - i > 1) items.back().append("-").append(std::to_string(layers[end - 1]));
      i = end;
    }
    return join(items, ",");
  }
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
/// `2,core_attn:1`. The text replaces all caps: a cap that it does not name is unset.
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
