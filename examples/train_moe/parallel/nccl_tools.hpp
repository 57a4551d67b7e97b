/// NCCL's communicators as objects, and a watch over them.
#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <tidepool/error.hpp>
#include <utility>
#include <vector>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error "train_moe: NCCL 2.18.1 or newer is needed, for ncclCommSplit"
#endif

namespace moe {

inline void check(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  throw tidepool::device_error(
      std::string(call) + ": " + ncclGetErrorString(code) + " (" + ncclGetLastError(nullptr) + ")",
      code);
}

/// A communicator of the current device.
class nccl_communicator {
 public:
  nccl_communicator() = default;
  nccl_communicator(const ncclUniqueId& id, int ranks, int rank) {
    check(ncclCommInitRank(&handle_, ranks, id, rank), "ncclCommInitRank");
  }
  nccl_communicator(nccl_communicator&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)) {}
  nccl_communicator& operator=(nccl_communicator&&) = delete;
  ~nccl_communicator() {
    if (handle_ != nullptr) ncclCommDestroy(handle_);
  }

  /// One of those ranks that give the same row and a place in it; empty on those that give none.
  /// All ranks of this one make the same calls in the same order, with nothing under way here.
  /// Blocks the host.
  [[nodiscard]] nccl_communicator split(std::optional<int> place, int row = 0) const {
    nccl_communicator made;
    check(ncclCommSplit(handle_, place ? row : NCCL_SPLIT_NOCOLOR, place.value_or(0), &made.handle_,
                        nullptr),
          "ncclCommSplit");
    return made;
  }

  [[nodiscard]] ncclComm_t get() const { return handle_; }
  [[nodiscard]] int place() const {
    int mine = 0;
    check(ncclCommUserRank(handle_, &mine), "ncclCommUserRank");
    return mine;
  }
  [[nodiscard]] int size() const {
    int all = 0;
    check(ncclCommCount(handle_, &all), "ncclCommCount");
    return all;
  }

 private:
  ncclComm_t handle_ = nullptr;
};

/// Several calls of NCCL as one.
template <class Calls>
void nccl_group(Calls calls) {
  check(ncclGroupStart(), "ncclGroupStart");
  calls();
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/// Ends this process when a communicator fails, since the host may be waiting for a kernel that
/// would wait for ever for a rank that is gone.
class nccl_watch {
 public:
  explicit nccl_watch(int rank)
      : rank_(rank), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void add(const nccl_communicator& which) {
    const std::lock_guard lock(mutex_);
    watched_.push_back(which.get());
  }
  /// Before the communicators are destroyed.
  void stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; })) {
      if (stop.stop_requested()) return;
      for (const ncclComm_t each : watched_) {
        ncclResult_t state = ncclSuccess;
        ncclCommGetAsyncError(each, &state);
        if (state == ncclSuccess || state == ncclInProgress) continue;
        std::fprintf(stderr, "train_moe: rank %d: NCCL: %s\n", rank_, ncclGetErrorString(state));
        std::fflush(stderr);
        std::_Exit(1);  // and the launcher ends the others
      }
    }
  }

  int rank_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::vector<ncclComm_t> watched_;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace moe
