/// What ranks with GPUs send each other's experts: over NCCL, from device to device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tidepool/device/cuda.hpp>
#include <utility>
#include <vector>

#include "../model/device_array.hpp"
#include "exchange.hpp"
#include "nccl_tools.hpp"

namespace moe {

template <class Device, class Kernels>
class nccl_exchange final : public expert_exchange {
 public:
  using stream_ref = typename Device::stream_ref;

  nccl_exchange(const nccl_communicator& group, nccl_watch& watch, Device& dev, Kernels& kernels,
                stream_ref stream)
      : group_(group),
        watch_(watch),
        dev_(dev),
        kernels_(kernels),
        stream_(stream),
        ready_(dev.make_event()) {}

  [[nodiscard]] int ranks() const override { return group_.size(); }

  std::span<const std::int32_t> counts(const std::int32_t* on_device, index each) override {
    meeting& with = met();
    const index count = each * group_.size();
    if (!with.counts || with.counts->size() < count) {
      with.counts.emplace(dev_, count, "counts of other ranks");
      with.host_counts.emplace(dev_, count, "counts of other ranks");
    }
    const auto words = static_cast<std::size_t>(each);
    // On the stream itself, with a communicator of its own: rows that travel do not delay it.
    nccl_group([&] {
      for (int peer = 0; peer < group_.size(); ++peer) {
        check(ncclSend(on_device + peer * each, words, ncclInt32, peer, with.for_counts.get(),
                       stream_.get()),
              "ncclSend");
        check(ncclRecv(with.counts->data() + peer * each, words, ncclInt32, peer,
                       with.for_counts.get(), stream_.get()),
              "ncclRecv");
      }
    });
    kernels_.publish(with.host_counts->data(), with.counts->data(), count);
    dev_.synchronize(stream_);
    return {with.host_counts->data(), static_cast<std::size_t>(count)};
  }

  int start(const row_counts& rows, std::span<const moving_rows> what) override {
    meeting& with = met();
    std::size_t number = 0;
    while (number < exchanges_.size() && exchanges_[number].under_way) ++number;
    if (number == exchanges_.size()) exchanges_.push_back({dev_.make_event()});
    fork(with);
    nccl_group([&] {
      for (const moving_rows& each : what) move(with, rows, each);
    });
    dev_.record(exchanges_[number].done, with.stream.ref());
    exchanges_[number].under_way = true;
    return static_cast<int>(number);
  }

  void finish(int exchange) override {
    auto& now = exchanges_[static_cast<std::size_t>(exchange)];
    dev_.wait(stream_, now.done);
    now.under_way = false;
  }

  void gather_parts(float* values, const std::vector<index>& parts) override {
    meeting& with = met();
    fork(with);
    nccl_group([&] {
      int root = 0;
      for (const index part : parts) {
        if (part > 0) {
          check(ncclBroadcast(values, values, static_cast<std::size_t>(part), ncclFloat, root,
                              with.for_rows.get(), with.stream.get()),
                "ncclBroadcast");
        }
        values += part;
        ++root;
      }
    });
    dev_.record(ready_, with.stream.ref());
    dev_.wait(stream_, ready_);
  }

 private:
  /// With all of the group.
  struct meeting {
    nccl_communicator for_rows, for_counts;
    typename Device::stream stream;  // of the rows
    std::optional<device_array<Device, std::int32_t>> counts;
    std::optional<device_array<Device, std::int32_t, side::host>> host_counts;
  };

  struct exchange_event {
    typename Device::event done;
    bool under_way = false;
  };

  /// The rows' stream may read and write what the stream has been given so far.
  void fork(meeting& with) {
    dev_.record(ready_, stream_);
    dev_.wait(with.stream.ref(), ready_);
  }

  void move(meeting& with, const row_counts& rows, const moving_rows& what) {
    const float* from = what.from;
    float* to = what.to;
    for (std::size_t peer = 0; peer < rows.sent.size(); ++peer) {
      const index out = rows.sent[peer] * what.width, in = rows.received[peer] * what.width;
      if (out > 0) {
        check(ncclSend(from, static_cast<std::size_t>(out), ncclFloat, static_cast<int>(peer),
                       with.for_rows.get(), with.stream.get()),
              "ncclSend");
      }
      if (in > 0) {
        check(ncclRecv(to, static_cast<std::size_t>(in), ncclFloat, static_cast<int>(peer),
                       with.for_rows.get(), with.stream.get()),
              "ncclRecv");
      }
      from += out;
      to += in;
    }
  }

  meeting& met() {
    if (!met_) {
      nccl_communicator for_rows = group_.split(group_.place());
      nccl_communicator for_counts = group_.split(group_.place());
      watch_.add(for_rows);
      watch_.add(for_counts);
      met_.reset(new meeting{std::move(for_rows), std::move(for_counts), dev_.make_stream(),
                             std::nullopt, std::nullopt});
    }
    return *met_;
  }

  const nccl_communicator& group_;
  nccl_watch& watch_;
  Device& dev_;
  Kernels& kernels_;
  stream_ref stream_;
  typename Device::event ready_;
  std::unique_ptr<meeting> met_;
  std::vector<exchange_event> exchanges_;
};

}  // namespace moe
