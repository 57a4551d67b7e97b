/// One step of the schedule, and its times by events on the compute stream.
#pragma once

#include <vector>

#include "model.hpp"

namespace bench {

/// Events at the borders of the forward and backward passes of one step.
class step_clock {
 public:
  step_clock(cuda_device& dev, const settings& run)
      : dev_(&dev),
        microbatches_(run.microbatches),
        depth_(run.depth),
        ready_(dev.make_event(true)) {
    for (int i = 0; i <= 2 * microbatches_; ++i) borders_.push_back(dev.make_event(true));
  }

  void begin(session& off, stream_ref stream) {
    next_ = 0;
    backward_.clear();
    off.watch_next_commit(&ready_);
    dev_->record(borders_[next_++], stream);
  }
  void pass_ended(bool backward, stream_ref stream) {
    backward_.push_back(backward);
    dev_->record(borders_[next_++], stream);
  }

  /// The stream has been synchronized.
  [[nodiscard]] step_times read() {
    step_times times;
    const auto passes = 2 * microbatches_;
    for (int i = 0; i < passes; ++i) {
      (backward_[i] ? times.backward : times.forward) += between(i, i + 1) / microbatches_;
    }
    times.whole = between(0, passes) / microbatches_;
    times.steady = between(depth_, passes - depth_) / (microbatches_ - depth_);
    times.ready = dev_->elapsed_us(borders_[0], ready_) / 1e3;
    return times;
  }

 private:
  [[nodiscard]] double between(int from, int to) {
    return dev_->elapsed_us(borders_[from], borders_[to]) / 1e3;
  }

  cuda_device* dev_;
  int microbatches_;
  int depth_;
  cuda_device::event ready_;
  std::vector<cuda_device::event> borders_;
  std::vector<bool> backward_;
  std::size_t next_ = 0;
};

/// One step: `depth` forward passes fill the pipeline, then backward and forward passes alternate,
/// then it drains. With a depth of one this is one microbatch at a time. All work goes to `stream`
/// and to the offloader's own, so this function is what a whole-iteration graph would capture,
/// where the host does not wait in it.
inline void run_step(model& m, session& off, const settings& run, stream_ref stream,
                     step_clock* clock = nullptr) {
  if (clock != nullptr) clock->begin(off, stream);
  int passes = 0;
  const auto ended = [&](bool backward) {
    if (clock != nullptr) clock->pass_ended(backward, stream);
    // In the middle of as many equal parts of the step.
    const auto waits = [&](int after) {
      return (2 * after * run.synchronise + 2 * run.microbatches) / (4 * run.microbatches);
    };
    ++passes;
    if (waits(passes) > waits(passes - 1)) off.wait_for_device();
  };
  m.begin_step();
  int next = 0;
  const auto forward = [&] {
    m.forward(off, next++);
    ended(false);
  };
  while (next < run.depth) forward();
  for (int done = 0; done < run.microbatches; ++done) {
    m.backward(off, done);
    ended(true);
    if (next < run.microbatches) forward();
  }
  off.end_step();
}

}  // namespace bench
