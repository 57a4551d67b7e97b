/// How a part of a profile is asked whether it makes sense.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

[[nodiscard]] inline std::string number_text(double number) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), result.ptr};
}

[[nodiscard]] inline std::string place_of(std::string_view list, std::size_t index,
                                          std::string_view member = {}) {
  return "/" + std::string(list) + "/" + std::to_string(index) + std::string(member);
}

// What checks of lists and of events have in common. `refuse(place, problem, remedy)` throws;
// places and problems are functions, called where one is refused.
template <class Refuse>
class demands {
 public:
  demands(const profile& step, const Refuse& refuse) : step_(step), refuse_(refuse) {}

 protected:
  void require(bool holds, const auto& place, const auto& problem, std::string_view remedy) const {
    if (!holds) refuse_(place(), problem(), remedy);
  }
  void time(double value, const auto& place, const char* what) const {
    require(
        std::isfinite(value) && value >= 0, place,
        [&] { return std::string(what) + " is " + number_text(value); }, right_time);
  }

  void need_chunk(std::size_t chunk, const auto& place) const {
    require(
        chunk < step_.chunks.size(), place,
        [&] {
          return "there is no chunk " + std::to_string(chunk) + ", only " +
                 std::to_string(step_.chunks.size());
        },
        "chunks are counted from 0, in the order of `chunks`");
  }
  void need_storage(std::size_t storage, const auto& place) const {
    require(
        storage < step_.storages.size(), place,
        [&] {
          return "there is no storage " + std::to_string(storage) + ", only " +
                 std::to_string(step_.storages.size());
        },
        "storages are counted from 0");
  }
  void need_group(std::size_t chunk, std::size_t group, const auto& place) const {
    need_chunk(chunk, place);
    require(
        group < step_.chunks[chunk].groups.size(), place,
        [&] {
          return "there is no group " + std::to_string(group) + " in chunk " +
                 std::to_string(chunk) + ", only " +
                 std::to_string(step_.chunks[chunk].groups.size());
        },
        "groups are counted from 0 within their chunk");
  }

  const profile& step_;
  const Refuse& refuse_;

 private:
  static constexpr std::string_view right_time = "give microseconds, finite and not negative";
};

}  // namespace tidepool::plan::detail
