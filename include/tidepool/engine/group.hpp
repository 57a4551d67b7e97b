/// The tensors that one run of one module saved, and the chunk of runs it belongs to.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "tidepool/device/device.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/module.hpp"

namespace tidepool::inline v0_3_0 {

/// The forward pass that a chunk stands for.
struct chunk_info {
  int microbatch = 0;         ///< number within the step, for messages and pictures
  int model_chunk = 0;        ///< number within an interleaved pipeline
  bool forward_only = false;  ///< evaluation: no tensor leaves, no group is counted or learnt
  bool release = false;       ///< with forward_only: a commit gives the memory of its handles back
};

namespace detail {

// `by_hand`: every argument leaves, and the handles stay full. `or_discard`: the trainer offers to
// compute the tensors again in backward. `plain`: any other commit.
enum class commit_kind : std::uint8_t { plain, by_hand, or_discard };

// Counts of tensors of one commit, added to the counters once the commit has succeeded.
struct tally {
  std::uint32_t offloaded = 0;
  std::uint32_t shared = 0;
  std::uint32_t small = 0;
};

inline constexpr std::uint32_t no_group = std::numeric_limits<std::uint32_t>::max();

// An argument of a commit. If `store` is null, the tensor stayed in the trainer's handle.
struct saved {
  storage* store = nullptr;
  rectangle part{};          // the rectangle that the restored handle shows
  bool copies = false;       // this argument is the first to save the storage
  bool copies_back = false;  // the reload of its group copies it back
  bool in_hand = false;      // its handle was never released
  // The storage whose memory is copied, or that stayed by policy. Storage objects are reused, so
  // that `number` identifies a storage that stayed.
  storage* source = nullptr;
  std::uint64_t number = 0;
  bool by_plan = false;  // stayed by rule or plan, not by layer; in the warm-up it left

  // The storage that the restore puts into the handle; null if the tensor stayed in the handle.
  [[nodiscard]] storage* returning() const { return in_hand ? nullptr : store; }
};

enum class group_state : std::uint8_t { away, arriving, discarded, restored };

// A reload `ahead` of its use may be left for later, a `needed` one may not. `largest_first` is a
// needed one again, after the order of the commit found no room.
enum class haste : std::uint8_t { ahead, needed, largest_first };

// A group is the unit of commit, event and cap.
struct group {
  module_id module{};
  group_state state = group_state::away;
  bool offered = false;  // backward could compute it again
  bool awaited = true;   // a restore is expected; else the group is not reloaded ahead
  place_kind place{};    // place of tensors that this group is the first to save
  lane_id lane{};        // lane that committed it
  int layer = -1;
  std::uint32_t first = 0;  // index of its first argument in the chunk's list
  std::uint32_t count = 0;
  std::uint32_t leaving = 0;       // arguments with a storage
  std::uint32_t below = no_group;  // the module's group committed before it
  std::uint32_t alike = no_group;  // the next group in its bucket of the index
  std::uint32_t ahead = no_group;  // its slot among groups reloaded and not restored yet
  std::size_t bytes = 0;           // bytes that this group was the first to offload
  std::size_t kept = 0;            // bytes that stayed because policy said so
  std::uint64_t position = 0;      // the next record on `lane` at the time of the commit
};

// Bytes that a group saves away from the device, with tensors that another group copied.
[[nodiscard]] inline std::size_t bytes_saved(const group& which, const saved* items) {
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store != nullptr) bytes += items[i].store->bytes;
  }
  return bytes;
}

// Bytes of device memory of the tensors that a group is the first to save. Limits of device memory
// count these; the copies are shorter where only some rows move.
[[nodiscard]] inline std::size_t bytes_on_device(const group& which, const saved* items) {
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].copies) bytes += items[i].store->bytes;
  }
  return bytes;
}

// A tensor whose memory was released, because backward will compute the tensor again.
struct discarded_tensor {
  std::uint32_t call = 0;  // number of the call that discarded it, within its chunk
  std::size_t what = 0;    // index of its name in `recompute_modules`
  int layer = -1;
  std::size_t bytes = 0;
  std::size_t elements = 0;
  block_source* source = nullptr;
  fill contents = fill::none;  // fill of the memory that it gets again
  bool bfloat16 = false;       // holds BF16 numbers
  bool under_way = false;      // is being computed again; the function may compute others first
};

// The groups of one forward pass. Each module's groups come back last in, first out.
struct chunk_state {
  void start(const chunk_info& what, std::size_t which) {
    info = what;
    ordinal = which;
    groups.clear();
    items_.clear();
    discarded.clear();
    top_.fill(no_group);
    buckets_.clear();
    cursor_ = 0;
    waiting = 0;
    forward_done = false;
    backward_begun = false;
  }

  void end_forward() {
    if (forward_done) return;
    forward_done = true;
    cursor_ = static_cast<std::uint32_t>(groups.size());
  }
  void begin_backward() {
    end_forward();
    backward_begun = true;
  }

  struct added {
    group& which;
    saved* items;
  };
  // Appends a group with room for `arguments`. Its `count` is 0 until they are collected.
  added add(module_id module, int layer, std::size_t arguments) {
    const auto first = items_.size();
    items_.resize(first + arguments);
    auto& fresh = groups.emplace_back();
    fresh.module = module;
    fresh.layer = layer;
    fresh.first = static_cast<std::uint32_t>(first);
    fresh.below = std::exchange(top_[static_cast<std::size_t>(module)],
                                static_cast<std::uint32_t>(groups.size() - 1));
    ++waiting;
    return {fresh, items_.data() + first};
  }
  // Removes a group whose commit failed; it must be the last.
  void remove_last() {
    const auto& last = groups.back();
    top_[static_cast<std::size_t>(last.module)] = last.below;
    items_.resize(last.first);
    groups.pop_back();
    --waiting;
  }

  // The arguments of a group, in the order of its commit.
  [[nodiscard]] saved* saved_of(const group& of) { return items_.data() + of.first; }
  // True if rule or plan keeps an argument of the last commit on the device.
  [[nodiscard]] bool last_commit_keeps_any() {
    const auto* const items = saved_of(groups.back());
    return std::any_of(items, items + groups.back().count, std::mem_fn(&saved::by_plan));
  }

  // The module's last group of that layer that is not restored yet, or `no_group`.
  [[nodiscard]] std::uint32_t find(module_id module, int layer) {
    auto& top = top_[static_cast<std::size_t>(module)];
    while (top != no_group && groups[top].state == group_state::restored) top = groups[top].below;
    return top == no_group || groups[top].layer == layer ? top : find_by_index(module, layer);
  }
  // True if the module has committed a group of that layer, even if it was restored since.
  [[nodiscard]] bool ever_had(module_id module, int layer) const {
    for (const auto& each : groups) {
      if (each.module == module && each.layer == layer) return true;
    }
    return false;
  }

  void mark_restored(group& which) {
    which.state = group_state::restored;
    --waiting;
  }

  // The next group to reload, in the order of backward; `no_group` if there is none left.
  [[nodiscard]] std::uint32_t next_to_reload() {
    while (cursor_ > 0 && !is_to_reload(groups[cursor_ - 1])) --cursor_;
    return cursor_ == 0 ? no_group : cursor_ - 1;
  }
  // Puts a group back in the queue of reloads.
  void reload_again(std::uint32_t index) {
    groups[index].state = group_state::away;
    cursor_ = std::max(cursor_, index + 1);
  }

  chunk_info info;
  std::size_t ordinal = 0;  // its number among the forward passes of the step
  std::vector<group> groups;
  std::vector<discarded_tensor> discarded;
  std::vector<std::uint32_t> by_size;  // arguments of one group, the largest first
  std::size_t waiting = 0;             // groups committed and not restored
  bool forward_done = false;
  bool backward_begun = false;

 private:
  [[nodiscard]] static bool is_to_reload(const group& each) {
    return each.state == group_state::away && each.awaited;
  }
  // Finds a group that does not come back last in, first out, in a hash table that chains groups,
  // the latest first.
  [[nodiscard]] std::uint32_t find_by_index(module_id module, int layer) {
    bring_index_up_to_date();
    auto* link = &bucket_of(module, layer);
    while (*link != no_group) {
      auto& each = groups[*link];
      if (each.state == group_state::restored) {
        *link = each.alike;
        continue;
      }
      if (each.module == module && each.layer == layer) break;
      link = &each.alike;
    }
    return *link;
  }
  void bring_index_up_to_date() {
    if (buckets_.size() < groups.size() || buckets_.empty()) {
      buckets_.assign(std::bit_ceil(groups.size()), no_group);
      indexed_ = 0;
    }
    for (; indexed_ < groups.size(); ++indexed_) {
      auto& each = groups[indexed_];
      each.alike = std::exchange(bucket_of(each.module, each.layer), indexed_);
    }
  }
  [[nodiscard]] std::uint32_t& bucket_of(module_id module, int layer) {
    const auto key = std::uint64_t{static_cast<std::uint32_t>(layer)} * max_modules +
                     static_cast<std::size_t>(module);
    return buckets_[(key * 0x9E3779B97F4A7C15U >> 32) & (buckets_.size() - 1)];
  }

  std::vector<saved> items_;  // the arguments of all groups
  std::array<std::uint32_t, max_modules> top_{};
  std::vector<std::uint32_t> buckets_;  // of the index: a power of two, or none before its use
  std::uint32_t indexed_ = 0;           // groups that the index has
  std::uint32_t cursor_ = 0;            // groups from here on need no reload
};

}  // namespace detail
}  // namespace tidepool
