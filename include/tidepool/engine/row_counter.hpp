// Counts of rows that only the device knows, as the engine and its graphs see them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tidepool/engine/group.hpp"

namespace tidepool::inline v0_3_0::detail {

// The rows that the copies of one commit moved, and the room (8 bytes) that holds the count of
// them, which must not be larger.
struct row_claim {
  std::uint64_t planned = 0;
  std::uint32_t room = 0;   // number of its room
  std::uint32_t width = 0;  // bytes of the count
  const void* count = nullptr;
  module_id module{};
  int layer = -1;
  int microbatch = 0;
};

// The claims of the commits in a graph. Each launch copies the counts anew.
struct graph_rows {
  std::vector<row_claim> claims;
  bool ends_step = false;
};
using shared_rows = std::shared_ptr<const graph_rows>;

// rows.hpp provides it; an offloader without `counts_rows` has none.
class row_counter {
 public:
  row_counter() = default;
  row_counter(const row_counter&) = delete;
  row_counter& operator=(const row_counter&) = delete;
  virtual ~row_counter() = default;

  // Queues the copies of the counts of a group whose tensors are on their way. Returns how many.
  virtual std::size_t count(const chunk_state& in, const group& which, const saved* items) = 0;
  // Takes back what the latest `count` returned, because its commit failed after it.
  virtual void take_back(std::size_t latest) noexcept = 0;
  virtual void step_ended() noexcept = 0;
  // Throws if a step before `call` had more rows than it moved, and nobody asked.
  virtual void expect_asked(const char* call) = 0;

  virtual void begin_capture() = 0;
  // `kept`: the capture has become a graph.
  virtual shared_rows end_capture(bool kept) noexcept = 0;
  virtual void before_launch(const shared_rows& of) = 0;
  virtual void launched(const shared_rows& of) = 0;
};

}  // namespace tidepool::detail
