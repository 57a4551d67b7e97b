/// The colours of pictures: modules that are seen together, computing, stalls.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/module.hpp"
#include "tidepool/trace/detail/module_colour.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

[[nodiscard]] inline std::string hex(const rgb& colour) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "#";
  for (const unsigned part : {colour.red, colour.green, colour.blue}) {
    text.append(1, digits[part >> 4]).append(1, digits[part & 15]);
  }
  return text;
}

inline constexpr std::array<rgb, 3> compute_colours{
    {{0xb4, 0xbb, 0xc5}, {0x99, 0xa2, 0xae}, {0x7f, 0x89, 0x96}}};
inline constexpr rgb stall_colour{0xd6, 0x27, 0x28};

// A colour with stripes along the time axis: none, white or black. There are no more colours that
// everybody can tell apart, so that stripes tell the users' own modules from the standard ones.
struct paint {
  rgb colour;
  std::size_t stripes = 0;

  friend bool operator==(const paint&, const paint&) = default;
};
inline constexpr std::size_t module_places = 3 * module_colours.size();

// The paints of names that are seen together, in their order: standard names always keep theirs,
// the others move to the next free one, in the order of the alphabet so that only the set counts.
[[nodiscard]] inline std::vector<paint> paints_of(const std::vector<std::string>& names) {
  std::vector<std::size_t> order(names.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto standard = [&](std::size_t i) {
    return colour_place(names[i]) < standard_modules.size();
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return standard(a) != standard(b) ? standard(a) : names[a] < names[b];
  });

  std::array<bool, module_places> taken{};
  std::vector<paint> paints(names.size());
  for (const std::size_t i : order) {
    std::size_t place = colour_place(names[i]);
    for (std::size_t tries = 0; tries < module_places && taken[place]; ++tries) {
      place = (place + 1) % module_places;
    }
    taken[place] = true;
    paints[i] = {module_colours[place % module_colours.size()], place / module_colours.size()};
  }
  return paints;
}

}  // namespace tidepool::trace::detail
