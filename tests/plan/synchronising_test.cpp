// Steps in which the host waits: what is recorded of them, and what plans made of them predict.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/json.hpp"
#include "tidepool/plan/planner.hpp"

namespace {

using namespace tidepool;
constexpr std::size_t layers = 12;
constexpr std::size_t bytes = std::size_t{8} << 20;

enum class wait_for { nothing, stream, device };
enum class place { before_forward_ends, before_loss, before_backward };

// What a trainer's host does, beside asking for kernels.
struct habits {
  wait_for waits = wait_for::nothing;  // twice a step
  place where = place::before_backward;
  double host_us = 0;          // before each call: slower than the device where it is more
  double late_us = 0;          // once, in the second step
  double first_kernel_us = 0;  // before a call of the first step, which waits for the device
  double idle_us = 0;          // of the host, once it has waited
  double forward_us = 200;
  double head_us = 400;  // of the loss, before and after it is known
};

std::size_t budget(int percent) { return layers * bytes * static_cast<std::size_t>(percent) / 100; }

// One microbatch after the other, of equal layers.
class trainer {
 public:
  trainer(const habits& of, std::size_t budget, int timed_step = 3)
      : of_(of), dev_(model()), off_(dev_, opts(budget, timed_step)) {
    off_.on_report([](std::string_view) {});
  }

  double step() {
    dev_.synchronize();
    const auto begin_ns = dev_.now_ns();
    for (int microbatch = 0; microbatch < 2; ++microbatch) pass(microbatch);
    dev_.synchronize();
    const auto us = (dev_.now_ns() - begin_ns) / 1e3;
    off_.end_step();
    ++steps_;
    return us;
  }
  // Until there is a plan; the time of a step that follows it.
  double planned_step() {
    while (!off_.current_plan()) step();
    for (int i = 0; i < 3; ++i) step();
    return step();
  }
  // Of a step.
  [[nodiscard]] double computing() const {
    return 2 * (3 * static_cast<double>(layers) * of_.forward_us + 2 * of_.head_us);
  }
  [[nodiscard]] double predicted_off() {
    const auto took = planned_step();
    return std::abs(predicted() / took - 1);
  }
  [[nodiscard]] double predicted() const { return off_.current_plan()->expected.step_us; }
  [[nodiscard]] const plan::profile& recorded() const { return off_.profile(); }
  [[nodiscard]] std::ptrdiff_t waits() const {
    return std::ranges::count(recorded().events, plan::event_kind::synchronise, &plan::event::kind);
  }

 private:
  using device = virtual_device;
  using offloader = test::planning<tidepool::offloader<device, all_modules>>;

  static machine model() {
    machine with;
    with.offload_rate = with.reload_rate = 20;
    with.both_rate = 35;
    with.moves_bytes = false;
    return with;
  }
  static options opts(std::size_t budget, int timed_step) {
    auto opts = test::arena_options(budget, {"moe_act"});
    opts.policy = policy_kind::automatic;
    opts.timed_step = timed_step;
    opts.host_budget = std::size_t{1} << 40;
    return opts;
  }

  void compute(double us) { dev_.launch(stream_.ref(), 1e3 * us, nullptr); }
  // Before each call.
  void host() {
    ++calls_;
    if (of_.host_us > 0) stay(of_.host_us);
    if (of_.late_us > 0 && steps_ == 1 && calls_ % 100 == 30) stay(of_.late_us);
  }
  void stay(double us) {
    dev_.launch(clock_.ref(), 1e3 * us, nullptr);
    dev_.synchronize(clock_.ref());
  }
  void wait() {
    if (of_.waits == wait_for::device) dev_.synchronize();
    if (of_.waits == wait_for::stream) dev_.synchronize(stream_.ref());
    if (of_.idle_us > 0) stay(of_.idle_us);
  }

  void pass(int microbatch) {
    const auto s = stream_.ref();
    const auto module = off_.module("moe_act");
    auto open = off_.begin({.microbatch = microbatch});
    std::vector<buffer<device>> x(layers);
    for (std::size_t l = 0; l < layers; ++l) {
      host();
      x[l] = off_.allocate(bytes, s);
      compute(of_.forward_us);
      if (of_.first_kernel_us > 0 && steps_ == 0 && l == layers / 2) {
        dev_.synchronize();
        compute(of_.first_kernel_us);
      }
      host();
      open.commit(module, static_cast<int>(l), s, x[l]);
    }
    if (of_.where == place::before_forward_ends) wait();
    open.end_forward();
    if (of_.where == place::before_loss) wait();
    compute(2 * of_.head_us);
    if (of_.where == place::before_backward) wait();
    for (std::size_t l = layers; l-- > 0;) {
      host();
      open.restore(module, static_cast<int>(l), s, x[l]);
      compute(2 * of_.forward_us);
      host();
      x[l].reset(s);
    }
    open.finish();
  }

  habits of_;
  device dev_;
  device::stream stream_ = dev_.make_stream();
  device::stream clock_ = dev_.make_stream();
  offloader off_;
  int steps_ = 0;
  int calls_ = 0;
};

}  // namespace

TEST_CASE("synchronising: what a plan predicts is what the engine takes") {
  for (const auto where :
       {place::before_forward_ends, place::before_loss, place::before_backward}) {
    for (const int percent : {20, 60, 80}) {
      for (const double us : {100, 400}) {
        CAPTURE(static_cast<int>(where));
        CAPTURE(percent);
        CAPTURE(us);
        trainer run(
            {.waits = wait_for::device, .where = where, .forward_us = us, .head_us = 2 * us},
            budget(percent));
        const auto took = run.planned_step();
        // Where no copies ever take longer than what is computed beside them, none is seen.
        CHECK(run.waits() == (where == place::before_backward && us > 100 ? 0 : 2));
        CHECK(run.predicted() == doctest::Approx(took).epsilon(0.005));
        CHECK(plan::compute_us(run.recorded()) == doctest::Approx(run.computing()).epsilon(0.005));
      }
    }
  }
}

TEST_CASE("synchronising: two steps tell as much, but for what is computed beside copies") {
  trainer run({.waits = wait_for::device, .head_us = 20}, budget(60), 2);
  CHECK(run.predicted_off() < 0.02);
  CHECK(run.waits() == 2);
}

TEST_CASE("synchronising: a wait for the compute stream alone is time in which copies hide") {
  for (const auto where : {place::before_loss, place::before_backward}) {
    for (const int percent : {20, 60}) {
      trainer run({.waits = wait_for::stream, .where = where, .idle_us = 900}, budget(percent));
      CHECK(run.predicted_off() < 0.005);
      CHECK(run.waits() == 0);
      CHECK(plan::compute_us(run.recorded()) ==
            doctest::Approx(run.computing() + 2 * 900).epsilon(0.005));
    }
  }
}

TEST_CASE("synchronising: a host that is slower than the device does not seem to wait for it") {
  // Copies of one group take 420 us.
  for (const double host_us : {300, 450, 600, 1000}) {
    CAPTURE(host_us);
    trainer run({.host_us = host_us, .forward_us = 100}, budget(60));
    CHECK(run.predicted_off() < 0.005);
    CHECK(run.waits() == 0);
  }
}

TEST_CASE(
    "synchronising: kernels used for the first time, and a host that came late, are left out") {
  trainer usual({}, budget(60));
  const auto took = usual.planned_step();
  for (const habits once : {habits{.late_us = 5000}, habits{.first_kernel_us = 5000}}) {
    for (const int timed : {2, 3, 4}) {
      CAPTURE(once.late_us);
      CAPTURE(timed);
      trainer run(once, budget(60), timed);
      CHECK(run.planned_step() == doctest::Approx(took).epsilon(0.002));
      CHECK(run.predicted_off() < 0.005);
      CHECK(run.waits() == 0);
      CHECK(plan::compute_us(run.recorded()) == doctest::Approx(run.computing()).epsilon(0.002));
    }
  }
}

TEST_CASE("synchronising: the simulator and the forecast wait for copies that are under way") {
  trainer run({.waits = wait_for::device, .where = place::before_loss, .head_us = 4000},
              budget(40));
  run.planned_step();
  const auto waits = run.recorded();
  auto free = waits;
  std::erase_if(free.events,
                [](const plan::event& each) { return each.kind == plan::event_kind::synchronise; });
  const plan::actions all_leave(2, std::vector(layers, plan::action::offload));
  const auto took = [&](const plan::profile& step) {
    const auto simulated = plan::planner(step).judge(all_leave, {.reload_ahead = 2}).step_us;
    options with = test::arena_options(2 * budget(100));
    with.reload_ahead = 2;
    CHECK(plan::forecast(step, with, all_leave).expected.step_us ==
          doctest::Approx(simulated).epsilon(0.005));
    return simulated;
  };
  // Twelve copies out and two back, of 420 us, behind the first kernel, beside twelve of 200;
  // twice.
  CHECK(took(waits) - took(free) == doctest::Approx(2 * (14 * 420 + 200 - 2400)).epsilon(0.01));
}

TEST_CASE("synchronising: it is part of a profile's file, and no plan beats the bound") {
  trainer run({.waits = wait_for::device}, budget(40));
  run.planned_step();
  const auto& step = run.recorded();
  CHECK_NOTHROW(plan::check(step));
  CHECK(plan::profile_from_json(plan::to_json(step)) == step);
  plan::planner plans(step);
  for (const int percent : {20, 40, 60, 80}) {
    const auto made = plans.best({.device_budget = budget(percent)});
    const auto seen = plan::forecast(step, made);
    CHECK(made.bound_us <= seen.expected.step_us * (1 + 1e-6));
    CHECK(made.bound_us <= made.expected.step_us * (1 + 1e-6));
    CHECK(seen.expected.step_us == doctest::Approx(made.expected.step_us).epsilon(0.02));
  }
}
