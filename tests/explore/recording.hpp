// What a program issued to the virtual device, who must come before whom, and where that fails.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/device/virtual.hpp"

namespace explore {

using tidepool::detail::operation;
using tidepool::detail::operation_kind;
using tidepool::detail::sim_position;

/// One operation as it was issued. The host never asks what is over, so the list is the same
/// whatever order the device chooses, and holds all orders that it may choose.
struct issued {
  sim_position at;
  operation op;
  std::string by;  // the action of the program, for people
};

/// A pair of operations that touch the same bytes, one of them writing, in no order.
struct race {
  std::size_t first = 0;
  std::size_t second = 0;
};

/// The list, with a vector clock for each operation.
class recording {
 public:
  using clock = std::vector<std::uint64_t>;

  void add(const sim_position& at, const operation& op, const std::string& by) {
    const auto index = ops_.size();
    ops_.push_back({at, op, by});
    if (at.stream >= now_.size()) {
      now_.resize(at.stream + 1);
      by_stream_.resize(at.stream + 1);
    }
    auto& stream = by_stream_[at.stream];
    if (stream.empty()) first_number_.resize(now_.size(), 0), first_number_[at.stream] = at.number;
    stream.push_back(index);
    join(now_[at.stream], host_);
    if (op.kind == operation_kind::wait && op.until.number > 0) {
      if (const auto before = op_at(op.until)) join(now_[at.stream], clocks_[*before]);
    }
    raise(now_[at.stream], at.stream, at.number);
    clocks_.push_back(now_[at.stream]);
    touch(index);
  }

  /// The host has waited for a stream, or for all: what is issued from now on comes after that.
  void host_waited(std::size_t stream) {
    if (stream < now_.size()) join(host_, now_[stream]);
  }
  void host_waited() {
    for (const auto& each : now_) join(host_, each);
  }

  /// The host has waited for a stream, before it reads what was copied there. What is issued from
  /// now on must not need this wait, because orders that run again have no host.
  void host_looks(std::size_t stream) {
    if (stream < now_.size()) join(looked_, now_[stream]);
  }
  void host_reads(const void* data, std::size_t bytes, std::string_view what) {
    operation read;
    read.touches.push_back({data, bytes, false});
    ops_.push_back({{host, 0}, std::move(read), std::string(what)});
    clocks_.push_back(looked_);
    touch(ops_.size() - 1);
  }
  static constexpr auto host = static_cast<std::size_t>(-1);  // instead of a stream

  [[nodiscard]] const std::vector<issued>& ops() const { return ops_; }
  [[nodiscard]] const std::vector<std::vector<std::size_t>>& by_stream() const {
    return by_stream_;
  }
  [[nodiscard]] const std::optional<race>& first_race() const { return race_; }

  /// Whether operation `index` is over before what `stream` is given next, in every order.
  [[nodiscard]] bool over_for(std::size_t index, std::size_t stream) const {
    const auto& at = ops_[index].at;
    return stream < now_.size() && reached(now_[stream], at.stream) >= at.number;
  }

  /// Index of the operation behind which a wait waits; none when it is older than the recording.
  [[nodiscard]] std::optional<std::size_t> op_at(const sim_position& where) const {
    if (where.stream >= by_stream_.size() || by_stream_[where.stream].empty()) return {};
    const auto first = first_number_[where.stream];
    if (where.number < first || where.number - first >= by_stream_[where.stream].size()) return {};
    return by_stream_[where.stream][where.number - first];
  }

 private:
  struct access {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    std::size_t op = 0;
    bool writes = false;
  };

  static std::uint64_t reached(const clock& of, std::size_t stream) {
    return stream < of.size() ? of[stream] : 0;
  }
  static void raise(clock& of, std::size_t stream, std::uint64_t to) {
    if (of.size() <= stream) of.resize(stream + 1);
    of[stream] = std::max(of[stream], to);
  }
  static void join(clock& into, const clock& other) {
    for (std::size_t i = 0; i < other.size(); ++i) raise(into, i, other[i]);
  }

  void touch(std::size_t index) {
    const auto& op = ops_[index].op;
    for (const auto& each : op.touches) {
      const auto* begin = static_cast<const std::byte*>(each.data);
      touch({begin, begin + each.bytes, index, each.writes});
    }
    if (op.kind != operation_kind::copy) return;
    for (std::size_t row = 0; row < op.shape.rows; ++row) {
      const auto* from = op.source + row * op.shape.source_pitch;
      const auto* to = op.target + row * op.shape.target_pitch;
      touch({from, from + op.shape.width, index, false});
      touch({to, to + op.shape.width, index, true});
    }
  }

  void touch(const access& fresh) {
    const auto& known = clocks_[fresh.op];
    std::erase_if(accesses_, [&](const access& old) {
      const bool apart = old.end <= fresh.begin || fresh.end <= old.begin;
      if (apart || (!old.writes && !fresh.writes)) return false;
      const auto& at = ops_[old.op].at;
      if (old.op != fresh.op && reached(known, at.stream) < at.number) {
        if (!race_) race_ = race{old.op, fresh.op};
        return false;
      }
      // A write behind it hides what came before: who is ordered after the write is after that too.
      return fresh.writes && fresh.begin <= old.begin && old.end <= fresh.end;
    });
    accesses_.push_back(fresh);
  }

  std::vector<issued> ops_;
  std::vector<clock> clocks_;
  std::vector<clock> now_;
  clock host_;
  clock looked_;
  std::vector<std::vector<std::size_t>> by_stream_;
  std::vector<std::uint64_t> first_number_;
  std::vector<access> accesses_;
  std::optional<race> race_;
};

/// One operation in words.
inline std::string describe(const issued& each) {
  const auto range = [](const void* data, std::size_t bytes) {
    char text[64];
    std::snprintf(text, sizeof text, "%p+%zu", data, bytes);
    return std::string(text);
  };
  std::string text = "the host's ";
  if (each.at.stream != recording::host) {
    text = "stream " + std::to_string(each.at.stream) + " #" + std::to_string(each.at.number) + " ";
  }
  switch (each.op.kind) {
    case operation_kind::kernel:
      text += "kernel";
      for (const auto& touched : each.op.touches) {
        text += (touched.writes ? " writes " : " reads ") + range(touched.data, touched.bytes);
      }
      break;
    case operation_kind::copy:
      text += is_offload(each.op.direction) ? "offload " : "reload ";
      text += range(each.op.source, each.op.shape.bytes()) + " -> " +
              range(each.op.target, each.op.shape.bytes());
      break;
    case operation_kind::record:
      text += "record";
      break;
    case operation_kind::wait:
      text += "wait for stream " + std::to_string(each.op.until.stream) + " #" +
              std::to_string(each.op.until.number);
      break;
  }
  return text + "   (" + each.by + ")";
}

}  // namespace explore
