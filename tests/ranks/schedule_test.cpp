/// Schedules of pipelines, played over all ranks, and how layers are laid out.
#include "../../examples/train_moe/parallel/schedule.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../../examples/train_moe/parallel/layout.hpp"

namespace {

using moe::pipeline_shape;
using moe::pipeline_step;
using pass = pipeline_step::pass;

std::vector<pipeline_shape> shapes() {
  std::vector<pipeline_shape> all;
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int microbatches = 1; microbatches <= 13; ++microbatches) {
      all.push_back({ranks, 1, microbatches});
    }
    for (int chunks = 2; chunks <= 4; ++chunks) {
      for (int groups = 1; groups <= 4; ++groups) all.push_back({ranks, chunks, groups * ranks});
    }
  }
  const std::size_t alone = all.size();
  for (std::size_t i = 0; i < alone; ++i) {
    all.push_back(all[i]);
    all.back().pairs = true;
  }
  return all;
}

std::string name_of(const pipeline_shape& shape) {
  return std::to_string(shape.ranks) + " ranks, " + std::to_string(shape.chunks) + " chunks, " +
         std::to_string(shape.microbatches) + " microbatches" + (shape.pairs ? ", in pairs" : "");
}

/// A message: to which stage, of which microbatch, in which direction.
using message = std::tuple<int, int, pass>;

/// Runs every rank as far as it gets, with receives that block and sends that do not; returns the
/// steps that were left when no rank could go on.
std::size_t steps_left(const pipeline_shape& shape,
                       const std::vector<std::vector<pipeline_step>>& plan) {
  std::vector<std::size_t> at(plan.size(), 0);
  std::set<message> sent;
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      while (at[r] < plan[r].size()) {
        // A pair starts when both have what they read, and sends when both are over.
        const std::size_t end = at[r] + (plan[r][at[r]].beside_next ? 2 : 1);
        std::set<message> needed, results;
        for (std::size_t i = at[r]; i < end; ++i) {
          const pipeline_step& step = plan[r][i];
          const int stage = shape.stage(rank, step.chunk);
          const bool forward = step.what == pass::forward;
          if (forward ? stage > 0 : stage + 1 < shape.stages()) {
            needed.insert({stage, step.microbatch, step.what});
          }
          const int next = forward ? stage + 1 : stage - 1;
          if (next >= 0 && next < shape.stages()) {
            results.insert({next, step.microbatch, step.what});
          }
        }
        if (!std::includes(sent.begin(), sent.end(), needed.begin(), needed.end())) break;
        for (const message& each : needed) sent.erase(each);
        sent.merge(results);
        at[r] = end;
        moved = true;
      }
    }
  }
  CHECK(sent.empty());
  std::size_t left = 0;
  for (std::size_t r = 0; r < plan.size(); ++r) left += plan[r].size() - at[r];
  return left;
}

}  // namespace

TEST_CASE("each microbatch goes once through each chunk, forward before backward") {
  for (const pipeline_shape& shape : shapes()) {
    CAPTURE(name_of(shape));
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const auto steps = moe::steps_of_rank(shape, rank);
      REQUIRE(steps.size() == std::size_t{2} * shape.microbatches * shape.chunks);
      std::set<std::pair<int, int>> forward, backward;
      for (const pipeline_step& step : steps) {
        REQUIRE(step.chunk >= 0);
        REQUIRE(step.chunk < shape.chunks);
        REQUIRE(step.microbatch >= 0);
        REQUIRE(step.microbatch < shape.microbatches);
        const std::pair which{step.chunk, step.microbatch};
        if (step.what == pass::forward) {
          CHECK(forward.insert(which).second);
        } else {
          CHECK(forward.count(which) == 1);
          CHECK(backward.insert(which).second);
        }
      }
    }
  }
}

TEST_CASE("each chunk takes its microbatches in order, forward and backward") {
  for (const pipeline_shape& shape : shapes()) {
    CAPTURE(name_of(shape));
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (const pass what : {pass::forward, pass::backward}) {
        std::vector<int> next(static_cast<std::size_t>(shape.chunks), 0);
        for (const pipeline_step& step : moe::steps_of_rank(shape, rank)) {
          if (step.what == what) {
            CHECK(step.microbatch == next[static_cast<std::size_t>(step.chunk)]++);
          }
        }
      }
    }
  }
}

TEST_CASE("no schedule locks up where receives block") {
  for (const pipeline_shape& shape : shapes()) {
    CAPTURE(name_of(shape));
    std::vector<std::vector<pipeline_step>> plan;
    for (int rank = 0; rank < shape.ranks; ++rank) plan.push_back(moe::steps_of_rank(shape, rank));
    CHECK(steps_left(shape, plan) == 0);
  }
}

TEST_CASE("from rank to rank, messages of one direction are awaited in the order they are sent") {
  for (const pipeline_shape& shape : shapes()) {
    CAPTURE(name_of(shape));
    using route = std::tuple<int, int, pass>;
    std::map<route, std::vector<message>> sent, awaited;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (const pipeline_step& step : moe::steps_of_rank(shape, rank)) {
        const int stage = shape.stage(rank, step.chunk);
        const int ahead = step.what == pass::forward ? 1 : -1;
        const auto there = [&](int s) { return s >= 0 && s < shape.stages(); };
        if (there(stage - ahead)) {
          awaited[{shape.rank_of(stage - ahead), rank, step.what}].push_back(
              {stage, step.microbatch, step.what});
        }
        if (there(stage + ahead)) {
          sent[{rank, shape.rank_of(stage + ahead), step.what}].push_back(
              {stage + ahead, step.microbatch, step.what});
        }
      }
    }
    CHECK(sent == awaited);
  }
}

TEST_CASE("the simulation notices a schedule that locks up") {
  const pipeline_shape shape{2, 1, 4};
  // Both want the other's result first: rank 0 a gradient, rank 1 as many forwards as rank 0 has.
  CHECK(steps_left(shape,
                   {moe::one_forward_one_backward(4, 1), moe::one_forward_one_backward(4, 2)}) > 0);
}

TEST_CASE("depth falls from the first rank to the last") {
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(moe::deepest(moe::steps_of_rank({4, 1, 8}, rank)) == 4 - rank);
    // Megatron: twice the ranks behind, a group for each chunk but the last, and the one in work.
    CHECK(moe::deepest(moe::steps_of_rank({4, 2, 8}, rank)) == 2 * (3 - rank) + 4 + 1);
  }
  CHECK(moe::deepest(moe::steps_of_rank({4, 1, 2}, 0)) == 2);
}

TEST_CASE("in pairs, each backward but the last ones runs beside the forward behind it") {
  const auto written = [](int microbatches, int depth) {
    std::string text;
    for (const auto& step : moe::pairs_of_one_forward_one_backward(microbatches, depth)) {
      text += (step.what == pass::forward ? "F" : "B") + std::to_string(step.microbatch);
      text += step.beside_next ? "+" : " ";
    }
    return text;
  };
  CHECK(written(3, 2) == "F0 B0+F1 B1+F2 B2 ");
  CHECK(written(4, 3) == "F0 F1 B0+F2 B1+F3 B2 B3 ");
  CHECK(written(2, 1) == "F0 B0 F1 B1 ");
  CHECK(written(1, 1) == "F0 B0 ");
}

TEST_CASE("a pair costs one more in flight; one chunk then takes two for each rank behind") {
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(moe::deepest(moe::steps_of_rank({4, 2, 8, true}, rank)) ==
          moe::deepest(moe::steps_of_rank({4, 2, 8}, rank)) + 1);
    CHECK(moe::deepest(moe::steps_of_rank({4, 1, 16, true}, rank)) == 2 * (3 - rank) + 2);
  }
}

TEST_CASE("1F1B itself in pairs would make each rank wait for every pair of the next") {
  // Pairs that each rank gets through in as many rounds, if all pairs take as long.
  const auto rounds = [](int warm_up_of_first) {
    std::vector<std::vector<pipeline_step>> plan{
        moe::in_pairs(moe::one_forward_one_backward(8, warm_up_of_first)),
        moe::in_pairs(moe::one_forward_one_backward(8, 1))};
    std::vector<std::size_t> at(2, 0);
    std::set<message> sent;
    int count = 0;
    for (; at[0] < plan[0].size() || at[1] < plan[1].size(); ++count) {
      std::set<message> later;
      for (std::size_t r = 0; r < 2; ++r) {
        if (at[r] == plan[r].size()) continue;
        const std::size_t end = at[r] + (plan[r][at[r]].beside_next ? 2 : 1);
        const auto message_of = [&](std::size_t i, int stage) {
          return message{stage, plan[r][i].microbatch, plan[r][i].what};
        };
        const auto mine = static_cast<int>(r);
        // Forwards go from 0 to 1, backwards from 1 to 0.
        const auto arrives = [&](std::size_t i) {
          const bool receives = (plan[r][i].what == pass::forward) == (mine == 1);
          return !receives || sent.count(message_of(i, mine)) == 1;
        };
        bool ready = true;
        for (std::size_t i = at[r]; i < end; ++i) ready = ready && arrives(i);
        if (!ready) continue;
        for (std::size_t i = at[r]; i < end; ++i) later.insert(message_of(i, 1 - mine));
        at[r] = end;
      }
      REQUIRE(!later.empty());
      sent.merge(later);
    }
    return count;
  };
  CHECK(rounds(3) < rounds(2) - 3);
}

TEST_CASE("interleaved 1F1B of two ranks and two chunks, written out") {
  std::string text;
  for (const pipeline_step& step : moe::steps_of_rank({2, 2, 2}, 1)) {
    text += (step.what == pass::forward ? "F" : "B") + std::to_string(step.microbatch) +
            "abc"[step.chunk] + " ";
  }
  CHECK(text == "F0a F1a F0b B0b F1b B1b B0a B1a ");
}

TEST_CASE("layers are laid out over ranks in turn, each once, later stages one more") {
  moe::settings run;
  run.pipeline = true;
  run.microbatches = 4;
  for (run.grid.stages = 1; run.grid.stages <= 4; ++run.grid.stages) {
    for (run.virtual_stages = 1; run.virtual_stages <= 3; ++run.virtual_stages) {
      const int stages = run.grid.stages * run.virtual_stages;
      for (run.model.layers = stages; run.model.layers < 3 * stages; ++run.model.layers) {
        std::vector<int> holders(static_cast<std::size_t>(run.model.layers), 0);
        for (int rank = 0; rank < run.grid.stages; ++rank) {
          const auto ranges = moe::ranges_of_rank(run, rank);
          REQUIRE(ranges.size() == static_cast<std::size_t>(run.virtual_stages));
          for (const moe::layer_range& range : ranges) {
            CHECK(range.embedding == (range.first == 0));
            CHECK(range.head == (range.end == run.model.layers));
            for (moe::index l = range.first; l < range.end; ++l) {
              ++holders[static_cast<std::size_t>(l)];
            }
          }
        }
        CHECK(std::count(holders.begin(), holders.end(), 1) == run.model.layers);
        const auto layers = moe::layers_of_stages(run);
        CHECK(std::is_sorted(layers.begin(), layers.end()));
        CHECK(layers.back() - layers.front() <= 1);
      }
    }
  }
}

TEST_CASE("in a grid each expert of each layer and each microbatch of each stage has one rank") {
  moe::settings run;
  run.pipeline = run.expert_parallel = true;
  run.grid = {3, 4};
  run.microbatches = 12;
  run.model.layers = 7;
  run.model.experts = 8;
  std::map<std::pair<moe::index, moe::index>, int> holders;
  std::map<std::pair<int, int>, int> takers;
  for (run.rank = 0; run.rank < run.grid.ranks(); ++run.rank) {
    CHECK(run.grid.rank_of(run.stage(), run.member()) == run.rank);
    const auto experts = moe::experts_of_rank(run, run.rank);
    for (const moe::layer_range& range : moe::ranges_of_rank(run, run.rank)) {
      for (moe::index l = range.first; l < range.end; ++l) {
        for (moe::index e = 0; e < experts.count; ++e) ++holders[{l, experts.first + e}];
      }
    }
    for (int own = 0; own < run.own_microbatches(); ++own) {
      ++takers[{run.stage(), run.microbatch_of_step(own)}];
    }
  }
  const auto once = [](const auto& each) { return each.second == 1; };
  CHECK(holders.size() == 7 * 8);
  CHECK(std::all_of(holders.begin(), holders.end(), once));
  CHECK(takers.size() == 3 * 12);
  CHECK(std::all_of(takers.begin(), takers.end(), once));
}
