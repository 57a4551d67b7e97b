/// The lock of an offloader that several of torch's threads call, and the list of offloaders that
/// can give memory back to torch's allocator.
#pragma once

#include <mutex>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// The lock is recursive, because hooks on autograd's threads may drop objects that call back on the
// same thread.
class torch_lock {
 public:
  void lock() {
    mutex_.lock();
    ++depth_;
  }
  void unlock() {
    --depth_;
    mutex_.unlock();
  }
  // For a caller that holds another lock. Never waits. Fails if this thread is inside already,
  // unless it is in `allocate`.
  [[nodiscard]] bool try_lock() {
    if (!mutex_.try_lock()) return false;
    if (depth_ > 0 && !allocating_) {
      mutex_.unlock();
      return false;
    }
    ++depth_;
    return true;
  }
  // Runs a call of torch's allocator, which may ask for memory back and so call `try_lock`.
  template <class Call>
  auto allocate(Call&& call) {
    const std::lock_guard guard(*this);
    allocating_ = true;
    struct end {
      bool& flag;
      ~end() { flag = false; }
    } const end{allocating_};
    return call();
  }

 private:
  std::recursive_mutex mutex_;
  int depth_ = 0;
  bool allocating_ = false;
};

// An offloader that holds memory of torch's allocator until copies have ended. All of them are in
// one list, because a process has one allocator.
class memory_lender {
 public:
  memory_lender(const memory_lender&) = delete;
  memory_lender& operator=(const memory_lender&) = delete;
  // False if no memory could be given back, or another thread is inside.
  virtual bool give_back_waiting() noexcept = 0;

  // Called when the allocator is about to grow, with its lock held.
  static bool give_back_all() noexcept {
    auto& all = everyone();
    const std::unique_lock guard(all.mutex, std::try_to_lock);
    bool any = false;
    if (!guard.owns_lock()) return any;
    for (auto* each : all.list) any = each->give_back_waiting() || any;
    return any;
  }

 protected:
  memory_lender() = default;
  ~memory_lender() = default;
  // From now on any thread may ask this object, so that `join` is the last call of the derived
  // constructor.
  void join() {
    auto& all = everyone();
    const std::lock_guard guard(all.mutex);
    all.list.push_back(this);
  }
  // After this call no thread asks this object; call it before any member is destroyed.
  void leave() noexcept {
    auto& all = everyone();
    const std::lock_guard guard(all.mutex);
    std::erase(all.list, this);
  }

 private:
  struct lenders {
    std::mutex mutex;
    std::vector<memory_lender*> list;
  };
  static lenders& everyone() {
    static lenders all;
    return all;
  }
};

}  // namespace tidepool::detail
