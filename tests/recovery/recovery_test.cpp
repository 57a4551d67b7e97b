// After any error that leaves the device usable the next step runs, and its gradients have the bits
// of a run without the error.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "recovery/misuses.hpp"
#include "recovery/sweep.hpp"
#include "sanitizers.hpp"

namespace {

using namespace tidepool::test;
using tidepool::policy_kind;

// One place in three, unless every case is wanted; fewer under a sanitizer.
#if defined(TIDEPOOL_TEST_FULL)
constexpr std::uint64_t every = thinned;
#else
constexpr std::uint64_t every = 3 * thinned;
#endif
constexpr int warm = 4;  // steps until plans are made and graphs captured

std::unique_ptr<recovery_run> warmed(const training_plan& plan, int steps) {
  auto run = std::make_unique<recovery_run>(plan);
  for (int i = 0; i < steps; ++i) {
    const auto complaint = run->clean();
    REQUIRE_MESSAGE(complaint.empty(), plan.name << ", step " << i << ": " << complaint);
  }
  return run;
}

/// How a kind of error is prepared, taken back, and looked at.
struct injector {
  std::function<void(recovery_trainer&, std::uint64_t number)> arm;  // the so-manieth, from 1
  std::function<bool(recovery_trainer&)> disarm;                     // whether it came
  std::vector<kind_of_error> wanted;
  std::string name;
  std::uint64_t stride = 1;
  std::uint64_t stride_of_planner = 1;
  bool takes_memory = false;
};

/// Every place of one step, in trainers that have made so many steps. A trainer that is steady goes
/// on from error to error, through all places again and again, until it holds no more than before.
void sweep(const training_plan& plan, const injector& with, int steps, recovery_count& counts) {
  std::unique_ptr<recovery_run> run;
  bool came = true;
  const auto one = [&](std::uint64_t number, bool ends) {
    if (!run || run->broken() || steps < warm) run = warmed(plan, steps);
    run->inject(
        [&] { with.arm(run->trainer, number); }, [&] { came = with.disarm(run->trainer); },
        with.wanted, ends,
        with.name + " number " + std::to_string(number) + " of step " + std::to_string(steps + 1),
        counts);
  };
  recovery_trainer::device_type::holdings before;
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t number = 1; number < 100'000; number += with.stride) {
      one(number, false);
      if (!came) break;
      one(number, true);
    }
    if (!run || run->broken() || steps < warm) return;
    auto held = run->trainer.dev.held();
    held.graphs = 0;  // the latest may have been given up, or not
    if (round > 0 && held == before) return;
    before = held;
  }
  FAIL_CHECK(plan.name << ", " << with.name << ": memory grows for ever");
}

void sweep_all(const std::vector<injector>& kinds, std::string_view name) {
  recovery_count counts;
  for (const auto& plan : training_plans()) {
    for (auto each : kinds) {
      // Its first steps end in a search for a plan, which takes long and allocates much.
      if (plan.opts.policy == policy_kind::automatic) each.stride *= each.stride_of_planner;
      // A graph cannot make memory, nor run beside tensors that were not there.
      if (plan.captured && each.takes_memory) each.wanted.push_back(kind_of_error::misuse);
      for (const int steps : {0, 1, 2, warm}) sweep(plan, each, steps, counts);
    }
  }
  CHECK(counts.injected > 0);
  CHECK(counts.stuck == 0);
  counts.print(name);
}

/// One mistake before every call of a step, one at a time, which changes nothing.
void make_mistakes(const training_plan& plan, const misuse& which, int steps,
                   recovery_count& counts) {
  std::unique_ptr<recovery_run> run;
  bool reached = true;
  for (std::uint64_t number = 1; reached; number += every) {
    if (!run || run->broken() || steps < warm) run = warmed(plan, steps);
    std::uint64_t left = number;
    bool possible = true;
    auto found = kind_of_error::none;
    std::string words;
    run->trainer.before = [&] {
      if (left == 0 || --left > 0) return;
      found = outcome_of([&] { possible = which.make(run->trainer); }, &words);
    };
    auto complaint = run->clean();
    run->trainer.before = [] {};
    reached = left == 0;
    if (!reached || !possible) continue;
    if (found != which.wanted) {
      complaint += " found " + std::string(name_of(found)) + ": " + words;
    }
    if (complaint.empty()) complaint = run->clean();
    run->count(found, complaint, std::string(which.name) + " before call " + std::to_string(number),
               counts);
  }
}

/// All memory that is left, taken by somebody else.
class exhausted {
 public:
  void take(recovery_trainer& t, bool host) {
    for (const std::size_t bytes : {4096, 1024, 64}) {
      while (outcome_of([&] { take(t, host, bytes); }) == kind_of_error::none) {
      }
    }
  }

 private:
  void take(recovery_trainer& t, bool host, std::size_t bytes) {
    if (host) {
      states_.push_back(t.off.state_on_host(bytes, "ballast"));
    } else {
      buffers_.push_back(t.off.allocate(bytes, t.main()));
    }
  }
  std::vector<recovery_trainer::buffer> buffers_;
  std::vector<tidepool::host_state<recovery_trainer::device_type>> states_;
};

}  // namespace

TEST_CASE("recovery: trainers without an error have the gradients of one that offloads nothing") {
  for (const auto& plan : training_plans()) {
    const auto run = warmed(plan, 8);
    const auto totals = run->trainer.off.counters();
    std::uint64_t moved = 0;
    for (const auto& each : totals.modules) moved += each.bytes_offloaded;
    CHECK_MESSAGE(moved > 0, plan.name);
  }
}

TEST_CASE("recovery: a call of the device fails, or finds no memory") {
  std::vector<injector> kinds;
  for (std::size_t k = 0; k < call_kinds; ++k) {
    const auto kind = static_cast<call_kind>(k);
    for (const auto how : {manner::once, manner::refused, manner::refused_on}) {
      const bool memory = kind == call_kind::try_allocate || kind == call_kind::try_allocate_host;
      if (how != manner::once && !memory) continue;
      injector each;
      each.name = name_of(kind);
      each.arm = [=](recovery_trainer& t, std::uint64_t number) { t.dev.arm({kind, number, how}); };
      each.disarm = [](recovery_trainer& t) {
        const bool came = t.dev.tripped();
        t.dev.disarm();
        return came;
      };
      each.wanted = {kind_of_error::device, kind_of_error::budget};
      each.stride = kind == call_kind::make_event ? 97 * every : every;
      kinds.push_back(std::move(each));
    }
  }
  sweep_all(kinds, "calls of the device");
}

TEST_CASE("recovery: a function of the trainer's throws, or the trainer between two calls") {
  std::vector<injector> kinds;
  for (std::size_t k = 1; k < kinds_of_error; ++k) {
    const auto kind = static_cast<kind_of_error>(k);
    for (const bool callback : {true, false}) {
      auto left = std::make_shared<std::uint64_t>(0);
      const auto act = [=] {
        if (*left > 0 && --*left == 0) throw_one(kind);
      };
      injector each;
      each.name = std::string(name_of(kind)) + (callback ? " of a function" : " between calls");
      each.arm = [=](recovery_trainer& t, std::uint64_t number) {
        *left = number;
        (callback ? t.callback : t.before) = act;
      };
      each.disarm = [=](recovery_trainer& t) {
        t.callback = t.before = [] {};
        return std::exchange(*left, 0) == 0;
      };
      each.wanted = {kind};
      each.stride = (callback ? 1 : 5) * every;
      kinds.push_back(std::move(each));
    }
  }
  sweep_all(kinds, "functions of the trainer's");
}

TEST_CASE("recovery: a trainer makes a mistake between two calls, and goes on") {
  recovery_count counts;
  for (const auto& plan : training_plans()) {
    for (const auto& each : misuses()) {
      for (const int steps : {0, 1, warm}) make_mistakes(plan, each, steps, counts);
    }
  }
  CHECK(counts.stuck == 0);
  counts.print("mistakes");
}

TEST_CASE("recovery: the heap is exhausted") {
  injector each;
  each.name = "allocation on the heap";
  each.arm = [](recovery_trainer&, std::uint64_t number) { heap_now = {false, 0, number}; };
  each.disarm = [](recovery_trainer&) {
    const bool came = heap_now.fails <= heap_now.seen;
    heap_now = {};
    return came;
  };
  each.wanted = {kind_of_error::heap};
  each.stride = every;
  each.stride_of_planner = 97;
  sweep_all({each}, "allocations on the heap");
}

TEST_CASE("recovery: memory of the device or of the host is exhausted between two calls") {
  std::vector<injector> kinds;
  for (const bool host : {false, true}) {
    auto left = std::make_shared<std::uint64_t>(0);
    auto ballast = std::make_shared<exhausted>();
    injector each;
    each.name = host ? "no host memory from call" : "no device memory from call";
    each.arm = [=](recovery_trainer& t, std::uint64_t number) {
      *left = number;
      t.before = [=, &t] {
        if (*left > 0 && --*left == 0) ballast->take(t, host);
      };
    };
    each.disarm = [=](recovery_trainer& t) {
      t.before = [] {};
      *ballast = {};
      return std::exchange(*left, 0) == 0;
    };
    each.wanted = {kind_of_error::budget};
    each.takes_memory = true;
    each.stride = every;
    kinds.push_back(std::move(each));
  }
  sweep_all(kinds, "exhausted budgets");
}
