/// What places that groups are offloaded to must satisfy, and how they are written.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/config/formats.hpp"
#include "tidepool/config/list_formats.hpp"
#include "tidepool/config/module_rules.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail::text {

struct place_words {
  static constexpr std::array<std::string_view, place_kinds> names{"host", "peer"};
  static constexpr std::string_view what = "place";
  static constexpr std::string_view all = "host, peer or both, such as peer,host";
};

/// Places, the nearest first: `peer,host`.
struct places_format {
  using one = word_format<place_kind, place_words>;

  static std::vector<place_kind> read(const setting& given) {
    std::vector<place_kind> places;
    for (const auto item : list_items(given)) places.push_back(one::read({given.name, item}));
    return places;
  }
  static std::string write(const std::vector<place_kind>& places) {
    std::vector<std::string> items;
    for (const auto each : places) items.push_back(one::write(each));
    return items.empty() ? "none" : join(items, ",");
  }
};

}  // namespace tidepool::detail::text

namespace tidepool::inline v0_2_0::detail::rules {

inline void check_places(const options& value) {
  const std::string label = option_label("places");
  const std::string budget = option_label("peer_budget");
  const std::string shown = text::places_format::write(value.places);
  const std::string choice = "give " + std::string(text::place_words::all);
  if (value.places.empty()) reject(label, shown, "what leaves has to go somewhere", choice);
  for (const auto each : value.places) {
    if (static_cast<std::size_t>(each) >= place_kinds) {
      reject(label, shown, "there is no such place", choice);
    }
    if (std::count(value.places.begin(), value.places.end(), each) > 1) {
      reject(label, shown, "a place is named twice", choice);
    }
  }
  const bool peer =
      std::find(value.places.begin(), value.places.end(), place_kind::peer) != value.places.end();
  if (value.peer_device < 0) {
    reject(option_label("peer_device"), std::to_string(value.peer_device),
           "a negative number has no meaning", "give the number of another device of the host");
  }
  if (peer && !value.peer_budget) {
    reject(label, shown, "how much of the neighbour's memory may be taken is not given",
           "add peer_budget (--peer-budget=8GiB), or give --places=host");
  }
  if (value.peer_budget == std::size_t{0}) {
    reject(budget, "0", "nothing fits it", "give a size such as 8GiB");
  }
  if (!peer && value.peer_budget) {
    reject(budget, text::bytes_format::write(*value.peer_budget),
           "it has no effect with --places=" + shown,
           "add --places=peer,host, or take the budget out");
  }
}

}  // namespace tidepool::detail::rules
