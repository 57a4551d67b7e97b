// Adapters and trainers over torch with one mistake each, which a checked device has to find, and
// others that look wrong and are right.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "rig.hpp"
#include "tidepool/torch/declared.hpp"

namespace tidepool::test {

// A device whose adapter does some calls in another way.
class adapted : public checked_device<virtual_device> {
 public:
  explicit adapted(std::uint64_t seed = 3)
      : checked_device<virtual_device>(machine{.order_seed = seed}) {
    name_stream(side.ref(), "side");
  }

  stream side = make_stream();
  std::optional<stream_ref> home;        // in whose order memory is handed out for reloads
  std::optional<stream_ref> commits_on;  // the current stream while a module ends
  std::function<void*(std::size_t)> take;
  std::function<void(void*)> give;
};

}  // namespace tidepool::test

template <>
class tidepool::torch_streams<tidepool::test::adapted> : public torch_streams<virtual_device> {
 public:
  explicit torch_streams(tidepool::test::adapted& dev)
      : torch_streams<virtual_device>(dev), dev_(&dev) {}
  [[nodiscard]] stream_ref home() const {
    return dev_->home.value_or(torch_streams<virtual_device>::home());
  }
  [[nodiscard]] stream_ref current() const {
    return dev_->commits_on.value_or(torch_streams<virtual_device>::current());
  }
  [[nodiscard]] void* allocate(std::size_t bytes) const {
    return dev_->take ? dev_->take(bytes) : torch_streams<virtual_device>::allocate(bytes);
  }
  void deallocate(void* data) const {
    if (dev_->give) return dev_->give(data);
    torch_streams<virtual_device>::deallocate(data);
  }

 private:
  tidepool::test::adapted* dev_;
};

namespace {

using namespace tidepool;
using test::adapted;
using lane = adapted::stream_ref;
using pass = torch_offloader<adapted>::pass;

struct desk {
  explicit desk(std::string_view more = {}, const std::function<void(adapted&)>& set = {}) {
    static_cast<void>(test::strict_allocator::get());
    if (set) set(dev);
    off.emplace(dev, test::small_torch_options(more), torch_parts{.planner = planner()});
    off->engine().on_report([](std::string_view) {});
    home = off->streams().current();
    dev.name_stream(home, "torch");
    declared.emplace(dev, *off);
    for (int l = 0; l < 3; ++l) {
      fc.emplace_back(16, 16);
      off->exclude(fc.back()->parameters());
    }
  }
  void join(lane from, lane to) {
    auto mark = dev.make_event();
    dev.record(mark, from);
    dev.wait(to, mark);
  }
  // Torch's calls in `work` are on `on`.
  void on(lane which, const std::function<void()>& work) {
    const auto before = off->streams().current();
    off->streams().set_current(which);
    work();
    off->streams().set_current(before);
  }
  [[nodiscard]] at::Tensor ended(at::Tensor made) const {
    at_end();
    return made;
  }
  at::Tensor forward(pass& p, at::Tensor x) {
    for (int l = 0; l < 3; ++l) {
      auto& layer = fc[static_cast<std::size_t>(l)];
      auto h = p.module("fc1", l, [&] { return ended(layer->forward(x)); });
      after_end(x);
      x = p.module("act", l, [&] { return ended(torch::gelu(h)); });
      after_end(h);
    }
    return x.pow(2).mean();
  }
  void update() {
    const torch::NoGradGuard none;
    for (auto& layer : fc) {
      for (auto& each : layer->parameters()) each.add_(each.grad(), -0.1);
    }
  }
  // Two microbatches in flight.
  void train(int steps = 3) {
    for (int s = 0; s < steps; ++s) {
      std::vector<pass> passes;
      std::vector<at::Tensor> losses;
      for (int m = 0; m < 2; ++m) {
        passes.push_back(off->begin({.microbatch = m}));
        losses.push_back(forward(passes.back(), torch::randn({8, 16})));
        passes.back().end_forward();
      }
      for (std::size_t m = 0; m < 2; ++m) {
        losses[m].backward();
        passes[m].finish();
      }
      off->end_step();
      optimize();
    }
  }

  adapted dev;
  std::optional<torch_offloader<adapted>> off;
  std::optional<torch_declared_operators<adapted>> declared;
  lane home;
  std::vector<torch::nn::Linear> fc;
  std::function<void()> at_end = [] {};
  std::function<void(const at::Tensor&)> after_end = [](const at::Tensor&) {};
  std::function<void()> optimize = [this] { update(); };
};

// One side of a finding; no name stands for any.
struct side_of {
  access_kind kind;
  std::string_view stream;
  std::string_view name;

  [[nodiscard]] bool is(const checked_access& one) const {
    return one.kind == kind && one.stream == stream && (name.empty() || one.name == name);
  }
};

constexpr std::string_view out_stream = "the offload stream", in_stream = "the reload stream";
void is_found(const desk& at, const side_of& first, const side_of& second,
              std::optional<join_site> missing = {}, finding_kind kind = finding_kind::unordered) {
  INFO(at.dev.report());
  CHECK(std::ranges::any_of(at.dev.findings(), [&](const finding& each) {
    return each.kind == kind && each.missing == missing && first.is(each.first) &&
           second.is(each.second);
  }));
}
void is_right(const desk& at) {
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
  CHECK(at.off->counters().borrowed_peak > 0);
}

void* of_torch(std::size_t bytes) { return c10::GetAllocator(c10::kCPU)->raw_allocate(bytes); }

// Runs `body` without a graph, and again in backward.
using part = std::function<at::Tensor(const at::Tensor&)>;
struct checkpoint : torch::autograd::Function<checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t body) {
    context->save_for_backward({x});
    context->saved_data["body"] = body;
    const torch::NoGradGuard none;
    return (*reinterpret_cast<part*>(body))(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const torch::AutoGradMode again(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    (*reinterpret_cast<part*>(context->saved_data["body"].toInt()))(x).backward(grads[0]);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("torch adapters: a module's end is put on another stream") {
  using enum access_kind;
  desk at;
  at.at_end = [&] { at.dev.commits_on = at.dev.side.ref(); };
  at.after_end = [&](const at::Tensor&) { at.dev.commits_on.reset(); };
  at.train();
  is_found(at, {kernel_write, "torch", "aten::addmm"}, {offload, out_stream, ""},
           join_site::producer);
  is_found(at, {kernel_write, "torch", "aten::gelu"}, {offload, out_stream, ""},
           join_site::producer);
  is_found(at, {kernel_read, "torch", "aten::gelu"}, {returned, "side", ""}, join_site::give_back,
           finding_kind::returned_early);
}
TEST_CASE("torch adapters: memory goes back in the order of a stream that torch is not on") {
  using enum access_kind;
  desk at({}, [](adapted& dev) { dev.home = dev.side.ref(); });
  at.train();
  is_found(at, {returned, "side", ""}, {kernel_write, "torch", ""}, join_site::borrow);
  is_found(at, {kernel_read, "torch", ""}, {handed_out, in_stream, ""}, join_site::reload_reuse);
}
TEST_CASE("torch adapters: memory is handed out that a kernel still uses") {
  using enum access_kind;
  desk at({}, [](adapted& dev) {
    dev.take = [&dev](std::size_t bytes) {
      void* const made = of_torch(bytes);
      dev.writes(made, bytes, dev.side.ref(), "sampler");
      return made;
    };
  });
  at.train();
  is_found(at, {kernel_write, "side", "sampler"}, {handed_out, in_stream, ""},
           join_site::reload_reuse);
}
TEST_CASE("torch adapters: each size has one block, whoever has it") {
  using enum access_kind;
  desk at({}, [](adapted& dev) {
    dev.take = [](std::size_t bytes) {
      static std::map<std::size_t, void*> blocks;
      auto& one = blocks[bytes];
      return one = one == nullptr ? of_torch(bytes) : one;
    };
    dev.give = [](void*) {};
  });
  at.train();
  is_found(at, {reload, in_stream, ""}, {kernel_read, "torch", "aten::gelu_backward"},
           join_site::consumer);
}
TEST_CASE("torch adapters: an owner lets go at once") {
  using enum access_kind;
  desk at;
  auto& engine = at.off->engine();
  const auto act = at.off->module("act");
  auto chunk = engine.begin();
  auto tensor = torch::randn({8, 16});
  auto x = engine.adopt(tensor.data_ptr(), tensor.nbytes(), at.home, [] {});
  chunk.commit(act, 0, at.home, x);
  tensor.reset();
  torch::randn({8, 16});
  chunk.end_forward();
  chunk.restore(act, 0, at.home, x);
  x.reset(at.home);
  chunk.finish();
  engine.end_step();
  is_found(at, {offload, out_stream, ""}, {kernel_write, "torch", "aten::normal_"});
}
TEST_CASE("torch trainers: what left is written, by a raw pointer or through a view") {
  using enum access_kind;
  desk at;
  at.after_end = [&](const at::Tensor& h) {
    if (h.requires_grad()) at.dev.writes(h.data_ptr(), h.nbytes(), at.home, "scale");
  };
  at.train();
  is_found(at, {offload, out_stream, ""}, {kernel_write, "torch", "scale"});
  at.after_end = [&](const at::Tensor& h) {
    const torch::NoGradGuard none;
    if (h.requires_grad()) h.detach().view({-1}).slice(0, 0, 8).mul_(2);
  };
  CHECK_THROWS_AS(at.train(1), misuse_error);
  is_found(at, {offload, out_stream, ""}, {kernel_write, "torch", "aten::mul_"});
}
TEST_CASE("torch trainers: weights that leave are updated before backward") {
  using enum access_kind;
  desk at;
  torch::nn::Linear fc(16, 16);
  auto p = at.off->begin();
  const auto x = torch::randn({8, 16}, torch::requires_grad());
  const auto y = p.module("fc2", 0, [&] { return fc(x); });
  fc->weight.data().add_(1);
  p.end_forward();
  y.sum().backward();
  p.finish();
  is_found(at, {offload, out_stream, ""}, {kernel_write, "torch", "aten::add_"});
}
TEST_CASE("torch trainers: operators on a second stream, in backward and in the optimizer") {
  using enum access_kind;
  {
    desk at;
    at.after_end = [&](const at::Tensor& h) {
      if (!h.requires_grad()) return;
      h.register_hook(
          [&](const at::Tensor& gradient) { at.on(at.dev.side.ref(), [&] { gradient.neg(); }); });
    };
    at.train(1);
    is_found(at, {kernel_write, "torch", "aten::gelu_backward"},
             {kernel_read, "side", "aten::neg"});
  }
  desk at;
  at.optimize = [&] {
    at.on(at.dev.side.ref(), [&] { at.update(); });
    std::vector<at::Tensor> gradients;
    for (auto& layer : at.fc) gradients.push_back(layer->weight.grad());
    at::_foreach_mul_(gradients, 0.5);
  };
  at.train(2);
  is_found(at, {kernel_read, "torch", "aten::addmm"}, {kernel_write, "side", "aten::add_"});
  is_found(at, {kernel_read, "side", "aten::add_"}, {kernel_write, "torch", "aten::_foreach_mul_"});
}
TEST_CASE("torch trainers: what came back is read on another stream") {
  using enum access_kind;
  desk at;
  auto p = at.off->begin();
  auto group = p.group(at.off->module("act"), 0);
  const auto saved = group.save(torch::randn({8, 16}));
  group.commit();
  p.end_forward();
  const auto back = saved->call_unpack_hook();
  at.on(at.dev.side.ref(), [&] { back.neg(); });
  p.finish();
  is_found(at, {reload, in_stream, ""}, {kernel_read, "side", "aten::neg"}, join_site::consumer);
}
TEST_CASE("torch trainers: streams that are joined, by the device's events or the trainer's own") {
  for (const bool own : {false, true}) {
    CAPTURE(own);
    desk at;
    at.optimize = [&] {
      const auto side = at.dev.side.ref();
      const auto join = [&](lane from, lane to) {
        if (!own) return at.join(from, to);
        const int mark = 0;
        at.dev.recorded(&mark, from);
        at.dev.waited(to, &mark);
      };
      join(at.home, side);
      at.on(side, [&] { at.update(); });
      join(side, at.home);
    };
    at.train();
    is_right(at);
  }
}
TEST_CASE("torch trainers: the host waited, and all memory is the offloader's") {
  desk at("--memory=arena --device-budget=1MiB");
  at.join(at.home, at.dev.side.ref());
  at.optimize = [&] {
    at.dev.host_waited(at.dev.side.ref());  // as behind `item()`
    at.on(at.home, [&] { at.update(); });
    at.dev.host_waited(at.home);
  };
  at.on(at.dev.side.ref(), [&] { at.train(); });
  is_right(at);
}
TEST_CASE("torch trainers: a graph that is kept, and an input that is written again") {
  for (const char* more : {"", "--borrowed-slack=0", "--reload-ahead=0"}) {
    desk at(more);
    at.after_end = [&](const at::Tensor& h) {  // may be read while it leaves
      at.dev.reads(h.data_ptr(), h.nbytes(), at.home, "log");
    };
    const auto x = torch::randn({8, 16});
    for (int s = 0; s < 4; ++s) {
      auto p = at.off->begin();
      const auto loss = at.forward(p, x);
      p.end_forward();
      loss.backward({}, true);
      loss.backward();
      p.finish();
      at.off->end_step();
      at.update();
      const torch::NoGradGuard none;
      x.normal_();
    }
    is_right(at);
  }
}
TEST_CASE("torch trainers: checkpoints, views that are saved twice, and writes inside a scope") {
  desk at;
  std::vector<part> bodies;
  for (auto& layer : at.fc) {
    bodies.emplace_back([&](const at::Tensor& in) {
      const auto h = layer->forward(in).relu_();
      return h.matmul(h.t()).matmul(h.view({-1}).exp().view({8, 16}).tanh());
    });
  }
  for (const bool again : {true, false}) {
    for (int s = 0; s < 3; ++s) {
      auto p = at.off->begin();
      auto h = torch::randn({8, 16}, torch::requires_grad());
      for (int l = 0; l < 3; ++l) {
        h = p.module("fc1", l, [&] {
          auto& body = bodies[static_cast<std::size_t>(l)];
          return again ? checkpoint::apply(h, reinterpret_cast<std::int64_t>(&body)) : body(h);
        });
      }
      const auto loss = h.sum();
      h.reset();
      p.end_forward();
      loss.backward();
      p.finish();
      at.off->end_step();
      at.update();
    }
  }
  is_right(at);
}
