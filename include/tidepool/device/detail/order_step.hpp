// An operation on a stream, which is checked now or kept by a capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/device/device.hpp"
#include "tidepool/device/finding.hpp"

namespace tidepool::inline v0_3_0::detail {

// An access to memory; its names are numbers.
struct order_access {
  access_kind kind{};
  std::uint32_t name = 0;
  std::uint32_t module = 0;
  int layer = -1;
  int microbatch = -1;
  std::uint32_t stream = 0;    // the stream that it was given to
  std::uint32_t lane = 0;      // the lane that it runs on; another one inside a graph
  std::uint64_t position = 0;  // its position on `lane`
  std::uint64_t number = 0;    // its number in the order of issue
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
  std::uintptr_t target = 0;  // or the first byte that is touched
  std::uintptr_t source = 0;  // source of a copy
  copy_shape shape;           // shape of a copy; else `width` bytes
  std::uint32_t until = 0;    // for a wait inside a capture: the index of its record
};

// The steps that a capture keeps, in the order of issue, each on one of the lanes that take part.
struct order_capture {
  struct item {
    std::uint32_t place = 0;  // index of its lane in `lanes`
    order_step step;
  };

  std::uint64_t number = 0;
  std::vector<std::uint32_t> lanes;
  std::vector<item> items;

  // The index of a lane that takes part; `lanes.size()` if it does not.
  [[nodiscard]] std::uint32_t place_of(std::uint32_t lane) const {
    std::uint32_t place = 0;
    while (place < lanes.size() && lanes[place] != lane) ++place;
    return place;
  }

  // The first lane with work that the origin has not joined; 0 when all work was joined.
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
      } else if (step.kind <= step_kind::copy) {  // steps that only hand memory over are no work
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
