// The same on a GPU, with torch's caching allocator. Skipped, and said, where libtorch has no CUDA
// or the machine no GPU.
#include "rig.hpp"

#if defined(TIDEPOOL_TORCH_CUDA)

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpu.hpp"
#include "tidepool/device/cuda.hpp"

namespace {

using tidepool::test::bit_sum;
using tidepool::test::small_torch_options;
using offloader = tidepool::torch_offloader<tidepool::cuda_device>;
namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr int width = 512, rows = 1024, layers = 6;

// Trains a network of linear layers; `off` may be null. The sum of losses and parameters.
std::uint64_t train(offloader* off, int steps = 3) {
  torch::manual_seed(7);
  std::vector<torch::nn::Linear> fc;
  std::vector<at::Tensor> parameters;
  for (int l = 0; l < layers; ++l) {
    fc.emplace_back(width, width);
    fc.back()->to(torch::kCUDA);
    for (auto& each : fc.back()->parameters()) parameters.push_back(each);
  }
  if (off != nullptr) off->exclude(parameters);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1));
  const auto data = torch::randn({rows, width}, torch::kCUDA);
  bit_sum bits;
  for (int s = 0; s < steps; ++s) {
    optimizer.zero_grad();
    offloader::pass pass;
    if (off != nullptr) pass = off->begin();
    at::Tensor loss;
    {
      auto x = data * (s + 1);
      for (int l = 0; l < layers; ++l) {
        auto& layer = fc[static_cast<std::size_t>(l)];
        const auto linear = [&] { return layer->forward(x); };
        auto h = off == nullptr ? linear() : pass.module("fc1", l, linear);
        const auto act = [&] { return torch::gelu(h); };
        x = x + (off == nullptr ? act() : pass.module("act", l, act));
      }
      loss = x.pow(2).mean();
    }
    if (off != nullptr) pass.end_forward();
    loss.backward();
    if (off != nullptr) {
      pass.finish();
      off->end_step();
    }
    optimizer.step();
    bits.add(loss.cpu());
  }
  for (const auto& each : parameters) bits.add(each.cpu());
  return bits.value();
}

std::uint64_t train_with(std::string_view more) {
  tidepool::cuda_device dev;
  offloader off(dev, small_torch_options(more), {.planner = tidepool::planner()});
  off.engine().on_report([](std::string_view) {});
  const auto bits = train(&off);
  torch::cuda::synchronize();
  std::size_t out = 0;
  for (const auto& each : off.counters().modules) out += each.bytes_offloaded;
  CHECK(out > 0);
  return bits;
}

}  // namespace

TIDEPOOL_GPU_TEST("torch: on a GPU a training has the same bits with offload") {
  const auto expected = train(nullptr);
  REQUIRE(train(nullptr) == expected);
  for (const char* more : {"", "--poison", "--max-inflight=0 --borrowed-slack=0 --poison",
                           "--memory=arena --device-budget=32MiB --poison"}) {
    CAPTURE(std::string(more));
    CHECK(train_with(more) == expected);
  }
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  CHECK(train_with("--borrowed-slack=0 --poison") == expected);
}

TIDEPOOL_GPU_TEST("torch: on a GPU waiting memory goes back before the allocator grows") {
  const auto peak = [](std::string_view more) {
    allocator::emptyCache();
    allocator::resetPeakStats(0);
    static_cast<void>(train_with(more));
    return allocator::getDeviceStats(0).reserved_bytes[0].peak;
  };
  const auto asked = peak("--borrowed-slack=4GiB");
  MESSAGE("reserved at most: ", asked);
  tidepool::cuda_device dev;
  offloader off(dev, small_torch_options("--borrowed-slack=4GiB"));
  auto pass = off.begin();
  const auto x = torch::randn({rows, width}, torch::kCUDA).requires_grad_();
  auto y = pass.module("act", 0, [&] { return torch::sin(x * 2); });
  allocator::emptyCache();
  // A miss: nothing of that size lies in the cache.
  const auto large = torch::empty({97 << 20}, torch::device(torch::kCUDA).dtype(torch::kByte));
  CHECK(off.counters().borrowed_waiting == 0);
  y.sum().backward();
  pass.finish();
  CHECK(x.grad().equal(2 * (x * 2).cos()));
}

TIDEPOOL_GPU_TEST("torch: on a GPU the copies of a capture by torch are part of its graph") {
  tidepool::cuda_device dev;
  offloader off(dev, small_torch_options());
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  const auto x = torch::randn({rows, width}, torch::kCUDA).requires_grad_();
  at::Tensor gradient;
  const auto step = [&] {
    auto pass = off.begin();
    auto y = pass.module("act", 0, [&] { return torch::sin(x * 2); });
    pass.end_forward();
    gradient = torch::autograd::grad({y.sum()}, {x})[0];
    pass.finish();
    off.end_step();
  };
  const auto moved = [&] {
    std::size_t bytes = 0;
    for (const auto& each : off.counters().modules) bytes += each.bytes_reloaded;
    return bytes;
  };
  step();
  const auto eager = moved();
  CHECK(eager > 0);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step();
  graph.capture_end();
  CHECK(moved() == 2 * eager);
  for (int i = 0; i < 5; ++i) {
    {
      const torch::NoGradGuard unseen;
      x.mul_(0.9);
    }
    graph.replay();
    CHECK(gradient.equal(2 * (x * 2).cos()));
  }
  step();  // eager work goes on beside the graph
  CHECK(gradient.equal(2 * (x * 2).cos()));
  torch::cuda::synchronize();
}

TIDEPOOL_GPU_TEST("torch: on a GPU a pass of a capture is refused outside of it") {
  tidepool::cuda_device dev;
  offloader off(dev, small_torch_options());
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  const auto x = torch::randn({rows, width}, torch::kCUDA).requires_grad_();
  static_cast<void>(torch::sin(x));
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  auto pass = off.begin();
  auto y = pass.module("act", 0, [&] { return torch::sin(x * 2); });
  off.join_capture();
  graph.capture_end();
  CHECK_THROWS_AS(pass.module("act", 1, [&] { return torch::sin(x); }), tidepool::misuse_error);
  CHECK_THROWS_AS(y.sum().backward(), tidepool::misuse_error);
  graph.replay();
  auto other = off.begin();
  auto z = other.module("act", 0, [&] { return torch::sin(x * 2); });
  z.sum().backward();
  other.finish();
  torch::cuda::synchronize();
  CHECK(y.equal((x * 2).sin()));
  CHECK(x.grad().equal(2 * (x * 2).cos()));
}

#endif
