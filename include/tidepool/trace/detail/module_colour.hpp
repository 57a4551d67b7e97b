/// The colour of a module on its own; profiles need no more of the palette.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tidepool/module.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

struct rgb {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;

  friend bool operator==(const rgb&, const rgb&) = default;
};

// A colour for each of `standard_modules`, in their order. Found by search for the largest least
// distance (in OKLab) of any two to people with normal vision, protanopia, deuteranopia and
// tritanopia, and to the greys and the red of palette.hpp; a test holds that distance.
inline constexpr std::array<rgb, standard_modules.size()> module_colours{{{0x7f, 0xeb, 0xdd},
                                                                          {0x17, 0x49, 0x6b},
                                                                          {0x38, 0xa0, 0xf4},
                                                                          {0x8e, 0x55, 0xbb},
                                                                          {0xfb, 0xdb, 0x74},
                                                                          {0xe0, 0x92, 0x2a},
                                                                          {0x0a, 0x82, 0x60},
                                                                          {0x7d, 0x11, 0x28},
                                                                          {0x28, 0x05, 0x5a}}};

// The place of a single name in the palette: a standard module has its own place, another name a
// striped one, by a hash of its letters.
[[nodiscard]] constexpr std::size_t colour_place(std::string_view name) {
  const auto* const found = std::find(standard_modules.begin(), standard_modules.end(), name);
  const auto standard = static_cast<std::size_t>(found - standard_modules.begin());
  if (found != standard_modules.end()) return standard;
  std::uint32_t sum = 2166136261;
  for (const char c : name) sum = (sum ^ static_cast<unsigned char>(c)) * 16777619;
  return standard_modules.size() + sum % standard_modules.size();
}

}  // namespace tidepool::trace::detail
