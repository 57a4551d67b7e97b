// What programs on torch do that an offloader could get wrong: each has the gradients that it has
// without one, in many orders of the copies, or an error that names the module.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "autocast.hpp"
#include "rig.hpp"

namespace {

using tidepool::misuse_error;
using tidepool::test::bit_sum;
using tidepool::test::small_torch_options;
using tidepool::test::strict_allocator;
using tidepool::test::torch_desk;
using pass_type = torch_desk::pass;

constexpr std::uint64_t seeds = 10;

at::Tensor input(std::vector<std::int64_t> sizes, std::uint64_t seed = 3) {
  torch::manual_seed(seed);
  return torch::randn(sizes).requires_grad_();
}

// Runs `body` without a pass and, in several orders, with one: `body(scope)` returns what is to
// have the same bits, `scope(name, layer, body)` being a module scope.
template <class Body>
void same_with_offload(Body body, std::size_t least_out = 1) {
  const auto bits_of = [](const std::vector<at::Tensor>& results) {
    bit_sum bits;
    for (const auto& each : results) bits.add(each);
    return bits.value();
  };
  auto plain = [](const char*, int, auto&& inner) { return inner(); };
  const auto expected = bits_of(body(plain));
  for (std::uint64_t seed = 0; seed <= seeds; ++seed) {
    CAPTURE(seed);
    torch_desk desk(seed, small_torch_options("--borrowed-slack=0"));
    for (int step = 0; step < 2; ++step) {
      auto pass = desk.off->begin();
      auto scoped = [&](const char* name, int layer, auto&& inner) {
        return pass.module(name, layer, inner);
      };
      REQUIRE(bits_of(body(scoped)) == expected);
      pass.finish();
      desk.off->end_step();
    }
    REQUIRE(desk.bytes_out() >= least_out);
  }
}

// What `body` throws.
template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const misuse_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("torch: views, strides, transposed tensors, other types over the same bytes") {
  same_with_offload([](auto& scope) {
    auto x = input({12, 16});
    auto y = scope("act", 0, [&] {
      const auto wide = x * 1.5;
      const auto parts = wide.chunk(2, 1);
      auto sum = torch::gelu(parts[1]) * parts[0] + torch::sigmoid(parts[0]);
      sum = sum + wide.t().slice(0, 0, 16, 2).t().sin() * wide.select(1, 3).unsqueeze(1).exp();
      return sum * wide.slice(0, 0, 1).expand({12, 16}).slice(1, 0, 8).cos();
    });
    auto z = scope("fc1", 0, [&] {
      const auto doubles = y.to(torch::kDouble).square();
      const auto pairs = torch::view_as_complex(doubles.view({12, 4, 2}));
      return (pairs * pairs.conj()).abs().to(torch::kFloat).sum() +
             torch::matmul(y.t(), y).tanh().sum();
    });
    z.backward();
    return std::vector<at::Tensor>{z, x.grad()};
  });
}

TEST_CASE("torch: a storage that several nodes save leaves once, with the module that was first") {
  torch_desk desk;
  auto x = input({64, 64});
  const auto one = static_cast<std::size_t>(x.numel()) * sizeof(float);
  auto pass = desk.off->begin();
  {
    auto h = x * 2;
    at::Tensor y;
    pass.module("act", 0, [&] { y = torch::sin(h) + torch::cos(h) + h.t().exp2().t() * 0; });
    // One for `h`, one for what exp2 saves of its result.
    CHECK(desk.bytes_out() == 2 * one);
    pass.module("fc1", 0, [&] { y = y + torch::gelu(h); });
    CHECK(desk.bytes_out() == 2 * one);
    y.sum().backward();
  }
  pass.finish();
  CHECK(desk.bytes_in() == 2 * one);
}

TEST_CASE("torch: of a storage leaves what was saved of it") {
  torch_desk desk;
  auto x = input({64, 64});
  auto pass = desk.off->begin();
  const auto rows = (x * 2).slice(0, 8, 16);
  auto y = pass.module("act", 0, [&] { return torch::sin(rows); });
  CHECK(desk.bytes_out() == 8 * 64 * sizeof(float));
  y.sum().backward();
  CHECK(x.grad().equal(torch::constant_pad_nd(2 * (x * 2).cos().slice(0, 8, 16), {0, 0, 8, 48})));
  pass.finish();
}

TEST_CASE("torch: a tensor at an address that another had is another tensor") {
  same_with_offload([](auto& scope) {
    std::vector<at::Tensor> results;
    auto x = input({32, 8});
    at::Tensor sum;
    scope("act", 0, [&] {
      for (int i = 0; i < 6; ++i) {
        // Its graph, and with it all that it saved, is gone at the end of the turn.
        static_cast<void>(torch::sin(x + 100.0 * i));
        const auto kept = torch::cos(x + i);
        sum = sum.defined() ? sum + kept : kept;
      }
    });
    sum.sum().backward();
    return std::vector<at::Tensor>{sum, x.grad()};
  });
}

TEST_CASE("torch: parameters stay, their views too, and what a predicate says") {
  torch::nn::Linear fc(32, 64);
  const auto bytes = [&](bool exclude, bool question) {
    torch_desk desk;
    if (exclude) desk.off->exclude(fc->parameters());
    if (question) desk.off->exclude_if([](const at::Tensor& t) { return t.size(0) == 16; });
    auto x = input({16, 32});
    auto pass = desk.off->begin();
    auto y = pass.module("fc1", 0, [&] { return fc->forward(x * 1); });
    y.sum().backward();
    pass.finish();
    return desk.bytes_out();
  };
  constexpr std::size_t rows = 16 * 32 * 4, weight = 64 * 32 * 4;
  CHECK(bytes(false, false) == rows + weight);
  CHECK(bytes(true, false) == rows);
  CHECK(bytes(true, true) == 0);
  CHECK(bytes(false, true) == weight);
}

TEST_CASE("torch: autocast keeps its bits, and its copies of weights stay") {
  torch::nn::Linear fc(32, 64), second(64, 32);
  const auto train = [&](auto& scope, const std::vector<at::Tensor>& all) {
    for (const auto& each : all) {
      if (each.grad().defined()) each.mutable_grad().reset();
    }
    auto x = input({16, 32});
    std::optional<gpt::autocast> narrow(false);
    auto h = scope("fc1", 0, [&] { return fc->forward(x); });
    h = scope("act", 0, [&] { return torch::gelu(h); });
    h = scope("fc2", 0, [&] { return second->forward(h); });
    narrow.reset();
    h.sum().backward();
    return std::vector<at::Tensor>{h.to(torch::kFloat), x.grad(), fc->weight.grad(),
                                   second->weight.grad()};
  };
  auto all = fc->parameters();
  for (auto& each : second->parameters()) all.push_back(each);
  same_with_offload([&](auto& scope) { return train(scope, all); });

  torch_desk desk;
  desk.off->exclude(all);
  auto pass = desk.off->begin();
  auto scoped = [&](const char* name, int layer, auto&& inner) {
    return pass.module(name, layer, inner);
  };
  train(scoped, all);
  pass.finish();
  CHECK(desk.bytes_out() == 2 * (16 * 32 + 2 * 16 * 64));
}

TEST_CASE(
    "torch: what was written to in place after it was saved is refused, by module and layer") {
  torch_desk desk;
  auto x = input({16, 16});
  const auto run = [&](bool in_scope, bool read_first) {
    auto pass = desk.off->begin({.microbatch = 4});
    auto h = x * 3;
    auto y = pass.module("act", 7, [&] {
      auto result = torch::sin(h);
      const at::NoGradGuard guard;
      if (in_scope) h.add_(1);
      return result;
    });
    {
      const at::NoGradGuard guard;
      if (read_first) static_cast<void>(h.add(1));
      if (!in_scope && !read_first) h.add_(1);
    }
    y.sum().backward();
    pass.finish();
  };
  for (const bool in_scope : {true, false}) {
    const auto text = refusal([&] { run(in_scope, false); });
    CAPTURE(text);
    CHECK(has(text, "module act of layer 7, microbatch 4"));
    CHECK(has(text, "16x16"));
    CHECK(has(text, "in place"));
  }
  CHECK(refusal([&] { run(false, true); }) == "nothing was thrown");
}

TEST_CASE("torch: the same of a tensor that stays") {
  torch_desk desk;
  auto weight = input({16, 16});
  desk.off->exclude(weight);
  auto pass = desk.off->begin();
  auto y = pass.module("fc1", 2, [&] { return torch::matmul(input({4, 16}, 9), weight); });
  {
    const at::NoGradGuard guard;
    weight.mul_(2);
  }
  CHECK(has(refusal([&] { y.sum().backward(); }), "module fc1 of layer 2"));
}

TEST_CASE("torch: retain_graph reads what came back again, after the pass as well") {
  same_with_offload([](auto& scope) {
    auto x = input({24, 8});
    auto y = scope("act", 0, [&] { return torch::sin(x * 2); });
    y = scope("fc1", 1, [&] { return torch::exp(y); });
    auto loss = y.sum();
    loss.backward({}, /*retain_graph=*/true);
    const auto once = x.grad().clone();
    loss.backward();
    return std::vector<at::Tensor>{once, x.grad()};
  });

  torch_desk desk(5);
  auto x = input({24, 8});
  auto pass = desk.off->begin();
  auto loss = pass.module("act", 0, [&] { return torch::sin(x * 2); }).sum();
  loss.backward({}, true);
  pass.finish();
  desk.off->end_step();
  const auto once = x.grad().clone();
  loss.backward();
  CHECK(x.grad().equal(once * 2));
}

TEST_CASE("torch: a branch without backward is forgotten, and never comes back") {
  torch_desk desk(2);
  auto x = input({32, 32});
  std::size_t in = 0;
  for (int step = 0; step < 3; ++step) {
    auto pass = desk.off->begin();
    auto h = pass.module("fc1", 0, [&] { return torch::exp(x); });
    at::Tensor alive;
    static_cast<void>(pass.module("act", 0, [&] { return torch::sin(h * 2); }));
    alive = pass.module("act", 1, [&] { return torch::cos(h * 2); });
    pass.end_forward();
    h.sum().backward();
    pass.finish();
    desk.off->end_step();
    if (step == 1) in = desk.bytes_in();
    CHECK(x.grad().equal(x.exp() * (step + 1)));
    // The graph that is left cannot be read any more.
    CHECK(has(refusal([&] { alive.sum().backward(); }), "module act of layer 1"));
  }
  CHECK(desk.bytes_in() == in + 32 * 32 * 4);  // the third step brings back what it reads alone
}

namespace {

// What torch::utils::checkpoint is: forward saves the input alone, and runs again in backward.
struct checkpoint : torch::autograd::Function<checkpoint> {
  using body = std::function<at::Tensor(const at::Tensor&)>;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const body* run) {
    context->save_for_backward({x});
    context->saved_data["run"] = reinterpret_cast<std::int64_t>(run);
    return (*run)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto* const run = reinterpret_cast<const body*>(context->saved_data["run"].toInt());
    {
      const at::AutoGradMode mode(true);
      (*run)(x).backward(gradients[0]);
    }
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("torch: a branch whose graph is gone is not reloaded ahead") {
  torch_desk desk;
  auto x = input({32, 32});
  auto pass = desk.off->begin();
  auto h = pass.module("fc1", 0, [&] { return torch::exp(x); });
  static_cast<void>(pass.module("act", 0, [&] { return torch::sin(h * 2); }));
  pass.end_forward();
  h.sum().backward();
  CHECK(desk.bytes_out() == 2 * 32 * 32 * 4);
  CHECK(desk.bytes_in() == 32 * 32 * 4);
  pass.finish();
}

TEST_CASE("torch: a checkpoint inside a pass runs its modules again, and nothing leaves then") {
  same_with_offload([](auto& scope) {
    auto x = input({24, 16});
    const checkpoint::body part = [&](const at::Tensor& in) {
      auto h = scope("fc1", 3, [&] { return torch::exp(in * 0.5) * in; });
      return scope("fc2", 3, [&] { return torch::sin(h) * h; });
    };
    auto y = scope("act", 0, [&] { return torch::sin(x * 2); });
    y = scope("act", 1, [&] { return checkpoint::apply(y, &part); });
    y = scope("act", 2, [&] { return torch::tanh(y) * y; });
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });

  torch_desk desk;
  auto x = input({24, 16});
  auto pass = desk.off->begin();
  const checkpoint::body part = [&](const at::Tensor& in) {
    return pass.module("fc1", 3, [&] { return torch::sin(in) * in; });
  };
  auto y = pass.module("act", 1, [&] { return checkpoint::apply(x * 2, &part); });
  pass.end_forward();
  CHECK(desk.bytes_out() == 24 * 16 * 4);
  y.sum().backward();
  CHECK(desk.bytes_out() == 24 * 16 * 4);
  pass.finish();
}

TEST_CASE(
    "torch: what came back is saved again by a pass inside backward, and is not copied again") {
  for (std::uint64_t seed = 0; seed <= seeds; ++seed) {
    CAPTURE(seed);
    torch_desk desk(seed, small_torch_options("--borrowed-slack=0"));
    auto x = input({24, 16});
    auto pass = desk.off->begin({.microbatch = 0});
    const checkpoint::body part = [&](const at::Tensor& in) {
      if (!at::GradMode::is_enabled()) return torch::sin(in);
      auto inner = desk.off->begin({.microbatch = 1});
      auto result = inner.module("fc1", 0, [&] { return torch::sin(in); });
      CHECK(desk.bytes_out() == 24 * 16 * 4);
      inner.finish();
      return result;
    };
    auto y = pass.module("act", 0, [&] { return checkpoint::apply(x * 2, &part); });
    pass.end_forward();
    y.sum().backward();
    pass.finish();
    desk.off->end_step();
    CHECK(x.grad().equal(2 * (x * 2).cos()));
  }
}

namespace {

// Keeps the tensor that it saved beyond its backward.
struct square_of_half : torch::autograd::Function<square_of_half> {
  static inline std::vector<at::Tensor> kept{};

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return (x * x / 2).sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list /*gradients*/) {
    kept.push_back(context->get_saved_variables()[0]);
    return {kept.back()};
  }
};

}  // namespace

TEST_CASE("torch: what came back stays for as long as anybody has it") {
  for (std::uint64_t seed = 0; seed <= seeds; ++seed) {
    torch_desk desk(seed);
    std::vector<at::Tensor> expected;
    for (int step = 0; step < 3; ++step) {
      const auto x = input({24, 16}, static_cast<std::uint64_t>(step));
      auto pass = desk.off->begin();
      const auto loss = pass.module("act", 0, [&] { return square_of_half::apply(x + 1); });
      loss.backward();
      pass.finish();
      desk.off->end_step();
      expected.push_back(x.detach() + 1);
      CHECK(x.grad().equal(expected.back()));
    }
    const auto kept = std::exchange(square_of_half::kept, {});
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(kept[i].equal(expected[i]));
  }
}

TEST_CASE("torch: gradients of gradients") {
  same_with_offload([](auto& scope) {
    auto x = input({12, 8});
    auto y = scope("act", 0, [&] { return torch::sin(x * x).sum(); });
    const auto gradient = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
    gradient.pow(2).sum().backward();
    return std::vector<at::Tensor>{gradient, x.grad()};
  });
}

TEST_CASE("torch: backward in several threads at once, of several passes") {
  constexpr int threads = 4;
  std::vector<at::Tensor> expected;
  const auto forward = [](auto& scope, int number) {
    const auto x = torch::full({64, 16}, 0.01 * (number + 1)).requires_grad_();
    at::Tensor y = x;
    for (int l = 0; l < 24; ++l) {
      y = scope("act", l, [&] { return torch::sin(y * 2); });
      y = scope("fc1", l, [&] { return torch::tanh(y) * y; });
    }
    return std::pair(x, y);
  };
  auto plain = [](const char*, int, auto&& inner) { return inner(); };
  for (int t = 0; t < threads; ++t) {
    auto [x, y] = forward(plain, t);
    y.sum().backward();
    expected.push_back(x.grad());
  }
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    torch_desk desk(seed, small_torch_options("--borrowed-slack=0"));
    for (int step = 0; step < 3; ++step) {
      std::vector<pass_type> passes(threads);
      std::vector<at::Tensor> inputs, results;
      for (int t = 0; t < threads; ++t) {
        auto& pass = passes[static_cast<std::size_t>(t)];
        pass = desk.off->begin({.microbatch = t});
        auto scoped = [&](const char* name, int layer, auto&& inner) {
          return pass.module(name, layer, inner);
        };
        auto [x, y] = forward(scoped, t);
        inputs.push_back(x);
        results.push_back(y.sum());
      }
      std::vector<std::thread> running;
      std::atomic<int> here = 0;
      for (auto& each : results) {
        running.emplace_back([&here, loss = std::exchange(each, {})] {
          ++here;
          while (here < threads) std::this_thread::yield();
          loss.backward();
        });
      }
      for (auto& each : running) each.join();
      for (auto& each : passes) each.finish();
      desk.off->end_step();
      for (int t = 0; t < threads; ++t) {
        const auto at = static_cast<std::size_t>(t);
        REQUIRE(inputs[at].grad().equal(expected[at]));
      }
    }
  }
}

TEST_CASE("torch: modules on streams of their own, and a second stream that reads again") {
  for (std::uint64_t seed = 0; seed <= seeds; ++seed) {
    torch_desk desk(seed, small_torch_options("--borrowed-slack=0"));
    const auto side = desk.dev.make_stream();
    auto& streams = desk.off->streams();
    const auto home = streams.home();
    for (int step = 0; step < 2; ++step) {
      auto x = input({24, 16});
      auto pass = desk.off->begin();
      auto y = pass.module("act", 0, [&] { return torch::sin(x * 2); });
      streams.set_current(side.ref());
      y = pass.module("fc1", 0, [&] { return torch::exp(y); });
      const auto loss = y.sum();
      loss.backward({}, true);
      streams.set_current(home);
      // What `side` had reloaded, `home` reads now: it waits for that.
      std::size_t waits = 0;
      desk.dev.observe([&](const auto& where, const auto& what) {
        waits += where.stream == home.index() && what.kind == tidepool::detail::operation_kind::wait
                     ? 1
                     : 0;
      });
      loss.backward({}, true);
      REQUIRE(waits > 0);
      desk.dev.observe({});
      loss.backward();
      pass.finish();
      desk.off->end_step();
      REQUIRE(x.grad().allclose(6 * (x * 2).cos() * (x * 2).sin().exp()));
    }
  }
}

TEST_CASE("torch: a module whose stream is being captured is refused") {
  torch_desk desk;
  auto x = input({16, 16});
  auto pass = desk.off->begin();
  const auto stream = desk.off->streams().current();
  desk.dev.begin_capture(stream);
  const auto text = refusal([&] { pass.module("act", 1, [&] { return torch::sin(x); }); });
  CHECK(has(text, "module act of layer 1"));
  CHECK(has(text, "captured"));
  static_cast<void>(desk.dev.end_capture(stream));
  pass.module("act", 1, [&] { return torch::sin(x); }).sum().backward();
  pass.finish();
}

TEST_CASE("torch: a body that throws leaves all where it is, and the pass goes on") {
  torch_desk desk;
  auto x = input({16, 16});
  auto pass = desk.off->begin();
  at::Tensor y;
  CHECK_THROWS_AS(pass.module("act", 0,
                              [&] {
                                y = torch::sin(x * 2);
                                throw std::runtime_error("torch ran into something");
                              }),
                  std::runtime_error);
  CHECK(desk.bytes_out() == 0);
  y = pass.module("fc1", 0, [&] { return torch::exp(y); });
  y.sum().backward();
  pass.finish();
  desk.off->end_step();
  CHECK(x.grad().allclose(2 * (x * 2).cos() * (x * 2).sin().exp()));
}

TEST_CASE("torch: what finds no room on the host stays where it is, and can be read") {
  torch_desk desk(0, small_torch_options("--host-budget=256KiB --host-step=64KiB"));
  auto x = input({64, 1024});
  auto pass = desk.off->begin();
  at::Tensor y;
  CHECK_THROWS_AS(pass.module("act", 3,
                              [&] {
                                y = torch::sin(x * 2);
                                y = torch::exp(y);
                              }),
                  tidepool::out_of_budget);
  y.sum().backward();
  pass.finish();
  CHECK(x.grad().allclose(2 * (x * 2).cos() * (x * 2).sin().exp()));
}

TEST_CASE("torch: calls in an order that cannot work are refused") {
  torch_desk desk;
  auto x = input({16, 16});
  auto pass = desk.off->begin();
  auto y = pass.module("act", 0, [&] { return torch::sin(x); });
  CHECK(has(refusal([&] { pass.module("act", 0, [&] { return torch::cos(y); }); }),
            "ran in this pass before"));
  CHECK_THROWS_AS(pass.module("fc3", 0, [] {}), tidepool::unknown_module);
  pass.finish();
  CHECK(has(refusal([&] { pass.module("act", 0, [] {}); }), "finished"));
  CHECK(has(refusal([&] { y.sum().backward(); }), "module act of layer 0"));
}

TEST_CASE("torch: graphs that outlive their pass or their offloader do no harm") {
  torch_desk desk(1);
  auto x = input({16, 16});
  at::Tensor dropped, left;
  {
    auto pass = desk.off->begin();
    dropped = pass.module("act", 0, [&] { return torch::sin(x * 2); }).sum();
  }
  CHECK(has(refusal([&] { dropped.backward(); }), "module act of layer 0"));
  const auto before = strict_allocator::get().now;
  {
    auto pass = desk.off->begin();
    left = pass.module("act", 0, [&] { return torch::sin(x * 2); }).sum();
    desk.off.reset();
    CHECK(strict_allocator::get().now <= before);
    CHECK(has(refusal([&] { pass.module("act", 1, [] {}); }), "its offloader is gone"));
  }
  CHECK(has(refusal([&] { left.backward(); }),
            "module act of layer 0, microbatch 0: backward reads"));
}

TEST_CASE("torch: graphs that outlive the device do no harm") {
  for (const bool finished : {false, true}) {
    auto desk = std::make_unique<torch_desk>();
    auto x = input({32, 32});
    auto pass = desk->off->begin();
    auto y = pass.module("fc1", 0, [&] { return torch::exp(x); });
    y.sum().backward({}, true);
    if (finished) pass.finish();
    // The graph holds no stream of the device any more: the next that is made takes its place.
    const auto home = desk->off->streams().home().index();
    desk->dev.synchronize();
    desk->off.reset();
    CHECK(desk->dev.make_stream().ref().index() == home);
    desk.reset();
    CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("after its pass was finished"),
                         tidepool::misuse_error);
    y = at::Tensor();
    pass = {};
  }
}

TEST_CASE("torch: passes that only run forward, modules that stay, and tensors that are small") {
  auto x = input({16, 16});
  torch_desk desk(0, small_torch_options("--offload-modules=fc1 --min-tensor-elements=257"));
  auto pass = desk.off->begin({.forward_only = true, .release = true});
  pass.module("fc1", 0, [&] { return torch::sin(x); }).sum().backward();
  pass.finish();
  CHECK(x.grad().equal(x.cos()));
  x.mutable_grad().reset();
  pass = desk.off->begin();
  auto y = pass.module("act", 0, [&] { return torch::sin(x * 2); });
  y = pass.module("fc1", 0, [&] { return torch::exp(y); });
  y.sum().backward();
  pass.finish();
  desk.off->end_step();
  CHECK(desk.bytes_out() == 0);
  CHECK(x.grad().allclose(2 * (x * 2).cos() * (x * 2).sin().exp()));
}

namespace {

// Another engine, such as Python's, that knows of hooks itself.
struct foreign_engine final : torch::autograd::Engine {
  static Engine& get() {
    static auto* const one = new foreign_engine;
    return *one;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return tidepool::torch_saving_hooks();
  }
};

}  // namespace

TEST_CASE("torch: beside another engine, whose hooks ask for ours") {
  torch::autograd::set_default_engine_stub(&foreign_engine::get);
  struct end {
    ~end() { torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine); }
  } const restore;
  tidepool::virtual_device dev;
  CHECK(has(refusal([&] { tidepool::torch_offloader off(dev, small_torch_options()); }),
            "install_hooks"));
  tidepool::torch_offloader off(dev, small_torch_options(), {.install_hooks = false});
  auto x = input({16, 16});
  auto pass = off.begin();
  pass.module("act", 0, [&] { return torch::sin(x); }).sum().backward();
  pass.finish();
  std::size_t out = 0;
  for (const auto& each : off.counters().modules) out += each.bytes_offloaded;
  CHECK(out == 16 * 16 * 4);
  CHECK(x.grad().equal(x.cos()));
}

TEST_CASE("torch: a module whose tensors lie on another device is reported with that") {
  torch_desk desk;
  std::string said;
  desk.off->engine().on_report([&](std::string_view text) { said += text; });
  for (int step = 0; step < 2; ++step) {
    auto pass = desk.off->begin();
    const auto there = torch::empty({8, 8}, at::TensorOptions(at::kMeta)).requires_grad_();
    auto y = pass.module("fc1", 0, [&] { return there.tanh(); });
    pass.finish();
    desk.off->end_step();
  }
  CAPTURE(said);
  CHECK(said.find("'fc1' was asked for and moved no byte") != std::string::npos);
  CHECK(said.find("1 tensor lies on another device than the offloader's") != std::string::npos);
}

TEST_CASE("torch: a module of which every tensor is excluded is reported with that") {
  torch_desk desk;
  std::string said;
  desk.off->engine().on_report([&](std::string_view text) { said += text; });
  desk.off->exclude_if([](const at::Tensor&) { return true; });
  auto pass = desk.off->begin();
  auto x = input({8, 8});
  pass.module("fc1", 0, [&] { return x.tanh(); }).sum().backward();
  pass.finish();
  desk.off->end_step();
  CAPTURE(said);
  CHECK(said.find("'fc1' was asked for and moved no byte") != std::string::npos);
  CHECK(said.find("1 tensor was excluded (exclude, exclude_if)") != std::string::npos);
}
