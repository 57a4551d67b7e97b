// Packed tensors on a GPU: every kind of number comes back, eagerly and in graphs.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "gpu.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/cuda.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/pack.hpp"

namespace {

using namespace tidepool;
using one_module = modules<"fc1">;
using packing_offloader = offloader<cuda_device, one_module>;

constexpr std::size_t count = (std::size_t{1} << 20) + 24;  // with a tail
constexpr std::size_t bytes = 2 * count;

// Tensors of every kind, and room for what comes back.
class bf16_desk {
 public:
  explicit bf16_desk(cuda_device& dev) : dev_(&dev), compute_(dev.make_stream()) {
    std::mt19937 random(7);
    for (const auto kind : test::bf16_kinds) {
      const auto made = test::bf16_tensor(kind, count, random);
      auto* const on_device = static_cast<std::byte*>(dev.allocate(bytes));
      CHECK(cudaMemcpy(on_device, made.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
      given_.push_back(on_device);
      back_.push_back(static_cast<std::byte*>(dev.allocate(bytes)));
      numbers_.push_back(made);
    }
  }
  bf16_desk(const bf16_desk&) = delete;
  bf16_desk& operator=(const bf16_desk&) = delete;
  ~bf16_desk() {
    for (auto* each : given_) dev_->deallocate(each);
    for (auto* each : back_) dev_->deallocate(each);
  }

  [[nodiscard]] cuda_device::stream_ref stream() const { return compute_.ref(); }

  // The work of a step, as often as it is given: forward copies the tensors in, backward out.
  void step(packing_offloader& off) {
    auto pass = off.begin();
    std::vector<buffer<cuda_device>> saved;
    const auto layers = static_cast<int>(given_.size());
    for (int l = 0; l < layers; ++l) {
      auto& x = saved.emplace_back(off.allocate<__nv_bfloat16>(count, stream()));
      move(x.data(), given_[static_cast<std::size_t>(l)]);
      pass.commit<"fc1">(l, stream(), x);
    }
    pass.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      pass.restore<"fc1">(l, stream(), x);
      move(back_[static_cast<std::size_t>(l)], x.data());
      x.reset(stream());
    }
    pass.finish();
    off.end_step();
  }

  // Compares what the last step brought back, and clears it.
  void check() {
    dev_->synchronize();
    for (std::size_t l = 0; l < back_.size(); ++l) {
      test::bf16_numbers found(count);
      CHECK(cudaMemcpy(found.data(), back_[l], bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
      CHECK(found == numbers_[l]);
      CHECK(cudaMemset(back_[l], 0xAB, bytes) == cudaSuccess);
    }
    dev_->synchronize();
  }

 private:
  void move(void* to, const void* from) {
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, compute_.get()) ==
          cudaSuccess);
  }

  cuda_device* dev_;
  cuda_device::stream compute_;
  std::vector<std::byte*> given_;
  std::vector<std::byte*> back_;
  std::vector<test::bf16_numbers> numbers_;
};

options packing_options() {
  options opts;
  opts.offload_modules = {"fc1"};
  opts.pack = {"fc1"};
  opts.margin = false;
  opts.host_step = std::size_t{8} << 20;
  return opts;
}

TIDEPOOL_GPU_TEST("packing on a GPU: every kind of number comes back") {
  for (const bool tight : {false, true}) {
    CAPTURE(tight);
    cuda_device dev;
    dev.use(cuda_packer());
    bf16_desk desk(dev);
    auto opts = packing_options();
    if (tight) {
      opts.memory = memory_kind::arena;
      opts.device_budget = 3 * bytes;
    }
    packing_offloader off(dev, opts);
    for (int step = 0; step < 5; ++step) {
      desk.step(off);
      desk.check();
    }
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TIDEPOOL_GPU_TEST("packing on a GPU: a graph of a step brings every number back 50 times") {
  cuda_device dev;
  dev.use(cuda_packer());
  bf16_desk desk(dev);
  packing_offloader off(dev, packing_options());
  for (int step = 0; step < 2; ++step) desk.step(off);
  desk.check();
  auto graph = off.capture(desk.stream(), [&] { desk.step(off); });
  for (int launch = 0; launch < 50; ++launch) {
    graph.launch(desk.stream());
    desk.check();
  }
}

TIDEPOOL_GPU_TEST("packing on a GPU: without kernels the option is refused with the remedy") {
  cuda_device dev;
  CHECK_THROWS_WITH_AS(packing_offloader(dev, packing_options()),
                       doctest::Contains("tidepool::cuda_packer()"), option_error);
}

}  // namespace
