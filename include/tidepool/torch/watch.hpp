/// Finds out if the memory of a storage is taken away while autograd still wants its contents.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tidepool/torch/version.hpp"

namespace tidepool::inline v0_3_0::detail {

// Stands in for the allocator of a storage and counts its calls: a storage that was emptied and has
// grown again may have its old address, and only the count shows that others had the memory. After
// the first call the storage is held, because an owner that filled it anew may drop it before
// backward reads.
//
// Never destroyed, because a storage that torch makes of a watched one may keep its address.
template <class Allocator>
class growth_counter final : public Allocator {
 public:
  explicit growth_counter(Allocator& inner) : inner_(&inner) {}

  // Counts for `storage` until as many calls of `leave`; null for a storage that cannot grow.
  [[nodiscard]] static growth_counter* enter(c10::Storage& storage) {
    auto& impl = *storage.unsafeGetStorageImpl();
    if (impl.allocator() == nullptr || !impl.resizable()) return nullptr;
    const std::lock_guard guard(everyone().mutex);
    auto* used = dynamic_cast<growth_counter*>(impl.allocator());  // the storage was saved in
                                                                   // several places
    if (used == nullptr) {
      auto& spare = everyone().spare[impl.allocator()];
      if (spare.empty()) spare.push_back(new growth_counter(*impl.allocator()));
      used = spare.back();
      spare.pop_back();
      used->of_ = storage.getWeakStorageImpl();
      impl.set_allocator(used);
    }
    ++used->users_;
    return used;
  }
  void leave() {
    c10::Storage held;  // destroyed after the lock is released
    const std::lock_guard guard(everyone().mutex);
    if (--users_ > 0) return;
    held = std::exchange(held_, {});
    const auto now = of_.lock();
    if (now && now->allocator() == this) now->set_allocator(inner_);
    everyone().spare[inner_].push_back(this);
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  // Without `override`: `allocate` is const in early versions, and `copy_data` came later.
  c10::DataPtr allocate(std::size_t bytes) const {
    {
      const std::lock_guard guard(everyone().mutex);
      ++count_;
      if (users_ > 0 && !held_) held_ = c10::Storage(of_.lock());
    }
    return inner_->allocate(bytes);
  }
  c10::DataPtr allocate(std::size_t bytes) { return std::as_const(*this).allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const { return inner_->raw_deleter(); }
  void copy_data(void* target, const void* source, std::size_t bytes) const {
    if constexpr (requires { inner_->copy_data(target, source, bytes); }) {
      inner_->copy_data(target, source, bytes);
    }
  }

 private:
  struct all_of_them {
    std::mutex mutex;
    std::map<Allocator*, std::vector<growth_counter*>> spare;
  };
  static all_of_them& everyone() {
    static auto* const all = new all_of_them;
    return *all;
  }

  Allocator* inner_;
  c10::weak_intrusive_ptr<c10::StorageImpl> of_{
      c10::intrusive_ptr<c10::StorageImpl>()};  // set while this counter has users
  std::uint32_t users_ = 0;
  mutable c10::Storage held_;
  mutable std::atomic<std::uint64_t> count_ = 0;
};

// Holds a storage until no copy reads its memory any more. Holding does not protect the memory:
// `resize_(0)` and `set_data_ptr` take it away, and the next tensor writes there before the copy
// has read. Once that is seen the storage stays held, because backward then reads its new contents.
class torch_watch {
 public:
  explicit torch_watch(c10::Storage of)
      : storage_(std::move(of)),
        data_(bytes_of(storage_)),
        growth_(growth_counter<c10::Allocator>::enter(storage_)),
        grown_(growth_ == nullptr ? 0 : growth_->count()) {}
  torch_watch(const torch_watch&) = delete;
  torch_watch& operator=(const torch_watch&) = delete;
  ~torch_watch() {
    if (growth_ != nullptr) growth_->leave();
  }

  // True if the memory was taken since, as far as can be seen now.
  [[nodiscard]] bool taken() {
    taken_ = taken_ || (storage_ && bytes_of(storage_) != data_) ||
             (growth_ != nullptr && growth_->count() != grown_);
    return taken_;
  }
  // Called when nothing reads the memory any more.
  void end() {
    if (!taken()) storage_ = {};
  }

  [[nodiscard]] bool holds() const { return static_cast<bool>(storage_); }
  [[nodiscard]] const c10::Storage& storage() const { return storage_; }
  [[nodiscard]] std::byte* data() const { return data_; }  // where the memory was

 private:
  c10::Storage storage_;
  std::byte* data_;
  growth_counter<c10::Allocator>* growth_;
  std::uint64_t grown_;
  bool taken_ = false;
};

}  // namespace tidepool::detail
