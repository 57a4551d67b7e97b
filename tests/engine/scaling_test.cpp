// Invariant 13: the cost of a call does not grow with what is alive. What the engine finds its way
// by, held to plain models, and how much it looks at where that can be counted; the times are rows
// of bench_engine, which tests/scaling.sh compares.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tidepool/core/part_index.hpp"
#include "tidepool/core/slot_list.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/open_chunks.hpp"

namespace {

using tidepool::module_id;
using tidepool::detail::group_state;
using tidepool::detail::no_group;
using tidepool::detail::number_set;
using tidepool::detail::rectangle;

using tidepool::detail::chunk_state;
using tidepool::detail::open_chunks;

std::size_t compared = 0;

// Counts how often an index looks at one.
struct counted_rectangle : rectangle {
  friend bool operator==(const counted_rectangle& a, const counted_rectangle& b) {
    ++compared;
    return static_cast<const rectangle&>(a) == static_cast<const rectangle&>(b);
  }
};

struct part_storage {
  std::uint64_t number = 0;
  struct {
    std::uint64_t of = 0;
    counted_rectangle what{};
    part_storage* next = nullptr;
  } part{};
};

std::optional<std::uint32_t> group_found(chunk_state& chunk, module_id module, int layer) {
  const auto found = chunk.find(module, layer);
  return found == no_group ? std::nullopt : std::optional(found);
}

}  // namespace

TEST_CASE("scaling: a set of numbers knows the first one it lacks") {
  constexpr std::size_t most = 20'000;  // several words above words
  number_set numbers;
  std::set<std::size_t> missing;
  numbers.make_room(most);
  for (std::size_t i = 0; i < most; ++i) {
    numbers.insert(i);
    if (i % 7919 == 7918) missing.insert(i);
  }
  for (const auto each : missing) numbers.erase(each);
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const auto each = random() % most;
    if (random() % 4 == 0) {
      numbers.erase(each);
      missing.insert(each);
    } else {
      numbers.insert(each);
      missing.erase(each);
    }
    const auto from = random() % most;
    const auto next = missing.lower_bound(from);
    const auto found = numbers.first_missing(from);
    REQUIRE((next == missing.end() ? found >= most : found == *next));
  }
  CHECK(numbers.first_missing(10 * most) == 10 * most);
}

TEST_CASE("scaling: a list keeps its order whatever goes from its middle") {
  tidepool::detail::slot_list<int> list;
  std::vector<std::pair<int, std::uint32_t>> model;
  std::mt19937 random(5);
  for (int i = 0; i < 10'000; ++i) {
    if (model.empty() || random() % 2 == 0) {
      model.emplace_back(i, list.push_back(i));
    } else {
      const auto at = model.begin() + static_cast<std::ptrdiff_t>(random() % model.size());
      REQUIRE(list[at->second] == at->first);
      list.erase(at->second);
      model.erase(at);
    }
    REQUIRE(list.size() == model.size());
    REQUIRE(list.empty() == model.empty());
    if (!model.empty()) REQUIRE(list[list.last()] == model.back().first);
  }
}

TEST_CASE("scaling: a part is found beside 10,000 others of its buffer") {
  const auto looks = [](std::size_t count) {
    std::deque<part_storage> parts;
    tidepool::detail::part_index<part_storage> index;
    for (std::size_t i = 0; i < count; ++i) {
      parts.push_back({i + 1, {7, {{256 * i, 128, 1, 128}}}});
      index.make_room();
      index.insert(parts.back());
    }
    compared = 0;
    for (auto& each : parts) CHECK(index.find(7, each.part.what) == &each);
    for (auto& each : parts) CHECK(index.find(8, each.part.what) == nullptr);
    for (auto& each : parts) index.erase(each);
    for (auto& each : parts) CHECK(index.find(7, each.part.what) == nullptr);
    return static_cast<double>(compared) / static_cast<double>(count);
  };
  CHECK(looks(10) >= 1);
  CHECK(looks(10'000) <= 3);
}

TEST_CASE("scaling: of equal parts the one made last is found, whatever order they come in") {
  std::deque<part_storage> parts;
  for (std::uint64_t i = 0; i < 8; ++i) parts.push_back({i + 1, {7, {{0, 64, 1, 64}}}});
  tidepool::detail::part_index<part_storage> index;
  for (const auto i : {3U, 7U, 0U, 5U, 1U, 6U, 2U, 4U}) {
    index.make_room();
    index.insert(parts[i]);
  }
  for (auto i = parts.size(); i-- > 0;) {
    REQUIRE(index.find(7, parts[0].part.what) == &parts[i]);
    index.erase(parts[i]);
  }
}

TEST_CASE("scaling: groups are found in any order, also between commits") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    chunk_state chunk;
    for (int use = 0; use < 2; ++use) {
      chunk.start({}, 0);
      const auto last_of = [&](module_id module, int layer) {
        std::optional<std::uint32_t> last;
        for (std::uint32_t i = 0; i < chunk.groups.size(); ++i) {
          const auto& each = chunk.groups[i];
          if (each.state != group_state::restored && each.module == module && each.layer == layer) {
            last = i;
          }
        }
        return last;
      };
      for (int i = 0; i < 120; ++i) {
        const auto module = static_cast<module_id>(random() % 3);
        const auto layer = static_cast<int>(random() % 12) - 1;
        if (random() % 2 == 0) {
          chunk.add(module, layer, 0);
          if (random() % 8 == 0) chunk.remove_last();
          continue;
        }
        const auto found = group_found(chunk, module, layer);
        REQUIRE(found == last_of(module, layer));
        if (found && random() % 2 == 0) chunk.mark_restored(chunk.groups[*found]);
      }
    }
  }
}

TEST_CASE("scaling: reloads come in the same order as if all chunks were looked at") {
  std::mt19937 random(13);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const std::size_t count = 1 + random() % 90;
    open_chunks open;
    std::vector<std::size_t> rank(count);
    for (std::size_t i = 0; i < count; ++i) rank[i] = i;
    if (round % 3 > 0) {
      std::vector<std::size_t> order(rank);
      if (round % 3 > 1) std::shuffle(order.begin(), order.end(), random);
      tidepool::plan::profile step;
      step.chunks.resize(1 + random() % count);
      for (const auto each : order) {
        if (each >= step.chunks.size()) continue;
        rank[each] = step.passes.size();
        step.passes.push_back({each, true});
      }
      open.expect_order(step);
    }
    for (int steps = 0; steps < 2; ++steps) {
      std::deque<chunk_state> chunks;
      std::vector<bool> over;
      std::size_t begun = 0;
      // As the engine had it before: every open chunk, every time.
      const auto expected = [&]() -> chunk_state* {
        for (std::size_t i = 0; i < chunks.size(); ++i) {
          auto& each = chunks[i];
          if (!over[i] && each.backward_begun && each.next_to_reload() != no_group) return &each;
        }
        for (auto next = begun;; ++next) {
          chunk_state* found = nullptr;
          for (std::size_t i = 0; i < chunks.size() && found == nullptr; ++i) {
            if (!over[i] && !chunks[i].backward_begun && rank[i] == next) found = &chunks[i];
          }
          if (found == nullptr || !found->forward_done) return nullptr;
          if (found->next_to_reload() != no_group) return found;
        }
      };
      const auto begin_backward = [&](chunk_state& chunk) {
        if (chunk.backward_begun) return;
        chunk.begin_backward();
        open.backward_begins(chunk);
        ++begun;
      };
      for (int i = 0; i < 600; ++i) {
        auto* const chunk =
            chunks.empty() ? nullptr : &chunks[static_cast<std::size_t>(random()) % chunks.size()];
        const bool is_over = chunk != nullptr && over[chunk->ordinal];
        const auto what = random() % 10;
        if (what < 3 && chunks.size() < count) {
          open.make_room(chunks.size() + 1);
          over.push_back(false);
          auto& fresh = chunks.emplace_back();
          fresh.start({}, chunks.size() - 1);
          open.add(fresh);
          for (auto groups = random() % 3; groups > 0; --groups) fresh.add(module_id{}, 0, 0);
          if (random() % 4 > 0) fresh.end_forward();
        } else if (what < 4 && chunk != nullptr && !is_over) {
          chunk->end_forward();
        } else if (what < 6 && chunk != nullptr && !is_over) {
          begin_backward(*chunk);
        } else if (what < 7 && chunk != nullptr && !is_over && chunk->forward_done &&
                   chunk->groups.size() > 0) {
          chunk->reload_again(static_cast<std::uint32_t>(random() % chunk->groups.size()));
          open.look_again(*chunk);
        } else if (what < 8 && chunk != nullptr && !is_over && random() % 2 == 0) {
          open.remove(*chunk);
          const bool latest = chunk->ordinal + 1 == chunks.size() && !chunk->backward_begun;
          over[chunk->ordinal] = true;
          if (latest) {
            open.reuse_latest(*chunk);
            chunks.pop_back();
            over.pop_back();
          } else {
            begin_backward(*chunk);
          }
        }
        auto* const next = open.next_to_reload();
        REQUIRE(next == expected());
        if (next != nullptr && random() % 2 == 0) {
          next->groups[next->next_to_reload()].state = group_state::arriving;
        }
      }
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        if (over[i]) continue;
        open.remove(chunks[i]);
        begin_backward(chunks[i]);
      }
      CHECK(open.first() == nullptr);
      open.step_ended();
    }
  }
}
