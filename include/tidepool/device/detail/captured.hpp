// The work that a stream capture of the virtual device keeps instead of running it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/device/detail/operation.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

// Operations in the order of their issue, each on one of the streams that take part. As in CUDA, a
// stream takes part once it waits for an event that the capture recorded, and the first stream must
// have joined all others when the capture ends.
class captured {
 public:
  struct node {
    std::size_t lane = 0;  // place of its stream in `streams`
    operation op;          // a wait's `until` is a lane and a position on it
  };

  captured(std::size_t origin, std::uint64_t number) : number_(number) { take_in(origin); }

  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] const std::vector<std::size_t>& streams() const { return streams_; }
  [[nodiscard]] const std::vector<node>& nodes() const { return nodes_; }

  [[nodiscard]] bool holds(std::size_t stream) const {
    return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
  }

  void push(std::size_t stream, operation&& op) { add(lane_of(stream), std::move(op)); }

  // Adds a record; returns its position.
  sim_position record(std::size_t stream) {
    const auto lane = lane_of(stream);
    operation op;
    op.kind = operation_kind::record;
    add(lane, std::move(op));
    clocks_.back() = reached_[lane];
    return {lane, reached_[lane][lane]};
  }

  void wait(std::size_t stream, const sim_position& until) {
    if (!holds(stream)) take_in(stream);
    const auto lane = lane_of(stream);
    operation op;
    op.kind = operation_kind::wait;
    op.until = until;
    add(lane, std::move(op));
    const auto& known = clock_at(until);
    for (std::size_t i = 0; i < known.size(); ++i) {
      reached_[lane][i] = std::max(reached_[lane][i], known[i]);
    }
  }

  // The host asks whether an event is over, or waits for the device. CUDA refuses that, and then
  // the capture as well.
  [[noreturn]] void break_by_question() {
    broken_ = true;
    throw device_error("tidepool: virtual device: a capture forbids to ask or wait for the device",
                       900);
  }
  // Throws if the capture is broken, or its first stream has not joined all others.
  void check() const {
    if (broken_) throw device_error("tidepool: virtual device: the capture is broken", 901);
    for (std::size_t lane = 1; lane < streams_.size(); ++lane) {
      if (reached_[0][lane] < reached_[lane][lane] && !only_waits_behind(lane, reached_[0][lane])) {
        throw device_error("tidepool: virtual device: the capture ends, but its stream " +
                               std::to_string(streams_[lane]) + " was not joined back",
                           904);
      }
    }
  }

 private:
  using clock = std::vector<std::uint64_t>;

  void take_in(std::size_t stream) {
    streams_.push_back(stream);
    for (auto& each : reached_) each.resize(streams_.size());
    reached_.emplace_back(streams_.size());
  }
  [[nodiscard]] std::size_t lane_of(std::size_t stream) const {
    return static_cast<std::size_t>(std::find(streams_.begin(), streams_.end(), stream) -
                                    streams_.begin());
  }
  void add(std::size_t lane, operation&& op) {
    nodes_.push_back({lane, std::move(op)});
    clocks_.emplace_back();
    ++reached_[lane][lane];
  }
  [[nodiscard]] std::size_t index_of(const sim_position& which) const {
    std::uint64_t seen = 0;
    std::size_t index = 0;
    while (nodes_[index].lane != which.stream || ++seen < which.number) ++index;
    return index;
  }
  [[nodiscard]] const clock& clock_at(const sim_position& which) const {
    return clocks_[index_of(which)];
  }
  // True if the stream has only waited since then, so that it has no work left to be joined.
  [[nodiscard]] bool only_waits_behind(std::size_t lane, std::uint64_t position) const {
    std::uint64_t seen = 0;
    return std::all_of(nodes_.begin(), nodes_.end(), [&](const node& each) {
      return each.lane != lane || ++seen <= position || each.op.kind == operation_kind::wait;
    });
  }

  std::uint64_t number_;
  bool broken_ = false;
  std::vector<std::size_t> streams_;
  std::vector<node> nodes_;
  std::vector<clock> clocks_;   // for each record, positions that its stream had joined
  std::vector<clock> reached_;  // for each stream, positions that it has joined now
};

}  // namespace tidepool::detail
