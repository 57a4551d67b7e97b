/// Copies that have nothing to do with the model: the raw rates of the link, and the traffic of the
/// interference floor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "blas.hpp"
#include "results.hpp"

namespace bench {

/// Two buffers beside those of the device: pinned memory of the host, or memory of a neighbour.
class far_buffers {
 public:
  far_buffers(cuda_device& dev, std::size_t bytes, std::optional<int> peer)
      : dev_(&dev), peer_(peer), out_(take(bytes)), in_(take(bytes)) {
    if (out_ != nullptr && in_ != nullptr) return;
    free();
    throw tidepool::out_of_budget(
        "side_traffic: " + (peer ? "device " + std::to_string(*peer) : std::string("the host")) +
            " cannot give two buffers of " + std::to_string(bytes) + " bytes",
        2 * bytes, 0);
  }
  far_buffers(const far_buffers&) = delete;
  far_buffers& operator=(const far_buffers&) = delete;
  ~far_buffers() { free(); }

  [[nodiscard]] void* out() const { return out_; }
  [[nodiscard]] void* in() const { return in_; }
  [[nodiscard]] bool of_peer() const { return peer_.has_value(); }

 private:
  [[nodiscard]] void* take(std::size_t bytes) {
    return peer_ ? dev_->try_allocate_peer(*peer_, bytes) : dev_->try_allocate_host(bytes);
  }
  void free() noexcept {
    for (auto* each : {out_, in_}) {
      peer_ ? dev_->deallocate_peer(*peer_, each) : dev_->deallocate_host(each);
    }
  }

  cuda_device* dev_;
  std::optional<int> peer_;
  void* out_;
  void* in_;
};

/// One buffer on each side and a stream for each direction. Compute never waits for them.
///
/// Copies to the host go as fast as the host's calls and the link allow, which takes most of a
/// step. Those to a neighbour would all be over at its beginning: each waits for what compute was
/// given before, so that they come when a group's would.
class side_traffic {
 public:
  side_traffic(cuda_device& dev, cuda_device::stream_ref compute, std::size_t bytes,
               std::optional<int> peer = std::nullopt)
      : dev_(&dev),
        compute_(compute),
        bytes_(bytes),
        out_stream_(dev.make_stream()),
        in_stream_(dev.make_stream()),
        source_(dev, static_cast<index>(bytes)),
        target_(dev, static_cast<index>(bytes)),
        far_(dev, bytes, peer),
        reached_(dev.make_event()) {}
  side_traffic(const side_traffic&) = delete;
  side_traffic& operator=(const side_traffic&) = delete;
  ~side_traffic() {
    static_cast<void>(cudaStreamSynchronize(out_stream_.get()));
    static_cast<void>(cudaStreamSynchronize(in_stream_.get()));
  }

  /// How much of what a module saves is copied.
  void set_share(double share) { share_ = share; }

  void leave(std::size_t saved) {
    behind_compute(out_stream_.ref());
    in_pieces(saved, [&](std::size_t bytes) {
      watched(watched_out_, out_stream_.ref(), bytes, [&] { copy_out(bytes); });
    });
  }
  void arrive(std::size_t saved) {
    behind_compute(in_stream_.ref());
    in_pieces(saved, [&](std::size_t bytes) {
      watched(watched_in_, in_stream_.ref(), bytes, [&] { copy_in(bytes); });
    });
  }

  /// From now on, or no longer, each copy is timed that is as large as `large_group`.
  void watch(bool on) { watching_ = on; }
  /// Medians of the timed copies, which are over.
  [[nodiscard]] raw_rates seen() {
    const auto rate = [&](std::vector<timed_copy>& of) {
      std::vector<double> rates;
      for (auto& each : of) {
        rates.push_back(static_cast<double>(each.bytes) / dev_->elapsed_us(each.begin, each.end) /
                        1e3);
      }
      of.clear();
      return median(std::move(rates));
    };
    return {rate(watched_out_), rate(watched_in_), 0};
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
  struct timed_copy {
    std::size_t bytes;
    cuda_device::event begin;
    cuda_device::event end;
  };

  void behind_compute(cuda_device::stream_ref stream) {
    if (!far_.of_peer()) return;
    dev_->record(reached_, compute_);
    dev_->wait(stream, reached_);
  }

  template <class Copy>
  void watched(std::vector<timed_copy>& into, cuda_device::stream_ref stream, std::size_t bytes,
               const Copy& copy) {
    if (!watching_ || bytes < large_group) return copy();
    into.push_back({bytes, dev_->make_event(true), dev_->make_event(true)});
    dev_->record(into.back().begin, stream);
    copy();
    dev_->record(into.back().end, stream);
  }

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
    dev_->copy(far_.out(), source_.data(), {bytes, 1, bytes, bytes},
               far_.of_peer() ? tidepool::copy_direction::device_to_peer
                              : tidepool::copy_direction::device_to_host,
               out_stream_.ref());
  }
  void copy_in(std::size_t bytes) {
    dev_->copy(target_.data(), far_.in(), {bytes, 1, bytes, bytes},
               far_.of_peer() ? tidepool::copy_direction::peer_to_device
                              : tidepool::copy_direction::host_to_device,
               in_stream_.ref());
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

  cuda_device* dev_;
  cuda_device::stream_ref compute_;
  std::size_t bytes_;
  double share_ = 1;
  bool watching_ = false;
  cuda_device::stream out_stream_;
  cuda_device::stream in_stream_;
  device_array<std::byte> source_;
  device_array<std::byte> target_;
  far_buffers far_;
  cuda_device::event reached_;
  std::vector<timed_copy> watched_out_;
  std::vector<timed_copy> watched_in_;
};

}  // namespace bench
