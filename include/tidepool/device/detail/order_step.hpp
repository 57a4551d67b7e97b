// One thing that was given to a stream, as it is judged now or kept by a capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/device/device.hpp"
#include "tidepool/device/finding.hpp"

namespace tidepool::inline v0_3_0::detail {

// Who accesses memory, with names as numbers.
struct order_access {
  access_kind kind{};
  std::uint32_t name = 0;
  std::uint32_t module = 0;
  int layer = -1;
  int microbatch = -1;
  std::uint32_t stream = 0;    // that it was given to
  std::uint32_t lane = 0;      // that it runs on: another one inside a graph
  std::uint64_t position = 0;  // there
  std::uint64_t number = 0;    // among all that was issued
  std::uint64_t graph = 0;
};

enum class step_kind : std::uint8_t {
  read,
  write,
  copy,
  hand_out,
  give_back,
  give_to_owner,
  record,
  wait
};

struct order_step {
  step_kind kind{};
  order_access who;
  std::uintptr_t target = 0;  // or what is touched
  std::uintptr_t source = 0;  // of a copy
  copy_shape shape;           // of a copy; else `width` bytes
  std::uint32_t until = 0;    // of a wait inside a capture: the place of its record
};

// What a capture keeps: steps in the order of their issue, each on one of the lanes that take part.
struct order_capture {
  struct item {
    std::uint32_t place = 0;  // of its lane in `lanes`
    order_step step;
  };

  std::uint64_t number = 0;
  std::vector<std::uint32_t> lanes;
  std::vector<item> items;

  // Where a lane takes part; `lanes.size()` where it does not.
  [[nodiscard]] std::uint32_t place_of(std::uint32_t lane) const {
    std::uint32_t place = 0;
    while (place < lanes.size() && lanes[place] != lane) ++place;
    return place;
  }

  // The first lane that was given work which the origin has not joined; 0 when all were.
  [[nodiscard]] std::uint32_t unjoined() const {
    std::vector<std::vector<std::size_t>> known(lanes.size(),
                                                std::vector<std::size_t>(lanes.size()));
    std::vector<std::vector<std::size_t>> recorded(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto& [place, step] = items[i];
      auto& mine = known[place];
      if (step.kind == step_kind::wait) {
        const auto& other = recorded[step.until];
        for (std::size_t p = 0; p < other.size(); ++p)
          mine[p] = mine[p] < other[p] ? other[p] : mine[p];
      } else if (step.kind == step_kind::record) {
        recorded[i] = mine;
      } else if (step.kind <= step_kind::copy) {  // memory changes hands without work
        mine[place] = i + 1;
      }
    }
    for (std::uint32_t place = 1; place < lanes.size(); ++place) {
      if (known[0][place] < known[place][place]) return place;
    }
    return 0;
  }
};

}  // namespace tidepool::detail
