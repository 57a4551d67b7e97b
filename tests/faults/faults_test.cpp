// Every device call of small training programs fails in turn: nothing leaks, nothing lies.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "faults/endings.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::call_kind;
using tidepool::test::call_kinds;
using tidepool::test::fault;
using tidepool::test::faulty_desk;
using tidepool::test::manner;
using tidepool::test::program_plan;
using tidepool::test::run_once;
using tidepool::test::says;
using tidepool::test::small_options;

std::vector<program_plan> programs() {
  auto slots = small_options();
  slots.memory = tidepool::memory_kind::slots;
  slots.slots = {{1024, 7}, {768, 7}};
  auto capped = arena_options(12 * 1024);
  capped.max_inflight = 1;
  auto pieces = small_options();
  pieces.copy_piece = 400;
  pieces.max_inflight_bytes = 1500;
  auto tight = small_options();
  tight.device_budget = 9 * 1024;
  tight.device_step = 1024;
  tight.host_step = 1024;
  return {
      {.name = "pool", .opts = small_options()},
      {.name = "tight pool", .opts = tight},
      {.name = "arena", .opts = arena_options(8 * 1024), .microbatches = 4},
      {.name = "slots", .opts = slots},
      {.name = "caps", .opts = capped},
      {.name = "pieces", .opts = pieces, .two_streams = true},
      {.name = "shares", .opts = arena_options(6 * 1024), .shares = true},
      {.name = "views", .opts = arena_options(6 * 1024), .views = true},
      {.name = "manual", .opts = arena_options(10 * 1024), .manual = true},
      {.name = "manual views", .opts = small_options(), .views = true, .manual = true},
      {.name = "traced", .opts = arena_options(8 * 1024), .traced = true},
      {.name = "traced pool", .opts = small_options(), .shares = true, .traced = true},
      {.name = "graph", .opts = arena_options(8 * 1024), .replays = 2},
      {.name = "graph of shares", .opts = small_options(), .shares = true, .replays = 2},
      {.name = "graph on two streams",
       .opts = arena_options(8 * 1024),
       .two_streams = true,
       .replays = 1},
      {.name = "graph in a tight pool", .opts = tight, .replays = 1},
  };
}

struct tally {
  std::size_t indices = 0;
  std::size_t went_on = 0;  // with right data
  std::size_t mended = 0;   // by another try, with right data
  std::size_t device_errors = 0;
  std::size_t out_of_memory = 0;
  std::size_t leaks = 0;
  std::size_t silent = 0;  // wrong data of a run that claims success
  std::set<call_kind> kinds;
};

// One fault in one program, then the same program again on the same device.
void inject(const program_plan& plan, bool retries, const fault& armed, tally& counts) {
  faulty_desk desk(machine{.order_seed = armed.index});
  desk.dev.arm(armed);
  const auto end = run_once(desk, plan, retries, armed);
  auto complaint = end.complaint;
  if (!desk.dev.tripped()) complaint += " the fault never came";
  const bool once = armed.how == manner::once;
  const bool refused = armed.how == manner::refused || armed.how == manner::refused_on;
  if (end.out_of_memory && !refused) complaint += " out of memory without need";
  if (!end.success && !end.out_of_memory && refused)
    complaint += " an exhausted memory is no failure";
  if (!end.success && retries && once) complaint += " another try did not help";
  desk.dev.disarm();
  const auto again = run_once(desk, plan, false);
  if (!again.success) complaint += " afterwards: failed";
  complaint += again.complaint;
  if (!complaint.empty()) {
    FAIL_CHECK(plan.name << ", " << name_of(armed.kind) << " number " << armed.index << ", manner "
                         << static_cast<int>(armed.how) << (retries ? ", with retries: " : ": ")
                         << complaint);
  }
  ++counts.indices;
  auto& which = end.success         ? (retries ? counts.mended : counts.went_on)
                : end.out_of_memory ? counts.out_of_memory
                                    : counts.device_errors;
  ++which;
  counts.leaks += says(complaint, "leaks") ? 1 : 0;
  counts.silent += end.success && says(complaint, "wrong words") ? 1 : 0;
  counts.kinds.insert(armed.kind);
}

// Sanitizers make a run ten times as long, and look at every access of those that are left. There
// is one thread here, so that ThreadSanitizer has nothing to find but needs the longest.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t sampled = 61;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t sampled = 7;
#else
constexpr std::uint64_t sampled = 1;
#endif

// Every event of a lane is made in the same loop, so that most programs need few of its turns.
std::uint64_t stride_of(const program_plan& plan, call_kind kind, std::uint64_t calls) {
  if (calls < 20) return 1;
  if (kind != call_kind::make_event) return sampled;
  return plan.name == "graph on two streams" && sampled == 1 ? 1 : 97 * sampled;
}

void inject_all(const program_plan& plan, call_kind kind, std::uint64_t calls, tally& counts) {
  const bool allocates = kind == call_kind::try_allocate || kind == call_kind::try_allocate_host;
  for (std::uint64_t i = 1; i <= calls; i += stride_of(plan, kind, calls)) {
    inject(plan, false, {kind, i, manner::once}, counts);
    inject(plan, true, {kind, i, manner::once}, counts);
    inject(plan, false, {kind, i, manner::sticky}, counts);
    if (!allocates) continue;
    inject(plan, false, {kind, i, manner::refused}, counts);
    inject(plan, true, {kind, i, manner::refused}, counts);
    inject(plan, false, {kind, i, manner::refused_on}, counts);
  }
}

}  // namespace

TEST_CASE("faults: every call of every kind fails once, for good, or finds no memory") {
  tally counts;
  for (const auto& plan : programs()) {
    faulty_desk desk;
    const auto clean = run_once(desk, plan, false);
    CHECK_MESSAGE((clean.success && clean.complaint.empty()), plan.name << clean.complaint);
    for (std::size_t k = 0; k < call_kinds; ++k) {
      const auto kind = static_cast<call_kind>(k);
      inject_all(plan, kind, desk.dev.calls(kind), counts);
    }
  }
  CHECK(counts.kinds.size() == call_kinds);
  CHECK(counts.leaks == 0);
  CHECK(counts.silent == 0);
  MESSAGE("faults: " << counts.indices << " indices, " << counts.kinds.size() << " kinds, "
                     << counts.leaks << " leaks, " << counts.silent << " silent; "
                     << counts.device_errors << " device errors, " << counts.out_of_memory
                     << " out of memory, " << counts.mended << " mended by another try, "
                     << counts.went_on << " went on");
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
