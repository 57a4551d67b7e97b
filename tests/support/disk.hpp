/// A disk in memory, of which calls fail: the k-th of its kind, for as many as are asked for.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tidepool/places/backing_file.hpp"

namespace tidepool::test {

enum class disk_call : std::uint8_t { write, read, extend };

/// What one call of a kind, and those after it, come to.
struct disk_fault {
  disk_call kind = disk_call::write;
  std::uint64_t index = 1;  ///< counted from 1
  std::uint64_t times = 1;
  int code = EIO;         ///< 0: it does less than it was asked for, and says nothing
  std::size_t bytes = 0;  ///< that it does all the same
};

/// Outlives the files on it. The worker's thread and that of the test use it.
class disk {
 public:
  /// Bytes that there is room for.
  std::size_t room = std::size_t{1} << 30;
  std::chrono::milliseconds patience = std::chrono::minutes(2);

  void arm(const disk_fault& next) {
    const std::lock_guard lock(mutex_);
    fault_ = next;
    armed_ = true;
    tripped_ = false;
    for (auto& each : calls_) each = 0;
  }
  void disarm() {
    const std::lock_guard lock(mutex_);
    armed_ = false;
    for (auto& each : calls_) each = 0;
  }
  [[nodiscard]] bool tripped() {
    const std::lock_guard lock(mutex_);
    return tripped_;
  }
  [[nodiscard]] std::uint64_t calls(disk_call kind) {
    const std::lock_guard lock(mutex_);
    return calls_[index_of(kind)];
  }
  /// Files that are open, and bytes that were ever had at once.
  [[nodiscard]] int open_files() {
    const std::lock_guard lock(mutex_);
    return open_;
  }
  [[nodiscard]] std::size_t most() {
    const std::lock_guard lock(mutex_);
    return most_;
  }
  /// Until it is let on, no write and no read ends.
  void hold(bool on) {
    {
      const std::lock_guard lock(mutex_);
      held_ = on;
    }
    changed_.notify_all();
  }

 private:
  friend class disk_file;
  static constexpr std::size_t index_of(disk_call kind) { return static_cast<std::size_t>(kind); }

  // What the call comes to, of as many bytes.
  file_result pass(disk_call kind, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    if (kind != disk_call::extend) changed_.wait(lock, [&] { return !held_; });
    const auto number = ++calls_[index_of(kind)];
    if (!armed_ || fault_.kind != kind || number < fault_.index ||
        number - fault_.index >= fault_.times) {
      return {bytes, 0};
    }
    tripped_ = true;
    return {std::min(bytes, fault_.bytes), fault_.code};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  disk_fault fault_;
  std::uint64_t calls_[3]{};
  bool armed_ = false;
  bool tripped_ = false;
  bool held_ = false;
  int open_ = 0;
  std::size_t most_ = 0;
};

class disk_file final : public backing_file {
 public:
  explicit disk_file(std::shared_ptr<disk> on) : on_(std::move(on)) {
    const std::lock_guard lock(on_->mutex_);
    ++on_->open_;
  }
  ~disk_file() override {
    const std::lock_guard lock(on_->mutex_);
    --on_->open_;
  }
  file_result write(const void* from, std::size_t bytes, std::uint64_t at) override {
    const auto result = on_->pass(disk_call::write, bytes);
    if (at + bytes > data_.size()) return {0, ENXIO};  // nobody asked for that room
    std::memcpy(data_.data() + at, from, result.bytes);
    return result;
  }
  file_result read(void* into, std::size_t bytes, std::uint64_t at) override {
    const auto result = on_->pass(disk_call::read, bytes);
    if (at + bytes > data_.size()) return {0, ENXIO};
    std::memcpy(into, data_.data() + at, result.bytes);
    return result;
  }
  int extend(std::uint64_t from, std::size_t bytes) override {
    const auto result = on_->pass(disk_call::extend, bytes);
    if (result.code != 0) return result.code;
    if (from + bytes > on_->room) return ENOSPC;
    data_.resize(std::max(data_.size(), static_cast<std::size_t>(from) + bytes));
    const std::lock_guard lock(on_->mutex_);
    on_->most_ = std::max(on_->most_, data_.size());
    return 0;
  }
  [[nodiscard]] std::chrono::milliseconds patience() const override { return on_->patience; }

 private:
  std::shared_ptr<disk> on_;
  std::vector<std::byte> data_;
};

}  // namespace tidepool::test
