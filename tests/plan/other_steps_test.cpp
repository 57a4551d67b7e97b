// Steps that are not like the one that a plan is made of: passes that are given up, and steps
// that are larger or smaller.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/check.hpp"

namespace {

using namespace tidepool;
using tidepool::test::rig;
using offloader_type = tidepool::test::planning<rig::offloader<>>;
constexpr std::size_t size = 2048;
constexpr int layers = 8;

// An arena that has room for most of a pass.
options with(policy_kind policy) {
  auto opts = test::arena_options((layers - 2) * size, {"core_attn"});
  opts.policy = policy;
  opts.margin = policy == policy_kind::megatron;
  return opts;
}

struct trainer {
  explicit trainer(const options& opts) : off(desk.dev, opts) {
    off.on_report([this](std::string_view line) { reports.emplace_back(line); });
  }
  explicit trainer(policy_kind policy) : trainer(with(policy)) {}

  rig desk;
  std::vector<std::string> reports;
  offloader_type off;

  using saved = std::array<rig::buffer, layers + 2>;

  void forward(offloader_type::chunk& open, saved& x, int count = layers) {
    for (int l = 0; l < count; ++l) {
      auto& each = x[static_cast<std::size_t>(l)];
      each = off.allocate(size, desk.stream());
      desk.write(each, static_cast<std::uint32_t>(l), 2e6);
      open.commit(off.module("core_attn"), l, desk.stream(), each);
    }
  }
  void pass(int count = layers) {
    auto open = off.begin();
    saved x;
    forward(open, x, count);
    open.end_forward();
    for (int l = count; l-- > 0;) {
      auto& each = x[static_cast<std::size_t>(l)];
      open.restore(off.module("core_attn"), l, desk.stream(), each);
      desk.check(each, static_cast<std::uint32_t>(l));
      each.reset(desk.stream());
    }
    open.finish();
  }
  void given_up_pass(int count) {
    auto open = off.begin();
    saved x;
    forward(open, x, count);
  }
  void step(int passes = 1, int count = layers) {
    for (int i = 0; i < passes; ++i) pass(count);
    off.end_step();
  }
  // Bytes that left in the latest step.
  [[nodiscard]] std::uint64_t left() const {
    std::uint64_t bytes = 0;
    for (const auto& module : off.counters().modules) bytes += module.step_bytes;
    return bytes;
  }
  [[nodiscard]] bool reported(std::string_view words) const {
    for (const auto& line : reports) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }
};

std::uint64_t left_in_later_steps(policy_kind policy, int passes) {
  trainer t(policy);
  for (int step = 0; step < 4; ++step) t.step(passes);
  REQUIRE(t.desk.wrong() == 0);
  return t.left();
}

}  // namespace

TEST_CASE("other steps: of a step in which a pass was given up nothing is learnt") {
  for (const auto policy : {policy_kind::automatic, policy_kind::megatron}) {
    const auto usual = left_in_later_steps(policy, 2);
    REQUIRE(usual > 0);
    REQUIRE(usual < 2 * layers * size);
    for (const int when : {0, 1}) {
      for (const int count : {0, 3, layers}) {
        for (const bool ends : {false, true}) {  // the step, before the batch is run again
          CAPTURE(policy);
          CAPTURE(when);
          CAPTURE(count);
          CAPTURE(ends);
          trainer t(policy);
          for (int step = 0; step < 6; ++step) {
            if (step == when) {
              t.pass();
              t.given_up_pass(count);
              if (ends) t.off.end_step();
            }
            t.step(2);
          }
          CHECK(t.left() == usual);
          CHECK(t.desk.wrong() == 0);
          const bool warm_up_was_broken = policy == policy_kind::automatic || when == 0;
          CHECK(t.reported("nothing is learnt of this step") == warm_up_was_broken);
        }
      }
    }
  }
}

TEST_CASE("other steps: a pass that is run again has its plan's place") {
  trainer t(policy_kind::automatic);
  for (int step = 0; step < 4; ++step) t.step(2);
  const auto resident = [&] {
    std::uint64_t groups = 0;
    for (const auto& module : t.off.counters().modules) groups += module.groups_resident;
    return groups;
  };
  const auto before = resident();
  t.step(2);
  const auto usual = resident() - before;
  REQUIRE(usual > 0);
  t.given_up_pass(5);
  const auto given_up = resident();
  t.step(2);
  CHECK(resident() - given_up == usual);
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: how a step held memory in which a pass was given up does not count") {
  trainer t(policy_kind::automatic);
  {  // run again with the input of a pass whose backward had begun, in the next place of the step
    auto input = t.off.allocate(size, t.desk.stream());
    const auto id = t.off.module("core_attn");
    for (const bool ends : {false, true}) {
      auto open = t.off.begin();
      auto x = input.share();
      auto y = t.off.allocate(size, t.desk.stream());
      open.commit(id, 0, t.desk.stream(), x);
      open.commit(id, 1, t.desk.stream(), y);
      open.restore(id, 1, t.desk.stream(), y);
      if (!ends) continue;
      open.restore(id, 0, t.desk.stream(), x);
      open.finish();
    }
  }
  t.off.end_step();
  REQUIRE(t.reported("nothing is learnt of this step"));
  for (int step = 0; step < 3; ++step) t.step(2);
  REQUIRE(t.off.current_plan());
  CHECK_FALSE(t.off.profile().shapes_vary);
  CHECK(t.left() == left_in_later_steps(policy_kind::automatic, 2));
}

TEST_CASE("other steps: a plan from elsewhere is held to by a whole step") {
  trainer recorded(policy_kind::automatic);
  for (int step = 0; step < 3; ++step) recorded.step(2);
  REQUIRE(recorded.off.current_plan());
  const auto follow = [&](trainer& t) {
    t.off.follow(*recorded.off.current_plan(), recorded.off.profile());
  };
  trainer t(policy_kind::automatic);
  follow(t);
  t.pass();
  t.given_up_pass(3);
  CHECK_NOTHROW(t.off.end_step());
  CHECK_THROWS_AS(t.step(1), misuse_error);  // the next is held to it
  trainer other(policy_kind::automatic);
  follow(other);
  {  // dropped while a later one is open
    auto first = other.off.begin();
    trainer::saved x, y;
    other.forward(first, x, 2);
    auto second = other.off.begin();
    first = {};
    other.forward(second, y, 2);
  }
  CHECK_NOTHROW(other.step(2));
  CHECK_NOTHROW(other.step(2));
  CHECK(other.desk.wrong() == 0);
  trainer shorter(policy_kind::automatic);
  follow(shorter);
  for (int step = 0; step < 2; ++step) {  // what was refused once is not proven by that
    CHECK_THROWS_AS(shorter.pass(layers - 2), misuse_error);
    CHECK_NOTHROW(shorter.pass());
    CHECK_NOTHROW(shorter.off.end_step());
  }
  trainer late(policy_kind::automatic);
  late.given_up_pass(3);
  follow(late);  // what was given up before it does not excuse the step after it
  CHECK_THROWS_AS(late.step(3), misuse_error);
}

TEST_CASE("other steps: who outgrows a plan from elsewhere waits for nobody") {
  trainer recorded(policy_kind::automatic);
  for (int step = 0; step < 3; ++step) recorded.step(2);
  trainer t(policy_kind::automatic);
  int meetings = 0;
  t.off.on_measure([&] { ++meetings; });
  t.off.follow(*recorded.off.current_plan(), recorded.off.profile());
  for (const int passes : {2, 3, 3, 3, 3}) t.step(passes);
  CHECK(t.reported("not planned for"));
  CHECK(t.off.current_plan());
  CHECK(meetings == 0);
}

TEST_CASE("other steps: what was given up before a plan from elsewhere counts in no step") {
  trainer recorded(policy_kind::automatic);
  for (int step = 0; step < 3; ++step) recorded.step(2, layers / 2);
  REQUIRE(recorded.off.current_plan());
  trainer t(policy_kind::automatic);
  const auto follow = [&] {
    t.off.follow(*recorded.off.current_plan(), recorded.off.profile());
    t.step(2, layers / 2);
  };
  follow();
  t.given_up_pass(layers);
  follow();
  CHECK_FALSE(t.reported("not planned for"));
  t.step(3, layers / 2);
  CHECK(t.reported("not planned for"));
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: a batch that grows is planned for anew") {
  for (const auto policy : {policy_kind::automatic, policy_kind::megatron}) {
    CAPTURE(policy);
    const auto usual = left_in_later_steps(policy, 4);
    const bool automatic = policy == policy_kind::automatic;
    trainer t(policy);
    for (int step = 0; step < 4; ++step) t.step(1);
    REQUIRE(t.left() < layers * size);
    t.step(4);
    CHECK(t.reported("not planned for"));
    CHECK_FALSE(t.off.current_plan());
    for (int step = 0; step < 4; ++step) t.step(4);
    CHECK(t.left() == usual);
    CHECK(t.off.current_plan().has_value() == automatic);
    const auto lines = t.reports.size();
    t.step(2);  // fewer keep the plan
    t.step(4);
    CHECK(t.left() == usual);
    CHECK(t.reports.size() == lines);
    CHECK(t.desk.wrong() == 0);
  }
}

TEST_CASE("other steps: a model that grows is planned for anew") {
  for (const auto policy : {policy_kind::automatic, policy_kind::megatron}) {
    CAPTURE(policy);
    const auto usual = left_in_later_steps(policy, 2);
    trainer t(policy);
    for (int step = 0; step < 4; ++step) t.step(2, layers / 2);  // half of the layers are frozen
    for (int step = 0; step < 5; ++step) t.step(2);
    CHECK(t.reported("not planned for"));
    CHECK(t.left() == usual);
    CHECK(t.desk.wrong() == 0);
  }
}

TEST_CASE(
    "other steps: one that does not fit beside what stays by plan runs when it is run again") {
  for (const int before : {1, 4}) {  // steps: under the plan that is tried out, and the last one
    CAPTURE(before);
    trainer t(policy_kind::automatic);
    for (int step = 0; step < before; ++step) t.step(1, layers - 2);
    std::string words;
    bool ran = false;
    for (int step = 0; step < 6; ++step) {
      try {
        t.step(1, layers + 2);
        ran = true;
      } catch (const out_of_budget& caught) {
        CHECK_FALSE(ran);  // once at the most
        words = caught.what();
        t.off.end_step();
        CHECK(t.reported("ran out of device memory"));
        CHECK_FALSE(t.off.current_plan());
      }
    }
    CHECK(ran);
    CHECK(t.off.current_plan());
    if (before == 4) CHECK(words.find("run it again") != std::string::npos);
    CHECK(t.desk.wrong() == 0);
  }
}

TEST_CASE("other steps: what does not fit for other reasons is no fault of a plan") {
  for (const auto policy : {policy_kind::automatic, policy_kind::megatron}) {
    trainer t(policy);
    for (int step = 0; step < (policy == policy_kind::automatic ? 1 : 3); ++step) {
      {
        auto open = t.off.begin();
        CHECK_THROWS_AS((void)t.off.allocate(layers * size, t.desk.stream()), out_of_budget);
      }
      t.off.end_step();
    }
    CHECK_FALSE(t.reported("ran out of device memory"));
  }
}

TEST_CASE("other steps: where everything leaves by rule, nothing is settled anew") {
  auto opts = with(policy_kind::megatron);
  opts.margin = false;
  trainer t(opts);
  for (const int passes : {1, 1, 3, 3}) t.step(passes);
  CHECK_FALSE(t.reported("not planned for"));
  CHECK(t.left() == 3 * layers * size);
  opts.offload_layers = {0, 1};  // those of others stay, but not by the rule
  trainer some(opts);
  for (const int passes : {1, 1, 3, 3}) some.step(passes);
  CHECK_FALSE(some.reported("not planned for"));
  CHECK(some.left() == 3 * 2 * size);
}

TEST_CASE("other steps: a rule that has kept nothing so far is settled anew") {
  auto opts = with(policy_kind::megatron);
  opts.margin = false;
  opts.fraction = 0.5;
  trainer t(opts);
  for (int step = 0; step < 2; ++step) t.step(1, 1);  // half of one group is none
  CHECK(t.left() == size);
  for (int step = 0; step < 3; ++step) t.step();
  CHECK(t.reported("not planned for"));
  CHECK(t.left() == layers / 2 * size);
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: a plan is made of the largest steps") {
  for (const auto policy : {policy_kind::automatic, policy_kind::megatron}) {
    CAPTURE(policy);
    const auto usual = left_in_later_steps(policy, 4);
    trainer t(policy);
    for (int step = 0; step < 4; ++step) t.step(2);
    // The first step of the new warm-up is one of the old size, and the timed one is again.
    for (const int passes : {4, 2, 4, 1, 4, 2, 4}) t.step(passes);
    CHECK(t.reported("fewer chunks or groups"));
    CHECK(t.left() == usual);
    CHECK(t.desk.wrong() == 0);
  }
}

TEST_CASE("other steps: a batch that has become smaller for good is planned for") {
  trainer t(policy_kind::automatic);
  t.step(4);
  for (int step = 0; step < 9; ++step) {
    CHECK_FALSE(t.off.current_plan());
    t.step(2);
  }
  CHECK(t.off.current_plan());
  t.step(2);
  CHECK(t.left() < 2 * layers * size);
  t.step(4);  // as large as one before it
  CHECK(t.off.current_plan());
  t.step(6);
  REQUIRE_FALSE(t.off.current_plan());
  for (int step = 0; step < 3; ++step) t.step(2);  // it waits again
  CHECK_FALSE(t.off.current_plan());
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: a new record does not know the tensors of the one before") {
  trainer t(policy_kind::automatic);
  rig::buffer held;
  const auto with_in_the_middle = [&](int passes, const auto& call) {
    for (int i = 0; i < passes; ++i) {
      if (i == 3) call();
      t.pass();
    }
    t.off.end_step();
  };
  t.step(4);
  with_in_the_middle(4, [&] { held = t.off.allocate(size / 32, t.desk.stream()); });
  REQUIRE(t.off.current_plan());
  t.step(5);
  REQUIRE(t.reported("not planned for"));
  t.step(5);
  with_in_the_middle(5, [&] { held.reset(t.desk.stream()); });
  REQUIRE(t.off.current_plan());
  CHECK_NOTHROW(plan::check(t.off.profile()));
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: a batch of another size in each step is not planned for without end") {
  trainer t(policy_kind::automatic);
  for (int step = 0; step < 40; ++step) t.step(1 + step * 5 % 7);
  std::size_t anew = 0;
  for (const auto& line : t.reports)
    anew += line.find("not planned for") != std::string::npos ? 1U : 0U;
  CHECK(anew > 0);
  CHECK(anew <= 7);  // the most chunks of a step
  CHECK(t.off.current_plan());
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: graphs go on by the plan that they were captured under") {
  trainer t(policy_kind::automatic);
  for (int step = 0; step < 4; ++step) t.step(1);
  {
    const auto graph = t.off.capture(t.desk.stream(), [&] { t.pass(); });
    t.off.end_step();
    t.step(3);
    CHECK_FALSE(t.reported("not planned for"));
  }
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: one that was larger than any before it runs once more before a capture") {
  trainer t(policy_kind::megatron);
  t.step(1);
  t.step(3);
  const auto capture = [&] { return t.off.capture(t.desk.stream(), [&] { t.pass(); }); };
  try {
    const auto graph = capture();
    FAIL("captured in a warm-up");
  } catch (const misuse_error& caught) {
    CHECK(std::string_view(caught.what()).find("run the same step once") != std::string_view::npos);
  }
  t.step(3);
  {
    const auto graph = capture();
    t.off.end_step();
  }
  CHECK(t.desk.wrong() == 0);
}

TEST_CASE("other steps: a capture that failed made no graph that would need its plan") {
  trainer t(policy_kind::automatic);
  for (int step = 0; step < 4; ++step) t.step(1);
  struct broken {};
  const auto capture = [&] {
    const auto graph = t.off.capture(t.desk.stream(), [] { throw broken(); });
  };
  CHECK_THROWS_AS(capture(), broken);
  t.step(3);
  CHECK(t.reported("not planned for"));
  for (int step = 0; step < 4; ++step) t.step(3);
  CHECK(t.left() == left_in_later_steps(policy_kind::automatic, 3));
  CHECK(t.desk.wrong() == 0);
}
