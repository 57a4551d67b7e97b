/// All storages of an offloader, and their memory on the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/room.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/copies.hpp"
#include "tidepool/engine/filling.hpp"
#include "tidepool/engine/sources.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/engine/watched_owner.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/borrowed.hpp"
#include "tidepool/memory/soft_budget.hpp"

namespace tidepool::inline v0_3_0::detail {

// Owns all storages of an offloader and its memory. The joins of device memory:
//   device_reuse  compute stream  waits for the last user of the device block it is given
//   reload_reuse  reload stream   waits for the last user of the device block it is given
//   consumer      compute stream  waits for the reload of the tensor it will read, or, where that
//                                 never left, for the work of the stream that committed it
//   cap           compute stream  waits for the oldest offload in flight (in commit.hpp)
//   borrow        user's stream   waits for the stream whose allocator gave the device block
//   give_back     owner's stream  waits for the last use of what goes back (memory/borrowed.hpp)
class storages : public copies {
 public:
  using storage = detail::storage;

  // `given` is the trainer's memory, in place of the offloader's own.
  storages(hardware& dev, const observers& heard, const options& opts,
           std::unique_ptr<block_source> given = {}, file_opener file = nullptr)
      : copies(dev, heard, opts, file),
        filling_(dev, order_, opts.poison),
        device_pages_(dev.device_pages()),
        borrowed_(order_),
        given_(given != nullptr),
        device_(given != nullptr ? std::move(given)
                                 : make_device_source(*device_pages_, order_, opts)),
        budget_(opts.device_budget.value_or(0)),
        slack_(opts.borrowed_slack),
        flying_groups_(
            // The count is the cap plus 1. The minimum is taken first, because the largest cap plus
            // 1 would overflow.
            std::min(most_flying_groups - 1, opts.max_inflight.value_or(most_flying_groups)) + 1),
        flying_floor_(opts.max_inflight_bytes.value_or(0)) {
    order_.own_all();
    if (slack_) borrowed_.set_slack(*slack_);
    device_->attach(order_, borrowed_);
    gives_back_ = device_->gives_back();
  }
  storages(const storages&) = delete;
  storages& operator=(const storages&) = delete;
  ~storages() {
    // Memory of a place must not go while a copy uses it.
    for (const auto lane : copy_lanes()) settle(lane);
    if (borrowed_.held() > 0) borrowed_.give_back(0);
    if (borrowed_.held() == 0) return;
    try {  // memory is left if handles outlived their offloader, or a join was refused
      dev_->synchronize();
    } catch (...) {  // a device that is gone runs no work
    }
    borrowed_.abandon();
  }

  [[nodiscard]] bool has_given_memory() const { return given_; }
  // True if the device memory goes back to an allocator that knows no fences.
  [[nodiscard]] bool gives_back() const { return gives_back_; }
  [[nodiscard]] block_source& device_source() { return *device_; }
  [[nodiscard]] const block_source& device_source() const { return *device_; }
  [[nodiscard]] borrowed_memory& borrowed() { return borrowed_; }
  [[nodiscard]] const borrowed_memory& borrowed() const { return borrowed_; }
  [[nodiscard]] std::size_t live() const { return live_; }
  [[nodiscard]] std::size_t live_peak() const { return live_peak_; }
  [[nodiscard]] std::size_t live_peak_without() const { return live_peak_without_; }
  [[nodiscard]] std::size_t away_at_peak() const { return away_at_peak_; }
  [[nodiscard]] std::size_t live_without() const { return live_ + away_; }
  // True if handles hold at least `bytes` bytes that were offloaded and restored, and offloading
  // has not lowered the peak by more than a sixteenth.
  [[nodiscard]] bool saves_nothing(std::size_t bytes) const {
    std::size_t held = 0;
    for_each([&](const storage& each) {
      const bool back =
          each.there.written.position > 0 && each.saves == 0 && !each.is.of_host_state;
      if (back && each.handles > 0) held += each.bytes;
    });
    return held >= bytes && live_peak_ / 15 >= live_peak_without_ / 16;
  }

  // Calls `visit` with every storage in use.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& store : nodes_) {
      if (store.owner != nullptr) visit(store);
    }
  }

  // Makes room for the entries of `destroy`, too, because that must not fail.
  storage& create(storage_owner& owner, std::size_t bytes, std::size_t elements) {
    if (spare_.empty()) {
      make_room(spare_, nodes_.size() + 1);
      spare_.push_back(&nodes_.emplace_back());
    }
    if (order_.capturing()) make_room(gone_, gone_.size() + captured_ + 1);
    auto& store = *spare_.back();
    spare_.pop_back();
    store = {};
    store.owner = &owner;
    store.number = ++created_;
    store.is.captured = order_.capturing();
    captured_ += store.is.captured ? 1 : 0;
    store.bytes = bytes;
    store.elements = elements;
    return store;
  }

  // Takes device memory for `store`, at `offset` if that is free. `waiter` may touch it from now
  // on. Returns false if there is none.
  [[nodiscard]] bool place(storage& store, lane_id waiter, std::size_t offset = anywhere) {
    fence ready;
    if (!take(store, waiter, offset, ready)) return false;
    const auto site = gives_back_ && store.source == nullptr ? join_site::borrow
                      : waiter == reload_lane(store.place)   ? join_site::reload_reuse
                                                             : join_site::device_reuse;
    rollback untouched([&]() noexcept {
      // The past of `waiter` is added, because `ready` has no fences that `waiter` had joined
      // already.
      ready.add(order_.past(waiter));
      if (store.bytes > 0) source_of(store).release(store.here.memory, ready);
      store.here.memory = {};
    });
    if (order_.join(waiter, ready, site)) ++waits_;
    store.handed.to = waiter;
    store.handed.at = order_.next(waiter);
    filling_.handed_out(store, waiter);
    untouched.keep();
    live_ += store.bytes;
    if (store.there.memory || store.is.discarded) away_ -= store.bytes;
    note_taken(store, waiter);
    return true;
  }

  // Fills `store` with zeros for new contents, behind the joins that `waiter` made for the memory.
  void zero(storage& store, lane_id waiter) { filling_.zero(store, waiter); }

  // Returns true if `bytes` more would pass the budget. Otherwise gives back as much waiting memory
  // as these bytes need room.
  [[nodiscard]] bool passes_budget(std::size_t bytes) {
    return budget_.refuses(borrowed_, bytes, live_);
  }

  // ---- packing ----

  // Sets the modules whose BF16 tensors are packed on their way to the host, a bit for each.
  void set_packing(std::uint64_t modules) { packs_ = modules; }
  [[nodiscard]] const packing_sizes& packing() const { return packing_; }
  [[nodiscard]] bool packs(module_id module) const {
    return (packs_ >> static_cast<unsigned>(module) & 1U) != 0;
  }
  // Like `place_copy` on the host, for a tensor that `by` packs. False also if it is not packed.
  [[nodiscard]] bool place_packed(storage& store, lane_id by);
  // Records of a packed tensor that the host looked at.
  struct seen_records {
    std::uint64_t all = 0;
    std::uint64_t raw = 0;
  };
  // Looks at some records of a packed tensor in its block on the host, if the copy is known to be
  // over. Does not block the host.
  [[nodiscard]] seen_records look_at(const storage& store) noexcept;
  // Counts a group beside those that are packed, if it went over the same link.
  void note_beside_packed(const group& which) {
    if (packs_ != 0 && which.place == place_kind::host) packing_.offloaded += which.bytes;
  }
  // True in the middle of a commit or reload that has taken memory for packed tensors.
  [[nodiscard]] bool staging() const { return staged_.any(); }
  // Packs the tensors of a group that were placed for it. A tensor without room for its packed form
  // on the device is copied as it is.
  void pack(const group& which, const saved* items);
  // Takes the memory through which the packed tensors among `items` come back, one after the other.
  // Returns false if there is none.
  [[nodiscard]] bool expect_packed(std::span<const saved> items);
  // Queues the copy of a tensor back to the device, and its unpacking if it is packed.
  void queue_back(const storage& store) { store.is.packed ? queue_packed(store) : queue_in(store); }
  void queue_packed(const storage& store);
  // Unpacks the rest of a group whose copies end with `come`, and releases the staging. Returns the
  // ticket behind all of it.
  [[nodiscard]] ticket unpack_rest(const ticket& come) {
    if (!staged_.any()) return come;
    const auto done = unpack_behind(come);
    release_staging(done.lane);
    return done;
  }
  // Releases the staging of a commit, free behind `done`.
  void unstage(const ticket& done) noexcept {
    for (auto& each : staged_.blocks) each.ready = done;
    if (staged_.any()) release_staging(done.lane);
  }
  // Releases the staging of a commit or reload that failed, once `by` has ended its work.
  void abandon_staging(lane_id by) noexcept {
    if (!staged_.any()) return;
    settle(by);
    release_staging(by);
  }

  // Adopts memory of `owner` that `waiter` has written; `owner` is emptied.
  void adopt(storage& store, void* data, lane_id waiter, memory_owner& owner) {
    store.here.memory = {data, store.bytes,
                         hold_borrowed(*dev_, borrowed_, owner, data, store.bytes, waiter)};
    store.is.borrowed = true;
    store.handed.to = waiter;
    store.handed.at = order_.next(waiter);
    live_ += store.bytes;
    note_taken(store, waiter);
  }

  [[nodiscard]] soft_budget& budget() { return budget_; }
  [[nodiscard]] const soft_budget& budget() const { return budget_; }

  void note_filling(const storage& store) { filling_.note(store); }

  // Releases the device memory of `store`, free again behind `after`. `on` is its last user's lane.
  void displace(storage& store, const fence& after, lane_id on) {
    if (std::exchange(store.is.of_graph, false)) {
      store.is.borrowed = false;  // its owner gets the memory when the offloader goes
    } else if (std::exchange(store.is.borrowed, false)) {
      borrowed_.release(store.here.memory.index, after);
    } else if (store.bytes == 0) {  // no source gave memory
    } else if (filling_.poisons() && store.source == nullptr && has_run(store)) {
      // Memory stays taken if no event could be recorded after its fill.
      if (const auto behind = filling_.given_back(store, after, on)) {
        source_of(store).release(store.here.memory, *behind);
      }
    } else {
      filling_.gave_back(store.here.memory, on);
      source_of(store).release(store.here.memory, after);
    }
    store.here.memory = {};
    live_ -= store.bytes;
    if (store.there.memory || store.is.discarded) away_ += store.bytes;
    if (heard_->any()) tell_level(store, on, 0, store.bytes);
  }

  // Like `displace`, but the memory stays taken, because no event tells when it is free.
  void lose(storage& store) noexcept {
    store.here.memory = {};
    store.is.borrowed = false;
    if (store.there.memory || store.is.discarded) away_ += store.bytes;
  }

  // The number of the latest storage.
  [[nodiscard]] std::uint64_t latest() const { return created_; }
  // Records that a graph was launched whose capture ended when `number` was the latest storage.
  void note_launch(std::uint64_t number) noexcept { ran_ = std::max(ran_, number); }

  // The number of storages that have gone so far.
  [[nodiscard]] std::uint64_t destroyed() const { return destroyed_; }

  // Forgets a storage without handles and saves.
  void destroy(storage& store) noexcept {
    if (store.is.discarded && !store.here.memory) away_ -= store.bytes;
    store.owner = nullptr;
    spare_.push_back(&store);
    ++destroyed_;
    if (!store.is.captured) return;
    --captured_;
    if (!order_.capturing()) gone_.push_back(store.number);
  }
  // The numbers of storages that were made inside captures and destroyed outside of them, since the
  // latest `forget_gone`.
  [[nodiscard]] const std::vector<std::uint64_t>& gone() const { return gone_; }
  void forget_gone() noexcept { gone_.clear(); }

  [[nodiscard]] std::uint64_t waits() const { return waits_; }
  [[nodiscard]] std::uint64_t elsewhere() const { return elsewhere_; }

  // Sets how many bytes the pool may leave in flight: a few of the largest groups, or as many as
  // the caps allow.
  void note_group(std::size_t bytes) {
    if (bytes <= largest_group_) return;
    largest_group_ = bytes;
    const auto in_flight = std::max(flying_floor_, flying_groups_ * largest_group_);
    device_->allow_in_flight(in_flight);
    // With a budget, borrowed memory may wait as long as the budget has room.
    if (!slack_ && !budget_.limits()) borrowed_.set_slack(in_flight);
  }

 private:
  // `spare`: the block is of use, but not needed.
  [[nodiscard]] bool take_staging(std::size_t bytes, lane_id by, bool spare = false);
  [[nodiscard]] ticket unpack_behind(const ticket& come);
  void enter_staging(const grant& into, lane_id by);
  void release_staging(lane_id on) noexcept;

  // False if a capture made `store` whose graph has not run. Until then the memory may hold another
  // tensor, which that graph reads.
  [[nodiscard]] bool has_run(const storage& store) const {
    return !store.is.captured || order_.capturing() || store.number <= ran_;
  }

  [[nodiscard]] bool take(storage& store, lane_id waiter, std::size_t offset, fence& ready) {
    if (store.bytes == 0) {
      store.here.memory = no_bytes();
      return true;
    }
    const bool by_owners = store.source == nullptr && (borrowed_.held() > 0 || gives_back_);
    if (by_owners && budget_.refuses(borrowed_, store.bytes, live_)) return false;
    auto& source = source_of(store);
    if (offset != anywhere) {
      if (source.take_at(offset, store.bytes, waiter, store.here.memory, ready)) return true;
      ++elsewhere_;
    }
    if (!source.take(store.bytes, waiter, store.here.memory, ready)) return false;
    if (store.source != nullptr && store.here.memory.bytes < store.bytes) give_back(store, ready);
    return true;
  }

  [[gnu::cold, noreturn]] void give_back(storage& store, const fence& ready) {
    const auto got = std::exchange(store.here.memory, {});
    store.source->release(got, ready);
    throw misuse_error("allocate_from: the source gave a block of " + std::to_string(got.bytes) +
                       " bytes where " + std::to_string(store.bytes) +
                       " were asked for; let take return false where no block is large enough");
  }

  // Numbers count from the address of this object. So two offloaders have no number in common, and
  // messages can tell a handle that another offloader emptied.
  [[nodiscard]] std::uint64_t first_number() const {
    return std::uint64_t{reinterpret_cast<std::uintptr_t>(this) / alignof(storages)} << 20;
  }

  static constexpr std::size_t most_flying_groups = 4;

  [[nodiscard]] block_source& source_of(const storage& store) {
    return store.source == nullptr ? *device_ : *store.source;
  }

  void note_taken(const storage& store, lane_id by) {
    live_peak_ = std::max(live_peak_, live_);
    if (live_ + away_ >= live_peak_without_) {
      live_peak_without_ = live_ + away_;
      away_at_peak_ = away_;
    }
    if (heard_->any()) tell_level(store, by, store.bytes, 0);
  }

  void tell_level(const storage& store, lane_id on, std::size_t taken, std::size_t given) {
    const level_change now{taken, given, live_ + away_};
    heard_->tell({.what = happened::memory_changed, .lane = on, .tensor = &store, .level = now});
  }

  filling filling_;
  std::unique_ptr<page_allocator> device_pages_;
  borrowed_memory borrowed_;
  bool given_;               // the trainer gave the device memory
  bool gives_back_ = false;  // the device memory goes back to an allocator
  std::unique_ptr<block_source> device_;
  std::deque<storage> nodes_;
  std::vector<storage*> spare_;
  soft_budget budget_;
  std::optional<std::size_t> slack_;  // bytes of borrowed memory that may wait
  std::size_t flying_groups_;
  std::size_t flying_floor_;
  std::size_t largest_group_ = 0;
  std::size_t live_ = 0;  // bytes on the device once all calls so far have run
  std::size_t live_peak_ = 0;
  std::size_t live_peak_without_ = 0;
  std::size_t away_at_peak_ = 0;  // `away_` at `live_peak_without_`
  std::uint64_t packs_ = 0;       // modules that are packed, a bit for each
  packing_sizes packing_;
  std::uint64_t waits_ = 0;
  std::uint64_t elsewhere_ = 0;  // blocks that lie elsewhere than the plan wanted
  std::uint64_t created_ = first_number();
  std::uint64_t ran_ = 0;  // graphs have run whose captures made storages up to this number
  std::uint64_t destroyed_ = 0;
  std::size_t captured_ = 0;         // living storages that were made inside captures
  std::vector<std::uint64_t> gone_;  // always has room for `captured_` more
};

}  // namespace tidepool::detail
