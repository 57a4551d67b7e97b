/// What ranks with virtual devices send each other: over MPI, through pinned host memory.
#pragma once

#include <mpi.h>

#include <list>
#include <memory>
#include <span>
#include <vector>

#include "../model/device_array.hpp"
#include "exchange.hpp"
#include "ranks.hpp"

namespace moe {

/// Host memory that grows.
template <class Device, class T>
class staging {
 public:
  staging(Device& dev, const char* what) : dev_(dev), what_(what) {}

  /// Nothing may be reading or writing what was there.
  T* of(index count) {
    if (memory_.empty() || memory_.front().size() < count) {
      memory_.clear();
      memory_.emplace_back(dev_, count, what_);
    }
    return data();
  }
  [[nodiscard]] T* data() const { return memory_.front().data(); }
  [[nodiscard]] bool fits(index count) const {
    return !memory_.empty() && memory_.front().size() >= count;
  }

 private:
  Device& dev_;
  const char* what_;
  std::vector<device_array<Device, T, side::host>> memory_;
};

template <class Device, class Kernels>
class mpi_link final : public host_link, public expert_exchange {
 public:
  mpi_link(world& all, Device& dev, Kernels& kernels, typename Device::stream_ref stream)
      : host_link(all),
        dev_(dev),
        kernels_(kernels),
        stream_(stream),
        incoming_(dev, "received activations"),
        counts_out_(dev, "counts for other ranks"),
        parts_(dev, "gradients of other ranks") {}

  /// Takes the buffer; returns when its bytes are on the host.
  template <class Buffer>
  void send(Buffer what, int rank, int tag) {
    const auto count = static_cast<index>(what.size() / sizeof(float));
    outgoing& out = free_staging(count);
    kernels_.publish(out.memory.data(), what.template as<float>(), count);
    what.reset(stream_);
    dev_.synchronize(stream_);
    MPI_Isend(out.memory.data(), static_cast<int>(count), MPI_FLOAT, rank, tag, MPI_COMM_WORLD,
              &out.request);
  }

  /// Fills the buffer; blocks the host until the bytes are there.
  template <class Buffer>
  void receive(Buffer& what, int rank, int tag) {
    const auto count = static_cast<index>(what.size() / sizeof(float));
    dev_.synchronize(stream_);  // what was received before has been copied out of the staging
    float* const in = incoming_.of(count);
    MPI_Recv(in, static_cast<int>(count), MPI_FLOAT, rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    // A kernel copies, since a copy engine may have megabytes of reloads queued before it.
    kernels_.publish(what.template as<float>(), in, count);
  }

  void finish() {
    for (outgoing& out : outgoing_) MPI_Wait(&out.request, MPI_STATUS_IGNORE);
  }

  [[nodiscard]] int ranks() const override { return all().size(); }

  std::span<const std::int32_t> counts(const std::int32_t* on_device, index each) override {
    const index count = each * ranks();
    kernels_.publish(counts_out_.of(count), on_device, count);
    dev_.synchronize(stream_);
    counts_in_.resize(static_cast<std::size_t>(count));
    MPI_Alltoall(counts_out_.data(), static_cast<int>(each), MPI_INT32_T, counts_in_.data(),
                 static_cast<int>(each), MPI_INT32_T, MPI_COMM_WORLD);
    return counts_in_;
  }

  int start(const row_counts& rows, std::span<const moving_rows> what) override {
    const int number = free_exchange();
    auto& now = *exchanges_[static_cast<std::size_t>(number)];
    index width = 0;
    for (const moving_rows& each : what) width += each.width;
    // First to its end, what came before: the stream may still be reading the staging.
    if (!now.in.fits(rows.all_received() * width) || !now.out.fits(rows.all_sent() * width)) {
      dev_.synchronize(stream_);
    }
    float* out = now.out.of(rows.all_sent() * width);
    float* in = now.in.of(rows.all_received() * width);
    for (const moving_rows& each : what) {
      kernels_.publish(out, each.from, rows.all_sent() * each.width);
      out += rows.all_sent() * each.width;
    }
    dev_.synchronize(stream_);
    out = now.out.data();
    for (const moving_rows& each : what) {
      auto& part = now.parts.emplace_back(rows, each);
      MPI_Ialltoallv(out, part.sent.data(), part.sent_at.data(), MPI_FLOAT, in,
                     part.received.data(), part.received_at.data(), MPI_FLOAT, MPI_COMM_WORLD,
                     &part.request);
      out += rows.all_sent() * each.width;
      in += rows.all_received() * each.width;
    }
    return number;
  }

  void finish(int exchange) override {
    auto& now = *exchanges_[static_cast<std::size_t>(exchange)];
    const float* in = now.in.data();
    for (auto& part : now.parts) {
      MPI_Wait(&part.request, MPI_STATUS_IGNORE);
      kernels_.publish(part.to, in, part.count);
      in += part.count;
    }
    now.parts.clear();
  }

  void gather_parts(float* values, const std::vector<index>& parts) override {
    std::vector<int> counts, places;
    index end = 0;
    for (const index part : parts) {
      counts.push_back(static_cast<int>(part));
      places.push_back(static_cast<int>(end));
      end += part;
    }
    dev_.synchronize(stream_);
    float* const on_host = parts_.of(end);
    const index mine = places[static_cast<std::size_t>(all().rank())];
    kernels_.publish(on_host + mine, values + mine, parts[static_cast<std::size_t>(all().rank())]);
    dev_.synchronize(stream_);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, on_host, counts.data(), places.data(), MPI_FLOAT,
                   MPI_COMM_WORLD);
    kernels_.publish(values, on_host, end);
  }

 private:
  struct outgoing {
    device_array<Device, float, side::host> memory;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  /// One tensor of an exchange. MPI reads the counts until the end.
  struct moving_part {
    moving_part(const row_counts& rows, const moving_rows& what)
        : to(what.to), count(rows.all_received() * what.width) {
      lay_out(rows.sent, what.width, sent, sent_at);
      lay_out(rows.received, what.width, received, received_at);
    }

    float* to;
    index count;
    std::vector<int> sent, sent_at, received, received_at;
    MPI_Request request = MPI_REQUEST_NULL;

   private:
    static void lay_out(const std::vector<index>& rows, index width, std::vector<int>& counts,
                        std::vector<int>& places) {
      index end = 0;
      for (const index each : rows) {
        counts.push_back(static_cast<int>(each * width));
        places.push_back(static_cast<int>(end));
        end += each * width;
      }
    }
  };

  struct slot {
    explicit slot(Device& dev) : out(dev, "rows for other ranks"), in(dev, "received rows") {}

    staging<Device, float> out, in;
    std::list<moving_part> parts;  // of the exchange under way; requests must not move
  };

  outgoing& free_staging(index count) {
    for (outgoing& out : outgoing_) {
      int done = 0;
      MPI_Test(&out.request, &done, MPI_STATUS_IGNORE);
      if (done != 0 && out.memory.size() >= count) return out;
    }
    return outgoing_.emplace_back(outgoing{{dev_, count, "sent activations"}});
  }

  int free_exchange() {
    std::size_t number = 0;
    while (number < exchanges_.size() && !exchanges_[number]->parts.empty()) ++number;
    if (number == exchanges_.size()) exchanges_.push_back(std::make_unique<slot>(dev_));
    return static_cast<int>(number);
  }

  Device& dev_;
  Kernels& kernels_;
  typename Device::stream_ref stream_;
  std::list<outgoing> outgoing_;
  staging<Device, float> incoming_;
  std::vector<std::unique_ptr<slot>> exchanges_;
  staging<Device, std::int32_t> counts_out_;
  std::vector<std::int32_t> counts_in_;
  staging<Device, float> parts_;
};

}  // namespace moe
