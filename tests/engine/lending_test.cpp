// Memory that one process lends to another, as a place that groups are offloaded to.
#include "tidepool/places/lending.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "faulty_device.hpp"
#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/places/detail/loan.hpp"
#include "tidepool/plan.hpp"

namespace {

using tidepool::lend;
using tidepool::lender_gone;
using tidepool::loan_handle;
using tidepool::machine;
using tidepool::options;
using tidepool::place_kind;
using tidepool::virtual_device;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"fc1">>;
using tidepool::test::call_kind;
using faulty = tidepool::test::faulty_device<virtual_device>;
using faulty_offloader = tidepool::offloader<faulty, tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

struct other_device : virtual_device {
  static constexpr std::string_view name = "other";
};

struct long_named : virtual_device {
  static constexpr std::string_view name = "a name of many letters, A";
};
struct nearly_so_named : virtual_device {
  static constexpr std::string_view name = "a name of many letters, B";
};

// Of a place whose name begins so; nothing where there is none.
std::optional<tidepool::trace::place_counters> find(const offloader& off, std::string_view name) {
  const auto totals = off.counters();
  const auto found = std::ranges::find_if(
      totals.places, [&](const auto& each) { return each.name.starts_with(name); });
  if (found == totals.places.end()) return std::nullopt;
  return *found;
}
std::uint64_t sent_to(const offloader& off, std::string_view name) {
  const auto place = find(off, name);
  return place ? place->bytes_offloaded : 0;
}

template <class Error, class Call>
std::string words_of(const Call& call) {
  try {
    call();
  } catch (const Error& problem) {
    return problem.what();
  }
  return {};
}

// One step: a tensor for each layer, written, committed as a group and looked at when it is back.
// `between` runs where all of them are away.
template <class Between>
void step(rig& desk, offloader& off, int layers, const Between& between) {
  auto chunk = off.begin();
  std::vector<rig::buffer> saved;
  for (int l = 0; l < layers; ++l) {
    auto& x = saved.emplace_back(off.allocate(size, desk.stream()));
    desk.write(x, static_cast<std::uint32_t>(l) + 3);
    chunk.commit<"fc1">(l, desk.stream(), x);
  }
  chunk.end_forward();
  between();
  for (int l = layers; l-- > 0;) {
    auto& x = saved[static_cast<std::size_t>(l)];
    chunk.restore<"fc1">(l, desk.stream(), x);
    desk.check(x, static_cast<std::uint32_t>(l) + 3);
    x.reset(desk.stream());
  }
  chunk.finish();
  off.end_step();
  desk.dev.synchronize();
}
void step(rig& desk, offloader& off, int layers) {
  step(desk, off, layers, [] {});
}

// The same in two parts, for graphs.
auto graph_forward(rig& desk, offloader& off, std::vector<rig::buffer>& saved) {
  auto chunk = off.begin();
  for (std::size_t l = 0; l < saved.size(); ++l) {
    saved[l] = off.allocate(size, desk.stream());
    desk.write(saved[l], static_cast<std::uint32_t>(l) + 3);
    chunk.commit<"fc1">(static_cast<int>(l), desk.stream(), saved[l]);
  }
  chunk.end_forward();
  return chunk;
}
void graph_backward(rig& desk, offloader& off, std::vector<rig::buffer>& saved,
                    offloader::chunk& chunk) {
  for (auto l = saved.size(); l-- > 0;) {
    chunk.restore<"fc1">(static_cast<int>(l), desk.stream(), saved[l]);
    desk.check(saved[l], static_cast<std::uint32_t>(l) + 3);
    saved[l].reset(desk.stream());
  }
  chunk.finish();
  off.end_step();
}
void graph_step(rig& desk, offloader& off) {
  std::vector<rig::buffer> saved(2);
  auto chunk = graph_forward(desk, off, saved);
  graph_backward(desk, off, saved, chunk);
}

options no_reload_ahead() {
  auto opts = small_options();
  opts.reload_ahead = 0;
  return opts;
}

// A process that lends and then waits for its end. It has none of this one's threads.
class lending_process {
 public:
  explicit lending_process(std::size_t bytes) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      virtual_device dev;
      const auto lent = lend(dev, bytes, "the other");
      const auto written = ::write(ends[1], &lent.handle(), sizeof(loan_handle));
      while (written == sizeof(loan_handle)) ::pause();
      ::_exit(1);
    }
    ::close(ends[1]);
    const auto got = ::read(ends[0], &handle_, sizeof handle_);
    ::close(ends[0]);
    REQUIRE(got == sizeof handle_);
  }
  lending_process(const lending_process&) = delete;
  lending_process& operator=(const lending_process&) = delete;
  ~lending_process() { kill(); }
  void kill() {
    if (process_ == 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  [[nodiscard]] const loan_handle& handle() const { return handle_; }
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
  loan_handle handle_;
};

}  // namespace

TEST_CASE("lending: groups go to lent memory first, then to the host, and come back in 40 orders") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    virtual_device neighbour;
    const auto lent = lend(neighbour, 2 * 4096, "rank 1");
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, small_options());
    off.borrow(lent.handle());
    for (int i = 0; i < 3; ++i) step(desk, off, 6);
    CHECK(desk.wrong() == 0);
    const auto place = find(off, "peer, rank 1 (process ");
    REQUIRE(place);
    CHECK(place->budget == 8192);
    CHECK(place->peak == 8192);
    CHECK(place->bytes_offloaded >= std::size_t{3} * 4 * size);
    CHECK(place->bytes_reloaded == place->bytes_offloaded);
    CHECK(sent_to(off, "host") > 0);
  }
}

TEST_CASE("lending: a lender has less memory, until it takes it back and the borrower lets it go") {
  virtual_device neighbour;
  const auto before = neighbour.memory().free;
  {
    const auto lent = lend(neighbour, 5000);
    CHECK(lent.bytes() == 4096);
    CHECK(neighbour.memory().free == before - 4096);
  }
  CHECK(neighbour.memory().free == before);
  CHECK(
      says(words_of<tidepool::out_of_budget>([&] { (void)lend(neighbour, before + 4096); }),
           "is not there; " + tidepool::detail::text::size_text(before) + " are free. Lend less"));
  CHECK(says(words_of<tidepool::misuse_error>([&] { (void)lend(neighbour, 100); }),
             "100 bytes are less than a page"));
  CHECK(neighbour.memory().free == before);
}

TEST_CASE("lending: bytes that are no handle, or another version's, are refused by name") {
  virtual_device neighbour;
  auto lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  offloader off(desk.dev, small_options());
  const auto refusal = [&](auto change) {
    std::array<unsigned char, sizeof(loan_handle)> bytes{};
    std::memcpy(bytes.data(), &lent.handle(), sizeof bytes);
    change(bytes);
    loan_handle changed;
    std::memcpy(&changed, bytes.data(), sizeof bytes);
    return words_of<tidepool::misuse_error>([&] { off.borrow(changed); });
  };
  CHECK(says(refusal([](auto& bytes) { bytes.fill(0xAB); }), "these bytes are not a handle"));
  CHECK(says(refusal([](auto& bytes) { bytes.fill(0); }), "these bytes are not a handle"));
  CHECK(says(refusal([](auto& bytes) { bytes[7] = '1'; }), "the format '01' of another version"));
  for (const std::size_t at : {8U, 16U, 24U, 40U, 80U, 128U}) {
    CAPTURE(at);
    CHECK(says(refusal([&](auto& bytes) { bytes[at] ^= 1U; }), "changed on its way"));
  }
  CHECK(says(words_of<tidepool::misuse_error>([&] { off.borrow(loan_handle()); }),
             "names no memory"));
  // None of these has taken it.
  CHECK_FALSE(lent.in_use());
  off.borrow(lent.handle());
  step(desk, off, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("lending: what is lent changes hands with all that belongs to it") {
  virtual_device one;
  virtual_device other;
  const auto free_of_one = one.memory().free;
  const auto free_of_other = other.memory().free;
  {
    auto lent = lend(one, 4096, "rank 1");
    auto second = lend(other, 2 * 4096, "rank 2");
    const auto handle = second.handle();
    lent = std::move(second);
    CHECK(lent.bytes() == 2 * 4096);
    CHECK(lent.handle().lender() == handle.lender());
    {
      const auto gone = std::move(second);  // what the first had
      CHECK(gone.bytes() == 4096);
    }
    CHECK(one.memory().free == free_of_one);
    CHECK(other.memory().free == free_of_other - 2 * 4096);
    rig desk;
    offloader off(desk.dev, small_options());
    off.borrow(lent.handle());
    CHECK(lent.in_use());
    step(desk, off, 2);
    CHECK(desk.wrong() == 0);
    off.return_loan();
    CHECK_FALSE(lent.in_use());
  }
  CHECK(one.memory().free == free_of_one);
  CHECK(other.memory().free == free_of_other);
}

TEST_CASE("lending: borrowed memory is handed out once, and whole") {
  virtual_device neighbour;
  virtual_device dev;
  const auto lent = lend(neighbour, 4096, "rank 1");
  tidepool::detail::hardware_of<virtual_device> hardware(dev);
  tidepool::detail::loan_pages pages(hardware, lent.handle());
  CHECK(pages.try_allocate(4097) == nullptr);
  CHECK(pages.free_bytes() == 4096);
  auto* const all = static_cast<std::byte*>(pages.try_allocate(4096));
  REQUIRE(all != nullptr);
  CHECK(pages.free_bytes() == 0);
  CHECK(pages.try_allocate(1) == nullptr);
  CHECK(pages.holds(all));
  CHECK(pages.holds(all + 4095));
  CHECK_FALSE(pages.holds(all + 4096));
  CHECK_FALSE(pages.holds(all - 1));
  CHECK_FALSE(pages.holds(nullptr));
  pages.deallocate(all);
  CHECK(pages.try_allocate(1) == all);
}

TEST_CASE("lending: copies to a neighbour take two of the streams that an offloader serves") {
  const auto borrow_beside = [](int streams) {
    virtual_device neighbour;
    const auto lent = lend(neighbour, 4096, "rank 1");
    rig desk;
    offloader off(desk.dev, small_options());
    std::vector<virtual_device::stream> others;
    for (int i = 0; i < streams; ++i) {
      others.push_back(desk.dev.make_stream());
      off.allocate(size, others.back().ref()).reset(others.back().ref());
    }
    return words_of<tidepool::misuse_error>([&] { off.borrow(lent.handle()); });
  };
  CHECK(borrow_beside(4).empty());
  CHECK(says(borrow_beside(5),
             "take two of the 8 streams that an offloader serves, and 7 are in"
             " use; use fewer, or borrow before the first step"));
}

TEST_CASE("lending: one borrower has the memory, and another is refused at once") {
  virtual_device neighbour;
  const auto lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  offloader first(desk.dev, small_options());
  first.borrow(lent.handle());
  offloader second(desk.dev, small_options());
  try {
    second.borrow(lent.handle());
    FAIL("lent twice");
  } catch (const tidepool::lender_error& problem) {
    CHECK(problem.lender == lent.handle().lender());
    CHECK(says(problem.what(), "lent it to another"));
    CHECK(says(problem.what(), "have it lend again, or go on without"));
  }
  CHECK(says(words_of<tidepool::misuse_error>([&] { first.borrow(lent.handle()); }),
             "call return_loan first"));
  step(desk, first, 2);
  step(desk, second, 2);
  CHECK(sent_to(first, "peer") == 2 * size);
  CHECK(sent_to(second, "peer") == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "lending: memory taken back in a step serves it to its end, and is an error at the next") {
  virtual_device neighbour;
  auto lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  offloader off(desk.dev, no_reload_ahead());
  off.borrow(lent.handle());
  step(desk, off, 2);
  step(desk, off, 2, [&] {
    lent.take_back();
    CHECK(says(words_of<tidepool::misuse_error>([&] { off.return_loan(); }),
               "4096 bytes lie there and have not come back"));
  });
  CHECK(desk.wrong() == 0);
  CHECK(lent.in_use());
  const auto text = words_of<tidepool::lender_error>([&] { step(desk, off, 2); });
  CHECK(says(text, "begin: rank 1 (process " + std::to_string(::getpid()) +
                       ") wants its memory back; nothing is lost. Call return_loan"));
  off.return_loan();
  CHECK_FALSE(lent.in_use());
  step(desk, off, 2);
  CHECK(desk.wrong() == 0);
  CHECK(sent_to(off, "peer") == 4 * size);
  CHECK(sent_to(off, "host") == 2 * size);
}

TEST_CASE("lending: memory that a lender gave up is its own once the borrower has let it go") {
  virtual_device neighbour;
  const auto before = neighbour.memory().free;
  std::optional lent = lend(neighbour, 4096);
  rig desk;
  offloader off(desk.dev, small_options());
  off.borrow(lent->handle());
  step(desk, off, 2);
  lent.reset();
  CHECK(neighbour.memory().free == before - 4096);
  off.return_loan();
  CHECK(neighbour.memory().free == before);
  // As long as its borrower lives, where that is another process.
  lent = lend(neighbour, 4096);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const auto borrower = ::fork();
  REQUIRE(borrower >= 0);
  if (borrower == 0) {
    virtual_device dev;
    offloader other(desk.dev, small_options());
    other.borrow(lent->handle());
    if (::write(ends[1], "y", 1) == 1) ::pause();
    ::_exit(1);
  }
  char ready = 0;
  CHECK(::read(ends[0], &ready, 1) == 1);
  lent.reset();
  CHECK(neighbour.memory().free == before - 4096);
  ::kill(borrower, SIGKILL);
  ::waitpid(borrower, nullptr, 0);
  CHECK(neighbour.memory().free == before);
  for (const int end : ends) ::close(end);
}

TEST_CASE("lending: a borrower that moves on says so once, and may borrow again") {
  virtual_device neighbour;
  std::optional lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  offloader off(desk.dev, small_options());
  std::vector<std::string> said;
  off.on_report([&](std::string_view line) { said.emplace_back(line); });
  off.borrow(lent->handle(), lender_gone::moves_on);
  step(desk, off, 2);
  lent.reset();
  said.clear();
  for (int i = 0; i < 2; ++i) step(desk, off, 2);
  REQUIRE(said.size() == 1);
  CHECK(says(said[0], "places: rank 1 (process "));
  CHECK(says(said[0], "groups go to the next place from now on"));
  CHECK(sent_to(off, "peer") == 2 * size);
  lent = lend(neighbour, 4096, "rank 2");
  off.borrow(lent->handle());
  step(desk, off, 2);
  CHECK(sent_to(off, "peer, rank 2") == 4 * size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("lending: a borrower that ends first leaves its lender whole") {
  virtual_device neighbour;
  const auto before = neighbour.memory().free;
  {
    const auto lent = lend(neighbour, 4096);
    CHECK_FALSE(lent.in_use());
    {
      rig desk;
      offloader off(desk.dev, small_options());
      off.borrow(lent.handle());
      CHECK(lent.in_use());
      step(desk, off, 2);
      CHECK(desk.wrong() == 0);
    }
    CHECK_FALSE(lent.in_use());
  }
  CHECK(neighbour.memory().free == before);
}

TEST_CASE("lending: what cannot go together is refused with the remedy") {
  virtual_device neighbour;
  const auto lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  auto opts = small_options();
  opts.places = {place_kind::peer, place_kind::host};
  opts.peer_budget = 4096;
  offloader has_one(desk.dev, opts);
  CHECK(says(words_of<tidepool::misuse_error>([&] { has_one.borrow(lent.handle()); }),
             "take --places=peer out"));

  offloader off(desk.dev, small_options());
  off.borrow(lent.handle());
  step(desk, off, 2);
  auto graph = off.capture(desk.stream(), [&] {
    CHECK(says(words_of<tidepool::misuse_error>([&] { off.borrow(lent.handle()); }), "a capture"));
  });
  CHECK(says(words_of<tidepool::misuse_error>([&] { off.return_loan(); }), "graphs were captured"));

  other_device stranger;
  const auto of_another_kind = lend(stranger, 4096, "rank 2");
  offloader third(desk.dev, small_options());
  CHECK(
      says(words_of<tidepool::lender_error>([&] { third.borrow(of_another_kind.handle()); }),
           "lends memory of a device of the kind 'other', and this one is of the kind 'virtual'"));
}

TEST_CASE("lending: a lender that is killed in a step costs no bit, and is named within seconds") {
  lending_process lender(4096);
  const auto name = "the other (process " + std::to_string(lender.process()) + ")";
  rig desk;
  offloader off(desk.dev, no_reload_ahead());
  off.borrow(lender.handle());
  step(desk, off, 2);
  step(desk, off, 2, [&] { lender.kill(); });
  CHECK(desk.wrong() == 0);
  const auto begun = std::chrono::steady_clock::now();
  const auto text = words_of<tidepool::lender_error>([&] { step(desk, off, 2); });
  CHECK(says(text, "begin: " + name + ", which lent memory, has ended; nothing is lost"));
  off.return_loan();
  const auto again = words_of<tidepool::lender_error>([&] { off.borrow(lender.handle()); });
  CHECK(says(again, "borrow: " + name + " does not lend: it has ended"));
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
  step(desk, off, 2);
  CHECK(desk.wrong() == 0);
  CHECK(sent_to(off, "host") == 2 * size);
}

TEST_CASE("lending: a borrower that is killed is gone for its lender") {
  std::array<int, 2> to_borrower{};
  std::array<int, 2> from_borrower{};
  REQUIRE(::pipe(to_borrower.data()) == 0);
  REQUIRE(::pipe(from_borrower.data()) == 0);
  const auto borrower = ::fork();
  REQUIRE(borrower >= 0);
  if (borrower == 0) {
    loan_handle handle;
    if (::read(to_borrower[0], &handle, sizeof handle) != sizeof handle) ::_exit(1);
    rig desk;
    offloader off(desk.dev, small_options());
    off.borrow(handle);
    step(desk, off, 2);
    const char right = desk.wrong() == 0 && sent_to(off, "peer") == 2 * size ? 'y' : 'n';
    if (::write(from_borrower[1], &right, 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  virtual_device neighbour;
  const auto lent = lend(neighbour, 4096);
  REQUIRE(::write(to_borrower[1], &lent.handle(), sizeof(loan_handle)) == sizeof(loan_handle));
  ::close(from_borrower[1]);
  char right = 0;
  CHECK(::read(from_borrower[0], &right, 1) == 1);
  CHECK(right == 'y');
  CHECK(lent.in_use());
  ::kill(borrower, SIGKILL);
  ::waitpid(borrower, nullptr, 0);
  CHECK_FALSE(lent.in_use());
  for (const int end : {to_borrower[0], to_borrower[1], from_borrower[0]}) ::close(end);
}

TEST_CASE("lending: a forked copy takes nothing back, and holds nothing") {
  virtual_device neighbour;
  std::optional lent = lend(neighbour, 4096);
  rig desk;
  offloader off(desk.dev, small_options());
  const auto early = ::fork();
  REQUIRE(early >= 0);
  if (early == 0) {
    lent.reset();
    ::_exit(0);
  }
  ::waitpid(early, nullptr, 0);
  off.borrow(lent->handle());
  const auto late = ::fork();
  REQUIRE(late >= 0);
  if (late == 0) {
    while (true) ::pause();
  }
  step(desk, off, 2);
  CHECK(sent_to(off, "peer") == 2 * size);
  CHECK(lent->in_use());
  off.return_loan();
  CHECK_FALSE(lent->in_use());
  ::kill(late, SIGKILL);
  ::waitpid(late, nullptr, 0);
}

TEST_CASE("lending: a capture that failed made no graph, and keeps no loan") {
  virtual_device neighbour;
  const auto lent = lend(neighbour, 4096);
  rig desk;
  offloader off(desk.dev, small_options());
  off.borrow(lent.handle());
  step(desk, off, 2);
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), [] { throw 1; })), int);
  off.return_loan();
  CHECK_FALSE(lent.in_use());
}

TEST_CASE("lending: a borrower that could not use the memory leaves it to the next") {
  virtual_device neighbour;
  const auto lent = lend(neighbour, 4096, "rank 1");
  faulty dev;
  faulty_offloader off(dev, small_options());
  const auto before = dev.held().streams;
  // Streams, then events of two lanes: each fails once, after the lender has been asked.
  for (const tidepool::test::fault& late : {tidepool::test::fault{call_kind::make_stream, 1},
                                            {call_kind::make_stream, 2},
                                            {call_kind::make_event, 1},
                                            {call_kind::make_event, 1500}}) {
    dev.arm(late);
    CHECK_THROWS_AS(off.borrow(lent.handle()), tidepool::device_error);
    CHECK(dev.tripped());
    dev.disarm();
    CHECK_FALSE(lent.in_use());
    CHECK(dev.held().streams == before);
  }
  rig desk;
  offloader other(desk.dev, small_options());
  other.borrow(lent.handle());
  CHECK(lent.in_use());
  step(desk, other, 2);
  CHECK(sent_to(other, "peer") == 2 * size);
  CHECK(desk.wrong() == 0);
  CHECK_THROWS_AS(off.borrow(lent.handle()), tidepool::lender_error);
}

TEST_CASE(
    "lending: a lender that takes back while a borrower makes up its mind is not waited for") {
  virtual_device neighbour;
  std::optional lent = lend(neighbour, 4096, "rank 1");
  loan_handle handle = lent->handle();
  tidepool::detail::socket_name socket{};
  std::memcpy(socket.data(), reinterpret_cast<const char*>(&handle) + 80, socket.size());
  const auto link = tidepool::detail::ask_lender(socket);
  REQUIRE(link.memory);
  CHECK(lent->in_use());
  const auto begun = std::chrono::steady_clock::now();
  lent.reset();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
  CHECK(tidepool::detail::look_at(link.lender.get()) == tidepool::detail::far_end::said_so);
}

TEST_CASE("lending: who moves on waits for copies to that memory alone, and says so first") {
  virtual_device neighbour;
  auto lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  offloader off(desk.dev, small_options());
  bool still_there = false;
  off.on_report([&](std::string_view line) {
    if (says(line, "wants its memory back")) still_there = lent.in_use();
  });
  off.borrow(lent.handle(), lender_gone::moves_on);
  step(desk, off, 2);
  const auto elsewhere = desk.dev.make_stream();
  bool ran = false;
  desk.dev.launch(elsewhere.ref(), 1e9, [&] { ran = true; });
  lent.take_back();
  {
    auto chunk = off.begin();
    CHECK(still_there);
    CHECK_FALSE(lent.in_use());
    CHECK_FALSE(ran);
    chunk.end_forward();
    chunk.finish();
  }
  off.end_step();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("lending: copies under way are over before the memory goes back") {
  virtual_device neighbour;
  for (const bool moves_on : {true, false}) {
    CAPTURE(moves_on);
    auto lent = lend(neighbour, 4096, "rank 1");
    rig desk;
    offloader off(desk.dev, no_reload_ahead());
    off.on_report({});
    off.borrow(lent.handle(), lender_gone::moves_on);
    std::vector<rig::buffer> saved(2);
    {
      auto chunk = off.begin();
      for (int l = 0; l < 2; ++l) {
        auto& x = saved[static_cast<std::size_t>(l)];
        x = off.allocate(size, desk.stream());
        desk.write(x, 3);
        chunk.commit<"fc1">(l, desk.stream(), x);
      }
      chunk.end_forward();
      for (int l = 2; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        chunk.restore<"fc1">(l, desk.stream(), x);
        desk.check(x, 3);
      }
      chunk.finish();
      off.end_step();
    }
    // Nothing of it has run yet.
    lent.take_back();
    if (moves_on) {
      auto chunk = off.begin();
      chunk.end_forward();
      chunk.finish();
      off.end_step();
    } else {
      off.return_loan();
    }
    CHECK_FALSE(lent.in_use());
    CHECK(desk.wrong() == 0);
    for (auto& x : saved) x.reset(desk.stream());
  }
}

TEST_CASE("lending: a device that is lost says so, and its loan goes with the offloader") {
  virtual_device neighbour;
  auto lent = lend(neighbour, 4096, "rank 1");
  faulty dev;
  const auto stream = dev.make_stream();
  {
    faulty_offloader off(dev, small_options());
    off.on_report({});
    off.borrow(lent.handle(), lender_gone::moves_on);
    lent.take_back();
    dev.lose();
    CHECK_THROWS_AS(off.return_loan(), tidepool::device_error);
    CHECK_THROWS_AS(static_cast<void>(off.begin()), tidepool::device_error);
    CHECK(lent.in_use());
  }
  CHECK_FALSE(lent.in_use());
}

TEST_CASE("lending: devices with long names lend to their like alone") {
  const auto opts = small_options();
  long_named neighbour;
  const auto lent = lend(neighbour, 4096);
  nearly_so_named other;
  tidepool::offloader<nearly_so_named, tidepool::modules<"fc1">> refused(other, opts);
  CHECK(says(words_of<tidepool::lender_error>([&] { refused.borrow(lent.handle()); }),
             "and this one is of the kind 'a name of many letters, B'"));
  long_named dev;
  tidepool::offloader<long_named, tidepool::modules<"fc1">> off(dev, opts);
  off.borrow(lent.handle());
  CHECK(lent.in_use());
}

TEST_CASE("lending: a launch asks for the lender where its graph begins a step") {
  virtual_device neighbour;
  auto lent = lend(neighbour, 4096, "rank 1");
  rig desk;
  auto opts = no_reload_ahead();
  offloader off(desk.dev, opts);
  step(desk, off, 2);
  auto before = off.capture(desk.stream(), [&] { graph_step(desk, off); });
  off.borrow(lent.handle(), lender_gone::moves_on);
  step(desk, off, 2);
  const auto sent = sent_to(off, "peer");
  auto whole = off.capture(desk.stream(), [&] { graph_step(desk, off); });
  CHECK(sent_to(off, "peer") > sent);
  std::vector<rig::buffer> saved(2);
  std::optional<offloader::chunk> chunk;
  auto forward = off.capture(desk.stream(), [&] { chunk = graph_forward(desk, off, saved); });
  auto backward = off.capture(desk.stream(), [&] { graph_backward(desk, off, saved, *chunk); });
  chunk.reset();
  int updates = 0;
  auto update = off.capture(desk.stream(),
                            [&] { desk.dev.launch(desk.stream(), 10, [&updates] { ++updates; }); });
  whole.launch(desk.stream());
  forward.launch(desk.stream());
  lent.take_back();
  backward.launch(desk.stream());
  update.launch(desk.stream());  // nothing of it goes there
  desk.dev.synchronize();
  CHECK(updates == 1);
  for (auto* each : {&whole, &forward}) {
    CHECK(says(words_of<tidepool::lender_error>([&] { each->launch(desk.stream()); }),
               "wants its memory back; nothing is lost. Graphs copy to that memory"));
  }
  before.launch(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("lending: a launch comes after the trainer's other streams, which were there before") {
  std::size_t late = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    virtual_device neighbour;
    const auto lent = lend(neighbour, 4096, "rank 1");
    rig desk(machine{.order_seed = seed});
    auto second = desk.dev.make_stream();
    offloader off(desk.dev, no_reload_ahead());
    step(desk, off, 2);
    off.allocate(size, second.ref()).reset(second.ref());
    off.borrow(lent.handle());
    step(desk, off, 2);
    std::uint32_t rounds = 0;
    auto graph = off.capture(desk.stream(),
                             [&] { desk.dev.launch(desk.stream(), 10, [&rounds] { ++rounds; }); });
    graph.launch(desk.stream());
    for (std::uint32_t i = 1; i <= 3; ++i) {
      auto seen = desk.dev.make_event();
      desk.dev.record(seen, desk.stream());
      desk.dev.wait(second.ref(), seen);
      desk.dev.launch(second.ref(), 5000, [&, i] { late += rounds != i; });
      graph.launch(desk.stream());
    }
    desk.dev.synchronize();
  }
  CHECK(late == 0);
}

TEST_CASE("lending: an automatic plan counts on what is borrowed, and goes on without it") {
  virtual_device neighbour;
  std::optional lent = lend(neighbour, 3 * 4096, "rank 1");
  machine slow;
  slow.offload_rate = slow.reload_rate = 0.5;
  slow.both_rate = 1;
  rig desk(slow);
  auto opts = tidepool::test::arena_options(6 * size);
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 20;
  const auto plan_of = [&](bool borrows) {
    offloader off(desk.dev, opts, {.planner = tidepool::planner()});
    off.on_report({});
    if (borrows) off.borrow(lent->handle(), lender_gone::moves_on);
    for (int i = 0; i < 3; ++i) step(desk, off, 12);
    REQUIRE(off.current_plan());
    const auto plan = *off.current_plan();
    const auto before = sent_to(off, "peer");
    step(desk, off, 12);
    CHECK((sent_to(off, "peer") > before) == borrows);
    lent.reset();
    for (int i = 0; i < 2; ++i) step(desk, off, 12);
    CHECK(off.profile().peer_link.has_value() == borrows);
    if (borrows) {  // the next lender's memory is used as well
      lent = lend(neighbour, 3 * 4096, "rank 2");
      off.borrow(lent->handle());
      const auto so_far = sent_to(off, "peer");
      for (int i = 0; i < 2; ++i) step(desk, off, 12);
      CHECK(sent_to(off, "peer") > so_far);
      lent.reset();
    }
    return plan;
  };
  const auto without = plan_of(false);
  lent = lend(neighbour, 3 * 4096, "rank 1");
  const auto with = plan_of(true);
  CHECK(without.peer_budget == 0);
  CHECK(with.peer_budget == 3 * 4096);
  const auto to_peer = std::ranges::count(with.what[0], tidepool::plan::action::offload_to_peer);
  CHECK(to_peer > 0);
  CHECK(to_peer <= 6);
  CHECK(with.expected.step_us < without.expected.step_us);
  CHECK(desk.wrong() == 0);
}
