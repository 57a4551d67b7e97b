// A framework whose autograd calls hooks: one for each tensor that a node saves, one for each that
// backward asks for, and one before and after each module. Nodes give their tensors up when they
// end, which may be after the pass.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "rig.hpp"
#include "tidepool/keyed.hpp"
#include "tidepool/plan.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"attn", "mlp">>;
using keyed = tidepool::keyed<rig::device_type, tidepool::modules<"attn", "mlp">>;

constexpr std::size_t words = 256;
constexpr std::size_t bytes = words * sizeof(std::uint32_t);
constexpr int layers = 4;

// Memory of the framework, which the heap gives to the next tensor once it is free.
struct storage {
  static inline std::uint64_t count = 0;
  std::uint64_t id = ++count;
  std::vector<std::uint32_t> words;
  int& alive;

  storage(std::size_t size, int& among) : words(size), alive(among) { ++alive; }
  storage(const storage&) = delete;
  storage& operator=(const storage&) = delete;
  ~storage() { --alive; }
};
using tensor = std::shared_ptr<storage>;

// What a node holds in place of a tensor that it saved.
struct saved {
  tensor kept;  // of no module
  std::weak_ptr<keyed::pass> open;
  tidepool::tensor_key key = 0;
  rig::stream_ref stream{};

  saved() = default;
  saved(const saved&) = delete;
  saved& operator=(const saved&) = delete;
  ~saved() {
    if (const auto pass = open.lock()) pass->drop(key, stream);
  }
};

class framework {
 public:
  framework(const options& opts, std::uint64_t seed) : at_(machine{.order_seed = seed}) {
    at_.dev.host_executes(at_.stream());
    off_ =
        std::make_unique<offloader>(at_.dev, opts, tidepool::parts{.planner = tidepool::planner()});
    off_->on_report([](std::string_view) {});
    keys_ = std::make_unique<keyed>(*off_);
  }

  // Returns the sum over the gradient of the first tensor. `late`: a node outlives the pass.
  std::uint32_t step(std::uint32_t seed, bool late) {
    pass_ = std::make_shared<keyed::pass>(keys_->begin());
    auto x = std::make_shared<storage>(words, alive_);
    for (std::size_t i = 0; i < words; ++i) x->words[i] = rig::word(seed, i);
    x = square(x);  // outside of modules, as an embedding is
    for (int l = 0; l < layers; ++l) {
      x = module("attn", l, x);
      x = module("mlp", l, x);
    }
    x = nullptr;
    if (seed % 3 == 0) nodes_.erase(nodes_.begin() + 2);  // a branch that has no loss
    after_forward_ = alive_;
    pass_->end_forward();
    std::vector<std::uint32_t> gradient(words, 1);
    std::unique_ptr<saved> outlives;
    while (!nodes_.empty()) {
      const auto* const of = load(*nodes_.back());
      for (std::size_t i = 0; i < words; ++i) gradient[i] *= 2 * of[i] + 1;
      if (late && nodes_.size() == 2) outlives = std::move(nodes_.back());
      nodes_.pop_back();
    }
    pass_->finish();
    pass_ = nullptr;
    off_->end_step();
    std::uint32_t sum = 0;
    for (const auto each : gradient) sum = sum * 31 + each;
    return sum;
  }
  [[nodiscard]] int alive_after_forward() const { return after_forward_; }
  [[nodiscard]] std::size_t left() const {
    std::size_t sum = 0;
    for (const auto& each : off_->counters().modules) sum += each.bytes_offloaded;
    return sum;
  }

 private:
  tensor module(std::string_view name, int layer, const tensor& x) {
    pass_->enter(off_->module(name), layer);
    auto y = square(square(x));
    pass_->leave(at_.stream());
    return y;
  }
  // y = x * x + x, of which backward needs x.
  tensor square(const tensor& x) {
    auto y = std::make_shared<storage>(words, alive_);
    for (std::size_t i = 0; i < words; ++i) y->words[i] = x->words[i] * x->words[i] + x->words[i];
    nodes_.push_back(pack(x));
    return y;
  }
  std::unique_ptr<saved> pack(const tensor& x) {
    auto made = std::make_unique<saved>();
    if (!pass_->in_scope()) {
      made->kept = x;
      return made;
    }
    pass_->save(x->id, x->words.data(), bytes, at_.stream(), x);
    made->open = pass_;
    made->key = x->id;
    made->stream = at_.stream();
    return made;
  }
  const std::uint32_t* load(const saved& of) {
    if (of.kept) return of.kept->words.data();
    return static_cast<const std::uint32_t*>(pass_->load(of.key, of.stream));
  }

  int alive_ = 0;
  int after_forward_ = 0;
  rig at_;
  std::unique_ptr<offloader> off_;
  std::unique_ptr<keyed> keys_;
  std::shared_ptr<keyed::pass> pass_;
  std::vector<std::unique_ptr<saved>> nodes_;
};

}  // namespace

TEST_CASE("keyed hooks: a framework's saved tensors leave, and its gradients keep their bits") {
  auto at_once = small_options();
  at_once.borrowed_slack = 0;
  auto tight = arena_options(6 * bytes);
  auto planned = tight;
  planned.policy = tidepool::policy_kind::automatic;
  planned.plan_effort = 50;
  auto on_demand = small_options({"mlp"});
  on_demand.max_inflight = 0;
  on_demand.reload_ahead = 0;
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U, 4U}) {
    for (const bool late : {false, true}) {
      framework none(small_options({}), seed);
      std::vector<std::unique_ptr<framework>> all;
      for (const auto& opts : {at_once, on_demand, tight, planned}) {
        all.push_back(std::make_unique<framework>(opts, seed));
      }
      for (std::uint32_t step = 1; step <= 8; ++step) {
        const auto expected = none.step(step, late);
        for (auto& each : all) CHECK(each->step(step, late) == expected);
      }
      CHECK(none.left() == 0);
      for (auto& each : all) CHECK(each->left() > 0);
      CHECK(none.alive_after_forward() == 1 + 4 * layers);
      CHECK(all.front()->alive_after_forward() == 1);  // the one outside of modules
    }
  }
}

TEST_CASE("keyed hooks: a pass says whether a scope is open") {
  rig at;
  offloader off(at.dev, small_options());
  keyed keys(off);
  auto pass = keys.begin();
  CHECK_FALSE(pass.in_scope());
  pass.enter(off.module("attn"), 0);
  pass.run(off.module("mlp"), 0, at.stream(), [&] { CHECK(pass.in_scope()); });
  CHECK(pass.in_scope());
  auto moved = std::move(pass);
  CHECK(moved.in_scope());
  moved.leave(at.stream());
  CHECK_FALSE(moved.in_scope());
  moved.finish();
  CHECK_FALSE(moved.in_scope());
  CHECK_FALSE(keyed::pass().in_scope());
}
