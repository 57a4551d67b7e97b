// What the sweep has found broken, each by itself.
#include <doctest/doctest.h>

#include <cstdint>
#include <new>
#include <string>

#include "recovery/sweep.hpp"
#include "tidepool/engine/open_chunks.hpp"

namespace {

using namespace tidepool::test;
using tidepool::policy_kind;

}  // namespace

TEST_CASE("recovery: a set of numbers that found no memory asks for it again") {
  tidepool::detail::number_set numbers;
  constexpr std::size_t many = 5000;
  heap_now = {true, 0, 2};
  CHECK_THROWS_AS(numbers.make_room(many), std::bad_alloc);
  heap_now = {true, 0, 0};
  numbers.make_room(many);
  const auto asked = heap_now.seen;
  heap_now = {};
  CHECK(asked > 0);
  for (std::size_t i = 0; i < many; ++i) numbers.insert(i);
  CHECK(numbers.first_missing(0) == many);
}

TEST_CASE("recovery: where the first end_step fails, the next step is the first") {
  constexpr std::uint64_t none = ~std::uint64_t{0};
  for (const auto& plan : training_plans()) {
    std::uint64_t calls = 0;
    {
      recovery_trainer counts(plan);
      counts.before = [&] { ++calls; };
      counts.step(1);
    }
    // Whether the allocation of that number, in the last call of a step, came.
    std::uint64_t seen = 0;
    const auto fail = [&](std::uint64_t number) {
      recovery_trainer t(plan);
      auto left = calls;
      t.before = [&] {
        if (--left == 0) heap_now = {false, 0, number};
      };
      const auto end = outcome_of([&] { t.step(2); });
      seen = heap_now.seen;
      heap_now = {};
      t.before = [] {};
      for (int i = 3; i < 6; ++i) {
        std::string words;
        const auto next = outcome_of([&] { t.step(i); }, &words);
        CHECK_MESSAGE(next == kind_of_error::none, plan.name << " " << number << ": " << words);
        CHECK(t.result() == expected(i));
      }
      return end == kind_of_error::heap;
    };
    CHECK_FALSE(fail(none));
    // A search for a plan allocates thousands of times; what comes of it is taken over at its end.
    const auto all = seen;
    for (std::uint64_t number = 1; number <= all;
         number += number < 50 || number + 50 > all ? 1 : 97)
      static_cast<void>(fail(number));  // some are done without
  }
}

TEST_CASE("recovery: a group of layers is given up as a whole, also where its memory is not") {
  training_plan plan{.name = "layers", .opts = small_options(), .how = keeps::layers};
  recovery_trainer t(plan);
  t.step(1);
  auto& at = *t.slots.front();
  at.chunk = t.off.begin({0});
  for (int l = 0; l < 2; ++l) static_cast<void>(at.x.fresh(l, 64, t.main()));
  t.dev.arm({call_kind::record, 1, manner::once});
  CHECK(outcome_of([&] { at.group.reset(t.main()); }) == kind_of_error::device);
  t.dev.disarm();
  std::string words;
  CHECK_MESSAGE(outcome_of([&] { static_cast<void>(at.x.fresh(1, 64, t.main())); }, &words) ==
                    kind_of_error::none,
                words);
  at.group.reset(t.main());
}

TEST_CASE("recovery: a batch is run again under a plan that no step has proved yet") {
  for (const auto& plan : training_plans()) {
    if (!plan.by_plan) continue;
    auto end = kind_of_error::own;
    for (int calls = 40; end != kind_of_error::none; ++calls) {
      recovery_trainer again(plan);
      again.step(1);
      int left = calls;
      again.before = [&] {
        if (left > 0 && --left == 0) throw trainers_own{};
      };
      end = outcome_of([&] { again.step(2); });
      again.before = [] {};
      if (end == kind_of_error::none) break;
      again.give_up(!again.in_a_pass());
      std::string words;
      const auto next = outcome_of([&] { again.step(3); }, &words);
      CHECK_MESSAGE(next == kind_of_error::none, calls << " calls: " << words);
    }
  }
}
