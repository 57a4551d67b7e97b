#include "tidepool/decide/policy.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tidepool/plan/automatic.hpp"

namespace {

using tidepool::module_id;
using tidepool::options;
using tidepool::plan::group_profile;
using tidepool::plan::megatron_policy;
using tidepool::plan::pass;
using tidepool::plan::profile;

constexpr std::size_t mib = std::size_t{1} << 20;

group_profile group(unsigned module, std::size_t bytes = mib) {
  return {static_cast<module_id>(module), 0, bytes};
}

/// Chunks of equal groups, all of one module.
profile uniform(std::size_t chunks, std::size_t groups) {
  profile step;
  for (std::size_t c = 0; c < chunks; ++c) {
    step.chunks.push_back({0, std::vector<group_profile>(groups, group(0))});
  }
  return step;
}

// "F0 F1 B0 …"
void run(profile& step, const std::string& passes) {
  for (std::size_t i = 0; i + 1 < passes.size(); i += 3) {
    step.passes.push_back({static_cast<std::size_t>(passes[i + 1] - '0'), passes[i] == 'B'});
  }
}

/// "..#. #..." has a chunk of four groups of which the third stays, and one whose first stays.
std::string kept(const profile& step, const options& opts) {
  std::string text;
  for (const auto& chunk : megatron_policy(step, opts)) {
    if (!text.empty()) text += ' ';
    for (const bool stays : chunk) text += stays ? '#' : '.';
  }
  return text;
}

options without_margin() {
  options opts;
  opts.margin = false;
  return opts;
}

}  // namespace

TEST_CASE("policy: which options let a group of some step stay") {
  using tidepool::plan::may_keep;
  const auto with = [](auto change) {
    auto opts = without_margin();
    change(opts);
    return may_keep(opts);
  };
  CHECK_FALSE(with([](options&) {}));
  CHECK(with([](options& opts) { opts.margin = true; }));
  CHECK(with([](options& opts) { opts.fraction = 0.5; }));
  CHECK_FALSE(with([](options& opts) { opts.pipeline_rank = 1; }));
  CHECK_FALSE(with([](options& opts) { opts.delta_bytes_per_rank = 1; }));  // rank 0 keeps none
  CHECK(with([](options& opts) { opts.pipeline_rank = 1, opts.delta_bytes_per_rank = 1; }));
}

TEST_CASE("policy: an empty step, and chunks without groups") {
  profile step;
  CHECK(kept(step, {}).empty());
  step = uniform(2, 0);
  run(step, "F0 B0 F1 B1");
  CHECK(megatron_policy(step, {}).size() == 2);
  CHECK(megatron_policy(step, {})[0].empty());
}

TEST_CASE("policy: a single byte by which ranks differ keeps a group, and not a second one") {
  auto step = uniform(1, 3);
  run(step, "F0 B0");
  auto opts = without_margin();
  opts.pipeline_rank = 1;
  opts.delta_bytes_per_rank = 1;
  CHECK(kept(step, opts) == "#..");
}

TEST_CASE("policy: without margin, delta and fraction everything leaves") {
  auto step = uniform(2, 3);
  run(step, "F0 B0 F1 B1");
  CHECK(kept(step, without_margin()) == "... ...");
}

TEST_CASE("policy: margin keeps the last group of each module where the chunk turns around") {
  SUBCASE("one at a time: every chunk does") {
    auto step = uniform(3, 3);
    run(step, "F0 B0 F1 B1 F2 B2");
    CHECK(kept(step, {}) == "..# ..# ..#");
  }
  SUBCASE(
      "two in flight: the first alone, since the others have another backward pass before them") {
    auto step = uniform(4, 3);
    run(step, "F0 F1 B0 F2 B1 F3 B2 B3");
    CHECK(kept(step, {}) == "..# ... ... ...");
  }
  SUBCASE("three in flight") {
    auto step = uniform(4, 2);
    run(step, "F0 F1 F2 B0 F3 B1 B2 B3");
    CHECK(kept(step, {}) == ".# .. .. ..");
  }
  SUBCASE("all forward passes first, backward from the last") {
    auto step = uniform(3, 2);
    run(step, "F0 F1 F2 B2 B1 B0");
    CHECK(kept(step, {}) == ".. .. .#");
  }
  SUBCASE("interleaved model chunks: the one that comes back first") {
    auto step = uniform(4, 2);
    run(step, "F0 F1 F2 F3 B2 B3 B0 B1");
    CHECK(kept(step, {}) == ".. .. .# ..");
  }
}

TEST_CASE("policy: margin is by module, not by position") {
  profile step;
  step.chunks.push_back({0, {group(0), group(1), group(0), group(2), group(1)}});
  run(step, "F0 B0");
  CHECK(kept(step, {}) == "..###");
}

TEST_CASE("policy: margin passes over groups from which nothing leaves") {
  profile step;
  step.chunks.push_back({0, {group(0), group(0), group(0, 0), group(1, 0)}});
  run(step, "F0 B0");
  CHECK(kept(step, {}) == ".#..");
}

// Megatron's `last_group_with_same_name` and `front_backward_chunk(name)` look for the first
// backward chunk that has the module at all.
TEST_CASE("policy: margin of a module that the first backward chunk lacks") {
  profile step;
  step.chunks.push_back({0, {group(0), group(1), group(0), group(1)}});
  step.chunks.push_back({1, {group(0), group(0)}});
  run(step, "F0 F1 B1 B0");
  CHECK(kept(step, {}) == "...# .#");
}

TEST_CASE("policy: delta keeps whole groups until the rank's bytes are reached") {
  auto step = uniform(1, 4);
  run(step, "F0 B0");
  auto opts = without_margin();
  opts.delta_bytes_per_rank = mib;
  CHECK(kept(step, opts) == "....");  // rank 0
  opts.pipeline_rank = 1;
  CHECK(kept(step, opts) == "#...");
  opts.pipeline_rank = 2;
  CHECK(kept(step, opts) == "##..");
  opts.delta_bytes_per_rank = mib / 2 + 1;
  CHECK(kept(step, opts) == "##..");  // the second group is begun, so it stays whole
  opts.delta_bytes_per_rank = 100 * mib;
  CHECK(kept(step, opts) == "####");
}

TEST_CASE("policy: delta goes through the chunks in the order of their backward passes") {
  auto step = uniform(3, 2);
  run(step, "F0 F1 F2 B1 B2 B0");
  auto opts = without_margin();
  opts.pipeline_rank = 1;
  opts.delta_bytes_per_rank = 3 * mib;
  CHECK(kept(step, opts) == ".. ## #.");
}

TEST_CASE("policy: delta counts bytes, leaves out what stays anyway and what has none") {
  profile step;
  step.chunks.push_back({0, {group(0, 0), group(0, 3 * mib), group(0, mib), group(1, mib)}});
  run(step, "F0 B0");
  options opts;
  opts.pipeline_rank = 1;
  opts.delta_bytes_per_rank = mib;
  CHECK(kept(step, opts) == ".###");  // 2 and 3 by margin, 1 by delta
}

TEST_CASE("policy: fraction drops int(n * (1 - f)) of the groups, the last ones") {
  const auto drop = [](std::size_t groups, double fraction) {
    auto step = uniform(1, groups);
    run(step, "F0 B0");
    auto opts = without_margin();
    opts.fraction = fraction;
    return kept(step, opts);
  };
  CHECK(drop(4, 1.0) == "....");
  CHECK(drop(4, 0.0) == "####");
  CHECK(drop(4, 0.5) == "..##");
  CHECK(drop(5, 0.5) == "...##");  // int(2.5)
  CHECK(drop(3, 0.7) == "...");    // int(0.9)
  CHECK(drop(1, 0.01) == ".");     // int(0.99)
  CHECK(drop(10, 0.7) == ".......###");
  CHECK(drop(10, 0.9) == "..........");  // 10 * (1 - 0.9) is a little less than 1, in Python too
  CHECK(drop(0, 0.5).empty());
}

TEST_CASE("policy: fraction is per chunk, and of the groups that would leave") {
  profile step;
  step.chunks.push_back({0, {group(0), group(0), group(0, 0), group(0), group(0)}});
  step.chunks.push_back({0, {group(0), group(0)}});
  run(step, "F0 F1 B0 B1");
  auto opts = without_margin();
  opts.fraction = 0.5;
  CHECK(kept(step, opts) == "...## .#");
  opts.margin = true;  // takes the last of chunk 0; of the three left, int(1.5) stay
  CHECK(kept(step, opts) == "...## .#");
  opts.pipeline_rank = 1;
  opts.delta_bytes_per_rank = mib;  // takes the first; of the two left, one stays
  CHECK(kept(step, opts) == "#..## .#");
}

TEST_CASE("policy: margin, then delta, then fraction") {
  auto step = uniform(1, 8);
  run(step, "F0 B0");
  options opts;
  opts.pipeline_rank = 2;
  opts.delta_bytes_per_rank = mib;
  opts.fraction = 0.6;
  // The last by margin, the first two by delta, and int(5 * 0.4) = 2 of the other five.
  CHECK(kept(step, opts) == "##...###");
}

TEST_CASE("policy: a chunk without a backward pass keeps nothing for it") {
  auto step = uniform(2, 2);
  run(step, "F0 F1 B1");
  CHECK(kept(step, {}) == ".. .#");
}

TEST_CASE("policy: what the trainer works with at once, whatever becomes of a chunk") {
  using kind = tidepool::plan::event_kind;
  tidepool::plan::profile step;
  step.modules = {"core_attn"};
  step.chunks.push_back({0, {{tidepool::module_id{0}, 0, 100}}, 0});
  step.storages = {{100, 0, 0}, {30}, {50}};
  step.events = {{kind::allocate, 0}, {kind::allocate, 1}, {kind::commit, 0},  {kind::allocate, 2},
                 {kind::release, 1},  {kind::restore, 0},  {kind::release, 0}, {kind::release, 2}};
  CHECK(tidepool::plan::handed_out_at_once(step) == 150);
  // Given up with another handle to what it saved: released without a restore.
  step.events = {{kind::allocate, 0}, {kind::allocate, 1}, {kind::commit, 0}, {kind::release, 0},
                 {kind::allocate, 2}, {kind::release, 2},  {kind::release, 1}};
  CHECK(tidepool::plan::handed_out_at_once(step) == 130);
}

TEST_CASE("policy: a plan that nothing limits says what would let groups leave") {
  tidepool::plan::step_plan made;
  made.what = {{tidepool::plan::action::keep}};
  CHECK(
      in_words(made).ends_with("limited by nothing (no --device-budget was given, or all of it"
                               " fits)"));
  made.limited_by = tidepool::plan::limit::link;
  CHECK(in_words(made).ends_with("limited by link"));
}

TEST_CASE("policy: the smallest group that leaves is one of a byte") {
  const auto margin = [](std::size_t bytes) {
    profile step;
    step.chunks.push_back({0, {group(0)}});
    step.chunks.push_back({1, {group(0, bytes), group(1)}});
    run(step, "F0 F1 B1 B0");
    return kept(step, {});
  };
  CHECK(margin(0) == "# .#");  // nothing of the module comes back before chunk 0
  CHECK(margin(1) == ". ##");
  profile step;
  step.chunks.push_back({0, std::vector<group_profile>(4, group(0, 1))});
  run(step, "F0 B0");
  auto opts = without_margin();
  opts.fraction = 0.5;
  CHECK(kept(step, opts) == "..##");
}
