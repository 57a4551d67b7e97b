// A race checker of its own: a vector clock for each stream, and for each 16 bytes who touched them
// last. It knows what was issued and with which events, and nothing else; so one run stands for
// every order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace stranger {

class clocks {
 public:
  static constexpr std::size_t most_lanes = 64;
  using clock = std::array<std::uint32_t, most_lanes>;

  struct touch {
    std::uintptr_t first = 0;
    std::size_t bytes = 0;
    bool writes = false;
  };
  // What a stream was given: an access, an event recorded, or an event waited for.
  struct item {
    enum class sort : std::uint8_t { access, record, wait } what{};
    std::size_t lane = 0;
    std::vector<touch> touches{};
    std::string label{};
    std::size_t event = 0;
  };

  // The bytes that are watched together. With more than 16, what an access has of a grain beside
  // whole ones is passed over, since neighbours would seem to be touched.
  void watch_by(std::size_t bytes) { grain_ = bytes; }

  std::size_t add_lane() {
    lanes_.emplace_back(host_);
    return lanes_.size() - 1;
  }
  std::size_t add_event() {
    events_.emplace_back();
    return events_.size() - 1;
  }
  [[nodiscard]] bool full() const { return lanes_.size() >= most_lanes; }

  void record(std::size_t lane, std::size_t event) {
    tick(lane);
    events_[event] = std::make_unique<clock>(lanes_[lane]);
  }
  void wait(std::size_t lane, std::size_t event) {
    if (events_[event]) join(lanes_[lane], *events_[event]);
  }
  // The host waited for a lane, so that all it issues from now on comes later.
  void synchronize(std::size_t lane) {
    tick(lane);
    join(host_, lanes_[lane]);
    for (auto& each : lanes_) join(each, host_);
  }
  void synchronize() {
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      tick(l);
      join(host_, lanes_[l]);
    }
    for (auto& each : lanes_) join(each, host_);
  }

  void access(std::size_t lane, const std::vector<touch>& touches, const std::string& label) {
    const auto position = tick(lane);
    const auto op = static_cast<std::uint32_t>(labels_.size());
    labels_.push_back(label + " [" + std::to_string(issued_) + "]");
    for (const auto& each : touches) {
      if (each.bytes == 0) continue;
      const auto end = each.first + each.bytes;
      for (auto at = first_of(each.first); at < end_of(end); ++at) {
        visit(lane, position, op, each.writes, at);
      }
    }
  }
  // The host learnt that an event has passed.
  void passed(std::size_t event) {
    if (!events_[event]) return;
    join(host_, *events_[event]);
    for (auto& each : lanes_) join(each, host_);
  }
  // Memory that the host took or gave back with nothing under way there.
  void forget(std::uintptr_t first, std::size_t bytes) {
    for (auto at = first / grain_; at * grain_ < first + bytes; ++at) cell_of(at) = {};
  }

  // The same where the host has to have waited for all that was.
  void leave(std::uintptr_t first, std::size_t bytes) {
    for (auto at = first / grain_; at * grain_ < first + bytes; ++at) {
      auto& here = cell_of(at);
      for (const auto& each :
           {here.written, here.read[0], here.read[1], here.read[2], here.read[3]}) {
        if (each.position == nobody || host_[each.lane] >= each.position || !race_.empty())
          continue;
        race_ = labels_[each.op] + " on stream " + std::to_string(each.lane) +
                " and the host, which gave the memory back to its owner";
      }
      here = {};
    }
  }

  // A graph runs on `lanes`, the first of which is that of the launch.
  void replay(const std::vector<item>& items, const std::vector<std::size_t>& lanes) {
    tick(lanes[0]);
    for (std::size_t l = 1; l < lanes.size(); ++l) join(lanes_[lanes[l]], lanes_[lanes[0]]);
    std::unordered_map<std::size_t, clock> inside;
    for (const auto& each : items) {
      const auto lane = lanes[each.lane];
      switch (each.what) {
        case item::sort::access:
          access(lane, each.touches, each.label + " in a graph");
          break;
        case item::sort::record:
          tick(lane);
          inside[each.event] = lanes_[lane];
          break;
        case item::sort::wait:
          if (const auto found = inside.find(each.event); found != inside.end()) {
            join(lanes_[lane], found->second);
          }
          break;
      }
    }
  }

  // True where everything that `lane` had been given at `then` is over for `who`.
  [[nodiscard]] bool covers(std::size_t who, std::size_t lane, std::uint32_t then) const {
    return lanes_[who][lane] >= then;
  }
  [[nodiscard]] std::uint32_t position(std::size_t lane) const { return lanes_[lane][lane]; }

  [[nodiscard]] const std::string& race() const { return race_; }
  void forget_race() { race_.clear(); }
  void at_operation(int which) { issued_ = which; }

 private:
  static constexpr std::uintptr_t fine = 16;
  static constexpr std::uint32_t nobody = 0;

  struct mark {
    std::uint32_t position = nobody;
    std::uint32_t op = 0;
    std::uint8_t lane = 0;
  };
  struct cell {
    mark written;
    std::array<mark, 4> read{};
  };
  using page = std::array<cell, 64>;

  static void join(clock& into, const clock& other) {
    for (std::size_t i = 0; i < most_lanes; ++i) into[i] = std::max(into[i], other[i]);
  }
  std::uint32_t tick(std::size_t lane) { return ++lanes_[lane][lane]; }

  [[nodiscard]] std::uintptr_t first_of(std::uintptr_t at) const {
    return grain_ == fine ? at / fine : (at + grain_ - 1) / grain_;
  }
  [[nodiscard]] std::uintptr_t end_of(std::uintptr_t at) const {
    return grain_ == fine ? (at + fine - 1) / fine : at / grain_;
  }
  cell& cell_of(std::uintptr_t at) {
    if (at / 64 != last_number_ || last_page_ == nullptr) {
      auto& found = pages_[at / 64];
      if (!found) found = std::make_unique<page>();
      last_number_ = at / 64;
      last_page_ = found.get();
    }
    return (*last_page_)[at % 64];
  }

  [[nodiscard]] bool before(const mark& earlier, std::size_t lane) const {
    return earlier.position == nobody || lanes_[lane][earlier.lane] >= earlier.position;
  }

  void visit(std::size_t lane, std::uint32_t position, std::uint32_t op, bool writes,
             std::uintptr_t at) {
    auto& here = cell_of(at);
    const mark now{position, op, static_cast<std::uint8_t>(lane)};
    if (!before(here.written, lane)) report(here.written, now);
    if (writes) {
      for (auto& each : here.read) {
        if (!before(each, lane)) report(each, now);
        each = {};
      }
      here.written = now;
      return;
    }
    auto* into = &here.read[0];
    for (auto& each : here.read) {
      if (each.position == nobody || each.lane == lane) {
        into = &each;
        break;
      }
    }
    *into = now;
  }

  void report(const mark& earlier, const mark& later) {
    if (!race_.empty()) return;
    race_ = labels_[earlier.op] + " on stream " + std::to_string(earlier.lane) + " and " +
            labels_[later.op] + " on stream " + std::to_string(later.lane);
  }

  std::uintptr_t grain_ = fine;
  clock host_{};
  std::vector<clock> lanes_;
  std::vector<std::unique_ptr<clock>> events_;
  std::vector<std::string> labels_;
  std::unordered_map<std::uintptr_t, std::unique_ptr<page>> pages_;
  std::uintptr_t last_number_ = 0;
  page* last_page_ = nullptr;
  std::string race_;
  int issued_ = 0;
};

}  // namespace stranger
