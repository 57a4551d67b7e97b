/// A training in one process, in the terms of one that is spread over ranks.
///
/// A link is what a trainer knows about other ranks: a class like `alone`, `mpi_link` or
/// `nccl_link`. It has a `line`, the stages of a pipeline, and a `group`, the ranks that share
/// experts. A line's `send` takes a buffer that the stream has been told to write, its `receive`
/// returns one that the stream may read; neither asks when the bytes travel. `send` never waits for
/// the other side, so that no schedule can lock up.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "exchange.hpp"
#include "grid.hpp"

namespace moe {

/// What one rank took, for the report.
struct rank_totals {
  std::uint64_t driver_peak = 0;
  std::uint64_t device_peak = 0;
  std::uint64_t offloaded = 0;  ///< in all steps
  double stall_ms = 0;          ///< in the traced step
};

template <class Device, class Kernels>
class alone {
 public:
  /// Nobody else.
  struct team {};
  /// One stage has no neighbours.
  struct one_stage {
    template <class Buffer>
    void send(Buffer, int, int) {}
    template <class Buffer>
    void receive(Buffer&, int, int) {}
    /// Waits until everything sent has left.
    void finish() {}
  };

  alone(team&, const rank_grid&, Device&, Kernels&, typename Device::stream_ref) {}

  [[nodiscard]] one_stage& line() { return line_; }
  /// Null: all experts are here.
  [[nodiscard]] expert_exchange* group() { return nullptr; }

  [[nodiscard]] std::vector<float> gather_losses(const std::vector<float>& mine) { return mine; }
  template <class T>
  [[nodiscard]] std::vector<T> gather(const T& mine) {
    return {mine};
  }
  [[nodiscard]] std::uint64_t sum(std::uint64_t mine) { return mine; }
  void barrier() {}
  /// Runs `body`; its failure must be known to all ranks.
  template <class Body>
  void guarded(Body body) {
    body();
  }

 private:
  one_stage line_;
};

}  // namespace moe
