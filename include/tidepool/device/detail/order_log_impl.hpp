// The bodies of order_log.hpp.
#pragma once

#include "tidepool/device/detail/order_log.hpp"

namespace tidepool::inline v0_3_0::detail {

// ---- events and captures ----

inline void order_log::record(lane on, std::uint32_t event) {
  auto& target = events_[event];
  target.by = {};
  target.by.kind = access_kind::recorded;
  target.by.stream = target.by.lane = on;
  target.by.number = ++issued_;
  target.capture = 0;
  target.known.clear();
  if (capture_) {
    if (const auto place = capture_->place_of(on); place < capture_->lanes.size()) {
      target.capture = target.by.graph = capture_->number;
      target.item = static_cast<std::uint32_t>(capture_->items.size());
      order_step step;
      step.kind = step_kind::record;
      capture_->items.push_back({place, step});
      return;
    }
  }
  clocks_.record(on, target.known);
}

inline void order_log::expect_wait(lane on, std::uint32_t event) {
  const auto& until = events_[event];
  if (until.by.number == 0) return;
  const bool inside = capture_ && capture_->place_of(on) < capture_->lanes.size();
  const auto mine = capture_ ? capture_->number : 0;
  // A stream from outside that waits for an event of the capture takes part from now on.
  if (until.capture == 0 ? !inside : until.capture == mine) return;
  order_access waiter;
  waiter.kind = access_kind::waited;
  waiter.stream = waiter.lane = on;
  waiter.module = where_.module;
  waiter.layer = where_.layer;
  waiter.microbatch = where_.microbatch;
  waiter.number = issued_ + 1;
  waiter.graph = inside ? mine : 0;
  findings_.add(finding_kind::foreign_capture, until.by, false, waiter, false, 0, 0, clocks_);
}

inline void order_log::wait(lane on, std::uint32_t event) {
  const auto& until = events_[event];
  if (until.by.number == 0) return;
  ++issued_;
  if (until.capture == 0) return clocks_.wait(on, until.known);
  if (!capture_ || until.capture != capture_->number) return;
  auto place = capture_->place_of(on);
  if (place == capture_->lanes.size()) capture_->lanes.push_back(on);
  order_step step;
  step.kind = step_kind::wait;
  step.until = until.item;
  capture_->items.push_back({place, step});
}

inline void order_log::expect_joined() {
  if (!capture_) return;
  const auto place = capture_->unjoined();
  if (place == 0) return;
  order_access last;
  bool writes = false;
  for (const auto& each : capture_->items) {
    if (each.place != place || each.step.kind > step_kind::copy) continue;
    last = each.step.who;
    writes = each.step.kind == step_kind::write;
  }
  order_access end;
  end.kind = access_kind::capture_end;
  end.stream = end.lane = capture_->lanes.front();
  end.number = issued_ + 1;
  end.graph = capture_->number;
  findings_.add(finding_kind::not_joined, last, writes, end, false, 0, 0, clocks_);
}

inline auto order_log::end_capture() -> graph {
  graph result;
  if (!capture_) return result;
  result.content = std::move(*capture_);
  capture_.reset();
  result.lanes.push_back(order_clocks::host);
  while (result.lanes.size() < result.content.lanes.size()) {
    result.lanes.push_back(clocks_.borrow_inner());
  }
  return result;
}

// The stream comes before all of the graph, and all of the graph before what the stream gets next.
inline void order_log::launch(graph& which, lane on) {
  if (which.lanes.empty()) return;
  which.lanes.front() = on;
  for (std::size_t i = 1; i < which.lanes.size(); ++i) clocks_.wait(which.lanes[i], on);
  const auto& items = which.content.items;
  if (inside_.size() < items.size()) inside_.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& [place, step] = items[i];
    const auto runs_on = which.lanes[place];
    if (step.kind == step_kind::record) {
      clocks_.record(runs_on, inside_[i]);
    } else if (step.kind == step_kind::wait) {
      clocks_.wait(runs_on, inside_[step.until]);
    } else {
      auto launched = step;
      if (place == 0) launched.who.stream = on;  // which may be another than it was captured on
      run(runs_on, launched);
    }
  }
  for (std::size_t i = 1; i < which.lanes.size(); ++i) clocks_.wait(on, which.lanes[i]);
}

// ---- accesses ----

inline void order_log::run(lane on, const order_step& step) {
  auto who = step.who;
  who.lane = on;
  who.position = clocks_.issue(on);
  const auto by = remember(who);
  switch (step.kind) {
    case step_kind::read:
      return look(by, step.target, step.shape.width, nullptr);
    case step_kind::write:
      return change(by, step.target, step.shape.width, contents::written);
    case step_kind::copy:
      return run_copy(by, step);
    case step_kind::hand_out:
      return change(by, step.target, step.shape.width, contents::unwritten);
    case step_kind::give_back:
      return map_.over(step.target, step.target + step.shape.width,
                       [&](touched_range& range, std::uintptr_t /*begin*/) {
                         range.holds = contents::given_back;
                         range.cause = by;
                       });
    case step_kind::give_to_owner:
      return borrowed_.over(step.target, step.target + step.shape.width,
                            [&](borrowed_range& range, std::uintptr_t begin) {
                              if (range.times > 0) --range.times;
                              if (range.times > 0) return return_reference(by, begin, range.end);
                              return_to_owner(by, begin, range.end);
                            });
    case step_kind::record:
    case step_kind::wait:
      return;
  }
}

// Copies move what was never written as well: padding, and rows that nobody reads. So a target
// holds what its source does, and only who computes with it is told.
inline void order_log::run_copy(std::uint32_t by, const order_step& step) {
  const auto& shape = step.shape;
  const bool dense = shape.source_pitch == shape.width && shape.target_pitch == shape.width;
  const auto rows = dense ? 1 : shape.rows;
  const auto width = dense ? shape.bytes() : shape.width;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = step.source + row * shape.source_pitch;
    const auto to = step.target + row * shape.target_pitch;
    auto holds = contents::written;
    look(by, from, width, &holds);
    change(by, to, width, contents::written);
    if (holds != contents::unwritten) continue;
    pieces_.clear();
    map_.over(from, from + width, [&](touched_range& range, std::uintptr_t begin) {
      if (range.holds == contents::unwritten) pieces_.push_back({begin, range.end, range.cause});
    });
    for (const auto& [begin, end, cause] : pieces_) {
      map_.replace(to + (begin - from), to + (end - from), contents::unwritten, by, cause);
    }
  }
}

// Whether memory is not to be touched any more.
inline bool order_log::is_gone(const touched_range& range, std::uint32_t by, std::uintptr_t begin,
                               bool writes) {
  if (range.holds != contents::given_back && range.holds != contents::freed) return false;
  found(finding_kind::given_back, range.cause, false, by, writes, begin, range.end);
  return true;
}

inline void order_log::expect_order(const touched_range& range, std::uint32_t by,
                                    std::uintptr_t begin, bool writes) {
  if (range.writer != 0 && range.writer != by && !before(range.writer, by)) {
    // Nobody touches memory by being handed it.
    const bool touched = accesses_[by].kind != access_kind::handed_out ||
                         accesses_[range.writer].kind != access_kind::handed_out;
    if (touched) {
      found(finding_kind::unordered, range.writer, true, by, writes, begin, range.end);
    }
  }
  if (!writes) return;
  for (const auto reader : range.readers) {
    if (reader != by && !before(reader, by)) {
      found(finding_kind::unordered, reader, false, by, writes, begin, range.end);
    }
  }
}

// A read. What it finds unwritten is a mistake of a kernel; of a copy it is told by
// `found_unwritten`.
inline void order_log::look(std::uint32_t by, std::uintptr_t begin, std::size_t bytes,
                            contents* holds) {
  const bool judged = judges_unwritten_ && declares_;
  map_.over(begin, begin + bytes, [&](touched_range& range, std::uintptr_t from) {
    if (is_gone(range, by, from, false)) return;
    expect_order(range, by, from, false);
    if (range.holds == contents::unwritten) {
      if (holds != nullptr) {
        *holds = contents::unwritten;
      } else if (judged) {
        found(finding_kind::never_written, range.cause, false, by, false, from, range.end);
        range.holds = contents::written;  // said once
      }
    }
    std::erase_if(range.readers, [&](std::uint32_t old) { return before(old, by); });
    range.readers.push_back(by);
  });
}

inline void order_log::change(std::uint32_t by, std::uintptr_t begin, std::size_t bytes,
                              contents to) {
  const bool fresh = to == contents::unwritten;  // whoever had it before
  bool gone = false;
  map_.over(begin, begin + bytes, [&](touched_range& range, std::uintptr_t from) {
    if (!fresh && is_gone(range, by, from, true)) {
      gone = true;
      return;
    }
    expect_order(range, by, from, true);
  });
  // What was given back stays so.
  if (!gone) map_.replace(begin, begin + bytes, to, by, fresh ? by : 0);
}

// Other borrowers have the bytes: uses that are not over yet may be theirs. `by` stands for those
// that it has joined.
inline void order_log::return_reference(std::uint32_t by, std::uintptr_t begin,
                                        std::uintptr_t end) {
  map_.over(begin, end, [&](touched_range& range, std::uintptr_t /*from*/) {
    std::erase_if(range.readers, [&](std::uint32_t old) { return before(old, by); });
    range.readers.push_back(by);
  });
}

inline void order_log::return_to_owner(std::uint32_t by, std::uintptr_t begin, std::uintptr_t end) {
  const auto is_reference = [&](std::uint32_t reader) {
    return accesses_[reader].kind == access_kind::returned;
  };
  map_.over(begin, end, [&](touched_range& range, std::uintptr_t from) {
    const auto expect = [&](std::uint32_t earlier, bool writes) {
      if (earlier == 0 || before(earlier, by)) return;
      found(finding_kind::returned_early, earlier, writes, by, true, from, range.end);
    };
    if (accesses_[range.writer].kind != access_kind::handed_out) expect(range.writer, true);
    for (const auto reader : range.readers) {
      if (!is_reference(reader)) expect(reader, false);
    }
    range.holds = contents::unknown;
    range.writer = by;
    range.cause = 0;
    // An owner with references on other streams knows them all: who has the memory next waits for
    // the streams of all.
    std::erase_if(range.readers, [&](std::uint32_t reader) {
      return !is_reference(reader) || before(reader, by);
    });
  });
}

inline void order_log::set(const void* data, std::size_t bytes, contents to, access_kind kind) {
  order_access who;
  who.kind = kind;
  who.module = where_.module;
  who.layer = where_.layer;
  who.microbatch = where_.microbatch;
  who.number = ++issued_;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  map_.replace(begin, begin + bytes, to, 0, remember(who));
}

// ---- what is remembered ----

inline std::uint32_t order_log::remember(const order_access& who) {
  if (spare_.empty()) {
    if (size() >= tidy_at_) tidy();
    if (spare_.empty()) {
      accesses_.push_back(who);
      return static_cast<std::uint32_t>(accesses_.size() - 1);
    }
  }
  const auto number = spare_.back();
  spare_.pop_back();
  accesses_[number] = who;
  return number;
}

// Forgets what every stream has joined, and the accesses that nothing refers to any more.
inline void order_log::tidy() {
  const auto over = clocks_.everyone();
  const auto is_over = [&](std::uint32_t which) {
    const auto& access = accesses_[which];
    return access.lane == order_clocks::host || over[access.lane] >= access.position;
  };
  std::vector<bool> used(accesses_.size());
  used[0] = true;
  map_.tidy([&](touched_range& range) {
    if (range.writer != 0 && is_over(range.writer)) range.writer = 0;
    std::erase_if(range.readers, is_over);
    if (range.holds == contents::written || range.holds == contents::unknown) range.cause = 0;
  });
  map_.for_each([&](const touched_range& range) {
    used[range.writer] = used[range.cause] = true;
    for (const auto reader : range.readers) used[reader] = true;
  });
  spare_.clear();
  for (auto i = static_cast<std::uint32_t>(accesses_.size()); i-- > 1;) {
    if (!used[i]) spare_.push_back(i);
  }
  tidy_at_ = std::max<std::size_t>(1024, 2 * size());
}

}  // namespace tidepool::detail
