/// What a process has of the system: descriptors, threads and signals; and what it is short of.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace tidepool::test {

[[nodiscard]] inline std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

/// Of the calling thread.
[[nodiscard]] inline std::vector<int> blocked_signals() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  std::vector<int> result;
  for (int number = 1; number < 64; ++number) {
    if (sigismember(&now, number) == 1) result.push_back(number);
  }
  return result;
}

/// The calling thread blocks this signal and no other, for as long as it lives.
class blocking {
 public:
  explicit blocking(int number) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    pthread_sigmask(SIG_SETMASK, &only, &before_);
  }
  blocking(const blocking&) = delete;
  blocking& operator=(const blocking&) = delete;
  ~blocking() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/// Threads of the process that were made since it was, by their numbers.
class threads_since {
 public:
  threads_since() {
    std::thread([] {}).join();  // with the first of all come those of a sanitizer
    before_ = now();
  }
  [[nodiscard]] std::vector<std::string> fresh() const {
    const auto all = now();
    std::vector<std::string> result;
    std::set_difference(all.begin(), all.end(), before_.begin(), before_.end(),
                        std::back_inserter(result));
    return result;
  }

 private:
  static std::vector<std::string> now() {
    std::vector<std::string> all;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
      all.push_back(each.path().filename());
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  std::vector<std::string> before_;
};

/// Whether a thread blocks every signal that a program can block.
[[nodiscard]] inline bool blocks_all_signals(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  std::string word;
  while (status >> word && word != "SigBlk:") continue;
  status >> word;
  auto missing = ~std::stoull(word, nullptr, 16);
  // Two that nobody can block, and two that the C library keeps for itself.
  for (const int number : {SIGKILL, SIGSTOP, 32, 33}) missing &= ~(1ULL << (number - 1));
  return missing == 0;
}

/// Descriptor 0 is free for as long as it lives, as in a service that was started without one.
class without_standard_input {
 public:
  without_standard_input() : kept_(::fcntl(0, F_DUPFD_CLOEXEC, 100)) { ::close(0); }
  without_standard_input(const without_standard_input&) = delete;
  without_standard_input& operator=(const without_standard_input&) = delete;
  ~without_standard_input() {
    if (kept_ < 0) return;
    ::dup2(kept_, 0);
    ::close(kept_);
  }

 private:
  int kept_;
};

/// The process may open one more file, and none after that, for as long as it lives.
class one_more_descriptor {
 public:
  one_more_descriptor() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int next = ::dup(2);  // the lowest that is free
    REQUIRE(next >= 0);
    ::close(next);
    const rlimit fewer{static_cast<rlim_t>(next) + 1, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &fewer) == 0);
  }
  one_more_descriptor(const one_more_descriptor&) = delete;
  one_more_descriptor& operator=(const one_more_descriptor&) = delete;
  ~one_more_descriptor() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// No thread can be had for as long as it lives: each would take more addresses than there are.
class without_threads {
 public:
  without_threads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t vast;
    pthread_attr_init(&vast);
    pthread_attr_setstacksize(&vast, std::size_t{1} << 47U);
    REQUIRE(pthread_setattr_default_np(&vast) == 0);
    pthread_attr_destroy(&vast);
  }
  without_threads(const without_threads&) = delete;
  without_threads& operator=(const without_threads&) = delete;
  ~without_threads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace tidepool::test
