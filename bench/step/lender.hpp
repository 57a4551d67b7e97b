/// What the neighbour does itself: GEMMs on the device whose memory is lent, timed.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels.hpp"

namespace bench {

/// A row of large GEMMs on another device, as long as a step. Nothing joins it to the step.
class lender_work {
 public:
  explicit lender_work(int device)
      : on_(device),
        dev_(device),
        stream_(dev_.make_stream()),
        blas_(dev_, stream_.get()),
        a_(dev_, rows * width),
        b_(dev_, width * width),
        c_(dev_, rows * width),
        begin_(dev_.make_event(true)),
        end_(dev_.make_event(true)) {
    fill_random(a_.data(), a_.count(), 1, 1, stream_.get());
    fill_random(b_.data(), b_.count(), 2, 0.01, stream_.get());
    dev_.synchronize();
    on_.reset();
  }

  /// Each row from now on takes about so many milliseconds.
  void set_length(double ms) {
    count_ = 20;
    start();  // loads the kernel
    static_cast<void>(finish());
    start();
    count_ = std::clamp(static_cast<int>(std::lround(count_ * ms / finish())), 1, 500);
  }

  void start() {
    const current on(dev_.ordinal());
    dev_.record(begin_, stream_.ref());
    for (int i = 0; i < count_; ++i) {
      blas_.multiply(rows, width, width, {a_.data(), width}, {b_.data(), width},
                     {c_.data(), width});
    }
    dev_.record(end_, stream_.ref());
  }
  /// Milliseconds of the row that was started.
  [[nodiscard]] double finish() {
    dev_.synchronize(stream_.ref());
    return dev_.elapsed_us(begin_, end_) / 1e3;
  }

 private:
  class current {
   public:
    explicit current(int device) {
      check(cudaGetDevice(&before_), "cudaGetDevice");
      check(cudaSetDevice(device), "cudaSetDevice");
    }
    current(const current&) = delete;
    current& operator=(const current&) = delete;
    ~current() { static_cast<void>(cudaSetDevice(before_)); }

   private:
    int before_ = 0;
  };

  static constexpr index rows = 16384;
  static constexpr index width = 8192;

  std::optional<current> on_;  // while it is made
  cuda_device dev_;
  cuda_device::stream stream_;
  blas blas_;
  device_array<bf16> a_;
  device_array<bf16> b_;
  device_array<bf16> c_;
  cuda_device::event begin_;
  cuda_device::event end_;
  int count_ = 1;
};

}  // namespace bench
