// What operators of torch declare to a checked device, and the mistakes that are found by it: of
// the adapter, which leaves a join out, and of trainers.
#include "tidepool/torch/declared.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "rig.hpp"

namespace {

using namespace tidepool;
using test::small_torch_options;

template <class Device>
struct basic_desk {
  using offloader = torch_offloader<Device>;

  template <class... Made>
  explicit basic_desk(std::string_view more, std::optional<join_site> without, const Made&... made)
      : dev(made...) {
    static_cast<void>(test::strict_allocator::get());  // what is left out may write too late
    if constexpr (requires { dev.leave_out(join_site::cap); }) {
      if (without) dev.leave_out(*without);
    }
    off.emplace(dev, small_torch_options(more), torch_parts{.planner = planner()});
    off->engine().on_report([](std::string_view) {});
    dev.name_stream(off->streams().current(), "torch");
    declared.emplace(dev, *off);
  }

  [[nodiscard]] at::Tensor tensor(const at::Tensor& from) {
    return from.to(off->streams().device());
  }

  // Three layers, two microbatches in flight; `between` is called with what a layer's module made.
  template <class Between>
  void train(int steps, const Between& between) {
    std::vector<torch::nn::Linear> fc;
    for (int l = 0; l < 3; ++l) {
      fc.emplace_back(16, 16);
      fc.back()->to(off->streams().device());
      off->exclude(fc.back()->parameters());
    }
    for (int s = 0; s < steps; ++s) {
      std::vector<typename offloader::pass> passes;
      std::vector<at::Tensor> losses;
      for (int m = 0; m < 2; ++m) {
        passes.push_back(off->begin({.microbatch = m}));
        auto x = tensor(torch::randn({8, 16}));
        for (int l = 0; l < 3; ++l) {
          auto& layer = fc[static_cast<std::size_t>(l)];
          auto h = passes.back().module("fc1", l, [&] { return layer->forward(x); });
          x = passes.back().module("act", l, [&] { return torch::gelu(h); });
          between(h);
        }
        losses.push_back(x.pow(2).mean());
        passes.back().end_forward();
      }
      for (std::size_t m = 0; m < 2; ++m) {
        losses[m].backward();
        passes[m].finish();
      }
      off->end_step();
      const torch::NoGradGuard none;
      for (auto& layer : fc) {
        for (auto& each : layer->parameters()) each.add_(each.grad(), -0.1);
      }
    }
  }
  void train(int steps = 3) {
    train(steps, [](const at::Tensor&) {});
  }

  // Whether an operator and a copy, whichever was first, have no order for want of this join.
  [[nodiscard]] bool found(join_site missing, access_kind copy) const {
    for (const auto& each : dev.findings()) {
      const auto is_operator = [](const checked_access& one) {
        return one.name.starts_with("aten::") && one.stream == "torch";
      };
      const bool either = (is_operator(each.first) && each.second.kind == copy) ||
                          (is_operator(each.second) && each.first.kind == copy);
      if (either && each.missing == missing) return true;
    }
    return false;
  }

  Device dev;
  std::optional<offloader> off;
  std::optional<torch_declared_operators<Device>> declared;
};

using checked = checked_device<virtual_device>;
struct desk : basic_desk<checked> {
  explicit desk(std::string_view more = {}, std::optional<join_site> without = {})
      : basic_desk(more, without, machine{.order_seed = 3}) {}
};

template <class Desk>
void right_trainings_have_an_order() {
  for (const char* more :
       {"", "--max-inflight=0 --borrowed-slack=0", "--memory=arena --device-budget=1MiB",
        "--reload-ahead=1", "--policy=automatic --device-budget=24KiB --plan-effort=50"}) {
    CAPTURE(std::string(more));
    Desk at(more);
    at.train(5);
    INFO(at.dev.report());
    CHECK(at.dev.findings().empty());
    CHECK(at.declared->count() > 300);
    CHECK(at.off->counters().borrowed_peak > 0);
  }
}

template <class Desk>
void a_join_left_out_is_found() {
  {
    Desk at({}, join_site::producer);
    at.train();
    INFO(at.dev.report());
    CHECK(at.found(join_site::producer, access_kind::offload));
  }
  {
    Desk at({}, join_site::consumer);
    at.train();
    INFO(at.dev.report());
    CHECK(at.found(join_site::consumer, access_kind::reload));
  }
  {
    Desk at("--borrowed-slack=0", join_site::give_back);
    at.train();
    INFO(at.dev.report());
    REQUIRE(!at.dev.findings().empty());
    CHECK(at.dev.findings().front().missing == join_site::give_back);
  }
}

template <class Desk>
void what_leaves_is_written_in_place() {
  Desk at;
  const auto zero = [](const at::Tensor& saved) {
    const torch::NoGradGuard none;
    saved.detach().zero_();
  };
  CHECK_THROWS_AS(at.train(1, zero), misuse_error);
  INFO(at.dev.report());
  REQUIRE(!at.dev.findings().empty());
  const auto& first = at.dev.findings().front();
  CHECK(first.first.kind == access_kind::offload);
  CHECK(first.second.name == "aten::zero_");
  CHECK(first.second.writes);
}

}  // namespace

TEST_CASE("torch: operators of a training that is right have an order") {
  right_trainings_have_an_order<desk>();
}
TEST_CASE("torch: a join that is left out is found, with the operator that it would order") {
  a_join_left_out_is_found<desk>();
}
TEST_CASE("torch: what was saved is written in place while it leaves") {
  what_leaves_is_written_in_place<desk>();
}

TEST_CASE("torch: two streams of a trainer without an order, and with one") {
  for (const bool joined : {false, true}) {
    CAPTURE(joined);
    desk at;
    const auto side = at.dev.make_stream();
    at.dev.name_stream(side.ref(), "side");
    const auto home = at.off->streams().current();
    const auto ones = at.tensor(torch::ones({4, 4}));
    const auto x = ones.exp();
    if (joined) {
      auto mark = at.dev.make_event();
      at.dev.record(mark, home);
      at.dev.wait(side.ref(), mark);
    }
    at.off->streams().set_current(side.ref());
    const auto y = x.neg();
    at.off->streams().set_current(home);
    INFO(at.dev.report());
    CHECK(at.dev.findings().size() == (joined ? 0 : 1));
    if (joined) continue;
    const auto& found = at.dev.findings().front();
    CHECK(found.first.name == "aten::exp");
    CHECK(found.first.stream == "torch");
    CHECK(found.second.name == "aten::neg");
    CHECK(found.second.stream == "side");
    CHECK(found.bytes == 16 * sizeof(float));
  }
}

TEST_CASE("torch: a stream inside of a module's scope is found, and one around it is right") {
  for (const bool inside : {true, false}) {
    CAPTURE(inside);
    desk at;
    const auto side = at.dev.make_stream();
    at.dev.name_stream(side.ref(), "side");
    auto& streams = at.off->streams();
    const auto home = streams.current();
    auto pass = at.off->begin();
    const auto x = torch::ones({8, 8}).requires_grad_();
    auto mark = at.dev.make_event();
    at.dev.record(mark, home);
    at.dev.wait(side.ref(), mark);
    if (!inside) streams.set_current(side.ref());
    const auto y = pass.module("act", 0, [&] {
      streams.set_current(side.ref());
      auto made = torch::tanh(x);  // it saves what it made
      if (inside) streams.set_current(home);
      return made;
    });
    streams.set_current(side.ref());
    pass.end_forward();
    y.sum().backward();
    pass.finish();
    INFO(at.dev.report());
    CHECK(at.dev.findings().empty() == !inside);
    if (!inside) continue;
    const auto& found = at.dev.findings().front();
    CHECK(found.missing == join_site::producer);
    CHECK(found.first.name == "aten::tanh");
    CHECK(found.first.stream == "side");
    CHECK(found.second.kind == access_kind::offload);
    CHECK(found.second.module == "act");
  }
}

TEST_CASE("torch: what schemas do not say: running means, and who waits for a value") {
  for (const bool trains : {true, false}) {
    CAPTURE(trains);
    desk at;
    const auto side = at.dev.make_stream();
    at.dev.name_stream(side.ref(), "side");
    auto& streams = at.off->streams();
    const auto home = streams.current();
    const auto x = torch::ones({4, 4});
    const auto mean = torch::zeros({4});
    const auto var = torch::ones({4});
    auto into = torch::empty({4});
    auto mark = at.dev.make_event();
    at.dev.record(mark, home);
    at.dev.wait(side.ref(), mark);
    const auto y = torch::batch_norm(x, {}, {}, mean, var, trains, 0.1, 1e-5, false);
    streams.set_current(side.ref());
    at::neg_out(into, mean);
    streams.set_current(home);
    INFO(at.dev.report());
    CHECK(at.dev.findings().empty() == !trains);
    if (trains) CHECK(at.dev.findings().front().first.name.ends_with("batch_norm"));
  }
  desk at;
  const auto side = at.dev.make_stream();
  const auto x = torch::ones({1});
  auto into = torch::empty({1});
  CHECK(x.item<float>() == 1);
  at.off->streams().set_current(side.ref());
  at::neg_out(into, x);
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}

TEST_CASE("torch: who looks at memory in another way, or asks for it, declares nothing") {
  desk at;
  const auto x = torch::ones({4, 4});
  const auto before = at.declared->count();
  static_cast<void>(x.t());
  static_cast<void>(x.view({16}));
  static_cast<void>(x.slice(0, 1, 3));
  static_cast<void>(x.split(2));
  static_cast<void>(torch::empty({4, 4}));
  static_cast<void>(torch::empty_like(x));
  CHECK(at.declared->count() == before);
  const auto y = x.neg();
  CHECK(at.declared->count() == before + 1);
  y.neg_();
  CHECK(at.declared->count() == before + 2);
}

TEST_CASE("torch: operators are declared to one device at a time") {
  desk at;
  using declared = torch_declared_operators<checked>;
  CHECK_THROWS_AS(declared(at.dev, *at.off), misuse_error);
  const auto before = at.declared->count();
  static_cast<void>(torch::ones({2}));
  CHECK(at.declared->count() > before);
  at.declared.reset();
  at.declared.emplace(at.dev, *at.off);
}

#if defined(TIDEPOOL_TORCH_CUDA)

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../checked/leaving_device.hpp"
#include "gpu.hpp"

namespace {

using test::leaving_device;

}  // namespace

template <>
class tidepool::torch_streams<tidepool::test::leaving_device> : public torch_streams<cuda_device> {
 public:
  explicit torch_streams(tidepool::test::leaving_device& dev) : torch_streams<cuda_device>(dev) {}
};

namespace {

struct gpu_desk : basic_desk<leaving_device> {
  explicit gpu_desk(std::string_view more = {}, std::optional<join_site> without = {})
      : basic_desk(more, without) {}
};

}  // namespace

TIDEPOOL_GPU_TEST("torch: on a GPU operators of a training that is right have an order") {
  right_trainings_have_an_order<gpu_desk>();
}
TIDEPOOL_GPU_TEST("torch: on a GPU a join that is left out is found, with its operator") {
  a_join_left_out_is_found<gpu_desk>();
}
TIDEPOOL_GPU_TEST("torch: on a GPU what was saved is written in place while it leaves") {
  what_leaves_is_written_in_place<gpu_desk>();
}
TIDEPOOL_GPU_TEST("torch: on a GPU two streams without an order, and with one of torch's events") {
  for (const bool joined : {false, true}) {
    CAPTURE(joined);
    gpu_desk at;
    const auto home = c10::cuda::getCurrentCUDAStream();
    const auto side = c10::cuda::getStreamFromPool();
    at.dev.name_stream(side.stream(), "side");
    const auto x = torch::ones({4, 4}, torch::kCUDA).exp();
    if (joined) {
      at::cuda::CUDAEvent mark;
      mark.record(home);
      at.dev.recorded(&mark, home.stream());
      mark.block(side);
      at.dev.waited(side.stream(), &mark);
    }
    const c10::cuda::CUDAStreamGuard guard(side);
    const auto y = x.neg();
    INFO(at.dev.report());
    CHECK(at.dev.findings().size() == (joined ? 0 : 1));
    if (joined) continue;
    const auto& found = at.dev.findings().front();
    CHECK(found.first.name == "aten::exp");
    CHECK(found.first.stream == "torch");
    CHECK(found.second.name == "aten::neg");
    CHECK(found.second.stream == "side");
  }
}
TIDEPOOL_GPU_TEST(
    "torch: on a GPU a stream inside of a module's scope is found, and one around it") {
  for (const bool inside : {true, false}) {
    CAPTURE(inside);
    gpu_desk at;
    const auto home = c10::cuda::getCurrentCUDAStream();
    const auto side = c10::cuda::getStreamFromPool();
    auto pass = at.off->begin();
    const auto x = torch::ones({8, 8}, torch::kCUDA).requires_grad_();
    at::cuda::CUDAEvent mark;
    mark.record(home);
    at.dev.recorded(&mark, home.stream());
    mark.block(side);
    at.dev.waited(side.stream(), &mark);
    const auto work = [&] {
      const c10::cuda::CUDAStreamGuard guard(side);
      return torch::tanh(x);  // it saves what it made
    };
    std::optional<c10::cuda::CUDAStreamGuard> around;
    if (!inside) around.emplace(side);
    const auto y = pass.module("act", 0, work);
    pass.end_forward();
    INFO(at.dev.report());
    CHECK(at.dev.findings().empty() == !inside);
    if (inside) CHECK(at.dev.findings().front().missing == join_site::producer);
  }
}

#endif
