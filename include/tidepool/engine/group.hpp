/// What one run of one module saved, and the chunk of runs it belongs to.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/device/device.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/module.hpp"

namespace tidepool::inline v0_2_0 {

/// Which forward pass a chunk stands for.
struct chunk_info {
  int microbatch = 0;         ///< of the step, for messages and pictures
  int model_chunk = 0;        ///< of an interleaved pipeline
  bool forward_only = false;  ///< evaluation: nothing leaves, nothing is counted or learnt
  bool release = false;       ///< with forward_only: a commit gives the memory of its handles back
};

namespace detail {

// By hand everything leaves, and its handles stay full; `or_discard` offers to compute it again.
enum class commit_kind : std::uint8_t { plain, by_hand, or_discard };

// Tensors of one commit, counted once it has succeeded.
struct tally {
  std::uint32_t offloaded = 0;
  std::uint32_t shared = 0;
  std::uint32_t small = 0;
};

inline constexpr std::uint32_t no_group = std::numeric_limits<std::uint32_t>::max();

// One argument of a commit. Without a storage it stayed in the trainer's hand.
struct saved {
  storage* store = nullptr;
  rectangle part{};          // what the handle will show again
  bool copies = false;       // the first to save this storage
  bool copies_back = false;  // the reload of its group brought it
  bool in_hand = false;      // the handle that is being restored was never released
  // Whose memory is copied, or what stayed by policy: whether that is the same still, its number
  // says.
  storage* source = nullptr;
  std::uint64_t number = 0;
  bool by_plan = false;  // and not for its layer: in the warm-up it left

  // What its restore fills a handle with; null where that stayed.
  [[nodiscard]] storage* returning() const { return in_hand ? nullptr : store; }
};

enum class group_state : std::uint8_t { away, arriving, discarded, restored };

// The unit of commit, event and cap.
struct group {
  module_id module{};
  group_state state = group_state::away;
  bool offered = false;  // backward could compute it again
  bool awaited = true;   // by a restore; one that is forgotten each step is not reloaded ahead
  place_kind place{};    // to which what it saves first is offloaded
  lane_id lane{};        // that committed it
  int layer = -1;
  std::uint32_t first = 0;  // of its arguments in the chunk's list
  std::uint32_t count = 0;
  std::uint32_t leaving = 0;       // of them, those with a storage
  std::uint32_t below = no_group;  // the module's group committed before it
  std::uint32_t alike = no_group;  // and one that the index finds behind it
  std::uint32_t ahead = no_group;  // its slot among those that were reloaded and not restored
  std::size_t bytes = 0;           // that left with it
  std::size_t kept = 0;            // that stayed because policy said so
  std::uint64_t position = 0;      // of its commit: the next record on its lane at that time
};

// Bytes that a group needs away from the device, whoever copied them.
[[nodiscard]] inline std::size_t bytes_saved(const group& which, const saved* items) {
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store != nullptr) bytes += items[i].store->bytes;
  }
  return bytes;
}

// A tensor whose memory was given up, since backward computes it again.
struct discarded_tensor {
  std::uint32_t call = 0;  // which call discarded it, counted in its chunk
  std::size_t what = 0;    // its place among `recompute_modules`
  int layer = -1;
  std::size_t bytes = 0;
  std::size_t elements = 0;
  block_source* source = nullptr;
  fill contents = fill::none;  // of memory that it is given again
  bool under_way = false;      // being computed again, by a function that may compute others first
};

// The groups of one forward pass, last in first out per module.
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
  // A group with room for so many arguments, none of which it counts yet.
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
  // Takes back a group whose commit failed; it must be the last.
  void remove_last() {
    const auto& last = groups.back();
    top_[static_cast<std::size_t>(last.module)] = last.below;
    items_.resize(last.first);
    groups.pop_back();
    --waiting;
  }

  // Its arguments, in the order of its commit.
  [[nodiscard]] saved* saved_of(const group& of) { return items_.data() + of.first; }
  // Whether a plan keeps any of what was committed last.
  [[nodiscard]] bool keeps_last() {
    const auto* const items = saved_of(groups.back());
    return std::any_of(items, items + groups.back().count, std::mem_fn(&saved::by_plan));
  }

  // The module's last group of that layer that is not restored yet.
  [[nodiscard]] std::uint32_t find(module_id module, int layer) {
    auto& top = top_[static_cast<std::size_t>(module)];
    while (top != no_group && groups[top].state == group_state::restored) top = groups[top].below;
    return top == no_group || groups[top].layer == layer ? top : find_by_index(module, layer);
  }
  // True when such a group was committed at all, restored or not.
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

  // Going backward: the next group that may have to be reloaded; `no_group` when all have been.
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
  std::size_t ordinal = 0;  // its place among the forward passes of the step
  std::vector<group> groups;
  std::vector<discarded_tensor> discarded;
  std::vector<std::uint32_t> by_size;  // the arguments of one group
  std::size_t waiting = 0;             // groups committed and not restored
  bool forward_done = false;
  bool backward_begun = false;

 private:
  [[nodiscard]] static bool is_to_reload(const group& each) {
    return each.state == group_state::away && each.awaited;
  }
  // Where the groups do not come back last in, first out: in a hash table, chained through them
  // with the latest first.
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
  std::vector<std::uint32_t> buckets_;  // of the index; a power of two, or none before its use
  std::uint32_t indexed_ = 0;           // groups that it has
  std::uint32_t cursor_ = 0;            // groups from here on need no reload
};

}  // namespace detail
}  // namespace tidepool
