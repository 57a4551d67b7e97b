/// What a trainer would write in place of a commit and a restore: the same CUDA calls, by hand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "blas.hpp"

namespace bench {

/// Copies in pieces, behind the kernels of `compute` and before those that read. Every group has
/// its place on the device and on the host and events of its own, as it must have in a trainer; one
/// place for all would keep the driver's look-ups in the cache and flatter the host's time.
class hand_written {
 public:
  /// `held` bytes leave before the first of them is needed again, in `groups` groups at least.
  hand_written(cuda_device& dev, cuda_device::stream_ref compute, std::size_t held,
               std::size_t largest, std::size_t groups, std::size_t piece)
      : dev_(&dev),
        compute_(compute),
        piece_(piece),
        bytes_(std::max(held, largest)),
        out_stream_(dev.make_stream()),
        in_stream_(dev.make_stream()),
        on_device_(dev, static_cast<index>(bytes_)),
        on_host_(static_cast<std::byte*>(dev.try_allocate_host(bytes_))) {
    if (on_host_ == nullptr) {
      throw tidepool::out_of_budget(
          "by hand: the host cannot give " + std::to_string(bytes_) + " pinned bytes", bytes_, 0);
    }
    for (std::size_t i = 0; i < groups; ++i) {
      events_.push_back({dev.make_event(), dev.make_event(), dev.make_event()});
    }
  }
  hand_written(const hand_written&) = delete;
  hand_written& operator=(const hand_written&) = delete;
  ~hand_written() {
    static_cast<void>(cudaStreamSynchronize(out_stream_.get()));
    static_cast<void>(cudaStreamSynchronize(in_stream_.get()));
    dev_->deallocate_host(on_host_);
  }

  void leave(std::size_t saved) {
    auto& events = events_[out_.group++ % events_.size()];
    const auto from = out_.place(saved, bytes_);
    dev_->record(events.ready, compute_);
    dev_->wait(out_stream_.ref(), events.ready);
    in_pieces(saved, [&](std::size_t done, std::size_t bytes) {
      dev_->copy(on_host_ + from + done, on_device_.data() + from + done, {bytes, 1, bytes, bytes},
                 tidepool::copy_direction::device_to_host, out_stream_.ref());
    });
    dev_->record(events.gone, out_stream_.ref());
  }

  void arrive(std::size_t saved) {
    auto& events = events_[in_.group++ % events_.size()];
    const auto to = in_.place(saved, bytes_);
    dev_->wait(in_stream_.ref(), events.gone);
    dev_->wait(in_stream_.ref(), events.ready);  // the last reader of the memory to be filled
    in_pieces(saved, [&](std::size_t done, std::size_t bytes) {
      dev_->copy(on_device_.data() + to + done, on_host_ + to + done, {bytes, 1, bytes, bytes},
                 tidepool::copy_direction::host_to_device, in_stream_.ref());
    });
    dev_->record(events.back, in_stream_.ref());
    dev_->wait(compute_, events.back);
  }

 private:
  struct group_events {
    cuda_device::event ready;
    cuda_device::event gone;
    cuda_device::event back;
  };

  // Goes round the memory, group by group.
  struct cursor {
    std::size_t group = 0;
    std::size_t next = 0;

    std::size_t place(std::size_t saved, std::size_t of) {
      if (next + saved > of) next = 0;
      return std::exchange(next, next + saved);
    }
  };

  template <class Copy>
  void in_pieces(std::size_t saved, const Copy& copy) const {
    for (std::size_t done = 0; done < saved; done += std::min(piece_, saved - done)) {
      copy(done, std::min(piece_, saved - done));
    }
  }

  cuda_device* dev_;
  cuda_device::stream_ref compute_;
  std::size_t piece_;
  std::size_t bytes_;
  std::vector<group_events> events_;
  cuda_device::stream out_stream_;
  cuda_device::stream in_stream_;
  device_array<std::byte> on_device_;
  std::byte* on_host_;
  cursor out_;
  cursor in_;
};

}  // namespace bench
