// The thread that reads and writes a file. Requests are served in the order in which they were
// submitted, so a block's write ends before its next read or write begins.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tidepool/core/quiet.hpp"
#include "tidepool/places/backing_file.hpp"

namespace tidepool::inline v0_3_0::detail {

enum class file_request_kind : unsigned char { write, read, extend };

// A request of a copy. The request belongs to the worker from `submit` until it is over; its owner
// must not touch it meanwhile.
struct file_request {
  file_request_kind kind = file_request_kind::write;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t offset = 0;
  file_result result;
  bool over = true;
  file_request* next = nullptr;  // next in the queue, which needs no memory of its own

  void ask(file_request_kind for_what, std::byte* memory, std::size_t size, std::uint64_t at) {
    kind = for_what;
    data = memory;
    bytes = size;
    offset = at;
  }
  [[nodiscard]] bool failed() const { return result.code != 0 || result.bytes != bytes; }
};

class file_worker {
 public:
  explicit file_worker(std::unique_ptr<backing_file> file) : file_(std::move(file)) {
    const quiet started;
    thread_ = std::thread([this] { work(); });
  }
  file_worker(const file_worker&) = delete;
  file_worker& operator=(const file_worker&) = delete;
  // Requests that have not begun are dropped; the one being served is waited for.
  ~file_worker() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(file_request& what) {
    {
      const std::lock_guard lock(mutex_);
      what.over = false;
      what.result = {};
      what.next = nullptr;
      (last_ == nullptr ? first_ : last_->next) = &what;
      last_ = &what;
    }
    changed_.notify_all();
  }

  // False if the request took longer than the file's patience; it is then still being served.
  [[nodiscard]] bool wait(const file_request& what) {
    std::unique_lock lock(mutex_);
    return over_.wait_for(lock, file_->patience(), [&] { return what.over; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stops_ || first_ != nullptr; });
      if (stops_) return;
      auto& now = *first_;
      lock.unlock();
      const auto result = serve(now);
      lock.lock();
      first_ = now.next;
      if (first_ == nullptr) last_ = nullptr;
      now.result = result;
      now.over = true;
      over_.notify_all();
    }
  }

  [[nodiscard]] file_result serve(const file_request& what) {
    if (what.kind == file_request_kind::extend) {
      const auto code = file_->extend(what.offset, what.bytes);
      return {code == 0 ? what.bytes : 0, code};
    }
    file_result whole;
    while (whole.bytes < what.bytes) {
      auto* const data = what.data + whole.bytes;
      const auto left = what.bytes - whole.bytes;
      const auto at = what.offset + whole.bytes;
      const auto part = what.kind == file_request_kind::write ? file_->write(data, left, at)
                                                              : file_->read(data, left, at);
      if (part.code == EINTR) continue;
      whole.code = part.code;
      // Direct I/O can only continue at a multiple of a granule.
      const auto got = part.bytes == left ? left : part.bytes / file_granule * file_granule;
      whole.bytes += got;
      if (part.code != 0 || got == 0) break;
    }
    return whole;
  }

  std::unique_ptr<backing_file> file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable over_;
  file_request* first_ = nullptr;  // being served
  file_request* last_ = nullptr;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace tidepool::detail
