// The gate that calls of an offloader with captures pass first.
#pragma once

#include "tidepool/engine/storage.hpp"

namespace tidepool::inline v0_3_0::detail {

// The gate between eager calls, captures and launches. graph.hpp provides it; an offloader without
// captures has none.
class capture_gate {
 public:
  capture_gate() = default;
  capture_gate(const capture_gate&) = delete;
  capture_gate& operator=(const capture_gate&) = delete;
  virtual ~capture_gate() = default;

  // Runs before a call that takes or reads memory.
  virtual void pass() = 0;
  // Runs before a call that releases memory. Its contents may be anywhere.
  virtual void meet() = 0;
  // Keeps `store`, whose handle goes while no event can be recorded, until the capture is over.
  // Returns false if no capture is under way, or without room on the heap: the memory then stays
  // taken.
  [[nodiscard]] virtual bool keep_orphan(storage& store) noexcept = 0;
  // True if a graph was launched since the last eager call.
  [[nodiscard]] virtual bool replayed() const = 0;
  virtual void forget_launch() noexcept = 0;
};

}  // namespace tidepool::detail
