// Memory that is taken from under a live storage, and given back or not: what backward reads is
// what it reads without offload, or an error names the module.
#include <ATen/native/Resize.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rig.hpp"
#include "tidepool/torch/declared.hpp"

namespace {

using tidepool::misuse_error;
using tidepool::test::bit_sum;
using tidepool::test::small_torch_options;
using tidepool::test::strict_allocator;
using tidepool::test::torch_desk;

c10::StorageImpl& storage_of(const at::Tensor& of) { return *of.storage().unsafeGetStorageImpl(); }

void resize(const at::Tensor& which, std::size_t bytes) {
  at::native::resize_bytes_cpu(&storage_of(which), bytes);
}

void put(const at::Tensor& which, const at::Tensor& from) {
  std::memcpy(which.data_ptr(), from.data_ptr(), from.nbytes());
}

// The next tensor of this size has the memory for a while.
void steal_memory(const at::Tensor& like) { static_cast<void>(torch::full_like(like, 1e9F)); }

std::string refusal(const std::function<void()>& body) {
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

// Megatron's CheckpointWithoutOutput: forward empties a tensor, and a hook of backward fills it
// before its reader runs. `scope(name, layer, body)` is a module scope.
template <class Scope, class EndForward>
at::Tensor emptied_behind_its_module(
    const Scope& scope, const EndForward& end_forward, bool drops,
    const std::function<void()>& between = [] {}) {
  torch::manual_seed(1);
  const auto x = torch::randn({64, 64});
  auto w = torch::randn({64, 64}).requires_grad_();
  auto h = x.sin();
  const auto bytes = h.nbytes();
  const auto y = scope("fc1", 2, [&] { return torch::matmul(h, w); });
  resize(h, 0);
  between();
  y.register_hook([&](const at::Tensor&) {
    resize(h, bytes);
    put(h, x.sin());
    if (drops) h.reset();
  });
  steal_memory(x);
  const auto loss = y.pow(2).sum();
  end_forward();
  loss.backward();
  return w.grad();
}

}  // namespace

TEST_CASE("torch resized: a tensor that is emptied behind its module and computed again") {
  const auto plain = [](const char*, int, auto&& body) { return body(); };
  const auto expected = emptied_behind_its_module(
      plain, [] {}, false);
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    for (const bool drops : {false, true}) {
      for (const bool says : {false, true}) {
        CAPTURE(seed);
        CAPTURE(drops);
        CAPTURE(says);
        torch_desk desk(seed);
        auto pass = desk.off->begin();
        const auto gradient =
            emptied_behind_its_module([&](const char* name, int layer,
                                          auto&& body) { return pass.module(name, layer, body); },
                                      [&] {
                                        if (says) pass.end_forward();
                                      },
                                      drops);
        pass.finish();
        desk.off->end_step();
        REQUIRE(gradient.equal(expected));
        REQUIRE(desk.bytes_out() > 0);
      }
    }
  }
}

TEST_CASE("torch resized: a tensor that is empty when backward reads it is refused by name") {
  for (const bool within : {false, true}) {
    torch_desk desk;
    auto x = torch::randn({16, 8}).requires_grad_();
    auto pass = desk.off->begin({.microbatch = 3});
    const auto h = x * 2;
    const auto y = pass.module("act", 5, [&] {
      auto made = torch::sin(h);
      if (within) resize(h, 0);
      return made;
    });
    if (!within) resize(h, 64);
    const auto text = refusal([&] { y.sum().backward(); });
    CAPTURE(text);
    CHECK(has(text, "module act of layer 5, microbatch 3"));
    CHECK(has(text, "16x8"));
    CHECK(has(text, "exclude"));
    CHECK(h.storage().nbytes() == (within ? 0 : 64));
    pass.finish();
    desk.off->end_step();
  }
}

TEST_CASE("torch resized: a leaf that is given another tensor's memory") {
  for (const bool excluded : {false, true}) {
    torch_desk desk;
    auto x = torch::randn({4, 8});
    auto w = torch::randn({8, 8}).requires_grad_(), b = torch::randn({4, 8}).requires_grad_();
    if (excluded) desk.off->exclude({w, b});
    auto pass = desk.off->begin();
    const auto y = pass.module("fc2", 1, [&] { return torch::matmul(x * 1, w) * b; });
    b.set_data(torch::ones({4, 8}));  // as torch without hooks, backward reads what it is by then
    const auto text = refusal([&] { y.sum().backward(); });
    CAPTURE(text);
    if (excluded) {
      CHECK(w.grad().equal(torch::matmul(x.t(), torch::ones({4, 8}))));
    } else {
      CHECK(has(text, "module fc2 of layer 1"));
      CHECK(has(text, "exclude"));
    }
    pass.finish();
  }
}

TEST_CASE("torch resized: a storage has its own allocator again behind its pass") {
  torch_desk desk;
  const auto before = strict_allocator::get().now;
  {
    auto x = torch::randn({16, 16}).requires_grad_();
    const auto h = x * 2;
    auto* const own = storage_of(h).allocator();
    for (int step = 0; step < 3; ++step) {
      auto first = desk.off->begin({.microbatch = 0});
      auto y = first.module("act", 0, [&] { return torch::sin(h); });
      auto second = desk.off->begin({.microbatch = 1});
      y = y + second.module("act", 0, [&] { return torch::cos(h); });
      CHECK(storage_of(h).allocator() != own);
      resize(h, h.nbytes() * 2);
      y.sum().backward({}, true);
      y.reset();
      first.finish();
      second.finish();
      desk.off->end_step();
      CHECK(storage_of(h).allocator() == own);
    }
  }
  static_cast<void>(tidepool::detail::memory_lender::give_back_all());
  CHECK(strict_allocator::get().now == before);
}

TEST_CASE("torch resized: a checked device tells of memory that was taken before its copy ended") {
  using device = tidepool::checked_device<tidepool::virtual_device>;
  for (const bool takes : {false, true}) {
    device dev{tidepool::machine{.order_seed = 4}};
    tidepool::torch_offloader off(dev, small_torch_options());
    off.engine().on_report([](std::string_view) {});
    const tidepool::torch_declared_operators declared(dev, off);
    auto pass = off.begin();
    auto x = torch::randn({64, 64}).requires_grad_();
    const auto h = x * 2;
    const auto bytes = h.nbytes();
    const auto y = pass.module("fc1", 2, [&] { return torch::sin(h); }).sum();
    if (takes) resize(h, 0);
    pass.end_forward();
    if (takes) {
      resize(h, bytes);
      put(h, x * 2);
    }
    y.backward();
    pass.finish();
    dev.synchronize();
    const auto report = dev.report();
    CAPTURE(report);
    CHECK(dev.findings().empty() == !takes);
    CHECK(has(report, "memory that was taken from under a storage") == takes);
    CHECK(has(report, "fc1 of layer 2") == takes);
    CHECK(x.grad().equal(2 * (x * 2).cos()));
  }
}

namespace {

// How the memory of a layer's input goes, and comes again.
enum class way : std::uint8_t { stays, empties, grows, swaps, frees };

struct story {
  way how{};
  int out = 0;   // the moment at which it goes
  int back = 0;  // and at which it is filled
  bool other_content = false;
  bool drops = false;   // the trainer's variable, once it is filled
  bool steals = false;  // another tensor has the memory in between
  bool twice = false;   // the next layer reads it, too
  bool never = false;   // is filled
  int saves = 0;        // by which operator
};

struct program {
  static constexpr int most_layers = 5;
  int layers = 1;
  bool says_end = false;
  std::array<story, most_layers> of{};

  explicit program(std::mt19937& random) {
    const auto up_to = [&](int most) { return static_cast<int>(random() % unsigned(most + 1)); };
    const auto one_of = [&](unsigned n) { return random() % n == 0; };
    layers = 1 + up_to(most_layers - 1);
    says_end = one_of(2);
    const int fails = one_of(6) ? up_to(layers - 1) : -1;
    for (int l = 0; l < layers; ++l) {
      auto& each = of[static_cast<std::size_t>(l)];
      each.how = static_cast<way>(up_to(4));
      each.saves = up_to(2);
      each.twice = one_of(3) && l + 1 < layers;
      // Inside of the scope, behind it, and so on; `moments` is in backward.
      each.out = std::min(3 * l + (each.twice ? 3 : 0) + up_to(4), moments());
      each.back = std::min(each.out + up_to(6), moments());
      // Behind the scope: of other content in memory that has not changed since nothing tells.
      each.other_content =
          one_of(3) && each.out > 3 * l && (each.how == way::empties || each.how == way::grows);
      each.steals = !one_of(4);
      each.drops = one_of(2);
      if (l == fails) {
        each.never = each.how == way::empties || each.how == way::frees;
        each.drops = each.drops && !each.never;
      }
      // Freed and filled by hand between two looks, and dropped: nothing shows that (torch.md,
      // traps).
      const bool seen = says_end && each.out < moments() && each.back == moments();
      if (each.how == way::frees && !seen) each.drops = false;
    }
  }
  [[nodiscard]] int moments() const { return 3 * layers + 1; }
  [[nodiscard]] bool fails() const {
    return std::ranges::any_of(of, [](const story& each) { return each.never; });
  }
};

class trainer {
 public:
  explicit trainer(const program& what) : program_(what) {}

  // The gradients; `scope(name, layer, body)` is a module scope.
  template <class Scope, class EndForward>
  std::uint64_t run(const Scope& scope, const EndForward& end_forward) {
    torch::manual_seed(5);
    auto x = torch::randn({16, 16}).requires_grad_();
    auto w = torch::randn({16, 16}).requires_grad_();
    auto y = x * 0.5;
    for (int l = 0; l < program_.layers; ++l) {
      {
        torch::NoGradGuard none;
        inputs_.push_back(torch::randn({16, 16}) * 0.3);
        contents_.push_back(inputs_.back().clone());
      }
      const auto now = static_cast<std::size_t>(l);
      y = scope("fc1", l, [&] {
        auto made = work(now, w) * y.tanh();
        if (l > 0 && program_.of[now - 1].twice) made = made + work(now - 1, w);
        reach(3 * l);
        return made;
      });
      reach(3 * l + 1);
      y.register_hook([this](const at::Tensor&) { reach(program_.moments()); });
      y = y * 0.5;
      reach(3 * l + 2);
    }
    reach(3 * program_.layers);
    end_forward();
    y.sum().backward();
    bit_sum bits;
    bits.add(x.grad());
    bits.add(w.grad());
    return bits.value();
  }

 private:
  at::Tensor work(std::size_t layer, const at::Tensor& w) {
    const auto& h = inputs_[layer];
    switch (program_.of[layer].saves) {
      case 0:
        return torch::matmul(h, w).tanh();
      case 1:
        return h * w;
      default:
        return h.t().slice(0, 4, 12).t().matmul(w.slice(0, 0, 8)).sin();
    }
  }
  // All that is due by this moment.
  void reach(int moment) {
    for (std::size_t l = 0; l < inputs_.size(); ++l) {
      const auto& each = program_.of[l];
      if (each.how == way::stays) continue;
      if (state_[l] == 0 && each.out <= moment) take(l);
      if (state_[l] == 1 && each.back <= moment && !each.never) give(l);
    }
  }
  void take(std::size_t l) {
    state_[l] = 1;
    auto& storage = storage_of(inputs_[l]);
    const auto bytes = contents_[l].nbytes();
    if (program_.of[l].how == way::empties) at::native::resize_bytes_cpu(&storage, 0);
    if (program_.of[l].how == way::grows) at::native::resize_bytes_cpu(&storage, 2 * bytes);
    if (program_.of[l].how == way::swaps) {
      auto fresh = strict_allocator::get().allocate(bytes);
      std::memcpy(fresh.get(), contents_[l].data_ptr(), bytes);
      storage.set_data_ptr(std::move(fresh));
    }
    if (program_.of[l].how == way::frees) {
      storage.set_data_ptr(at::DataPtr(nullptr, c10::Device(c10::kCPU)));
      storage.set_nbytes(0);
    }
    if (program_.of[l].steals) steal_memory(contents_[l]);
  }
  void give(std::size_t l) {
    state_[l] = 2;
    auto& storage = storage_of(inputs_[l]);
    const auto& each = program_.of[l];
    const auto bytes = contents_[l].nbytes();
    if (each.how == way::empties) at::native::resize_bytes_cpu(&storage, bytes);
    if (each.how == way::frees) {
      storage.set_data_ptr(strict_allocator::get().allocate(bytes));
      storage.set_nbytes(bytes);
    }
    const torch::NoGradGuard none;
    put(inputs_[l], each.other_content ? contents_[l] * 3 : contents_[l]);
    if (each.drops) inputs_[l].reset();
  }

  const program& program_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> contents_;
  std::array<int, program::most_layers> state_{};
};

}  // namespace

TEST_CASE("torch resized: storages that go and come at random have equal bits, or are refused") {
  const unsigned programs = std::getenv("TIDEPOOL_TEST_EVERY") == nullptr ? 600 : 30000;
  constexpr std::array more{"--borrowed-slack=0", "--borrowed-slack=4KiB", "",
                            "--memory=arena --device-budget=1MiB", "--offload-fraction=0.5"};
  const auto before = strict_allocator::get().now;
  unsigned refused = 0;
  std::size_t out = 0;
  for (unsigned number = 0; number < programs; ++number) {
    CAPTURE(number);
    std::mt19937 random(number);
    const program what(random);
    const auto plain = [](const char*, int, auto&& body) { return body(); };
    const auto expected = what.fails() ? 0 : trainer(what).run(plain, [] {});
    torch_desk desk(number % 17, small_torch_options(more[number % more.size()]));
    for (int step = 0; step < 2; ++step) {
      auto pass = desk.off->begin();
      std::uint64_t bits = 0;
      const auto error = refusal([&] {
        bits = trainer(what).run([&](const char* name, int layer,
                                     auto&& body) { return pass.module(name, layer, body); },
                                 [&] {
                                   if (what.says_end) pass.end_forward();
                                 });
      });
      CAPTURE(error);
      if (what.fails()) {
        REQUIRE(has(error, "module fc1 of layer"));
        ++refused;
      } else {
        REQUIRE(error == "nothing was thrown");
        REQUIRE(bits == expected);
      }
      pass.finish();
      desk.off->end_step();
    }
    out += desk.bytes_out();
  }
  CHECK(out > 0);
  CHECK(refused > programs / 20);
  static_cast<void>(tidepool::detail::memory_lender::give_back_all());
  CHECK(strict_allocator::get().now == before);
}
