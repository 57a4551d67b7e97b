/// Copies that have nothing to do with the model: the raw rates of the link, and the traffic of the
/// interference floor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "blas.hpp"
#include "results.hpp"

namespace bench {

/// One buffer on each side and a stream for each direction. Nothing ever joins them to compute.
class side_traffic {
 public:
  side_traffic(cuda_device& dev, std::size_t bytes)
      : dev_(&dev),
        bytes_(bytes),
        out_stream_(dev.make_stream()),
        in_stream_(dev.make_stream()),
        source_(dev, static_cast<index>(bytes)),
        target_(dev, static_cast<index>(bytes)),
        host_out_(dev.try_allocate_host(bytes)),
        host_in_(dev.try_allocate_host(bytes)) {
    if (host_out_ == nullptr || host_in_ == nullptr) {
      free_host();
      throw tidepool::out_of_budget("side_traffic: the host cannot give two pinned buffers of " +
                                        std::to_string(bytes) + " bytes",
                                    2 * bytes, 0);
    }
  }
  side_traffic(const side_traffic&) = delete;
  side_traffic& operator=(const side_traffic&) = delete;
  ~side_traffic() {
    static_cast<void>(cudaStreamSynchronize(out_stream_.get()));
    static_cast<void>(cudaStreamSynchronize(in_stream_.get()));
    free_host();
  }

  /// How much of what a module saves is copied.
  void set_share(double share) { share_ = share; }

  void leave(std::size_t saved) {
    in_pieces(saved, [&](std::size_t bytes) { copy_out(bytes); });
  }
  void arrive(std::size_t saved) {
    in_pieces(saved, [&](std::size_t bytes) { copy_in(bytes); });
  }

  /// Rates of 32 MiB copies queued back to back, each for at least `seconds`.
  [[nodiscard]] raw_rates measure(double seconds) {
    const auto piece = std::min(bytes_, std::size_t{32} << 20);
    raw_rates rates;
    const auto alone = [&](const auto& copy, tidepool::cuda_device::stream_ref stream) {
      timed(stream, 16, copy, piece);  // the first touch of everything
      const auto trial = timed(stream, 16, copy, piece);
      const auto count = static_cast<int>(std::ceil(16 * seconds * 1e3 / trial));
      return gigabytes(count, piece) / timed(stream, count, copy, piece);
    };
    rates.out = alone([&](std::size_t bytes) { copy_out(bytes); }, out_stream_.ref());
    rates.in = alone([&](std::size_t bytes) { copy_in(bytes); }, in_stream_.ref());
    rates.both = together(
        static_cast<int>(std::ceil(seconds * std::min(rates.out, rates.in) * 1e9 / double(piece))),
        piece, rates);
    return rates;
  }

 private:
  // In units that give GB/s when divided by milliseconds.
  static double gigabytes(int count, std::size_t piece) {
    return static_cast<double>(piece) * count / 1e6;
  }

  template <class Copy>
  void in_pieces(std::size_t saved, const Copy& copy) {
    auto left = static_cast<std::size_t>(static_cast<double>(saved) * share_);
    for (; left > 0; left -= std::min(left, bytes_)) copy(std::min(left, bytes_));
  }
  void copy_out(std::size_t bytes) {
    dev_->copy(host_out_, source_.data(), {bytes, 1, bytes, bytes},
               tidepool::copy_direction::device_to_host, out_stream_.ref());
  }
  void copy_in(std::size_t bytes) {
    dev_->copy(target_.data(), host_in_, {bytes, 1, bytes, bytes},
               tidepool::copy_direction::host_to_device, in_stream_.ref());
  }

  // Milliseconds.
  template <class Copy>
  double timed(tidepool::cuda_device::stream_ref stream, int count, const Copy& copy,
               std::size_t piece) {
    auto begin = dev_->make_event(true);
    auto end = dev_->make_event(true);
    dev_->record(begin, stream);
    for (int i = 0; i < count; ++i) copy(piece);
    dev_->record(end, stream);
    dev_->synchronize(stream);
    return dev_->elapsed_us(begin, end) / 1e3;
  }

  double together(int count, std::size_t piece, const raw_rates& alone) {
    auto begin = dev_->make_event(true);
    auto out_end = dev_->make_event(true);
    auto in_end = dev_->make_event(true);
    dev_->record(begin, out_stream_.ref());
    dev_->wait(in_stream_.ref(), begin);
    for (int i = 0; i < count; ++i) {
      copy_out(piece);
      copy_in(piece);
    }
    dev_->record(out_end, out_stream_.ref());
    dev_->record(in_end, in_stream_.ref());
    dev_->synchronize(out_stream_.ref());
    dev_->synchronize(in_stream_.ref());
    const auto out = dev_->elapsed_us(begin, out_end) / 1e3;
    const auto in = dev_->elapsed_us(begin, in_end) / 1e3;
    // While the slower direction finishes alone, it runs at its rate alone; that does not count.
    const auto rest = out > in ? (out - in) * alone.out : (in - out) * alone.in;
    return (2 * gigabytes(count, piece) - rest) / std::min(out, in);
  }

  void free_host() noexcept {
    dev_->deallocate_host(host_out_);
    dev_->deallocate_host(host_in_);
  }

  cuda_device* dev_;
  std::size_t bytes_;
  double share_ = 1;
  cuda_device::stream out_stream_;
  cuda_device::stream in_stream_;
  device_array<std::byte> source_;
  device_array<std::byte> target_;
  void* host_out_;
  void* host_in_;
};

}  // namespace bench
