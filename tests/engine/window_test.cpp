#include "tidepool/rules/window.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <random>
#include <utility>

namespace {

using tidepool::ticket;
using tidepool::window;

ticket done(std::uint64_t order) { return {{}, order, order}; }

}  // namespace

TEST_CASE("window: without a cap it is never over") {
  window flying;
  CHECK_FALSE(flying.capped());
  for (std::uint64_t i = 1; i <= 100; ++i) flying.push(done(i), 1000);
  CHECK_FALSE(flying.over());
  CHECK(flying.groups() == 100);
  CHECK(flying.bytes() == 100'000);
}

TEST_CASE("window: a cap of groups") {
  window flying;
  flying.set({2, {}});
  CHECK(flying.capped());
  flying.push(done(1), 1);
  flying.push(done(2), 1);
  CHECK_FALSE(flying.over());
  flying.push(done(3), 1);
  CHECK(flying.over());
  CHECK(flying.oldest().order == 1);
  flying.pop();
  CHECK_FALSE(flying.over());
  CHECK(flying.oldest().order == 2);
}

TEST_CASE("window: a cap of 0 is over with the first group, and never when empty") {
  window flying;
  flying.set({0, {}});
  CHECK_FALSE(flying.over());
  flying.push(done(1), 1);
  CHECK(flying.over());
  flying.pop();
  CHECK_FALSE(flying.over());
}

TEST_CASE("window: a cap of bytes, beside that of groups") {
  window flying;
  flying.set({3, 100});
  flying.push(done(1), 60);
  flying.push(done(2), 40);
  CHECK_FALSE(flying.over());
  flying.push(done(3), 1);
  CHECK(flying.over());
  flying.pop();
  CHECK(flying.bytes() == 41);
  CHECK_FALSE(flying.over());
  flying.push(done(4), 1);
  flying.push(done(5), 1);
  CHECK(flying.over());  // four groups
}

TEST_CASE("window: one group above the cap of bytes is over alone") {
  window flying;
  flying.set({{}, 100});
  flying.push(done(1), 101);
  CHECK(flying.over());
  flying.pop();
  CHECK_FALSE(flying.over());
  CHECK(flying.bytes() == 0);
}

TEST_CASE("window: first in, first out, however it grows and wraps") {
  window flying;
  std::deque<std::pair<std::uint64_t, std::size_t>> model;
  std::mt19937_64 random(3);
  std::size_t bytes = 0;
  for (std::uint64_t i = 1; i <= 5000; ++i) {
    const bool filling = (i / 700) % 2 == 0;
    if (model.empty() || random() % 10 < (filling ? 7U : 3U)) {
      const std::size_t size = random() % 1000;
      flying.push(done(i), size);
      model.emplace_back(i, size);
      bytes += size;
    } else {
      CHECK(flying.oldest().order == model.front().first);
      bytes -= model.front().second;
      model.pop_front();
      flying.pop();
    }
    CHECK(flying.groups() == model.size());
    CHECK(flying.bytes() == bytes);
    CHECK(flying.empty() == model.empty());
  }
}

TEST_CASE("window: the latest offload is taken back, also where the queue is wrapped") {
  window flying;
  flying.set({2, {}});
  for (std::uint64_t i = 1; i <= 50; ++i) {
    CAPTURE(i);
    flying.push(done(i), i);
    flying.push(done(1000 + i), 7);
    flying.take_back();
    if (flying.over()) flying.pop();
    CHECK(flying.groups() == (i < 2 ? i : 2));
    CHECK(flying.bytes() == (i < 2 ? i : 2 * i - 1));
    CHECK(flying.oldest().order == (i < 2 ? i : i - 1));
  }
}
