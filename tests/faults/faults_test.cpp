// Every device call of small training programs fails in turn: nothing leaks, nothing lies.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "faults/injection.hpp"
#include "sanitizers.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::call_kind;
using tidepool::test::call_kinds;
using tidepool::test::each_manner;
using tidepool::test::fault;
using tidepool::test::faulty_desk;
using tidepool::test::inject;
using tidepool::test::judge;
using tidepool::test::manner;
using tidepool::test::program_plan;
using tidepool::test::programs;
using tidepool::test::run_once;
using tidepool::test::tally;
using tidepool::test::thinned;

// One call in six, unless every case is wanted; kinds of few calls, as those of graphs, are not
// thinned. Nor are they much with a sanitizer, which thins the others more.
#if defined(TIDEPOOL_TEST_FULL)
constexpr std::uint64_t every = 1;
#else
constexpr std::uint64_t every = 6;
#endif

// Every event of a lane is made in the same loop, so that most programs need few of its turns.
std::uint64_t stride_of(const program_plan& plan, call_kind kind, std::uint64_t calls) {
  if (calls < 20) return (thinned + 7) / 8;
  const bool events = kind == call_kind::make_event;
  if (thinned > 1) return events ? 97 * thinned : 7 * thinned - 6;
  return events && plan.name != "graph on two streams" ? 97 : every;
}

void inject_all(const program_plan& plan, call_kind kind, std::uint64_t calls, tally& counts) {
  // Another sixth for each program, so that a call of all of them is tried in one.
  const auto stride = stride_of(plan, kind, calls);
  const auto first = stride == every ? 1 + plan.name.size() % every : 1;
  for (std::uint64_t i = first; i <= calls; i += stride) {
    each_manner(kind, i, [&](bool retries, const fault& armed) {
      faulty_desk desk(machine{.order_seed = armed.index});
      inject(desk, plan, retries, armed, counts);
    });
  }
}

}  // namespace

TEST_CASE("faults: every call of every kind fails once, for good, or finds no memory") {
  tally counts;
  auto plans = programs();
  for (auto& each : tidepool::test::programs_with_peer()) plans.push_back(std::move(each));
  for (auto& each : tidepool::test::programs_with_file()) plans.push_back(std::move(each));
  for (const auto& plan : plans) {
    faulty_desk desk;
    const auto clean = run_once(desk, plan, false);
    CHECK_MESSAGE((clean.success && clean.complaint.empty()), plan.name << clean.complaint);
    for (std::size_t k = 0; k < call_kinds; ++k) {
      const auto kind = static_cast<call_kind>(k);
      inject_all(plan, kind, desk.dev.calls(kind), counts);
    }
  }
  CHECK(counts.kinds.size() == call_kinds);
  judge(counts, "faults");
}

TEST_CASE("faults: memory of the trainer's own comes back whatever fails") {
  tally counts;
  for (const auto& plan : tidepool::test::borrowing_programs()) {
    faulty_desk desk;
    const auto clean = run_once(desk, plan, false);
    CHECK_MESSAGE((clean.success && clean.complaint.empty()), plan.name << clean.complaint);
    for (std::size_t k = 0; k < call_kinds; ++k) {
      const auto kind = static_cast<call_kind>(k);
      inject_all(plan, kind, desk.dev.calls(kind), counts);
    }
  }
  judge(counts, "faults of borrowed memory");
}

TEST_CASE("faults: a call that fails while a capture is given up is made good before the next") {
  std::size_t tripped = 0;
  for (const auto kind : {call_kind::end_capture, call_kind::record, call_kind::wait}) {
    for (std::uint64_t index = 1; index <= 12; ++index) {
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        program_plan plan{.name = "given up", .opts = arena_options(6 * 1024)};
        plan.spoils = fault{kind, index, manner::once};
        faulty_desk desk(machine{.order_seed = seed});
        const auto end = run_once(desk, plan, true, plan.spoils);
        tripped += desk.dev.tripped() ? 1 : 0;
        CHECK_MESSAGE((end.success && end.complaint.empty()),
                      name_of(kind) << " " << index << " " << seed << " " << end.complaint);
      }
    }
  }
  CHECK(tripped > 0);
}
