/// What ranks with virtual devices send each other's experts, over MPI.
#pragma once

#include <mpi.h>

#include <list>
#include <memory>
#include <span>
#include <vector>

#include "exchange.hpp"
#include "mpi_tools.hpp"

namespace moe {

template <class Device, class Kernels>
class mpi_exchange final : public expert_exchange {
 public:
  mpi_exchange(const mpi_communicator& group, Device& dev, Kernels& kernels,
               typename Device::stream_ref stream)
      : group_(group),
        dev_(dev),
        kernels_(kernels),
        stream_(stream),
        counts_out_(dev, "counts for other ranks"),
        parts_(dev, "gradients of other ranks") {}

  [[nodiscard]] int ranks() const override { return group_.size(); }

  std::span<const std::int32_t> counts(const std::int32_t* on_device, index each) override {
    const index count = each * group_.size();
    kernels_.publish(counts_out_.of(count), on_device, count);
    dev_.synchronize(stream_);
    counts_in_.resize(static_cast<std::size_t>(count));
    MPI_Alltoall(counts_out_.data(), static_cast<int>(each), MPI_INT32_T, counts_in_.data(),
                 static_cast<int>(each), MPI_INT32_T, group_.get());
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
                     part.received.data(), part.received_at.data(), MPI_FLOAT, group_.get(),
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
    const auto place = static_cast<std::size_t>(group_.place());
    const index mine = places[place];
    kernels_.publish(on_host + mine, values + mine, parts[place]);
    dev_.synchronize(stream_);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, on_host, counts.data(), places.data(), MPI_FLOAT,
                   group_.get());
    kernels_.publish(values, on_host, end);
  }

 private:
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

  int free_exchange() {
    std::size_t number = 0;
    while (number < exchanges_.size() && !exchanges_[number]->parts.empty()) ++number;
    if (number == exchanges_.size()) exchanges_.push_back(std::make_unique<slot>(dev_));
    return static_cast<int>(number);
  }

  const mpi_communicator& group_;
  Device& dev_;
  Kernels& kernels_;
  typename Device::stream_ref stream_;
  std::vector<std::unique_ptr<slot>> exchanges_;
  staging<Device, std::int32_t> counts_out_;
  std::vector<std::int32_t> counts_in_;
  staging<Device, float> parts_;
};

}  // namespace moe
