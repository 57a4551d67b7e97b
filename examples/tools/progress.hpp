/// What a program is at, for whoever waits at a terminal.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

namespace tools {

/// One line on standard error, renewed in place; it appears after two seconds, only where that is a
/// terminal, and is gone when the object is. Thread safety: one thread calls.
class progress {
 public:
  explicit progress(std::string what) : what_(std::move(what)) {
    if (isatty(STDERR_FILENO) == 0) return;
    thread_ = std::jthread([this](const std::stop_token& end) { show(end); });
  }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
    if (shown_) std::fputs("\r\033[K", stderr);
  }

  /// `done` of `all` parts are over, and now comes `part`. `all` of 0: nobody knows how many.
  void at(std::string part, std::size_t done = 0, std::size_t all = 0) {
    const std::lock_guard held(mutex_);
    part_ = std::move(part);
    done_ = done;
    all_ = all;
  }

 private:
  using clock = std::chrono::steady_clock;

  void show(const std::stop_token& end) {
    const auto begin = clock::now();
    std::unique_lock held(mutex_);
    for (auto next = begin + std::chrono::seconds(2);; next += std::chrono::milliseconds(500)) {
      if (wake_.wait_until(held, end, next, [] { return false; }) || end.stop_requested()) return;
      const auto seconds =
          std::chrono::duration_cast<std::chrono::seconds>(clock::now() - begin).count();
      std::string line = what_;
      if (!part_.empty()) line += ": " + part_;
      if (all_ > 0) line += ", " + std::to_string(done_) + " of " + std::to_string(all_);
      line += ", " + std::to_string(seconds) + " s";
      std::fprintf(stderr, "\r%.78s\033[K\r", line.c_str());
      std::fflush(stderr);
      shown_ = true;
    }
  }

  std::string what_;
  std::string part_;
  std::size_t done_ = 0;
  std::size_t all_ = 0;
  bool shown_ = false;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace tools
