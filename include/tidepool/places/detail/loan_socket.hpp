// How one process hands memory to another, and how each learns that the other is gone: by a socket
// of the host, over which the system passes a descriptor, and which it closes when a process ends.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tidepool/core/quiet.hpp"

namespace tidepool::inline v0_3_0::detail {

/// Owns a descriptor of the system's.
class descriptor {
 public:
  explicit descriptor(int number = -1) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

/// The name of a socket, in no folder: it ends with the socket.
using socket_name = std::array<char, 48>;

/// One that no other socket has. It is no secret: who may borrow, credentials say (`of_this_user`).
[[nodiscard]] inline socket_name new_socket_name() {
  std::array<unsigned char, 16> chance{};
  if (::getrandom(chance.data(), chance.size(), 0) != static_cast<ssize_t>(chance.size())) {
    throw std::system_error(errno, std::system_category(), "getrandom");
  }
  socket_name name{};
  auto* at = std::copy_n("tidepool.", 9, name.data());
  for (const auto byte : chance) {
    *at++ = "0123456789abcdef"[byte >> 4U];
    *at++ = "0123456789abcdef"[byte & 15U];
  }
  return name;
}

[[nodiscard]] inline descriptor open_socket() {
  descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made) throw std::system_error(errno, std::system_category(), "socket");
  return made;
}

/// Calls `bind` or `connect` with the address; their error, or 0.
template <class Call>
[[nodiscard]] int with_address(const socket_name& name, Call call) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto length = ::strnlen(name.data(), name.size());
  std::memcpy(address.sun_path + 1, name.data(), length);  // behind a 0: in no folder
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return call(reinterpret_cast<const sockaddr*>(&address), bytes) == 0 ? 0 : errno;
}

/// Whether the other end belongs to the same user.
[[nodiscard]] inline bool of_this_user(int connection) noexcept {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == ::geteuid();
}

/// Room for one descriptor beside a message of one byte.
struct descriptor_message {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr whole{nullptr, 0, &part, 1, control.data(), control.size(), 0};
};

[[nodiscard]] inline bool send_descriptor(int connection, int what) noexcept {
  descriptor_message message;
  auto* const head = CMSG_FIRSTHDR(&message.whole);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof what);
  std::memcpy(CMSG_DATA(head), &what, sizeof what);
  return ::sendmsg(connection, &message.whole, MSG_NOSIGNAL) == 1;
}

/// None where none came.
[[nodiscard]] inline descriptor receive_descriptor(int connection) noexcept {
  descriptor_message message;
  ssize_t got = 0;
  do {
    got = ::recvmsg(connection, &message.whole, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const auto* const head = CMSG_FIRSTHDR(&message.whole);
  if (got != 1 || head == nullptr || head->cmsg_type != SCM_RIGHTS) return descriptor();
  int number = -1;
  std::memcpy(&number, CMSG_DATA(head), sizeof number);
  return descriptor(number);
}

inline constexpr char has_it = 'h';         ///< Said by a borrower, once.
inline constexpr char wants_it_back = 'b';  ///< Said by a lender.

/// What became of the other end.
enum class far_end : unsigned char { there, said_so, gone };

/// Asks without waiting. What it said is not taken away.
[[nodiscard]] inline far_end look_at(int connection) noexcept {
  char byte = 0;
  ssize_t got = 0;
  do {
    got = ::recv(connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return far_end::said_so;
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? far_end::there : far_end::gone;
}

/// Whether the other end is gone, whatever it said that nobody has read.
[[nodiscard]] inline bool hung_up(int connection) noexcept {
  pollfd asked{connection, 0, 0};
  while (::poll(&asked, 1, 0) < 0 && errno == EINTR) continue;
  return (asked.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/// Says one thing to the other end, where that is there.
inline void say(int connection, char what) noexcept {
  static_cast<void>(::send(connection, &what, 1, MSG_NOSIGNAL));
}

/// The lender's end. A thread hands the descriptor to whoever asks, and ends once one has said that
/// he has the memory: one who could not use it leaves it to the next.
class loan_desk {
 public:
  /// Throws `std::system_error`.
  loan_desk(const socket_name& name, descriptor memory)
      : memory_(std::move(memory)), door_(open_socket()) {
    const auto failed = with_address(name, [&](const sockaddr* address, socklen_t bytes) {
      return ::bind(door_.get(), address, bytes) == 0 ? ::listen(door_.get(), 4) : -1;
    });
    if (failed != 0) throw std::system_error(failed, std::system_category(), "bind");
    const quiet started;
    thread_ = std::thread([this] { serve(); });
  }
  loan_desk(const loan_desk&) = delete;
  loan_desk& operator=(const loan_desk&) = delete;
  ~loan_desk() {
    if (::getpid() != owner_) {  // a forked copy: the loan is its parent's
      thread_.detach();
      return;
    }
    take_back();
    thread_.join();
  }

  /// Whether a borrower has the memory.
  [[nodiscard]] bool in_use() {
    const std::lock_guard lock(mutex_);
    return borrower_ && !hung_up(borrower_.get());
  }

  /// The borrower is told, and nobody is served any more.
  void take_back() noexcept {
    if (::getpid() != owner_) return;  // whose copy of the lock may be locked for ever
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    if (door_) ::shutdown(door_.get(), SHUT_RDWR);  // which wakes the thread
    if (borrower_) say(borrower_.get(), wants_it_back);
  }

 private:
  [[nodiscard]] bool closed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  void serve() noexcept {
    while (true) {
      descriptor who(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!who && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (!who && errno != EINVAL && !closed()) {  // short of descriptors or memory, for now
        ::usleep(10000);
        continue;
      }
      if (who && !hand_over(std::move(who))) continue;
      const std::lock_guard lock(mutex_);
      door_ = descriptor();
      memory_ = descriptor();
      return;
    }
  }

  // False where the next may ask.
  [[nodiscard]] bool hand_over(descriptor who) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return true;
      if (!of_this_user(who.get()) || !send_descriptor(who.get(), memory_.get())) return false;
      borrower_ = std::move(who);
    }
    // Nobody else changes the two descriptors meanwhile. Of the door only its end counts.
    std::array<pollfd, 2> answers{pollfd{borrower_.get(), POLLIN, 0}, pollfd{door_.get(), 0, 0}};
    while (::poll(answers.data(), answers.size(), -1) < 0 && errno == EINTR) continue;
    const std::lock_guard lock(mutex_);
    char answer = 0;
    if (closed_ || ::recv(borrower_.get(), &answer, 1, MSG_DONTWAIT) == 1) return true;
    borrower_ = descriptor();
    return false;
  }

  descriptor memory_;
  descriptor door_;
  descriptor borrower_;
  std::mutex mutex_;
  bool closed_ = false;
  pid_t owner_ = ::getpid();
  std::thread thread_;
};

/// The borrower's end.
struct loan_link {
  descriptor lender;
  descriptor memory;
};

/// Asks a lender. A link without memory where nobody is there, or nobody answers within seconds.
[[nodiscard]] inline loan_link ask_lender(const socket_name& name) {
  loan_link link{open_socket(), descriptor()};
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  // Never blocked in the call itself: a signal would begin its time limit anew.
  ::fcntl(link.lender.get(), F_SETFL, O_NONBLOCK);
  const auto in_time = [&] { return std::chrono::steady_clock::now() < until; };
  int failed = 0;
  do {
    failed = with_address(name, [&](const sockaddr* address, socklen_t bytes) {
      return ::connect(link.lender.get(), address, bytes);
    });
  } while ((failed == EINTR || (failed == EAGAIN && ::usleep(10000) <= 0)) && in_time());
  if (failed != 0 || !of_this_user(link.lender.get())) return link;
  pollfd answer{link.lender.get(), POLLIN, 0};
  while (in_time()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (::poll(&answer, 1, static_cast<int>(std::max<long>(left.count(), 0))) > 0) {
      link.memory = receive_descriptor(link.lender.get());
      break;
    }
  }
  return link;
}

}  // namespace tidepool::detail
