// Runs what was recorded once more, in other orders that streams and events allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "recording.hpp"

namespace explore {

/// Steps through one order. A copy is two steps, so that others come in between.
class order {
 public:
  explicit order(const recording& of) : of_(&of), next_(of.by_stream().size()) {}

  /// Whether the stream's next step may be taken now.
  [[nodiscard]] bool able(std::size_t stream) const {
    const auto& mine = of_->by_stream()[stream];
    if (next_[stream].index == mine.size()) return false;
    const auto& op = of_->ops()[mine[next_[stream].index]].op;
    if (op.kind != operation_kind::wait || op.until.number == 0) return true;
    const auto behind = of_->op_at(op.until);
    return !behind || done(*behind);
  }

  void step(std::size_t stream) {
    auto& at = next_[stream];
    const auto index = of_->by_stream()[stream][at.index];
    const auto& op = of_->ops()[index].op;
    if (op.kind == operation_kind::copy && !at.half) {
      op.move_first_half();
      at.half = true;
      return;
    }
    if (op.kind == operation_kind::copy) op.move_second_half();
    if (op.kind == operation_kind::kernel && op.run) op.run();
    at.half = false;
    ++at.index;
  }

  [[nodiscard]] bool over() const {
    for (std::size_t s = 0; s < next_.size(); ++s) {
      if (next_[s].index < of_->by_stream()[s].size()) return false;
    }
    return true;
  }

 private:
  struct place {
    std::size_t index = 0;
    bool half = false;
  };
  [[nodiscard]] bool done(std::size_t op) const {
    const auto stream = of_->ops()[op].at.stream;
    const auto at = next_[stream].index;
    return at == of_->by_stream()[stream].size() || of_->by_stream()[stream][at] > op;
  }

  const recording* of_;
  std::vector<place> next_;
};

/// False when every stream waits.
inline bool run_random(const recording& of, std::uint64_t seed) {
  order now(of);
  std::minstd_rand random(static_cast<std::uint32_t>(seed * 2654435761U + 1));
  const auto streams = of.by_stream().size();
  // Streams differ in speed, so that some orders let one run far ahead of the others.
  std::vector<unsigned> weight(streams);
  for (auto& each : weight) each = 1 + static_cast<unsigned>(random() % 8);
  std::size_t stuck = 0;
  for (std::size_t s = random() % streams; !now.over(); s = (s + 1) % streams) {
    auto steps = static_cast<unsigned>(random() % (weight[s] + 1));
    if (steps == 0) continue;
    if (!now.able(s)) {
      if (++stuck > 64 * streams) return false;
      continue;
    }
    stuck = 0;
    for (; steps > 0 && now.able(s); --steps) now.step(s);
  }
  return true;
}

/// Every order with at most `preemptions` switches away from a stream that could go on, until
/// `limit` orders have run. Calls `each()` before every order and `ended()` after it.
class systematic {
 public:
  systematic(const recording& of, int preemptions, std::size_t limit)
      : of_(&of), preemptions_(preemptions), limit_(limit) {}

  std::size_t run(const std::function<void()>& each, const std::function<void()>& ended) {
    each_ = &each;
    ended_ = &ended;
    std::vector<std::size_t> none;
    explore(none, preemptions_);
    return ran_;
  }

 private:
  // `choices` holds (step, stream) pairs: at that step the order turns to that stream.
  void explore(std::vector<std::size_t>& choices, int left) {
    if (ran_ >= limit_) return;
    const auto turns = run_one(choices);
    if (left == 0) return;
    const auto from = choices.empty() ? 0 : choices[choices.size() - 2] + 1;
    for (std::size_t step = from; step < turns.size(); ++step) {
      for (const auto stream : turns[step]) {
        choices.push_back(step);
        choices.push_back(stream);
        explore(choices, left - 1);
        choices.resize(choices.size() - 2);
        if (ran_ >= limit_) return;
      }
    }
  }

  // Runs one order; at each step, which other streams could have gone on instead.
  std::vector<std::vector<std::size_t>> run_one(const std::vector<std::size_t>& choices) {
    (*each_)();
    ++ran_;
    std::vector<std::vector<std::size_t>> turns;
    order now(*of_);
    const auto streams = of_->by_stream().size();
    std::size_t current = 0;
    std::size_t next_choice = 0;
    while (!now.over()) {
      std::vector<std::size_t> able;
      for (std::size_t s = 0; s < streams; ++s) {
        if (now.able(s)) able.push_back(s);
      }
      if (able.empty()) break;
      const auto step = turns.size();
      if (next_choice < choices.size() && choices[next_choice] == step) {
        current = choices[next_choice + 1];
        next_choice += 2;
      } else if (!now.able(current)) {
        current = able.front();
      }
      std::erase(able, current);
      turns.push_back(std::move(able));
      now.step(current);
    }
    (*ended_)();
    return turns;
  }

  const recording* of_;
  int preemptions_;
  std::size_t limit_;
  std::size_t ran_ = 0;
  const std::function<void()>* each_ = nullptr;
  const std::function<void()>* ended_ = nullptr;
};

}  // namespace explore
