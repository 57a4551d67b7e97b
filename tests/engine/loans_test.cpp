// What a loan begins and ends with: names, numbers, forks, graphs, and what fails half-way.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "heap_fault.hpp"
#include "messages.hpp"
#include "process_state.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/places/detail/loan.hpp"
#include "tidepool/places/lending.hpp"

namespace {

using tidepool::lend;
using tidepool::loan_handle;
using tidepool::virtual_device;
using tidepool::test::heap_now;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"fc1">>;
using borrowed_pages = tidepool::detail::loan_pages;
using hardware = tidepool::detail::hardware_of<virtual_device>;

constexpr std::size_t page = 4096;

// Tells when memory that it has lent goes back.
struct watched : virtual_device {
  std::function<void()> before_drop;

  void drop_export(std::uint64_t id) noexcept {
    if (before_drop) before_drop();
    virtual_device::drop_export(id);
  }
};

void step(rig& desk, offloader& off) {
  auto chunk = off.begin();
  auto x = off.allocate(2048, desk.stream());
  desk.write(x, 3);
  chunk.commit<"fc1">(0, desk.stream(), x);
  chunk.end_forward();
  chunk.restore<"fc1">(0, desk.stream(), x);
  desk.check(x, 3);
  x.reset(desk.stream());
  chunk.finish();
  off.end_step();
}

// The handle with the letters of its format changed from this one on.
std::string refusal_of(const loan_handle& from, std::size_t at) {
  std::array<char, sizeof(loan_handle)> bytes{};
  std::memcpy(bytes.data(), &from, sizeof bytes);
  bytes[at] = '?';
  loan_handle changed;
  std::memcpy(&changed, bytes.data(), sizeof bytes);
  virtual_device dev;
  hardware on(dev);
  return message_of([&] { const borrowed_pages pages(on, changed); });
}

}  // namespace

TEST_CASE(
    "loans: a lender's name is cut where it is too long, and its process is named all the same") {
  virtual_device dev;
  const std::string process = " (process " + std::to_string(::getpid()) + ")";
  for (const std::size_t length : {30U, 31U, 32U, 33U, 400U}) {
    CAPTURE(length);
    const std::string name(length, 'n');
    const auto lent = lend(dev, page, name);
    CHECK(lent.handle().lender() == name.substr(0, 31) + process);
    CHECK(lent.handle().bytes() == page);
  }
}

TEST_CASE("loans: bytes that begin like a handle are of another version, all others are none") {
  virtual_device dev;
  const auto lent = lend(dev, page);
  for (std::size_t at = 0; at < 6; ++at) {
    CAPTURE(at);
    CHECK(says(refusal_of(lent.handle(), at), "these bytes are not a handle"));
  }
  CHECK(says(refusal_of(lent.handle(), 6), "the format '?2' of another version of Tidepool"));
  CHECK(says(refusal_of(lent.handle(), 7), "the format '0?' of another version of Tidepool"));
}

TEST_CASE("loans: of two loans of one device each goes back with its own") {
  virtual_device dev;
  const auto before = dev.memory().free;
  {
    auto small = lend(dev, page);
    auto large = lend(dev, 3 * page);
    small = std::move(large);
    CHECK(small.bytes() == 3 * page);
    {
      const auto gone = std::move(large);  // what the first had
      CHECK(gone.bytes() == page);
    }
    CHECK(dev.memory().free == before - 3 * page);
  }
  CHECK(dev.memory().free == before);
}

TEST_CASE("loans: memory that nobody could be served is the lender's own again") {
  virtual_device dev;
  const auto before = dev.memory().free;
  {
    const tidepool::test::without_threads none;
    try {
      const auto lent = lend(dev, page, "rank 1");
      FAIL("nobody could serve it");
    } catch (const tidepool::lender_error& problem) {
      CHECK(says(problem.what(), "lend: no borrower could be served: "));
      CHECK(says(problem.what(), "see how many descriptors and threads a process may have"));
      CHECK(problem.lender == "rank 1 (process " + std::to_string(::getpid()) + ")");
    }
  }
  CHECK(dev.memory().free == before);
  std::size_t failed = 0;
  for (std::uint64_t number = 1; number <= failed + 1; ++number) {
    CAPTURE(number);
    heap_now = {true, 0, number};
    try {
      const auto lent = lend(dev, page);
    } catch (const std::bad_alloc&) {
      ++failed;
    }
    heap_now = {};
    CHECK(dev.memory().free == before);
  }
  CHECK(failed >= 3);  // the device's list, the socket, the thread
}

TEST_CASE("loans: a borrower is told before the memory goes back") {
  watched lender;
  virtual_device dev;
  std::optional lent = lend(lender, page, "rank 1");
  hardware on(dev);
  const borrowed_pages pages(on, lent->handle());
  CHECK(pages.here());
  std::string happened;
  lender.before_drop = [&] { happened = pages.here() ? "" : pages.what_happened(); };
  lent.reset();
  CHECK(says(happened, "wants its memory back"));
}

TEST_CASE("loans: what a forked copy of a borrower lets go its parent still has") {
  virtual_device lender;
  virtual_device dev;
  auto lent = lend(lender, page);
  hardware on(dev);
  std::optional<borrowed_pages> pages(std::in_place, on, lent.handle());
  pages->confirm();
  const auto copy = ::fork();
  REQUIRE(copy >= 0);
  if (copy == 0) {
    pages.reset();
    ::_exit(0);
  }
  ::waitpid(copy, nullptr, 0);
  CHECK(pages->here());
  CHECK(lent.in_use());
  pages.reset();
  CHECK_FALSE(lent.in_use());
}

TEST_CASE("loans: memory is lent once, and not again when its borrower has let it go") {
  virtual_device lender;
  const auto lent = lend(lender, page, "rank 1");
  rig desk;
  offloader first(desk.dev, small_options());
  offloader second(desk.dev, small_options());
  first.borrow(lent.handle());
  step(desk, first);
  first.return_loan();
  CHECK_FALSE(lent.in_use());
  CHECK_THROWS_AS(second.borrow(lent.handle()), tidepool::lender_error);
  CHECK_FALSE(lent.in_use());
}

TEST_CASE("loans: a graph of before knows nothing of a loan, which may be given back") {
  virtual_device lender;
  rig desk;
  auto opts = small_options();
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  step(desk, off);
  auto before = off.capture(desk.stream(), [&] { step(desk, off); });
  for (int i = 0; i < 2; ++i) {
    const auto lent = lend(lender, page);
    off.borrow(lent.handle());
    step(desk, off);
    CHECK(lent.in_use());
    CHECK(message_of([&] { off.return_loan(); }).empty());
    CHECK_FALSE(lent.in_use());
    before.launch(desk.stream());
  }
  CHECK(desk.wrong() == 0);
}
