// Streams of operations on a virtual clock: a discrete-event simulation that also runs the
// operations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tidepool/device/detail/captured.hpp"
#include "tidepool/device/detail/copies_moving.hpp"
#include "tidepool/device/detail/operation.hpp"
#include "tidepool/device/machine.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

class simulation {
 public:
  explicit simulation(const machine& model) : model_(model), random_(model.order_seed) {}

  std::size_t add_stream() {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (streams_[i].retired && streams_[i].queue.empty()) {
        streams_[i].retired = false;
        streams_[i].host_rate.reset();
        return i;
      }
    }
    streams_.emplace_back();
    return streams_.size() - 1;
  }
  void retire_stream(std::size_t which) { streams_[which].retired = true; }
  [[nodiscard]] std::optional<double>& host_rate(std::size_t of) { return streams_[of].host_rate; }

  std::size_t add_event() {
    if (spare_events_.empty()) {
      events_.emplace_back();
      spare_events_.reserve(events_.size());
      return events_.size() - 1;
    }
    const auto index = spare_events_.back();
    spare_events_.pop_back();
    return index;
  }
  void retire_event(std::size_t which) {
    events_[which].recorded = {};
    events_[which].dropped = false;
    spare_events_.push_back(which);
  }

  void kernel(std::size_t on, double duration_ns, std::function<void()> run,
              std::vector<kernel_access> touches = {}) {
    operation op;
    op.touches = std::move(touches);
    op.kind = operation_kind::kernel;
    op.duration = duration_ns;
    op.run = std::move(run);
    push(on, std::move(op));
  }
  void idle_until(std::size_t on, double ns) {
    operation op;
    op.kind = operation_kind::kernel;
    op.at_least = ns;
    push(on, std::move(op));
  }
  void copy(std::size_t on, copy_direction direction, void* target, const void* source,
            const copy_shape& shape) {
    operation op;
    op.kind = operation_kind::copy;
    op.direction = direction;
    op.target = static_cast<std::byte*>(target);
    op.source = static_cast<const std::byte*>(source);
    op.shape = shape;
    push(on, std::move(op));
  }
  void record(std::size_t on, std::size_t event) {
    auto& target = events_[event];
    target.done = target.dropped = false;
    if (capturing(on)) {
      target.captured_by = capture_->number();
      target.recorded = capture_->record(on);
      return;
    }
    operation op;
    op.kind = operation_kind::record;
    op.event = event;
    target.captured_by = 0;
    target.recorded = {on, push(on, std::move(op))};
  }
  // Queues a wait for the latest record of the event. An event that was never recorded needs no
  // wait.
  void wait(std::size_t on, std::size_t event) {
    const auto& target = events_[event];
    if (target.captured_by != 0) {
      if (capture_ == nullptr || target.captured_by != capture_->number()) {
        throw device_error(
            "tidepool: virtual device: a wait for an event of a capture that is over",
            captured_event);
      }
      return capture_->wait(on, target.recorded);
    }
    if (target.dropped) {
      throw device_error(
          "tidepool: virtual device: a wait for work that was dropped when an exception destroyed"
          " the offloader that it belonged to; destroy what uses it too, and begin anew",
          0);
    }
    if (target.recorded.number == 0) return;
    if (capturing(on)) {
      throw device_error(
          "tidepool: virtual device: a capturing stream waits for an event from outside",
          capture_isolation);
    }
    push_wait(on, target.recorded);
  }

  // ---- capture: operations are kept instead of run ----

  void begin_capture(std::size_t on) {
    if (capture_ != nullptr) {
      throw device_error("tidepool: virtual device: a capture is under way", capture_unsupported);
    }
    capture_ = std::make_unique<captured>(on, ++captures_begun_);
  }
  [[nodiscard]] bool capturing(std::size_t on) const {
    return capture_ != nullptr && capture_->holds(on);
  }
  [[nodiscard]] std::unique_ptr<captured> end_capture() {
    const auto done = std::exchange(capture_, nullptr);
    if (done == nullptr) {
      throw device_error("tidepool: virtual device: no capture is under way", capture_unsupported);
    }
    done->check();
    return std::make_unique<captured>(std::move(*done));
  }
  // Queues captured work behind the work of `lanes[0]`, on the streams `lanes`.
  void replay(const captured& graph, const std::vector<std::size_t>& lanes) {
    std::vector<std::uint64_t> base(lanes.size());
    for (std::size_t i = 1; i < lanes.size(); ++i) {
      push_wait(lanes[i], {lanes[0], streams_[lanes[0]].pushed});
    }
    for (std::size_t i = 0; i < lanes.size(); ++i) base[i] = streams_[lanes[i]].pushed;
    for (const auto& node : graph.nodes()) {
      auto op = node.op;
      const auto& until = node.op.until;
      if (op.kind == operation_kind::wait) {
        op.until = {lanes[until.stream], base[until.stream] + until.number};
      }
      push(lanes[node.lane], std::move(op));
    }
    for (std::size_t i = 1; i < lanes.size(); ++i) {
      push_wait(lanes[0], {lanes[i], streams_[lanes[i]].pushed});
    }
  }

  void run_until_idle(std::size_t which) {
    if (capturing(which)) {
      throw device_error("tidepool: virtual device: the host waits for a capturing stream",
                         capture_unsupported);
    }
    while (!streams_[which].queue.empty()) step();
  }
  void run_until_idle() {
    if (capture_ != nullptr) capture_->break_by_question();
    while (!idle()) step();
  }

  // The number of operations that were queued so far, on all streams.
  [[nodiscard]] std::uint64_t issued() const { return issued_; }
  // Forgets operations of a stream after the first `issued` ones of all streams, and operations
  // that wait for them. The others stay.
  void drop(std::size_t which, std::uint64_t issued) noexcept {
    const auto& from = streams_[which];
    const auto first = std::find_if(from.queue.begin(), from.queue.end(),
                                    [&](const operation& op) { return op.number > issued; });
    drop_behind(which, from.finished + static_cast<std::uint64_t>(first - from.queue.begin()));
  }

  // Sets the observer of every operation that will run, in the order of issue; operations of
  // replayed graphs count, too.
  void observe(operation_observer with) { observer_ = std::move(with); }

  [[nodiscard]] bool idle() const {
    return std::ranges::all_of(streams_, [](const auto& each) { return each.queue.empty(); });
  }
  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] double time_of(std::size_t event) const { return events_[event].time; }
  [[nodiscard]] bool passed(std::size_t event) {
    if (capture_ != nullptr) capture_->break_by_question();
    return events_[event].done;
  }

 private:
  // CUDA's codes for the same mistakes.
  static constexpr int capture_unsupported = 900;
  static constexpr int capture_isolation = 905;
  static constexpr int captured_event = 907;

  // Queues an operation; returns its number on the stream, or 0 if it was captured.
  std::uint64_t push(std::size_t on, operation&& op) {
    if (capturing(on)) {
      capture_->push(on, std::move(op));
      return 0;
    }
    auto& into = streams_[on];
    op.number = ++issued_;
    into.queue.push_back(std::move(op));
    ++into.pushed;
    if (observer_) observer_({on, into.pushed}, into.queue.back());
    return into.pushed;
  }

  void push_wait(std::size_t on, const sim_position& until) {
    operation op;
    op.kind = operation_kind::wait;
    op.until = until;
    push(on, std::move(op));
  }

  // Forgets operations of a stream behind `last`. Their numbers are used again, because no
  // operation that stays refers to them.
  void drop_behind(std::size_t which, std::uint64_t last) noexcept {
    auto& from = streams_[which];
    while (from.pushed > last) {
      const auto& op = from.queue.back();
      if (op.kind == operation_kind::record && op.event != operation::no_event) {
        auto& target = events_[op.event];
        if (target.recorded.stream == which && target.recorded.number == from.pushed) {
          target.recorded = {};
          target.dropped = true;
        }
      }
      from.queue.pop_back();
      --from.pushed;
    }
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const auto& waits = streams_[i].queue;
      const auto first = std::find_if(waits.begin(), waits.end(), [&](const operation& op) {
        return op.kind == operation_kind::wait && op.until.stream == which &&
               op.until.number > last;
      });
      if (first == waits.end()) continue;
      drop_behind(i, streams_[i].finished + static_cast<std::uint64_t>(first - waits.begin()));
    }
  }

  [[nodiscard]] bool reached(const sim_position& until) const {
    return streams_[until.stream].finished >= until.number;
  }

  [[nodiscard]] bool may_start(const operation& op) const {
    return op.kind != operation_kind::wait || until_reached(op);
  }
  [[nodiscard]] bool until_reached(const operation& op) const {
    return op.until.number == 0 || reached(op.until);
  }

  // Runs at least one operation to its end; throws `device_error` if none can run.
  void step() {
    if (model_.order_seed != 0) return random_step();
    bool any = false;
    for (bool more = true; more;) {
      more = false;
      for (auto& each : streams_) {
        while (!each.queue.empty() && start_or_finish_instant(each)) more = any = true;
      }
    }
    if (any) return;
    advance();
  }

  // Starts the first operation. Returns true if it took no time and has ended.
  bool start_or_finish_instant(sim_stream& on) {
    auto& op = on.queue.front();
    if (op.kind == operation_kind::record || op.kind == operation_kind::wait) {
      if (!may_start(op)) return false;
      finish(on);
      return true;
    }
    if (!op.started) start(op);
    return false;
  }

  void start(operation& op) {
    op.started = true;
    if (op.kind != operation_kind::copy) {
      op.duration = std::max(op.duration, op.at_least - now_);
      return;
    }
    const bool to_peer = op.direction == copy_direction::device_to_peer ||
                         op.direction == copy_direction::peer_to_device;
    op.duration = to_peer ? model_.peer_latency_ns : model_.copy_latency_ns;
    op.left = static_cast<double>(op.shape.bytes());
    if (model_.moves_bytes) op.move_first_half();
  }

  void finish(sim_stream& on) {
    auto op = std::move(on.queue.front());
    on.queue.pop_front();
    ++on.finished;
    if (op.kind == operation_kind::kernel && op.run) op.run();
    if (op.kind == operation_kind::copy && model_.moves_bytes) op.move_second_half();
    if (op.kind == operation_kind::record && op.event != operation::no_event) {
      auto& target = events_[op.event];
      if (target.recorded.number == on.finished && &streams_[target.recorded.stream] == &on) {
        target.time = now_;
        target.done = true;
      }
    }
  }

  // Moves the clock to the next end of a running operation.
  void advance() {
    copies_moving running;
    for (const auto& each : streams_) {
      if (moving(each)) running.add(each.queue.front().direction);
    }
    double next = std::numeric_limits<double>::infinity();
    for (const auto& each : streams_) {
      if (!each.queue.empty() && each.queue.front().started) {
        next = std::min(next, time_left(each, running));
      }
    }
    if (next == std::numeric_limits<double>::infinity()) {
      throw device_error(
          "tidepool: virtual device: every stream waits for an event that never comes", 0);
    }
    now_ += next;
    for (auto& each : streams_) {
      if (each.queue.empty() || !each.queue.front().started) continue;
      auto& op = each.queue.front();
      const bool ends = time_left(each, running) <= next;
      if (op.duration > 0) {
        op.duration = std::max(0.0, op.duration - next);
      } else {
        op.left -= next * running.rate(op.direction, model_);
      }
      if (ends && (op.kind == operation_kind::kernel || op.duration > 0 || op.left <= 1e-3)) {
        finish(each);
      } else if (ends && op.kind == operation_kind::copy) {
        op.duration = 0;  // the latency is over; bytes move from now on
      }
    }
  }

  [[nodiscard]] static bool moving(const sim_stream& each) {
    if (each.queue.empty()) return false;
    const auto& op = each.queue.front();
    return op.started && op.kind == operation_kind::copy && op.duration <= 0;
  }

  [[nodiscard]] double time_left(const sim_stream& each, const copies_moving& running) const {
    const auto& op = each.queue.front();
    if (op.kind == operation_kind::kernel || op.duration > 0) return op.duration;
    return op.left / running.rate(op.direction, model_);
  }

  // Starts or ends one operation, chosen at random.
  void random_step() {
    std::vector<sim_stream*> able;
    for (auto& each : streams_) {
      if (!each.queue.empty() && may_start(each.queue.front())) able.push_back(&each);
    }
    if (able.empty()) {
      throw device_error(
          "tidepool: virtual device: every stream waits for an event that never comes", 0);
    }
    auto& chosen = *able[random_() % able.size()];
    auto& op = chosen.queue.front();
    now_ += 1;
    const bool instant =
        op.kind == operation_kind::record || op.kind == operation_kind::wait || op.started;
    if (instant) {
      finish(chosen);
    } else {
      start(op);
    }
  }

  machine model_;
  std::mt19937_64 random_;
  std::deque<sim_stream> streams_;
  std::deque<sim_event> events_;
  std::vector<std::size_t> spare_events_;
  operation_observer observer_;
  std::unique_ptr<captured> capture_;
  std::uint64_t captures_begun_ = 0;
  std::uint64_t issued_ = 0;
  double now_ = 0;
};

}  // namespace tidepool::detail
