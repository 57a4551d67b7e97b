// The gate that an offloader which captures asks before its calls.
#pragma once

#include "tidepool/engine/storage.hpp"

namespace tidepool::inline v0_3_0::detail {

// The gate between eager calls, captures and launches, which graph.hpp provides; an offloader that
// never captures has none.
class capture_gate {
 public:
  capture_gate() = default;
  capture_gate(const capture_gate&) = delete;
  capture_gate& operator=(const capture_gate&) = delete;
  virtual ~capture_gate() = default;

  // Runs before a call that takes or reads memory.
  virtual void pass() = 0;
  // Runs before a call that releases memory, wherever graphs have left its contents.
  virtual void meet() = 0;
  // Keeps `store` until the capture is over, when its handle goes and no event can be recorded.
  // Returns false where no capture is under way.
  [[nodiscard]] virtual bool keep_orphan(storage& store) noexcept = 0;
  // True where a graph was launched since the last eager call.
  [[nodiscard]] virtual bool replayed() const = 0;
  virtual void forget_launch() noexcept = 0;
};

}  // namespace tidepool::detail
