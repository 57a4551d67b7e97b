/// A GPU whose calls may fail, with kernels and calls of the trainer's own that never do.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "desk_kernels.hpp"
#include "faults/desk.hpp"
#include "tidepool/device/cuda.hpp"
#include "tidepool/pack.hpp"

namespace tidepool::test {

/// The same as `faulty_desk`, on a GPU.
class faulty_cuda_desk {
 public:
  using device_type = faulty_device<cuda_device>;
  using stream_ref = device_type::stream_ref;

  faulty_cuda_desk() {
    auto kernels = cuda_packer();
    kernels.from = 1;
    dev.use(kernels);
    cudaMalloc(&state_, sizeof(desk_state));
    cudaMemset(state_, 0, sizeof(desk_state));
    cudaDeviceSynchronize();
  }
  faulty_cuda_desk(const faulty_cuda_desk&) = delete;
  faulty_cuda_desk& operator=(const faulty_cuda_desk&) = delete;
  ~faulty_cuda_desk() { cudaFree(state_); }

  device_type dev;

  [[nodiscard]] stream_ref main() const { return compute_.ref(); }
  [[nodiscard]] stream_ref second() const { return second_.ref(); }

  void synchronize() { base().synchronize(); }
  [[nodiscard]] bool capturing() { return base().capturing(main()); }
  void order(stream_ref from, stream_ref to) {
    auto mark = base().make_event();
    base().record(mark, from);
    base().wait(to, mark);
  }

  void next_round(stream_ref on) { start_round(on.get(), state_); }
  // Blocks the host, as does `take_wrong`.
  [[nodiscard]] std::uint32_t round() { return read().round; }

  void write(stream_ref on, std::uint32_t* to, std::size_t words, std::uint32_t tag) {
    write_words(on.get(), state_, to, words, tag);
  }
  void check(stream_ref on, const std::uint32_t* from, const word_rows& in, std::uint32_t tag) {
    check_words(on.get(), state_, from, in, tag);
  }
  void note_wrong() { ++noted_; }
  [[nodiscard]] std::size_t take_wrong() {
    const auto seen = read().wrong;
    cudaMemset(&state_->wrong, 0, sizeof(unsigned));
    cudaDeviceSynchronize();
    return seen + std::exchange(noted_, 0);
  }

 private:
  [[nodiscard]] cuda_device& base() { return dev; }
  [[nodiscard]] desk_state read() {
    desk_state now{};
    base().synchronize();
    cudaMemcpy(&now, state_, sizeof now, cudaMemcpyDeviceToHost);
    return now;
  }

  cuda_device::stream compute_ = dev.cuda_device::make_stream();
  cuda_device::stream second_ = dev.cuda_device::make_stream();
  desk_state* state_ = nullptr;
  std::size_t noted_ = 0;
};

}  // namespace tidepool::test
