// What the engine keeps of the chunks of a step: their groups, which of them are open, and from
// which one it reloads next.
#include "tidepool/engine/open_chunks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "heap_counter.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/plan/profile.hpp"

namespace {

using tidepool::module_id;
using tidepool::detail::chunk_state;
using tidepool::detail::group_state;
using tidepool::detail::no_group;
using tidepool::detail::number_set;
using tidepool::detail::open_chunks;
using tidepool::test::heap_allocations;

constexpr module_id fc1{0};

// A step in which these chunks of `count` have a backward pass, in this order.
tidepool::plan::profile step_of(std::size_t count, const std::vector<std::size_t>& backward) {
  tidepool::plan::profile step;
  step.chunks.resize(count);
  for (const auto each : backward) step.passes.push_back({each, true});
  return step;
}

// Chunks whose forward passes are over, each with one group that is away.
class opened {
 public:
  explicit opened(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      auto& fresh = chunks.emplace_back();
      fresh.start({}, i);
      open.make_room(i + 1);
      open.add(fresh);
      fresh.add(fc1, 0, 0);
      fresh.end_forward();
    }
  }

  void begin_backward(std::size_t which) {
    chunks[which].begin_backward();
    open.backward_begins(chunks[which]);
  }
  void arrive(std::size_t which) { chunks[which].groups[0].state = group_state::arriving; }

  std::deque<chunk_state> chunks;
  open_chunks open;
};

}  // namespace

TEST_CASE("open chunks: a set of numbers that is full lacks the one behind its last") {
  for (const std::size_t words : {1U, 2U, 63U, 64U, 65U, 128U, 130U}) {
    CAPTURE(words);
    const auto count = words * 64;
    number_set numbers;
    numbers.make_room(count);
    for (std::size_t i = 0; i < count; ++i) numbers.insert(i);
    for (const auto from : {std::size_t{0}, count / 2, count - 1, count, count + 5}) {
      CHECK(numbers.first_missing(from) == std::max(from, count));
    }
    numbers.erase(count - 1);
    CHECK(numbers.first_missing(0) == count - 1);
  }
}

TEST_CASE("open chunks: the first of those that are open is known, whatever was closed") {
  std::mt19937 random(17);
  for (int round = 0; round < 50; ++round) {
    CAPTURE(round);
    opened step(1 + random() % 12);
    std::vector<const chunk_state*> left;
    for (const auto& each : step.chunks) left.push_back(&each);
    while (!left.empty()) {
      CHECK(step.open.first() == left.front());
      const auto gone = left.begin() + static_cast<std::ptrdiff_t>(random() % left.size());
      step.open.remove(**gone);
      left.erase(gone);
    }
    CHECK(step.open.first() == nullptr);
  }
}

TEST_CASE("open chunks: a chunk that had no backward pass is not reloaded ahead of one") {
  opened step(3);
  step.open.expect_order(step_of(3, {2}));
  CHECK(step.open.next_to_reload() == &step.chunks[2]);
  step.begin_backward(2);
  step.arrive(2);
  CHECK(step.open.next_to_reload() == nullptr);
  step.begin_backward(1);
  CHECK(step.open.next_to_reload() == &step.chunks[1]);
}

// Beyond it lies memory of others.
TEST_CASE("open chunks: there is room for the rank of every chunk of the step that is expected") {
  for (const std::size_t count : {63U, 64U, 65U, 128U, 500U}) {
    CAPTURE(count);
    opened step(2);
    std::vector<std::size_t> backward;
    for (auto i = count; i-- > 1;) backward.push_back(i);
    step.open.expect_order(step_of(count, backward));
    step.begin_backward(0);  // which had none: it comes behind all others
    CHECK(step.open.next_to_reload() == &step.chunks[0]);
    step.begin_backward(1);  // the last of them
    step.arrive(0);
    CHECK(step.open.next_to_reload() == &step.chunks[1]);
  }
}

TEST_CASE("open chunks: room for one chunk more seldom takes memory") {
  const std::size_t most = 4096;
  open_chunks open;
  std::uint64_t with_memory = 0;
  for (std::size_t i = 1; i <= most; ++i) {
    const auto before = heap_allocations();
    open.make_room(i);
    with_memory += heap_allocations() > before ? 1 : 0;
  }
  CHECK(with_memory <= 13);  // as often as 1 can be doubled
}

TEST_CASE("open chunks: groups come back last first, and once more when they have to") {
  std::mt19937 random(19);
  chunk_state chunk;
  for (int use = 0; use < 400; ++use) {
    CAPTURE(use);
    chunk.start({}, 0);
    const auto count = static_cast<std::uint32_t>(random() % 7);
    const auto expected = [&] {
      for (auto i = count; chunk.forward_done && i-- > 0;) {
        const auto& each = chunk.groups[i];
        if (each.state == group_state::away && each.awaited) return i;
      }
      return no_group;
    };
    REQUIRE(chunk.next_to_reload() == no_group);
    for (std::uint32_t i = 0; i < count; ++i) {
      chunk.add(fc1, static_cast<int>(i), 1).which.awaited = random() % 5 > 0;
      REQUIRE(chunk.next_to_reload() == no_group);
    }
    chunk.end_forward();
    for (int i = 0; i < 20; ++i) {
      const auto next = chunk.next_to_reload();
      REQUIRE(next == expected());
      if (count == 0) continue;
      const auto any = static_cast<std::uint32_t>(random() % count);
      if (next != no_group && random() % 2 == 0) {
        chunk.groups[next].state = group_state::arriving;
      } else if (chunk.groups[any].state == group_state::arriving) {
        random() % 2 == 0 ? chunk.reload_again(any) : chunk.mark_restored(chunk.groups[any]);
      }
    }
  }
}

TEST_CASE("open chunks: a group begins with nothing, also where others have been") {
  chunk_state chunk;
  for (int use = 0; use < 3; ++use) {
    chunk.start({}, 0);
    for (int layer = 0; layer < 4; ++layer) {
      const auto [which, items] = chunk.add(fc1, layer, 3);
      CHECK(which.state == group_state::away);
      CHECK(which.awaited);
      CHECK(which.count == 0);
      CHECK(which.leaving == 0);
      CHECK(which.bytes == 0);
      CHECK(which.kept == 0);
      for (int i = 0; i < 3; ++i) {
        CHECK(items[i].store == nullptr);
        CHECK(items[i].source == nullptr);
        items[i].number = 7;
      }
      which.bytes = which.kept = which.count = which.leaving = 5;
      if (layer % 2 == 1) chunk.remove_last();
    }
    CHECK(chunk.waiting == 2);
  }
}

TEST_CASE("open chunks: commits that fail take no memory, however many there are") {
  chunk_state chunk;
  chunk.start({}, 0);
  chunk.add(fc1, 0, 4);
  chunk.add(fc1, 1, 64);
  chunk.remove_last();
  const auto before = heap_allocations();
  for (int i = 0; i < 1000; ++i) {
    chunk.add(fc1, 1, 64);
    chunk.remove_last();
  }
  CHECK(heap_allocations() == before);
}
