// The socket between a lender and a borrower: who is served, who is refused, and what is left.
#include "tidepool/places/detail/loan_socket.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <future>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "process_state.hpp"

namespace {

using tidepool::detail::ask_lender;
using tidepool::detail::descriptor;
using tidepool::detail::far_end;
using tidepool::detail::has_it;
using tidepool::detail::hung_up;
using tidepool::detail::loan_desk;
using tidepool::detail::loan_link;
using tidepool::detail::look_at;
using tidepool::detail::new_socket_name;
using tidepool::detail::receive_descriptor;
using tidepool::detail::say;
using tidepool::detail::send_descriptor;
using tidepool::detail::socket_name;
using tidepool::detail::wants_it_back;
using tidepool::test::one_more_descriptor;
using tidepool::test::open_descriptors;
using tidepool::test::without_standard_input;

// No right answer takes so long.
constexpr int patience_ms = 5000;

struct two_ends {
  descriptor near;
  descriptor far;
};

two_ends connected(int how = 0) {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | how, 0, ends.data()) == 0);
  return {descriptor(ends[0]), descriptor(ends[1])};
}

// What goes in at `far` comes out at `near`.
two_ends made_pipe() {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  return {descriptor(ends[0]), descriptor(ends[1])};
}

// What becomes of a descriptor within seconds; 0: nothing.
int events_of(const descriptor& of, int wait_ms = patience_ms) {
  pollfd asked{of.get(), POLLIN, 0};
  REQUIRE(::poll(&asked, 1, wait_ms) >= 0);
  return asked.revents;
}

// A socket as a process without Tidepool would make it: the address is written down here.
struct plain_socket {
  explicit plain_socket(const socket_name& name, int how = 0)
      : end(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | how, 0)) {
    const auto length = ::strnlen(name.data(), name.size());
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), length);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
    REQUIRE(end);
  }
  [[nodiscard]] const sockaddr* where() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
  [[nodiscard]] bool connects() const { return ::connect(end.get(), where(), bytes) == 0; }
  void listen(int backlog) const {
    REQUIRE(::bind(end.get(), where(), bytes) == 0);
    REQUIRE(::listen(end.get(), backlog) == 0);
  }
  [[nodiscard]] descriptor accept() const {
    return descriptor(::accept(end.get(), nullptr, nullptr));
  }

  sockaddr_un address{};
  socklen_t bytes = 0;
  descriptor end;
};

// The user of this thread and all others of the process, for as long as it lives.
class other_user {
 public:
  other_user() : changed_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  other_user(const other_user&) = delete;
  other_user& operator=(const other_user&) = delete;
  ~other_user() {
    if (changed_) static_cast<void>(!::seteuid(0));
  }
  [[nodiscard]] bool changed() const { return changed_; }

 private:
  bool changed_;
};

// Signals that interrupt whatever this thread waits in. One of them sends `sends` through
// `sends_to`, so that the wait ends.
int sends_to = -1;
int sends = -1;
volatile std::sig_atomic_t ticks = 0;

class interrupting {
 public:
  interrupting() {
    ticks = 0;
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int kept = errno;
      ticks = ticks + 1;
      if (ticks == 4) static_cast<void>(send_descriptor(sends_to, sends));
      errno = kept;
    };
    REQUIRE(::sigaction(SIGALRM, &action, &before_) == 0);
    set_every(2000);
  }
  interrupting(const interrupting&) = delete;
  interrupting& operator=(const interrupting&) = delete;
  ~interrupting() {
    set_every(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set_every(suseconds_t microseconds) {
    const itimerval every{{0, microseconds}, {0, microseconds}};
    ::setitimer(ITIMER_REAL, &every, nullptr);
  }
  struct sigaction before_ {};
};

}  // namespace

TEST_CASE("loan socket: a descriptor is closed once, whatever its number is") {
  const auto before = open_descriptors();
  {
    auto ends = connected();
    descriptor other(std::move(ends.near));
    CHECK_FALSE(ends.near);  // NOLINT(bugprone-use-after-move)
    CHECK(other);
    ends.far = descriptor();
    CHECK(open_descriptors() == before + 1);
  }
  CHECK(open_descriptors() == before);
  {
    const without_standard_input gone;
    const auto without = open_descriptors();
    {
      const auto ends = made_pipe();
      CHECK(ends.near.get() == 0);
      CHECK(ends.near);
    }
    CHECK(open_descriptors() == without);
  }
}

TEST_CASE("loan socket: a descriptor comes over, and a message without one brings none") {
  const auto ends = connected();
  const auto sent = made_pipe();
  // What an earlier call of the thread left there says nothing of this one.
  errno = EINTR;
  REQUIRE(send_descriptor(ends.far.get(), sent.far.get()));
  const auto got = receive_descriptor(ends.near.get());
  REQUIRE(got);
  CHECK(::write(got.get(), "x", 1) == 1);
  char byte = 0;
  CHECK(::read(sent.near.get(), &byte, 1) == 1);
  CHECK(byte == 'x');
  say(ends.far.get(), has_it);
  CHECK_FALSE(receive_descriptor(ends.near.get()));
}

TEST_CASE("loan socket: where nothing has come none is received, and nobody waits for more") {
  auto ends = connected(SOCK_NONBLOCK);
  CHECK_FALSE(receive_descriptor(ends.near.get()));
  ends.far = descriptor();
  CHECK_FALSE(receive_descriptor(ends.near.get()));
}

TEST_CASE("loan socket: signals do not keep a descriptor from coming") {
  const auto ends = connected();
  const auto sent = made_pipe();
  sends_to = ends.far.get();
  sends = sent.far.get();
  const interrupting signals;
  CHECK(receive_descriptor(ends.near.get()));
  CHECK(ticks >= 4);
}

TEST_CASE("loan socket: the other end is there, or said so, or is gone, whatever it left unread") {
  auto ends = connected();
  errno = EINTR;
  CHECK(look_at(ends.near.get()) == far_end::there);
  errno = EINTR;
  CHECK_FALSE(hung_up(ends.near.get()));
  say(ends.far.get(), wants_it_back);
  say(ends.far.get(), wants_it_back);
  CHECK(look_at(ends.near.get()) == far_end::said_so);
  CHECK(look_at(ends.near.get()) == far_end::said_so);  // it is still there to be read
  CHECK_FALSE(hung_up(ends.near.get()));
  ends.far = descriptor();
  CHECK(look_at(ends.near.get()) == far_end::said_so);
  CHECK(hung_up(ends.near.get()));

  auto others = connected();
  say(others.near.get(), has_it);
  others.far = descriptor();  // and has not read it
  CHECK(look_at(others.near.get()) == far_end::gone);
  CHECK(hung_up(others.near.get()));
  CHECK(look_at(-1) == far_end::gone);
}

TEST_CASE(
    "loan socket: where the system cannot say who is gone, nobody is, and that is said once") {
  const auto ends = connected();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const bool gone = hung_up(ends.near.get());
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_FALSE(gone);
}

TEST_CASE("loan socket: a lender is found under its whole name, which stands in no folder") {
  auto name = new_socket_name();
  auto memory = made_pipe();
  loan_desk lender(name, std::move(memory.far));
  const plain_socket asks(name);
  REQUIRE(asks.connects());
  CHECK(receive_descriptor(asks.end.get()));
  // Names that differ in the last letter are two.
  auto& last = name[::strnlen(name.data(), name.size()) - 1];
  last = last == 'a' ? 'b' : 'a';
  CHECK_FALSE(plain_socket(name).connects());
  loan_desk second(name, descriptor(::dup(memory.near.get())));
  CHECK(ask_lender(name).memory);
}

TEST_CASE("loan socket: a lender whose name another has is refused by the system") {
  const auto name = new_socket_name();
  const loan_desk lender(name, descriptor());
  const auto before = open_descriptors();
  try {
    const loan_desk second(name, descriptor());
    FAIL("two have one name");
  } catch (const std::system_error& problem) {
    CHECK(problem.code().value() == EADDRINUSE);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("loan socket: a lender's thread takes no signals, and the caller's are as they were") {
  const tidepool::test::threads_since here;
  const auto name = new_socket_name();
  const tidepool::test::blocking only(SIGUSR1);
  loan_desk lender(name, made_pipe().far);
  CHECK(tidepool::test::blocked_signals() == std::vector{SIGUSR1});
  REQUIRE(ask_lender(name).memory);  // by now it runs
  const auto fresh = here.fresh();
  REQUIRE(fresh.size() == 1);
  CHECK(tidepool::test::blocks_all_signals(fresh[0]));
}

TEST_CASE("loan socket: where no thread can be had that is said, and the caller's signals stay") {
  const auto name = new_socket_name();
  const auto before = open_descriptors();
  const tidepool::test::blocking only(SIGUSR1);
  {
    const tidepool::test::without_threads none;
    CHECK_THROWS_AS(loan_desk(name, made_pipe().far), std::system_error);
  }
  CHECK(tidepool::test::blocked_signals() == std::vector{SIGUSR1});
  CHECK(open_descriptors() == before);
}

TEST_CASE("loan socket: whoever has it is the last to be served, and its lender keeps no part") {
  const auto name = new_socket_name();
  auto memory = made_pipe();
  loan_desk lender(name, std::move(memory.far));
  CHECK_FALSE(lender.in_use());
  loan_link link = ask_lender(name);
  REQUIRE(link.memory);
  const plain_socket late(name, SOCK_NONBLOCK);
  REQUIRE(late.connects());
  // What is said beside it changes nothing.
  const std::array<char, 2> twice{has_it, has_it};
  REQUIRE(::send(link.lender.get(), twice.data(), twice.size(), MSG_NOSIGNAL) == 2);
  CHECK((events_of(late.end) & POLLHUP) != 0);
  CHECK_FALSE(receive_descriptor(late.end.get()));
  CHECK_FALSE(plain_socket(name).connects());
  CHECK(lender.in_use());
  // The borrower's is the only one left.
  CHECK(events_of(memory.near, 0) == 0);
  link.memory = descriptor();
  CHECK((events_of(memory.near) & POLLHUP) != 0);
  link.lender = descriptor();
  CHECK_FALSE(lender.in_use());
}

TEST_CASE("loan socket: one who says no more leaves the memory to the next") {
  const auto name = new_socket_name();
  loan_desk lender(name, made_pipe().far);
  const auto first = ask_lender(name);
  REQUIRE(first.memory);
  CHECK(lender.in_use());
  REQUIRE(::shutdown(first.lender.get(), SHUT_WR) == 0);
  CHECK((events_of(first.lender) & POLLHUP) != 0);
  CHECK_FALSE(lender.in_use());
  CHECK(ask_lender(name).memory);
}

TEST_CASE("loan socket: a lender that is short of descriptors serves once it has some") {
  const auto name = new_socket_name();
  const plain_socket asks(name, SOCK_NONBLOCK);
  auto memory = made_pipe();
  std::optional<loan_desk> lender;
  {
    const one_more_descriptor limit;  // its own socket, and none for who asks
    lender.emplace(name, std::move(memory.far));
    REQUIRE(asks.connects());
    CHECK(events_of(asks.end, 30) == 0);
  }
  CHECK(events_of(asks.end) == POLLIN);
  CHECK(receive_descriptor(asks.end.get()));
}

TEST_CASE("loan socket: who finds a queue before a lender waits for his turn") {
  const auto name = new_socket_name();
  const plain_socket lender(name);
  lender.listen(0);
  std::vector<plain_socket> before;
  do {
    before.emplace_back(name, SOCK_NONBLOCK);
  } while (before.back().connects());
  auto answer = std::async(std::launch::async, [&] { return ask_lender(name); });
  CHECK(answer.wait_for(std::chrono::milliseconds(30)) == std::future_status::timeout);
  const auto memory = made_pipe();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto who = lender.accept();
    REQUIRE(who);
    CHECK(send_descriptor(who.get(), memory.far.get()));
  }
  CHECK(answer.get().memory);
}

TEST_CASE("loan socket: nobody is asked who is another user") {
  const auto name = new_socket_name();
  const plain_socket lender(name);
  {
    const other_user stranger;
    lender.listen(4);
    if (!stranger.changed()) return;  // only the system's first user can become another
  }
  const auto memory = made_pipe();
  auto server = std::async(std::launch::async, [&] {
    const auto who = lender.accept();
    return who && send_descriptor(who.get(), memory.far.get());
  });
  CHECK_FALSE(ask_lender(name).memory);
  static_cast<void>(server.get());
}
