/// A CUDA device for work that torch captures: its streams, and memory of torch's private pools.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "tidepool/device/cuda.hpp"
#include "tidepool/memory/lane_of.hpp"
#include "tidepool/torch/cuda.hpp"
#include "tidepool/torch/streams.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// An offloader on this device works only inside captures that torch begins and ends. It treats
// their work as ordinary work: it begins no capture, and asks no event whether it is over, because
// that question would break the capture.
class captured_cuda : public cuda_device {
 public:
  // Has the key for captures, because to ask CUDA for the id of a stream would break the capture.
  class stream_ref : public cuda_device::stream_ref {
   public:
    constexpr stream_ref() = default;
    constexpr stream_ref(cudaStream_t handle) : cuda_device::stream_ref(handle) {}
    constexpr stream_ref(cuda_device::stream_ref of) : cuda_device::stream_ref(of) {}
    [[nodiscard]] std::uint64_t key() const { return key_in_capture(); }
  };

  class stream : public cuda_device::stream {
   public:
    explicit stream(cuda_device::stream of) : cuda_device::stream(std::move(of)) {}
    [[nodiscard]] stream_ref ref() const { return cuda_device::stream::ref(); }
  };

  using cuda_device::cuda_device;
  [[nodiscard]] stream make_stream() { return stream(cuda_device::make_stream()); }
  void begin_capture(stream_ref) = delete;
  [[nodiscard]] bool passed(const event&) const = delete;
};

static_assert(!capturing_device<captured_cuda> && !tells_what_is_over<captured_cuda>);

// Allows this thread to make memory and streams during a capture, as torch's allocator does.
class relaxed_thread {
 public:
  relaxed_thread() { exchange(); }
  relaxed_thread(const relaxed_thread&) = delete;
  relaxed_thread& operator=(const relaxed_thread&) = delete;
  ~relaxed_thread() { exchange(); }

 private:
  void exchange() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A source that notes the clocks it serves, and has memory only while `open` is true: outside of
// captures no reload may begin, because a launch would not repeat it.
class captured_memory final : public block_source {
 public:
  struct clocks_of {
    lanes* order = nullptr;
    borrowed_memory* borrowed = nullptr;
    bool open = false;
  };

  captured_memory(std::unique_ptr<block_source> inner, clocks_of& told)
      : inner_(std::move(inner)), told_(&told) {}

  void attach(clocks& order, borrowed_memory& borrowed) override {
    told_->order = &static_cast<lanes&>(order);
    told_->borrowed = &borrowed;
    inner_->attach(order, borrowed);
  }
  [[nodiscard]] bool gives_back() const override { return true; }
  [[nodiscard]] bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) override {
    return told_->open && inner_->take(bytes, waiter, into, ready);
  }
  void release(const block& done, const fence& after) noexcept override {
    inner_->release(done, after);
  }
  [[nodiscard]] std::size_t reserved() const override { return inner_->reserved(); }
  [[nodiscard]] std::size_t peak() const override { return inner_->peak(); }
  [[nodiscard]] std::size_t budget() const override { return inner_->budget(); }
  [[nodiscard]] std::size_t largest_free() const override { return inner_->largest_free(); }
  [[nodiscard]] std::uint64_t allocations() const override { return inner_->allocations(); }

 private:
  std::unique_ptr<block_source> inner_;
  clocks_of* told_;
};

}  // namespace detail

/// The stream that torch captures. Memory for reloads comes from the private pool of the capture.
template <>
class torch_streams<detail::captured_cuda> : public torch_streams<cuda_device> {
 public:
  using stream_ref = detail::captured_cuda::stream_ref;  ///< A stream of the device.

  /// Uses torch's current stream, which is being captured.
  explicit torch_streams(detail::captured_cuda& dev) : torch_streams<cuda_device>(dev) {}

  /// The captured stream.
  [[nodiscard]] stream_ref home() const { return torch_streams<cuda_device>::home(); }
  /// The stream that torch currently uses on this thread.
  [[nodiscard]] stream_ref current() const { return torch_streams<cuda_device>::current(); }
  /// Always true: memory goes back by joins of the capture alone.
  [[nodiscard]] bool capturing(stream_ref /*stream*/) const { return true; }
  /// Null if `stream` is inside a capture of `home`; otherwise the reason why it may not be used.
  [[nodiscard]] const char* why_not(stream_ref stream) const {
    if (stream != home()) {
      return "inside a capture, scopes and backward run on the captured stream, which is another"
             " one; take the module out of --offload-modules where it runs on a side stream";
    }
    if (capture() != 0) return nullptr;
    return "a capture saved it, whose launches write it to the host; read it inside a capture, too";
  }
  /// Does nothing: a graph uses what it was captured with.
  void used_on(const c10::Storage& /*storage*/, stream_ref /*stream*/) const {}

  /// The offloader's memory: `source`, which tells its clocks.
  [[nodiscard]] std::unique_ptr<block_source> attached(std::unique_ptr<block_source> source) {
    return std::make_unique<detail::captured_memory>(std::move(source), clocks_);
  }

  /// Makes the captured stream wait for all copies of the capture; memory that waited for them goes
  /// back to torch.
  void join() {
    if (clocks_.order == nullptr || capture() == 0) return;
    clocks_.order->join_back(lane(), copy_lanes());
    clocks_.borrowed->give_back(0);
  }

  /// A call of the adapter. The first call of a capture brings the copy streams into it, and the
  /// first call after it takes them out again, because no wait may cross the border of a capture.
  class call {
   public:
    explicit call(torch_streams& on) noexcept { on.enter(); }

   private:
    detail::relaxed_thread thread_;
  };

 private:
  // The number of the capture of `home`; 0 if there is none.
  [[nodiscard]] unsigned long long capture() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    const auto code = cudaStreamGetCaptureInfo(home().get(), &status, &id);
    if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
    return code == cudaSuccess && status == cudaStreamCaptureStatusActive ? id : 0;
  }
  void enter() noexcept {
    const auto now = capture();
    clocks_.open = now != 0;
    if (now == entered_ || clocks_.order == nullptr) return;
    try {  // every lane counts as having joined all before, as a launch comes after it
      clocks_.order->begin_capture(lane(), copy_lanes());
      clocks_.order->end_capture();
      entered_ = now;
    } catch (...) {  // the next call tries again
    }
  }
  [[nodiscard]] lane_id lane() const {
    return detail::lane_in<detail::captured_cuda>(*clocks_.order, home());
  }
  [[nodiscard]] std::vector<lane_id> copy_lanes() const {
    std::vector<lane_id> all;
    for (std::size_t i = 0; i < clocks_.order->count(); ++i) {
      if (static_cast<lane_id>(i) != lane()) all.push_back(static_cast<lane_id>(i));
    }
    return all;
  }

  detail::captured_memory::clocks_of clocks_;
  unsigned long long entered_ = 0;
};

}  // namespace tidepool
