/// Every device call of small training programs fails in turn; what comes of it is counted.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "faults/endings.hpp"

namespace tidepool::test {

/// Each kind of memory, of tensor and of schedule once.
[[nodiscard]] inline std::vector<program_plan> programs() {
  auto slots = small_options();
  slots.memory = memory_kind::slots;
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
  auto packed = arena_options(96 * 1024);
  packed.pack = {"fc1"};
  packed.host_step = 1024;
  auto packed_pool = small_options();
  packed_pool.pack = {"all"};
  packed_pool.max_inflight = 1;
  auto again = arena_options(8 * 1024);
  again.recompute_modules = {"layernorm"};
  return {
      {.name = "recomputed", .opts = again, .recomputed = true, .two_streams = true},
      {.name = "graph of what is recomputed", .opts = again, .recomputed = true, .replays = 1},
      {.name = "recomputed by plan",
       .opts = arena_options(8 * 1024),
       .by_plan = true,
       .two_streams = true},
      {.name = "graph of what a plan recomputes",
       .opts = arena_options(8 * 1024),
       .by_plan = true,
       .replays = 1},
      {.name = "state on the host", .opts = small_options(), .stateful = true, .two_streams = true},
      {.name = "graph with state", .opts = arena_options(8 * 1024), .stateful = true, .replays = 2},
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
      // Two pieces and a tail, which come back through the memory of two pieces.
      {.name = "packed", .opts = packed, .bytes = 33'000, .two_streams = true},
      {.name = "packed in a pool", .opts = packed_pool, .bytes = 3072, .shares = true},
      {.name = "graph of packed tensors", .opts = packed_pool, .bytes = 40'000, .replays = 2},
      {.name = "graph", .opts = arena_options(8 * 1024), .replays = 2},
      {.name = "graph of shares", .opts = small_options(), .shares = true, .replays = 2},
      {.name = "graph on two streams",
       .opts = arena_options(8 * 1024),
       .two_streams = true,
       .replays = 1},
      {.name = "graph in a tight pool", .opts = tight, .replays = 1},
  };
}

/// With a neighbour's memory beside the host's, or alone: for a device that has one.
[[nodiscard]] inline std::vector<program_plan> programs_with_peer() {
  auto both = small_options();
  both.places = {place_kind::peer, place_kind::host};
  both.peer_budget = 6 * 1024;
  both.host_step = 1024;
  auto tight = arena_options(8 * 1024);
  tight.places = {place_kind::peer};
  tight.peer_budget = 24 * 1024;
  tight.host_step = 1024;
  auto traced = both;
  traced.max_inflight = 1;
  return {
      {.name = "neighbour and host", .opts = both, .views = true, .two_streams = true},
      {.name = "neighbour alone", .opts = tight, .shares = true},
      {.name = "traced neighbour", .opts = traced, .stateful = true, .traced = true},
      {.name = "graph with a neighbour", .opts = both, .replays = 1},
  };
}

/// With a file behind the host, or alone: for a device that has one in memory.
[[nodiscard]] inline std::vector<program_plan> programs_with_file() {
  auto both = small_options();
  both.places = {place_kind::host, place_kind::file};
  both.host_budget = 2 * 1024;
  both.host_step = 1024;
  both.file_path = "disk";
  both.file_budget = std::size_t{1} << 20;
  both.file_ring = 8192;
  auto alone = arena_options(8 * 1024);
  alone.places = {place_kind::file};
  alone.file_path = both.file_path;
  alone.file_budget = both.file_budget;
  alone.file_ring = both.file_ring;
  auto traced = both;
  traced.places = {place_kind::file, place_kind::host};
  traced.file_budget = 3 * 4096;
  traced.host_budget = 32 * 1024;
  traced.max_inflight = 1;
  return {
      {.name = "host and file", .opts = both, .views = true, .two_streams = true},
      {.name = "file alone", .opts = alone, .shares = true},
      {.name = "traced file", .opts = traced, .stateful = true, .traced = true},
      {.name = "file by hand", .opts = alone, .views = true, .manual = true},
  };
}

/// The same over memory of the trainer's own.
[[nodiscard]] inline std::vector<program_plan> borrowing_programs() {
  auto slack = small_options();
  slack.borrowed_slack = 1024;
  auto none = small_options();
  none.borrowed_slack = 0;
  none.max_inflight = 1;
  return {
      {.name = "adopted", .opts = slack, .adopts = true, .two_streams = true},
      {.name = "adopted and shared", .opts = none, .shares = true, .adopts = true},
      {.name = "all in given memory", .opts = slack, .adopts = true, .given = true},
      {.name = "given memory by plan",
       .opts = none,
       .by_plan = true,
       .adopts = true,
       .given = true},
      {.name = "given memory by hand", .opts = slack, .views = true, .manual = true, .given = true},
  };
}

/// What came of all faults.
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

/// One fault in one program, then the same program again on the same device.
template <class Desk>
void inject(Desk& desk, const program_plan& plan, bool retries, const fault& armed, tally& counts) {
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

/// Every manner in which a call of this kind can fail, handed to `with`.
template <class With>
void each_manner(call_kind kind, std::uint64_t index, const With& with) {
  with(false, fault{kind, index, manner::once});
  with(true, fault{kind, index, manner::once});
  with(false, fault{kind, index, manner::sticky});
  if (kind != call_kind::try_allocate && kind != call_kind::try_allocate_host) return;
  with(false, fault{kind, index, manner::refused});
  with(true, fault{kind, index, manner::refused});
  with(false, fault{kind, index, manner::refused_on});
}

/// Nothing leaked and nothing lied.
inline void judge(const tally& counts, const std::string& where) {
  CHECK(counts.leaks == 0);
  CHECK(counts.silent == 0);
  MESSAGE(where << ": " << counts.indices << " indices, " << counts.kinds.size() << " kinds, "
                << counts.leaks << " leaks, " << counts.silent << " silent; "
                << counts.device_errors << " device errors, " << counts.out_of_memory
                << " out of memory, " << counts.mended << " mended by another try, "
                << counts.went_on << " went on");
}

}  // namespace tidepool::test
