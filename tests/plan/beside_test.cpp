// Plans that a thread makes beside the training: the planner waits until the test lets it go.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/core/plan_source.hpp"
#include "unsimulated_device.hpp"

namespace {

using namespace tidepool;
using own_device = test::unsimulated_device;
using plan::action;

constexpr std::size_t size = 4096;
constexpr std::size_t budget = 64 * size;

options automatic(std::optional<std::size_t> adopt_after = {}, std::optional<int> timed_step = 2) {
  auto opts = test::small_options({"core_attn"});
  opts.policy = policy_kind::automatic;
  opts.timed_step = timed_step;
  opts.device_budget = budget;
  opts.adopt_after = adopt_after;
  return opts;
}

// Lets plans of a test's planner go, one by one, and notes what they were asked.
class door {
 public:
  void open(int plans = 1) {
    const std::lock_guard lock(mutex_);
    open_ += plans;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++inside;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ > 0; });
    --open_;
    --inside;
  }
  // Waits until a planner stands before the door.
  void wait_for_planner() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside > 0; });
  }

  int inside = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
};

struct notes {
  door let_go;
  std::atomic<int> asked = 0;
  std::atomic<int> at_once = 0;
  std::atomic<int> most_at_once = 0;
  std::atomic<bool> fails = false;
  std::atomic<std::thread::id> by{};
};

// Keeps all groups of a step, once the test lets it go.
class waiting_source final : public plan_source {
 public:
  explicit waiting_source(notes& of) : of_(&of) {}

  decision make(const recorded_step& recorded, const options&) override {
    ++of_->asked;
    of_->most_at_once = std::max<int>(of_->most_at_once, ++of_->at_once);
    of_->by = std::this_thread::get_id();
    of_->let_go.pass();
    --of_->at_once;
    if (of_->fails.exchange(false)) throw std::runtime_error("no plan today");
    decision what;
    what.words = "all stay";
    what.made.expected.runs = true;
    for (const auto& chunk : recorded.step.chunks) {
      what.made.what.emplace_back(chunk.groups.size(), action::keep);
    }
    return what;
  }
  followed_plan follow(const plan::step_plan& made, const plan::profile& recorded,
                       std::span<const std::string>, std::uint64_t, const options&) override {
    followed_plan result;
    result.step = recorded;
    result.what.made = made;
    return result;
  }

 private:
  notes* of_;
};

class trainer {
 public:
  explicit trainer(const options& opts = automatic())
      : off(std::in_place, dev, opts, parts{.planner = std::make_unique<waiting_source>(plans)}) {
    off->on_report([this](std::string_view line) { lines.emplace_back(line); });
  }

  enum class ends : std::uint8_t { well, given_up, starved };

  // Returns how many of the layers stayed.
  int step(int layers = 2, ends how = ends::well) {
    const auto s = stream.ref();
    const auto id = off->module("core_attn");
    auto open = off->begin();
    std::vector<buffer<own_device>> x(static_cast<std::size_t>(layers));
    int stayed = 0;
    for (int l = 0; l < layers; ++l) {
      auto& each = x[static_cast<std::size_t>(l)];
      each = off->allocate(size, s);
      dev.launch(s, 1e5, nullptr);
      open.commit_or_discard(id, l, s, each);
      stayed += each ? 1 : 0;
    }
    open.end_forward();
    if (how == ends::starved) {
      CHECK_THROWS_AS(static_cast<void>(off->allocate(budget + size, s)), out_of_budget);
    }
    for (int l = layers; l-- > 0 && how == ends::well;) {
      auto& each = x[static_cast<std::size_t>(l)];
      open.restore_or_recompute(
          id, l, s, [&] { ++timed; }, each);
      dev.launch(s, 1e5, nullptr);
      each.reset(s);
    }
    for (auto& each : x) each.reset(s);
    if (how == ends::well) open.finish();
    open = {};
    off->end_step();
    return stayed;
  }
  // Lets a plan go, and asks until the answer is yes; asking runs a step.
  template <class Answer>
  void until(const Answer& answer) {
    plans.let_go.open();
    for (int i = 0; !answer(); ++i) {
      REQUIRE(i < 10'000);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] bool planned() const { return off->current_plan().has_value(); }

  notes plans;
  own_device dev;
  own_device::stream stream = dev.make_stream();
  std::optional<offloader<own_device>> off;
  std::vector<std::string> lines;
  int timed = 0;  // groups that were computed again to be timed
};

// Lets a plan go while the training waits for it, as far as a test can tell.
void let_go_later(notes& plans) {
  plans.let_go.wait_for_planner();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  plans.let_go.open();
}

}  // namespace

TEST_CASE("beside: steps go on under what they followed, until the plan is made") {
  trainer train;
  for (int i = 0; i < 4; ++i) CHECK(train.step() == 0);
  train.plans.let_go.wait_for_planner();
  CHECK(train.plans.asked == 1);
  CHECK(train.timed == 2);                         // offers are timed in the first step alone
  train.until([&] { return train.step() == 2; });  // the second that counts: the plan is of it
  for (int i = 0; i < 3; ++i) CHECK(train.step() == 2);
  CHECK_FALSE(train.planned());
  train.until([&] { return train.step() == 2 && train.planned(); });
  CHECK(train.timed == 2);
  CHECK(train.plans.asked == 2);
  CHECK(train.plans.by.load() != std::this_thread::get_id());
  REQUIRE(train.lines.size() == 1);
  CHECK(train.lines[0].starts_with("all stay; adopted "));
}

TEST_CASE("beside: adopt_after names the step exactly, whether the plan is made before or later") {
  for (const bool soon : {true, false}) {
    CAPTURE(soon);
    trainer train(automatic(3));
    for (int plan = 0; plan < 2; ++plan) {
      if (soon) train.plans.let_go.open();
      for (int i = 0; i < 3; ++i) {  // the first is recorded
        CHECK(train.step() == 2 * plan);
        CHECK_FALSE(train.planned());
      }
      std::optional<std::thread> later;
      if (!soon) later.emplace([&] { let_go_later(train.plans); });
      CHECK(train.step() == 2 * plan);  // its end waits
      if (later) later->join();
    }
    CHECK(train.planned());
    CHECK(train.step() == 2);
    const std::string said =
        "all stay; adopted 3 steps after the one that it was made of (--adopt-after)";
    CHECK(train.lines == std::vector{said});
  }
}

TEST_CASE("beside: with 0 the training's own thread plans, and the step waits") {
  trainer train(automatic(0));
  train.plans.let_go.open(2);
  train.step();
  CHECK(train.plans.by.load() == std::this_thread::get_id());
  CHECK(train.step() == 2);
  CHECK(train.planned());
  CHECK(train.lines == std::vector<std::string>{"all stay"});
}

TEST_CASE("beside: a device that simulates time plans in line, unless a number is given") {
  for (const bool given : {false, true}) {
    CAPTURE(given);
    notes plans;
    plans.let_go.open(2);
    test::rig desk;
    const auto opts = given ? automatic(1) : automatic();
    test::rig::offloader<> off(desk.dev, opts,
                               {.planner = std::make_unique<waiting_source>(plans)});
    off.on_report([](std::string_view) {});
    const auto id = off.module("core_attn");
    for (int i = 0; i < (given ? 4 : 2); ++i) {
      CHECK_FALSE(off.current_plan());
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      open.commit(id, 0, desk.stream(), x);
      open.end_forward();
      open.restore(id, 0, desk.stream(), x);
      x.reset(desk.stream());
      open.finish();
      off.end_step();
    }
    CHECK(off.current_plan());
    CHECK((plans.by.load() != std::this_thread::get_id()) == given);
  }
}

TEST_CASE("beside: an offloader that goes while a plan is made waits for it") {
  trainer train;
  train.step();
  std::thread later([&] { let_go_later(train.plans); });
  SUBCASE("at its end") { train.off.reset(); }
  SUBCASE("by an exception") {
    const auto fails = [&] {
      const std::unique_ptr<trainer, void (*)(trainer*)> goes(
          &train, [](trainer* which) { which->off.reset(); });
      throw std::runtime_error("a kernel");
    };
    CHECK_THROWS_AS(fails(), std::runtime_error);
  }
  SUBCASE("with a chunk that outlives it") {
    auto open = train.off->begin();
    train.off.reset();
  }
  SUBCASE("with a plan that was dropped") {
    train.step(3);
    train.off.reset();
  }
  CHECK(train.plans.asked == 1);
  CHECK(train.plans.at_once == 0);
  later.join();
}

TEST_CASE("beside: what the planner throws leaves one end_step, and the next step is the first") {
  trainer train;
  train.step();
  train.plans.fails = true;
  std::vector<std::string> thrown;
  train.until([&] {
    try {
      train.step();
    } catch (const std::runtime_error& what) {
      thrown.emplace_back(what.what());
    }
    return !thrown.empty();
  });
  CHECK(thrown.front() == "no plan today");
  const int timed = train.timed;
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(train.step());
  CHECK(train.timed == timed + 2);
  train.until([&] { return train.step() == 2; });
  train.until([&] { return train.step() == 2 && train.planned(); });
  CHECK(train.plans.asked == 3);
}

TEST_CASE("beside: of a dropped plan nothing is seen, and the next waits for its end") {
  trainer train;
  train.step();
  int layers = 2;
  SUBCASE("a step that is larger") {
    train.step(layers = 3);
    REQUIRE_FALSE(train.lines.empty());
    CHECK(train.lines.back().find("more than any before it") != std::string::npos);
  }
  SUBCASE("a first plan that starves") {
    train.until([&] { return train.step() == 2; });
    train.step(layers, trainer::ends::starved);
    REQUIRE_FALSE(train.lines.empty());
    CHECK(train.lines.back().find("ran out of device memory") != std::string::npos);
  }
  train.plans.let_go.wait_for_planner();
  train.plans.fails = true;  // the dropped one
  const int asked = train.plans.asked;
  const int timed = train.timed;
  for (int i = 0; i < 3; ++i) CHECK(train.step(layers) == 0);
  CHECK(train.timed == timed + layers);  // in the first of them
  CHECK(train.plans.asked == asked);     // the next is asked when the dropped one is over
  train.plans.let_go.open();
  train.until([&] { return train.step(layers) == layers; });
  train.until([&] { return train.step(layers) == layers && train.planned(); });
  CHECK(train.plans.most_at_once == 1);
  CHECK(train.plans.asked == asked + 2);
}

TEST_CASE("beside: a plan from elsewhere that comes while one is made is followed") {
  trainer other(automatic(0));
  other.plans.let_go.open(2);
  for (int i = 0; i < 2; ++i) other.step();
  trainer train;
  train.step();
  train.plans.let_go.wait_for_planner();
  train.off->follow(*other.off->current_plan(), other.off->profile());
  CHECK(train.step() == 2);
  train.plans.let_go.open();
  for (int i = 0; i < 3; ++i) CHECK(train.step() == 2);
  CHECK(train.plans.asked == 1);
  CHECK(train.planned());
  CHECK(train.lines.empty());
  CHECK(train.step(3) == 2);  // it outgrows that plan as any other
  CHECK_FALSE(train.planned());
}

TEST_CASE("beside: steps that teach nothing are no news while a plan is made") {
  trainer train;
  train.step(3);
  train.step(2);  // smaller
  train.step(3, trainer::ends::given_up);
  train.step(3, trainer::ends::starved);
  train.off->end_step();  // an evaluation
  CHECK(train.lines.empty());
  train.until([&] { return train.step(2) == 2; });
  CHECK(train.plans.asked == 1);
  train.until([&] { return train.planned() || train.step(3) == 0; });
  CHECK(train.planned());
}

namespace {

// Ranks in threads, each with a device of its own.
template <std::size_t Ranks>
struct team {
  template <class Body>
  void run(const Body& body) {
    std::vector<std::thread> all;
    for (std::size_t rank = 0; rank < Ranks; ++rank) all.emplace_back([&, rank] { body(rank); });
    for (auto& each : all) each.join();
  }
  bool all_of(bool mine) {
    if (!mine) missing = true;
    meet.arrive_and_wait();
    const bool result = !missing;
    meet.arrive_and_wait();
    missing = false;
    meet.arrive_and_wait();
    return result;
  }
  std::atomic<bool> missing = false;
  std::barrier<> meet{static_cast<std::ptrdiff_t>(Ranks)};
};

}  // namespace

TEST_CASE("beside: ranks that say when they are ready adopt at the end of the same step") {
  team<2> ranks;
  std::array<std::vector<int>, 2> stayed;
  std::array<int, 2> steps{};
  ranks.run([&](std::size_t rank) {
    trainer train(automatic());
    train.off->on_measure([] {});
    train.off->on_ready([&](bool ready) { return ranks.all_of(ready); });
    if (rank == 0) train.plans.let_go.open(2);  // the other is slower
    while (!train.planned()) {
      stayed[rank].push_back(train.step());
      ++steps[rank];
      if (rank == 1 && (steps[rank] == 4 || steps[rank] == 8)) train.plans.let_go.open();
    }
    // Later warm-ups are each rank's own: nobody is asked.
    train.plans.let_go.open(9);
    for (int i = 0; rank == 0 && i < 3; ++i) train.step(3);
  });
  CHECK(steps[0] == steps[1]);
  CHECK(steps[0] >= 9);
  CHECK(stayed[0] == stayed[1]);
}

TEST_CASE("beside: ranks that wait for each other without a word plan in line") {
  trainer train;
  train.off->on_measure([] {});
  train.plans.let_go.open(2);
  train.step();
  CHECK(train.plans.by.load() == std::this_thread::get_id());
  CHECK(train.step() == 2);
  CHECK(train.planned());
}

TEST_CASE("beside: what a rank's word throws leaves end_step") {
  trainer train;
  bool gone = true;
  train.off->on_ready([&](bool ready) {
    if (std::exchange(gone, false)) throw std::runtime_error("a rank is gone");
    return ready;
  });
  CHECK_THROWS_AS(train.step(), std::runtime_error);
  CHECK(train.plans.asked == 0);
  train.step();
  CHECK(train.timed == 4);  // it is the first again
  train.plans.let_go.open(9);
}

TEST_CASE("beside: ranks settle together") {
  team<2> ranks;
  std::array<int, 2> steps{};
  ranks.run([&](std::size_t rank) {
    auto opts = automatic({}, std::nullopt);
    trainer train(opts);
    train.off->on_ready([&](bool ready) { return ranks.all_of(ready); });
    train.plans.let_go.open(9);
    while (!train.planned()) {
      if (rank == 1 && steps[rank] < 20)
        train.dev.launch(train.stream.ref(), 1e5 * steps[rank], {});
      train.step();
      ++steps[rank];
    }
  });
  CHECK(steps[0] == steps[1]);
  CHECK(steps[0] > 20);
}

TEST_CASE("beside: the library's own planner makes its plan on a thread") {
  own_device dev;
  const auto stream = dev.make_stream();
  auto opts = automatic(2);
  opts.device_budget = 3 * size;
  opts.plan_effort = 50;
  test::planning<offloader<own_device>> off(dev, opts);
  off.on_report([](std::string_view) {});
  const auto id = off.module("core_attn");
  for (int i = 0; i < 8; ++i) {
    auto open = off.begin();
    std::array<buffer<own_device>, 4> x;
    for (int l = 0; l < 4; ++l) {
      x[static_cast<std::size_t>(l)] = off.allocate(size, stream.ref());
      dev.launch(stream.ref(), 1e5, nullptr);
      open.commit(id, l, stream.ref(), x[static_cast<std::size_t>(l)]);
    }
    open.end_forward();
    for (int l = 4; l-- > 0;) {
      open.restore(id, l, stream.ref(), x[static_cast<std::size_t>(l)]);
      dev.launch(stream.ref(), 1e5, nullptr);
      x[static_cast<std::size_t>(l)].reset(stream.ref());
    }
    open.finish();
    off.end_step();
    CHECK(off.current_plan().has_value() == (i >= 5));
  }
  CHECK(off.current_plan()->expected.runs);
}
