/// What the ranks of an expert-parallel run send each other: rows to the experts and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "../model/config.hpp"

namespace moe {

/// Rows that go to each rank, and rows that come from each; both lie ordered by rank.
struct row_counts {
  std::vector<index> sent;
  std::vector<index> received;

  [[nodiscard]] index all_sent() const { return sum(sent); }
  [[nodiscard]] index all_received() const { return sum(received); }
  /// Of what goes back the same way.
  [[nodiscard]] row_counts reversed() const { return {received, sent}; }

 private:
  static index sum(const std::vector<index>& counts) {
    return std::accumulate(counts.begin(), counts.end(), index{0});
  }
};

/// A tensor whose rows travel: [all sent][width] here becomes [all received][width].
struct moving_rows {
  const float* from;
  float* to;
  index width;
};

/// The all-to-all of a link, for code that does not know which link it is.
///
/// Every rank must make the same calls in the same order. What `start` was given must stay as it is
/// until `finish`, between which the stream is free for other work: that hides the exchange.
class expert_exchange {
 public:
  expert_exchange() = default;
  expert_exchange(const expert_exchange&) = delete;
  expert_exchange& operator=(const expert_exchange&) = delete;
  virtual ~expert_exchange() = default;

  [[nodiscard]] virtual int ranks() const = 0;
  /// Sends `each` counts to every rank, from the device, and returns what came, ordered by rank.
  /// Blocks the host until all that the stream had been given is done.
  virtual std::span<const std::int32_t> counts(const std::int32_t* on_device, index each) = 0;
  /// Starts the rows' way once the stream has come this far; returns the exchange's number.
  virtual int start(const row_counts& rows, std::span<const moving_rows> what) = 0;
  /// What the stream is given from now on may read what came, and write what was sent.
  virtual void finish(int exchange) = 0;
  /// All ranks' parts to all ranks, in place: part r of `values` has `parts[r]` floats.
  virtual void gather_parts(float* values, const std::vector<index>& parts) = 0;
};

}  // namespace moe
