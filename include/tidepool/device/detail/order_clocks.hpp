// Vector clocks of streams, events and the host: what comes before what is issued next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// A clock for each stream, and one for the host, which is lane 0. A stream's own position grows
// with every record, since only what a record stands for can be waited for.
//
// The host issues everything, so that what it does comes before all that it issues later, and it
// knows what it has waited for.
class order_clocks {
 public:
  using lane = std::uint32_t;
  using clock = std::vector<std::uint64_t>;
  static constexpr lane host = 0;

  order_clocks() { lanes_.push_back({{1}, 0, "the host", true, false}); }

  // ---- lanes ----

  [[nodiscard]] lane of(std::uint64_t key) {
    if (key == last_key_ && last_lane_ != host) return last_lane_;
    const auto [at, fresh] = by_key_.try_emplace(key, static_cast<lane>(lanes_.size()));
    if (fresh) {
      try {
        add("stream " + std::to_string(++streams_), true);
      } catch (...) {
        by_key_.erase(at);
        throw;
      }
    }
    last_key_ = key;
    return last_lane_ = at->second;
  }
  // A stream that was made just now. One of before that had its key is gone.
  lane made(std::uint64_t key) {
    if (const auto old = by_key_.find(key); old != by_key_.end()) {
      lanes_[old->second].outer = false;
      by_key_.erase(old);
      last_lane_ = host;
    }
    return of(key);
  }
  // A lane on which a graph runs beside the stream that launches it.
  [[nodiscard]] lane borrow_inner() {
    const auto over = everyone();
    for (auto at = spare_.begin(); at != spare_.end(); ++at) {
      if (over[*at] < lanes_[*at].known[*at]) continue;
      const auto found = *at;
      ++lanes_[found].known[found];
      spare_.erase(at);
      return found;
    }
    return add("", false);
  }
  void give_back_inner(lane which) { spare_.push_back(which); }

  // One that the trainer has named keeps that name where an offloader gets it too.
  void name(lane which, std::string name, bool copies, bool peer = false) {
    auto& named = lanes_[which];
    named.name = copies && named.by_trainer ? named.name + ", " + name : std::move(name);
    named.by_trainer = named.by_trainer || !copies;
    named.copies = copies;
    named.peer = peer;
  }
  [[nodiscard]] const std::string& name(lane which) const { return lanes_[which].name; }
  // Whether it is an offloader's own.
  [[nodiscard]] bool copies(lane which) const { return lanes_[which].copies; }
  // And copies to or from a neighbour.
  [[nodiscard]] bool peer(lane which) const { return lanes_[which].peer; }

  // ---- order ----

  // Something is issued on `which` now; its position.
  std::uint64_t issue(lane which) {
    auto& into = lanes_[which];
    if (into.host_seen != host_changes_) {
      join(into.known, lanes_[host].known);
      into.host_seen = host_changes_;
    }
    return into.known[which];
  }
  // All that `which` has been given so far.
  void record(lane which, clock& into) {
    issue(which);
    into = lanes_[which].known;
    ++lanes_[which].known[which];
  }
  void wait(lane which, const clock& until) { join(lanes_[which].known, until); }
  void wait(lane which, lane other) {
    issue(other);
    join(lanes_[which].known, lanes_[other].known);
    ++lanes_[other].known[other];
  }
  void host_waits(lane until) {
    wait(host, until);
    ++host_changes_;
  }
  void host_waits(const clock& until) {
    join(lanes_[host].known, until);
    ++host_changes_;
  }
  void host_waits() {
    for (lane each = 1; each < lanes_.size(); ++each) wait(host, each);
    ++host_changes_;
  }

  // Whether `position` of `first` is over before what `second` is given now.
  [[nodiscard]] bool joined(lane first, std::uint64_t position, lane second) const {
    if (first == second || first == host) return true;
    const auto& known = lanes_[second].known;
    return first < known.size() && known[first] >= position;
  }

  // What every stream has joined.
  [[nodiscard]] clock everyone() const {
    clock result(lanes_.size(), std::numeric_limits<std::uint64_t>::max());
    const auto& told = lanes_[host].known;
    for (lane each = 1; each < lanes_.size(); ++each) {
      const auto& mine = lanes_[each];
      if (!mine.outer) continue;
      for (lane other = 0; other < result.size(); ++other) {
        const auto known = std::max(at(mine.known, other), at(told, other));
        // What it has been given itself is not over for the host.
        result[other] = std::min(result[other], known);
      }
    }
    return result;
  }

 private:
  struct lane_state {
    clock known;
    std::uint64_t host_seen = 0;  // changes of the host's clock that it knows
    std::string name;
    bool outer = true;  // a stream, and none of a graph's own
    bool copies = false;
    bool peer = false;
    bool by_trainer = false;  // named
  };

  static std::uint64_t at(const clock& of, lane which) { return which < of.size() ? of[which] : 0; }
  static void join(clock& into, const clock& other) {
    if (into.size() < other.size()) into.resize(other.size());
    for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
  }
  lane add(std::string name, bool outer) {
    const auto fresh = static_cast<lane>(lanes_.size());
    clock known(fresh + 1);
    known[fresh] = 1;
    lanes_.push_back({std::move(known), 0, std::move(name), outer, false});
    return fresh;
  }

  std::vector<lane_state> lanes_;
  std::unordered_map<std::uint64_t, lane> by_key_;
  std::vector<lane> spare_;
  std::uint64_t last_key_ = 0;
  lane last_lane_ = host;
  std::uint64_t streams_ = 0;
  std::uint64_t host_changes_ = 0;
};

}  // namespace tidepool::detail
