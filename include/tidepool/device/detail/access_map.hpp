// Who touched which bytes last: disjoint ranges of addresses, each with its latest accesses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// What memory holds, as far as the log knows.
enum class contents : std::uint8_t {
  unknown,    // memory that nobody told of: it may hold anything
  unwritten,  // handed out, and not written since
  written,
  given_back,  // to an offloader
  freed        // to the device
};

// A range of bytes that were all touched alike. Accesses are indexes; 0 is none.
struct touched_range {
  std::uintptr_t end = 0;
  contents holds = contents::unknown;
  std::uint32_t writer = 0;            // the latest write, or what handed it out
  std::uint32_t cause = 0;             // what made it unwritten, given back or freed
  std::vector<std::uint32_t> readers;  // since then, none ordered behind another

  [[nodiscard]] bool empty() const {
    return holds == contents::unknown && writer == 0 && readers.empty();
  }
  [[nodiscard]] bool same_as(const touched_range& other) const {
    return holds == other.holds && writer == other.writer && cause == other.cause &&
           readers == other.readers;
  }
};

// Bytes that owners have lent: a tensor may be adopted several times, and parts of it as well.
struct borrowed_range {
  std::uintptr_t end = 0;
  std::uint32_t times = 0;  // that they are borrowed now

  [[nodiscard]] bool empty() const { return times == 0; }
  [[nodiscard]] bool same_as(const borrowed_range& other) const { return times == other.times; }
};

template <class Range>
class range_map {
 public:
  // Calls `visit(range, begin)` for each range within [begin, end), cut at both ends.
  template <class Visit>
  void over(std::uintptr_t begin, std::uintptr_t end, const Visit& visit) {
    if (begin == end) return;
    cut(begin);
    cut(end);
    auto at = ranges_.lower_bound(begin);
    for (auto from = begin; from < end;) {
      if (at == ranges_.end() || at->first > from) {
        const auto to = at == ranges_.end() ? end : std::min(end, at->first);
        at = ranges_.emplace_hint(at, from, Range{});
        at->second.end = to;
      }
      visit(at->second, at->first);
      from = at->second.end;
      ++at;
    }
  }

  // All of [begin, end) is alike from now on.
  void replace(std::uintptr_t begin, std::uintptr_t end, contents holds, std::uint32_t writer,
               std::uint32_t cause) {
    if (begin == end) return;  // it would end the range that begins here
    cut(begin);
    cut(end);
    auto at = ranges_.lower_bound(begin);
    if (at == ranges_.end() || at->first != begin) {
      at = ranges_.emplace_hint(at, begin, Range{});
    }
    auto& whole = at->second;
    whole.end = end;
    whole.holds = holds;
    whole.writer = writer;
    whole.cause = cause;
    whole.readers.clear();
    auto last = std::next(at);
    while (last != ranges_.end() && last->first < end) last = ranges_.erase(last);
  }

  // `forget(range)` takes out what is over; what is then alike becomes one range.
  template <class Forget>
  void tidy(const Forget& forget) {
    for (auto at = ranges_.begin(); at != ranges_.end();) {
      auto& range = at->second;
      forget(range);
      if (range.empty()) {
        at = ranges_.erase(at);
        continue;
      }
      if (at != ranges_.begin()) {
        auto& before = std::prev(at)->second;
        if (before.end == at->first && before.same_as(range)) {
          before.end = range.end;
          at = ranges_.erase(at);
          continue;
        }
      }
      ++at;
    }
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [begin, range] : ranges_) visit(range);
  }

  [[nodiscard]] std::size_t size() const { return ranges_.size(); }

 private:
  // Makes a range begin at `at`, where one lies across it.
  void cut(std::uintptr_t at) {
    auto next = ranges_.upper_bound(at);
    if (next == ranges_.begin()) return;
    auto before = std::prev(next);
    if (before->first == at || before->second.end <= at) return;
    ranges_.emplace_hint(next, at, before->second);
    before->second.end = at;
  }

  std::map<std::uintptr_t, Range> ranges_;
};

}  // namespace tidepool::detail
