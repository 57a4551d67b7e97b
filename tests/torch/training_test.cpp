// A training through libtorch has the same bits with offload and without, in every order in which
// copies may run.
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rig.hpp"

namespace {

using tidepool::join_site;
using tidepool::options;
using tidepool::test::bit_sum;
using tidepool::test::small_torch_options;
using tidepool::test::strict_allocator;
using tidepool::test::torch_desk;

constexpr std::uint64_t seeds = 40;

struct mlp_block {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

struct outcome {
  std::uint64_t bits = 0;
  std::size_t peak = 0;  // of torch's allocator
  tidepool::trace::counters counts;
};

// Microbatches of a small network: linear, GELU, linear, added to its input.
class training {
 public:
  static constexpr int width = 32, rows = 24, layers = 4;

  explicit training(torch_desk* desk) : desk_(desk) {
    static_cast<void>(strict_allocator::get());
    torch::manual_seed(7);
    for (int l = 0; l < layers; ++l) {
      blocks_.push_back({torch::nn::Linear(width, 4 * width), torch::nn::Linear(4 * width, width)});
      for (const auto* each : {&blocks_.back().fc1, &blocks_.back().fc2}) {
        for (auto& parameter : (*each)->parameters()) parameters_.push_back(parameter);
      }
    }
    data_ = torch::randn({rows, width});
    target_ = torch::randn({rows, width});
    if (desk_ != nullptr) desk_->off->exclude(parameters_);
  }

  // `depth` is how many are open at once.
  outcome run(std::size_t depth = 1, int steps = 3, int microbatches = 3) {
    torch::optim::SGD optimizer(parameters_, torch::optim::SGDOptions(0.1));
    auto& memory = strict_allocator::get();
    const auto before = memory.now;
    memory.peak = memory.now;
    bit_sum bits;
    for (int s = 0; s < steps; ++s) {
      optimizer.zero_grad();
      std::deque<open_microbatch> open;
      const auto one_backward = [&] {
        bits.add(backward(std::move(open.front())));
        open.pop_front();
      };
      for (int m = 0; m < microbatches; ++m) {
        open.push_back(forward(m));
        if (open.size() == depth) one_backward();
      }
      while (!open.empty()) one_backward();
      optimizer.step();
      if (desk_ != nullptr) desk_->off->end_step();
    }
    for (const auto& each : parameters_) bits.add(each);
    return {bits.value(), memory.peak - before,
            desk_ != nullptr ? desk_->off->counters() : tidepool::trace::counters()};
  }

 private:
  template <class Body>
  at::Tensor module(torch_desk::pass& pass, const char* name, int layer, Body&& body) {
    return desk_ == nullptr ? body() : pass.module(name, layer, body);
  }

  struct open_microbatch {
    torch_desk::pass pass;
    at::Tensor loss;
  };

  open_microbatch forward(int number) {
    open_microbatch now;
    if (desk_ != nullptr) now.pass = desk_->off->begin({.microbatch = number});
    auto x = data_ * (number + 1);
    for (int l = 0; l < layers; ++l) {
      auto& block = blocks_[static_cast<std::size_t>(l)];
      auto h = module(now.pass, "fc1", l, [&] { return block.fc1->forward(x); });
      h = module(now.pass, "act", l, [&] { return torch::gelu(h); });
      x = x + module(now.pass, "fc2", l, [&] { return block.fc2->forward(h); });
    }
    now.loss = torch::mse_loss(x, target_);
    if (desk_ != nullptr) now.pass.end_forward();
    return now;
  }
  at::Tensor backward(open_microbatch now) {
    now.loss.backward();
    if (desk_ != nullptr) now.pass.finish();
    return now.loss;
  }

  torch_desk* desk_;
  std::vector<mlp_block> blocks_;
  std::vector<at::Tensor> parameters_;
  at::Tensor data_, target_;
};

outcome plain() { return training(nullptr).run(); }

outcome offloaded(std::uint64_t seed, std::string_view more = {},
                  std::optional<join_site> without = {}, std::size_t depth = 1) {
  torch_desk desk(seed, small_torch_options(more), without);
  return training(&desk).run(depth);
}

std::size_t bytes_out(const outcome& of) {
  std::size_t sum = 0;
  for (const auto& each : of.counts.modules) sum += each.bytes_offloaded;
  return sum;
}

}  // namespace

TEST_CASE(
    "torch: a training has the same bits with offload, in every order of its copies, one and two "
    "passes at a time") {
  const auto expected = plain();
  for (const char* more :
       {"", "--max-inflight=1", "--max-inflight=0 --reload-ahead=0", "--borrowed-slack=0",
        "--offload-fraction=0.5 --margin", "--offload-modules=fc2",
        "--memory=arena --device-budget=64KiB",
        "--policy=automatic --device-budget=100KiB --timed-step=2 --adopt-after=0"}) {
    CAPTURE(more);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(seed);
      const auto with = offloaded(seed, more, {}, 1 + seed % 2);
      REQUIRE(with.bits == expected.bits);
      REQUIRE(bytes_out(with) > 0);
    }
  }
}

// Torch's operators on the CPU have run when they return: nobody who writes or reads memory is late
// here but copies, so that the waits for others are not.
TEST_CASE("torch: each wait that protects torch's memory is needed") {
  const auto expected = plain();
  for (const auto site : {join_site::own_offload, join_site::consumer, join_site::give_back}) {
    CAPTURE(std::string(name_of(site)));
    bool caught = false;
    for (const char* more : {"--borrowed-slack=0", "--memory=arena --device-budget=64KiB"}) {
      for (std::uint64_t seed = 1; seed <= seeds && !caught; ++seed) {
        caught = offloaded(seed, more, site).bits != expected.bits;
      }
    }
    CHECK(caught);
  }
}

TEST_CASE("torch: waiting memory goes back before torch's allocator grows") {
  const auto expected = plain();
  auto& memory = strict_allocator::get();
  // Much may wait, so that without being asked nobody gives it back.
  const auto run = [&](std::uint64_t seed, std::size_t most) {
    memory.most = most == 0 ? 0 : memory.now + most;
    memory.asked = memory.given = 0;
    const auto result = offloaded(seed, "--borrowed-slack=16MiB --reload-ahead=0");
    memory.most = 0;
    CHECK(result.bits == expected.bits);
    return result;
  };
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const auto unasked = run(seed, 0);
    const auto asked = run(seed, expected.peak / 2);
    CHECK(memory.given > 0);
    CHECK(asked.peak < unasked.peak);
    CHECK(asked.counts.borrowed_joins > 0);
  }
}

TEST_CASE("torch: an allocator that asks with its lock held never waits for ours") {
  const auto expected = plain();
  auto& memory = strict_allocator::get();
  memory.most = 1;  // asks each time
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (!over) static_cast<void>(torch::empty({64}));
  });
  for (std::uint64_t seed = 1; seed <= 5; ++seed) CHECK(offloaded(seed).bits == expected.bits);
  over = true;
  other.join();
  memory.most = 0;
}

TEST_CASE("torch: another thread's allocator may ask while an offloader is made and destroyed") {
  static_cast<void>(strict_allocator::get());
  std::atomic<bool> over = false;
  std::atomic<int> asked = 0;
  std::thread other([&] {
    for (; !over; ++asked) static_cast<void>(tidepool::detail::memory_lender::give_back_all());
  });
  int made = 0;
  for (; made < 200 || asked == 0; ++made) {
    const torch_desk desk(1, small_torch_options());
    CHECK(desk.off->counters().borrowed_waiting == 0);
  }
  over = true;
  other.join();
  CHECK(made >= 200);
}

TEST_CASE("torch: who may enter the adapter without waiting") {
  tidepool::detail::torch_lock lock;
  const auto from_another = [&] {
    bool entered = false;
    std::thread([&] {
      entered = lock.try_lock();
      if (entered) lock.unlock();
    }).join();
    return entered;
  };
  CHECK(from_another());
  {
    const std::lock_guard held(lock);
    CHECK_FALSE(from_another());
    CHECK_FALSE(lock.try_lock());  // in the middle of a call
    lock.allocate([&] {
      CHECK_FALSE(from_another());
      CHECK(lock.try_lock());  // but where that asks for memory itself
      lock.unlock();
    });
    CHECK_FALSE(lock.try_lock());
  }
  CHECK(from_another());
}

TEST_CASE("torch: torch's own peak falls by what leaves") {
  const auto without = plain();
  const auto with = offloaded(0, "--max-inflight=0 --reload-ahead=0 --borrowed-slack=0");
  CHECK(with.bits == without.bits);
  CHECK(with.peak * 4 < without.peak * 3);
  CHECK(with.counts.borrowed == 0);
}
