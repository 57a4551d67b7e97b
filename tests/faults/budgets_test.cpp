// Budgets and memories of every size: a program trains with right data or says what did not fit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

#include "faults/endings.hpp"
#include "sanitizers.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::faulty_desk;
using tidepool::test::program_plan;
using tidepool::test::run_once;
using tidepool::test::small_options;
using tidepool::test::thinned;

// Sets one of the limits to so many bytes.
using limit = std::function<void(std::size_t, options&, machine&)>;

struct sweep {
  const char* name;
  program_plan plan;
  limit set;
  std::size_t last;  // bytes with which it must work
};

// Every byte around the alignment of blocks, then steps that meet every remainder; the last always.
std::size_t next(std::size_t bytes, std::size_t last) {
  if (bytes == last) return last + 1;
  return std::min(last, bytes + thinned * (bytes < 300 ? 1 : 37));
}

struct tally {
  std::size_t sizes = 0;
  std::size_t refused = 0;
};

void run(const sweep& each, bool retries, tally& counts) {
  bool fits = false;
  for (std::size_t bytes = 1; bytes <= each.last; bytes = next(bytes, each.last)) {
    auto plan = each.plan;
    machine model{.order_seed = bytes};
    each.set(bytes, plan.opts, model);
    faulty_desk desk(model);
    const auto end = run_once(desk, plan, retries);
    fits = end.success;
    CHECK_MESSAGE((end.complaint.empty() && (end.success || end.out_of_memory)),
                  each.name << ", " << bytes << " bytes: " << end.complaint);
    ++counts.sizes;
    counts.refused += end.success ? 0 : 1;
  }
  CHECK_MESSAGE(fits, each.name);
}

}  // namespace

TEST_CASE("budgets: of every size, they hold or are refused by name") {
  const limit device_budget = [](std::size_t bytes, options& opts, machine&) {
    opts.device_budget = bytes;
  };
  const limit host_budget = [](std::size_t bytes, options& opts, machine&) {
    opts.host_budget = bytes;
  };
  const limit device_bytes = [](std::size_t bytes, options&, machine& model) {
    model.device_bytes = bytes;
  };
  const limit host_bytes = [](std::size_t bytes, options&, machine& model) {
    model.host_bytes = bytes;
  };
  const limit peer_budget = [](std::size_t bytes, options& opts, machine&) {
    opts.peer_budget = bytes;
  };
  const limit peer_bytes = [](std::size_t bytes, options&, machine& model) {
    model.peer_bytes = bytes;
  };
  const limit file_budget = [](std::size_t bytes, options& opts, machine&) {
    opts.file_budget = bytes + 4095;  // of one block at least
  };
  auto small_steps = small_options();
  small_steps.device_step = small_steps.host_step = 1024;
  auto slots = small_options();
  slots.memory = tidepool::memory_kind::slots;
  slots.slots = {{1024, 7}, {768, 7}};
  const program_plan pool{.name = "pool", .opts = small_steps};
  const program_plan arena{.name = "arena", .opts = arena_options(1)};
  const program_plan views{.name = "views", .opts = arena_options(8192), .views = true};
  const program_plan shares{.name = "shares", .opts = arena_options(1), .shares = true};
  const program_plan manual{.name = "manual", .opts = small_steps, .manual = true};
  const program_plan replayed{.name = "graph", .opts = small_steps, .replays = 1};
  program_plan neighbour{.name = "neighbour", .opts = small_steps};
  neighbour.opts.places = {tidepool::place_kind::peer};
  neighbour.opts.peer_budget = 40'000;
  program_plan both = neighbour;
  both.opts.places.push_back(tidepool::place_kind::host);
  program_plan file{.name = "file", .opts = small_steps};
  file.opts.places = {tidepool::place_kind::file};
  file.opts.file_path = "disk";
  file.opts.file_budget = std::size_t{1} << 20;
  file.opts.file_ring = 8192;
  program_plan behind = file;
  behind.opts.places.push_back(tidepool::place_kind::host);
  tally counts;
  for (const bool retries : {false, true}) {
    run({"device budget of a pool", pool, device_budget, 16'000}, retries, counts);
    run({"device budget of an arena", arena, device_budget, 16'000}, retries, counts);
    run({"device budget of shares", shares, device_budget, 16'000}, retries, counts);
    run({"device budget of manual offloads", manual, device_budget, 24'000}, retries, counts);
    run({"device budget of graphs", replayed, device_budget, 16'000}, retries, counts);
    run({"host budget", pool, host_budget, 24'000}, retries, counts);
    run({"host budget of views", views, host_budget, 24'000}, retries, counts);
    run({"host budget of graphs", replayed, host_budget, 24'000}, retries, counts);
    run({"device memory of a pool", pool, device_bytes, 24'000}, retries, counts);
    run({"device memory of slots", {.name = "slots", .opts = slots}, device_bytes, 24'000}, retries,
        counts);
    run({"host memory", pool, host_bytes, 40'000}, retries, counts);
    run({"budget of a neighbour", neighbour, peer_budget, 24'000}, retries, counts);
    run({"memory of a neighbour", neighbour, peer_bytes, 40'000}, retries, counts);
    run({"budget of a neighbour before the host", both, peer_budget, 24'000}, retries, counts);
    run({"memory of a neighbour before the host", both, peer_bytes, 40'000}, retries, counts);
    run({"budget of a file", file, file_budget, 100'000}, retries, counts);
    run({"budget of a file before the host", behind, file_budget, 100'000}, retries, counts);
    run({"host memory behind a file", file, host_bytes, 40'000}, retries, counts);
  }
  CHECK(counts.refused > 0);
  MESSAGE("budgets: " << counts.sizes << " sizes, " << counts.refused << " refused");
}
