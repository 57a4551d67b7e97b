/// Rules for places that groups are offloaded to, and their text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/config/formats.hpp"
#include "tidepool/config/list_formats.hpp"
#include "tidepool/config/module_rules.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::text {

struct place_words {
  static constexpr std::array<std::string_view, place_kinds> names{"host", "peer", "file"};
  static constexpr std::string_view what = "place";
  static constexpr std::string_view all =
      "host, peer or file:/path, or several such as peer,host,file:/path";
};

/// Places, the nearest first: `peer,host,file:/mnt/nvme`. A file is followed by its path.
struct places_format {
  using one = word_format<place_kind, place_words>;
  static constexpr std::string_view before_path = "file:";

  static void read(options& into, const setting& given) {
    std::vector<place_kind> places;
    std::string path;
    for (const auto item : list_items(given)) {
      if (!item.starts_with(before_path)) {
        places.push_back(one::read({given.name, item}));
        if (places.back() == place_kind::file) {
          refuse(given, "a file needs its path", "give it as file:/path");
        }
        continue;
      }
      const auto its_own = item.substr(before_path.size());
      if (its_own.empty()) refuse(given, "a file needs its path", "give it as file:/path");
      if (!path.empty()) refuse(given, "two files are given", "keep one of them");
      path = its_own;
      places.push_back(place_kind::file);
    }
    into.places = std::move(places);
    into.file_path = std::move(path);
  }
  static std::string write(const options& from) {
    std::vector<std::string> items;
    for (const auto each : from.places) {
      items.push_back(each == place_kind::file ? std::string(before_path) + from.file_path
                                               : one::write(each));
    }
    return items.empty() ? "none" : join(items, ",");
  }
};

}  // namespace tidepool::detail::text

namespace tidepool::inline v0_3_0::detail::rules {

[[nodiscard]] inline bool has_place(const options& value, place_kind which) {
  return std::find(value.places.begin(), value.places.end(), which) != value.places.end();
}

/// Checks a budget that a place needs, and that has no effect without the place.
inline void check_place_budget(const options& value, place_kind which,
                               const std::optional<std::size_t>& budget, std::string_view member,
                               const std::string& whose, const std::string& places) {
  const std::string shown = text::places_format::write(value);
  const std::string flag = "--" +
                           std::string(text::place_words::names[static_cast<std::size_t>(which)]) +
                           "-budget=8GiB";
  if (has_place(value, which) && !budget) {
    reject(option_label("places"), shown, "how much of " + whose + " may be taken is not given",
           "add " + std::string(member) + " (" + flag + "), or give --places=host");
  }
  if (budget == std::size_t{0}) {
    reject(option_label(member), "0", "nothing fits it", "give a size such as 8GiB");
  }
  if (!has_place(value, which) && budget) {
    reject(option_label(member), text::bytes_format::write(*budget),
           "it has no effect with --places=" + shown,
           "add --places=" + places + ", or take the budget out");
  }
}

inline void check_file(const options& value) {
  constexpr std::size_t least_budget = 4 * 1024;
  constexpr std::size_t least_ring = 8 * 1024;
  const std::string shown = text::places_format::write(value);
  if (!has_place(value, place_kind::file)) {
    if (value.file_path.empty()) return;
    reject(option_label("places"), shown, "file_path has no effect without the place 'file'",
           "add place_kind::file to places, or leave file_path empty");
  }
  if (value.file_path.empty()) {
    reject(option_label("places"), shown, "the file has no path",
           "give file_path, as in --places=host,file:/mnt/nvme");
  }
  if (value.file_path.find_first_of(std::string_view(", \t\n\r\v\f\0", 8)) != std::string::npos) {
    reject(option_label("places"), text::printable(shown),
           "a path with a comma or a blank cannot be told from two places",
           "give another one, such as a link to it");
  }
  if (value.file_budget < least_budget) {
    reject(option_label("file_budget"), text::bytes_format::write(value.file_budget.value_or(0)),
           "a block of a file has 4KiB", "give a size such as 64GiB");
  }
  if (value.file_ring < least_ring) {
    reject(option_label("file_ring"), text::bytes_format::write(value.file_ring),
           "no copy passes through so little", "give at least 8KiB, such as 256MiB");
  }
}

inline void check_places(const options& value) {
  const std::string label = option_label("places");
  const std::string shown = text::places_format::write(value);
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
  check_place_budget(value, place_kind::peer, value.peer_budget, "peer_budget",
                     "the neighbour's memory", "peer,host");
  check_place_budget(value, place_kind::file, value.file_budget, "file_budget", "the disk",
                     "host,file:/path");
  check_file(value);
}

}  // namespace tidepool::detail::rules
