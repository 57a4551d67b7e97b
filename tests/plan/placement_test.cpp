#include "tidepool/plan/placement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "plans.hpp"
#include "rig.hpp"
#include "sanitizers.hpp"
#include "tidepool/decide/followed_placement.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/automatic.hpp"
#include "tidepool/plan/forecast.hpp"

namespace {

using tidepool::memory_kind;
using tidepool::options;
using tidepool::virtual_device;
using tidepool::plan::action;
using tidepool::plan::actions;
using tidepool::plan::forecast;
using tidepool::plan::place_ahead;
using tidepool::plan::placement;
using tidepool::plan::places_of_storage;
using tidepool::plan::profile;
using tidepool::plan::detail::lifetime;

options arena_of(std::size_t bytes) {
  options opts;
  opts.memory = memory_kind::arena;
  opts.device_budget = bytes;
  return opts;
}

/// Every group one way or another.
actions random_actions(std::mt19937_64& random, const profile& step) {
  actions what;
  for (const auto& chunk : step.chunks) {
    auto& row = what.emplace_back();
    for (const auto& group : chunk.groups) {
      const auto roll = random() % 4;
      row.push_back(roll == 0                             ? action::keep
                    : roll == 1 && group.recompute_us > 0 ? action::recompute
                                                          : action::offload);
    }
  }
  return what;
}

/// The offset at which a lifetime has its memory.
std::size_t offset_of(const placement& where, const lifetime& each) {
  const auto& storage = where.storages[each.storage];
  return each.again ? storage.again : storage.first;
}

bool in_calls(const lifetime& a, const lifetime& b) {
  return a.taken < b.given && b.taken < a.given;
}
bool in_time(const lifetime& a, const lifetime& b) {
  return a.from_us < b.to_us && b.from_us < a.to_us;
}

/// Whether no two that `meet` share a byte.
template <class Meet>
bool apart(const placement& where, const std::vector<lifetime>& all, Meet meet) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto from = offset_of(where, all[i]);
      const auto other = offset_of(where, all[j]);
      const bool share = from < other + all[j].bytes && other < from + all[i].bytes;
      if (share && meet(all[i], all[j])) return false;
    }
  }
  return true;
}

/// What the places are for: lifetimes of the step in as much of the budget as they count on.
std::vector<lifetime> lifetimes_of(const profile& step, const actions& what, const options& opts,
                                   const placement& where) {
  tidepool::plan::simulator sim(step);
  auto flat = sim.map().fold(what);
  for (std::size_t g = 0; g < flat.size(); ++g) {
    if (flat[g] == action::recompute && sim.map().groups[g].held) flat[g] = action::offload;
  }
  return sim.lifetimes(flat, {std::min(where.within, *opts.device_budget), opts.reload_ahead}).all;
}

profile random_step(std::mt19937_64& random, bool outliving = false) {
  return tidepool::test::random_profile(random, {.groups = 24 + random() % 24,
                                                 .chunks = 3,
                                                 .depth = 1 + random() % 3,
                                                 .recompute = random() % 2 == 0,
                                                 .outliving = outliving});
}

/// Of what is live at once when everything stays.
std::size_t share_of_all(const profile& step, double share) {
  tidepool::plan::planner plans(step);
  return static_cast<std::size_t>(static_cast<double>(plans.in_core().peak) * share);
}

}  // namespace

TEST_CASE("placement: what is in use at once shares no byte, and all lies within the budget") {
  std::mt19937_64 random(7);
  int placed = 0;
  for (std::size_t round = 0; round < 120 / tidepool::test::thinned + 4; ++round) {
    CAPTURE(round);
    const auto step = random_step(random, round % 3 == 0);
    const auto what = random_actions(random, step);
    const auto opts = arena_of(share_of_all(step, 0.5 + 0.1 * static_cast<double>(round % 8)));
    const auto where = place_ahead(step, what, opts);
    if (where.empty()) continue;
    ++placed;
    const auto seen = lifetimes_of(step, what, opts, where);
    CHECK(apart(where, seen, in_calls));
    CHECK(std::ranges::all_of(seen, [&](const lifetime& each) {
      return offset_of(where, each) + each.bytes <= *opts.device_budget;
    }));
  }
  CHECK(placed >= (tidepool::test::thinned == 1 ? 60 : 2));
}

TEST_CASE("placement: where there is room no copy waits for memory") {
  std::mt19937_64 random(7);
  for (std::size_t round = 0; round < 20 / tidepool::test::thinned + 4; ++round) {
    CAPTURE(round);
    const auto step = random_step(random);
    const auto what = random_actions(random, step);
    const auto opts = arena_of(share_of_all(step, 2));
    const auto where = place_ahead(step, what, opts);
    REQUIRE_FALSE(where.empty());
    CHECK(where.within == *opts.device_budget);
    CHECK(apart(where, lifetimes_of(step, what, opts, where), in_time));
  }
}

TEST_CASE("placement: the engine finds every block free where the plan has it") {
  std::mt19937_64 random(11);
  int placed = 0;
  for (std::size_t round = 0; round < 90 / tidepool::test::thinned + 4; ++round) {
    CAPTURE(round);
    const auto step = random_step(random, round % 3 == 0);
    const auto what = random_actions(random, step);
    auto opts = arena_of(share_of_all(step, 0.6 + 0.1 * static_cast<double>(round % 6)));
    opts.reload_ahead = 1 + round % 4;
    auto where = place_ahead(step, what, opts);
    if (where.empty()) continue;
    ++placed;
    opts.recompute_by_plan = true;
    opts.min_tensor_elements = 0;
    tidepool::plan::detail::rehearsal stage(step, opts);
    stage.engine().adopt(step, what, std::move(where));
    for (int i = 0; i < 3; ++i) stage.run();
    const auto counted = stage.engine().counters();
    CHECK(counted.placed_elsewhere == 0);
    CHECK(counted.evictions == 0);
  }
  CHECK(placed >= (tidepool::test::thinned == 1 ? 30 : 2));
}

TEST_CASE("placement: by its places the engine takes hardly longer than the simulator") {
  std::mt19937_64 random(13);
  int placed = 0;
  int as_thought = 0;
  for (std::size_t round = 0; round < 90 / tidepool::test::thinned + 4; ++round) {
    CAPTURE(round);
    auto step = random_step(random);
    step.link.out = step.link.in = step.link.both = step.link.out / 2;
    const auto what = random_actions(random, step);
    auto opts = arena_of(share_of_all(step, 0.5 + 0.1 * static_cast<double>(round % 5)));
    opts.reload_ahead = 1 + round % 4;
    const auto found = tidepool::plan::detail::find_places(step, what, opts);
    if (found.where.empty() || found.waits) continue;
    ++placed;
    opts.recompute_by_plan = true;
    const auto seen = tidepool::plan::detail::rehearsed(step, opts, what, found.where, false);
    REQUIRE(seen.expected.runs);
    if (seen.expected.step_us <= 1.01 * found.step_us) ++as_thought;
  }
  MESSAGE(as_thought << " of " << placed << " within 1 %");
  CHECK(placed >= (tidepool::test::thinned == 1 ? 30 : 2));
  CHECK(as_thought * 100 >= placed * (tidepool::test::thinned == 1 ? 93 : 75));
}

TEST_CASE("placement: steps are faster in less memory, since it is never in pieces") {
  std::mt19937_64 random(3);
  double with = 0;
  double without = 0;
  int better = 0;
  for (std::size_t round = 0; round < 40 / tidepool::test::thinned + 8; ++round) {
    const auto step = random_step(random);
    const auto what = random_actions(random, step);
    const auto opts = arena_of(share_of_all(step, 0.6 + 0.05 * static_cast<double>(round % 6)));
    if (place_ahead(step, what, opts).empty()) continue;
    const auto placed = forecast(step, opts, what);
    const auto found = forecast(step, opts, what, false, false);
    REQUIRE(placed.expected.runs);
    if (!found.expected.runs) {
      ++better;
      continue;
    }
    with += placed.expected.step_us;
    without += found.expected.step_us;
    if (placed.expected.step_us < 0.99 * found.expected.step_us) ++better;
  }
  // In few rounds every step may be one that does not run at all without places.
  CHECK(with <= without);
  CHECK(better > 0);
}

TEST_CASE("placement: nothing is planned where it could not hold") {
  std::mt19937_64 random(5);
  auto step = random_step(random);
  const actions keep = [&] {
    actions all;
    for (const auto& chunk : step.chunks) all.emplace_back(chunk.groups.size(), action::keep);
    return all;
  }();
  const auto peak = share_of_all(step, 1);
  const auto plenty = arena_of(4 * peak);
  CHECK_FALSE(place_ahead(step, keep, plenty).empty());
  CHECK(place_ahead(step, keep, arena_of(peak - 256)).empty());
  auto pool = plenty;
  pool.memory = memory_kind::pool;
  CHECK(place_ahead(step, keep, pool).empty());
  auto endless = plenty;
  endless.device_budget.reset();
  CHECK(place_ahead(step, keep, endless).empty());
  auto varying = step;
  varying.shapes_vary = true;
  CHECK(place_ahead(varying, keep, plenty).empty());
  auto untimed = step;
  untimed.events.clear();
  CHECK(place_ahead(untimed, keep, plenty).empty());
}

namespace {

/// What a step does otherwise than the one that was planned, or may do in every step.
struct habits {
  bool scratch_first = false;      ///< allocates something before all others
  bool scratch_in_again = false;   ///< and in every recomputation
  bool evaluates_between = false;  ///< before each of its microbatches
  bool restores_in_order = false;  ///< of their commits, within a layer
  int microbatches = 1;
};

/// A trainer whose layers save a large and a small tensor, and which may evaluate.
class trainer {
 public:
  explicit trainer(std::size_t budget, double rate = 50)
      : dev_(machine_of(rate)), off_(dev_, opts_of(budget)), stream_(dev_.make_stream()) {
    off_.on_report([](std::string_view) {});
  }

  void step(habits with = {}) {
    if (with.scratch_first) use(512);
    for (int i = 0; i < with.microbatches; ++i) {
      if (with.evaluates_between) evaluate();
      microbatch(i, with);
    }
    off_.end_step();
  }
  /// Allocates before the chunk, as a rank that receives its input does, and inside of it.
  void evaluate() {
    auto received = off_.allocate(4 * kib, stream_.ref());
    auto chunk = off_.begin({.forward_only = true});
    auto x = off_.allocate(24 * kib, stream_.ref());
    chunk.commit<"expert_fc1">(0, stream_.ref(), x);
    x.reset(stream_.ref());
    received.reset(stream_.ref());
    chunk.finish();
  }

  [[nodiscard]] auto counters() const { return off_.counters(); }
  [[nodiscard]] const auto& off() const { return off_; }

 private:
  using offloader = tidepool::test::planning<
      tidepool::offloader<virtual_device, tidepool::modules<"expert_fc1", "moe_act">>>;
  using buffer = offloader::buffer;
  static constexpr std::size_t kib = 1024;

  void use(std::size_t bytes) {
    auto scratch = off_.allocate(bytes, stream_.ref());
    scratch.reset(stream_.ref());
  }

  void microbatch(int number, const habits& with) {
    auto chunk = off_.begin({.microbatch = number});
    constexpr std::size_t layers = 6;
    std::vector<buffer> large(layers);
    std::vector<buffer> small(layers);
    for (std::size_t l = 0; l < layers; ++l) {
      auto work = off_.allocate(5 * kib + l * kib, stream_.ref());
      large[l] = off_.allocate(24 * kib, stream_.ref());
      small[l] = off_.allocate(3 * kib, stream_.ref());
      dev_.launch(stream_.ref(), 1e3, nullptr);
      work.reset(stream_.ref());
      chunk.commit<"expert_fc1">(static_cast<int>(l), stream_.ref(), large[l]);
      chunk.commit_or_discard<"moe_act">(static_cast<int>(l), stream_.ref(), small[l]);
    }
    chunk.end_forward();
    for (std::size_t l = layers; l-- > 0;) {
      const auto bring_small = [&] {
        const auto again = [&] {
          if (with.scratch_in_again) use(2 * kib);
          dev_.launch(stream_.ref(), 50, nullptr);
        };
        chunk.restore_or_recompute<"moe_act">(static_cast<int>(l), stream_.ref(), again, small[l]);
      };
      if (!with.restores_in_order) bring_small();
      chunk.restore<"expert_fc1">(static_cast<int>(l), stream_.ref(), large[l]);
      if (with.restores_in_order) bring_small();
      auto gradient = off_.allocate(7 * kib + l * kib, stream_.ref());
      dev_.launch(stream_.ref(), 2e3, nullptr);
      gradient.reset(stream_.ref());
      small[l].reset(stream_.ref());
      large[l].reset(stream_.ref());
    }
    chunk.finish();
  }

  static tidepool::machine machine_of(double rate) {
    tidepool::machine about;
    about.offload_rate = about.reload_rate = rate;
    about.both_rate = 1.5 * rate;
    return about;
  }
  static options opts_of(std::size_t budget) {
    auto opts = tidepool::test::arena_options(budget, {"expert_fc1", "moe_act"});
    opts.policy = tidepool::policy_kind::automatic;
    return opts;
  }

  virtual_device dev_;
  offloader off_;
  virtual_device::stream stream_;
};

}  // namespace

TEST_CASE("placement: an evaluation between steps moves nothing of what follows") {
  // With the smaller budget nothing is placed, and memory must not stay in the evaluation's pieces.
  for (const std::size_t kib : {140U, 160U, 180U}) {
    CAPTURE(kib);
    trainer run(kib * 1024);
    for (int i = 0; i < 4; ++i) run.step();
    REQUIRE(run.off().current_plan());
    const auto before = run.counters().placed_elsewhere;
    for (int i = 0; i < 3; ++i) {
      run.evaluate();
      run.evaluate();
      run.step();
    }
    CHECK(run.counters().placed_elsewhere == before);
  }
}

TEST_CASE("placement: a step that allocates a little more has all the rest where it was planned") {
  trainer run(200 * 1024);
  for (int i = 0; i < 4; ++i) run.step();
  REQUIRE(run.off().current_plan());
  for (int i = 0; i < 3; ++i) run.step({.scratch_first = true});
  run.step();
  CHECK(run.counters().placed_elsewhere == 0);
}

TEST_CASE("placement: steps run as planned whatever recomputations allocate, and evaluations") {
  const habits all[] = {{.scratch_in_again = true, .microbatches = 3},
                        {.evaluates_between = true, .microbatches = 3},
                        {.restores_in_order = true, .microbatches = 3}};
  for (const auto& with : all) {
    int placed = 0;
    for (const double rate : {1.0, 5.0}) {
      for (std::size_t kib = 120; kib <= 240; kib += 24 * (tidepool::test::thinned == 1 ? 1 : 4)) {
        CAPTURE(with.scratch_in_again);
        CAPTURE(with.evaluates_between);
        CAPTURE(rate);
        CAPTURE(kib);
        trainer run(kib * 1024, rate);
        for (int i = 0; i < 5; ++i) REQUIRE_NOTHROW(run.step(with));
        REQUIRE(run.off().current_plan());
        auto opts = run.off().settings();
        opts.reload_ahead = run.off().reloads_ahead().groups;
        placed +=
            place_ahead(run.off().profile(), run.off().current_plan()->what, opts).empty() ? 0 : 1;
      }
    }
    CHECK(placed > 0);
  }
}

TEST_CASE("placement: a plan that is tried out has its places, or as much memory as it needs") {
  using offloader = tidepool::test::planning<
      tidepool::offloader<virtual_device, tidepool::modules<"a", "b", "c">>>;
  struct training {
    int microbatches;
    int in_flight;
    std::size_t layers;
    std::size_t bytes[3];  // saved by each layer
    std::size_t work;
    double ns;
    double rate;
    double first;  // step is slower
    std::size_t budget;
  };
  // These ended in their second step: in pieces with what stayed, and with no plan at all.
  for (const auto& like : {training{3, 1, 5, {25856, 32768, 23296}, 28928, 2580, 32, 4, 205056},
                           training{5, 3, 2, {13312, 3072, 6912}, 22272, 796, 57, 1, 105472}}) {
    CAPTURE(like.budget);
    tidepool::machine about;
    about.offload_rate = about.reload_rate = like.rate;
    about.both_rate = 1.5 * like.rate;
    virtual_device dev(about);
    auto opts = tidepool::test::arena_options(like.budget, {"a", "b", "c"});
    opts.policy = tidepool::policy_kind::automatic;
    offloader off(dev, opts);
    off.on_report([](std::string_view) {});
    const auto stream = dev.make_stream();
    const auto s = stream.ref();
    const tidepool::module_id modules[] = {off.module("a"), off.module("b"), off.module("c")};
    struct microbatch {
      offloader::chunk chunk;
      std::vector<offloader::buffer> saved;
    };
    const auto compute = [&](std::size_t scratch, double ns, auto&&... what) {
      auto used = off.allocate(scratch, s);
      (what(), ...);
      dev.launch(s, ns, nullptr);
      used.reset(s);
    };
    const auto step = [&](double slower) {
      std::vector<microbatch> open;
      for (int i = 0; i < like.microbatches + like.in_flight - 1; ++i) {
        if (i < like.microbatches) {
          open.push_back({off.begin({.microbatch = i}), {}});
          auto& now = open.back();
          for (std::size_t l = 0; l < like.layers; ++l) {
            for (std::size_t m = 0; m < 3; ++m) {
              compute(like.work * (m + 1), slower * like.ns,
                      [&] { now.saved.push_back(off.allocate(like.bytes[m], s)); });
              now.chunk.commit(modules[m], static_cast<int>(l), s, now.saved.back());
            }
          }
          now.chunk.end_forward();
        }
        if (i < like.in_flight - 1) continue;
        auto& last = open.front();
        for (; !last.saved.empty(); last.saved.pop_back()) {
          const auto at = last.saved.size() - 1;
          last.chunk.restore(modules[at % 3], static_cast<int>(at / 3), s, last.saved.back());
          compute(like.work * (at % 3 + 2), slower * like.ns * 2);
          last.saved.back().reset(s);
        }
        last.chunk.finish();
        open.erase(open.begin());
      }
      off.end_step();
    };
    for (int i = 0; i < 5; ++i) CHECK_NOTHROW(step(i == 0 ? like.first : 1));
  }
}

TEST_CASE("placement: what was cut out of a full arena goes back into hardly more") {
  struct rest {
    std::uint32_t from, to;  // in calls
    std::size_t bytes;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return random() % n; };
    constexpr std::size_t bytes = 4096;
    std::vector<rest> open{{0, 1000, bytes}};
    while (open.size() < 150) {
      auto& cut = open[below(open.size())];
      auto other = cut;
      if (below(2) == 0 && cut.to - cut.from > 20) {
        cut.to = cut.from + 5 + static_cast<std::uint32_t>(below(cut.to - cut.from - 10));
        other.from = cut.to;
      } else if (cut.bytes > 40) {
        cut.bytes = 10 + below(cut.bytes - 20);
        other.bytes -= cut.bytes;
      } else {
        continue;
      }
      open.push_back(other);
    }
    std::vector<lifetime> all;
    for (const auto& [from, to, size] : open) {
      const double from_us = from;
      const double to_us = to;
      all.push_back(
          {.bytes = size, .taken = from, .given = to, .from_us = from_us, .to_us = to_us});
    }
    REQUIRE(tidepool::plan::detail::most_at_once(all) == bytes);
    tidepool::plan::detail::packing packed(all, bytes * 112 / 100);
    CHECK(packed.fits(tidepool::plan::constants::most_of_a_try));
  }
}

TEST_CASE("placement: of allocations that were not planned the nearest of their size is meant") {
  tidepool::detail::followed_placement where;
  const std::size_t sizes[] = {256, 512, 512, 1024, 256};
  placement planned;
  for (const auto bytes : sizes) planned.storages.push_back({.bytes = bytes});
  where.adopt(planned);
  const auto none = tidepool::detail::followed_placement::unknown;
  for (int step = 0; step < 2; ++step) {
    CHECK(where.allocated(512) == 1);  // one too many, before all others
    CHECK(where.allocated(256) == 0);
    CHECK(where.hold());
    CHECK(where.allocated(4096) == none);
    CHECK_FALSE(where.hold());
    CHECK(where.allocated(512) == 2);
    CHECK(where.allocated(512) == none);
    CHECK(where.allocated(1024) == 3);
    CHECK(where.allocated(256) == 4);
    CHECK(where.allocated(256) == none);
    where.step_ended();
    CHECK(where.hold());
  }
  where.evaluation_begins(true);  // between steps: what it allocates was not planned
  CHECK(where.allocated(256) == 0);
  where.evaluation_ended();
  CHECK(where.allocated(256) == 0);
  where.evaluation_begins(false);  // within a step: it was
  CHECK(where.allocated(512) == 1);
  where.evaluation_ended();
  CHECK(where.allocated(512) == 2);
}

TEST_CASE("placement: reloads are expected as the engine makes them, the last commit first") {
  using tidepool::plan::event_kind;
  profile step;
  step.modules = {"expert_fc1"};
  step.passes = {{0, false}, {0, true}};
  step.link = {50, 50, 75, 2};
  auto& chunk = step.chunks.emplace_back();
  for (std::uint32_t i = 0; i < 3; ++i) {
    chunk.groups.push_back({tidepool::module_id{0}, static_cast<int>(i), 4096});
    step.storages.push_back({4096, 0, i});
    step.events.push_back({event_kind::allocate, i, 0, 1.0});
    step.events.push_back({event_kind::commit, i, 0, 1.0});
  }
  step.events.push_back({event_kind::end_forward, 0, 0, 1.0});
  for (const std::uint32_t i : {1U, 2U, 0U}) {
    step.events.push_back({event_kind::restore, i, 0, 1.0});
    step.events.push_back({event_kind::release, i, 0, 1.0});
  }
  const tidepool::plan::detail::layout map(step);
  CHECK(map.reload_order == std::vector<std::uint32_t>{2, 1, 0});
}
