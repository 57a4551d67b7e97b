// What the documentation says that a trainer may count on: which bytes stand where, and which calls
// are allowed now. It asks the library nothing but whether a handle is full.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tidepool/graph.hpp>
#include <tidepool/host_state.hpp>
#include <tidepool/keyed.hpp>
#include <tidepool/layers.hpp>
#include <tidepool/offloader.hpp>
#include <tidepool/places/lending.hpp>
#include <tidepool/plan.hpp>
#include <vector>

#include "device.hpp"
#include "numbers.hpp"
#include "program.hpp"

namespace stranger {

using modules =
    tp::packed<tp::modules<"core_attn", "expert_fc1", "moe_act", "mine", "mine_again">, "mine">;
using offloader = tp::offloader<device, modules>;
using buffer = offloader::buffer;
using view = offloader::view;
using handle = tp::handle<device>;
using stream_ref = device::stream_ref;

inline constexpr int most_streams = 4;
using positions = std::array<std::uint32_t, most_streams>;
inline void join(positions& into, const positions& other) {
  for (std::size_t s = 0; s < most_streams; ++s) into[s] = std::max(into[s], other[s]);
}

// The bytes of one tensor: a pattern of its number and its version. What was captured has not run,
// so it counts apart.
struct content {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  std::uint64_t truth = 0;  // the version that eager work sees; 0: not written, or not known
  std::uint64_t captured = 0;
  int handles = 0;
  int saves = 0;
  bool keep = false;
  // Where what was opted out lay. A view may have come back as memory of its own, with the same
  // bytes: that memory is opted out then, and not the one that it was a view of.
  std::set<std::uintptr_t> kept_at;
  bool copied = false;  // while a handle held it: the copy may last beyond a restore
  int side = 0;
  int source = 0;
  int loan = -1;  // it was adopted
  bool bfloat16 = false;
  bool ahead = false;  // backward has come for it: it may stay where it lies until then
  bool again = false;  // discarded, and to be computed again
  bool restored = false;
  std::uint64_t words = 0;  // of what its bytes are, where that is not its own number
  positions past{};         // uses through handles that are gone
};
using content_ref = std::shared_ptr<content>;
[[nodiscard]] inline std::uint64_t words_of(const content& of) {
  return of.words != 0 ? of.words : of.id;
}

// A piece of the trainer's own memory, of an allocator that works in the order of `home`.
struct region {
  std::byte* at = nullptr;
  void* whole = nullptr;
  std::size_t bytes = 0;
  int home = 0;
  int references = 0;   // of loans and of the trainer
  bool weight = false;  // is not to leave, by key
  std::uint64_t words = 0, version = 0;
};
// One reference to it that an offloader has.
struct loan {
  int region = 0;
  int side = 0;
  int times_back = 0;
};

// A block_source of the trainer's own: some blocks of each size, with the fences that it was given.
class own_blocks final : public tp::block_source {
 public:
  struct state {
    struct one {
      std::byte* at = nullptr;
      std::size_t bytes = 0;
      bool taken = false;
      tp::fence after{};
    };
    std::vector<one> all;
    std::string wrong;
    [[nodiscard]] std::size_t in_use() const {
      std::size_t sum = 0;
      for (const auto& each : all) sum += each.taken ? each.bytes : 0;
      return sum;
    }
  };
  explicit own_blocks(state& of) : of_(of) {}

  bool take(std::size_t bytes, tp::lane_id /*waiter*/, tp::block& into, tp::fence& ready) override {
    state::one* best = nullptr;
    for (auto& each : of_.all) {
      if (each.taken || each.bytes < bytes) continue;
      if (best == nullptr || each.bytes < best->bytes ||
          (each.bytes == best->bytes && each.after.order() < best->after.order())) {
        best = &each;
      }
    }
    if (best == nullptr) return false;
    best->taken = true;
    into = {best->at, best->bytes, static_cast<std::uint32_t>(best - of_.all.data())};
    ready = best->after;
    return true;
  }
  void release(const tp::block& done, const tp::fence& after) noexcept override {
    if (done.index >= of_.all.size()) {
      of_.wrong = "a block that it has not";
      return;
    }
    auto& one = of_.all[done.index];
    if (!one.taken || one.at != done.data || one.bytes != done.bytes) {
      of_.wrong = "released twice, or another block";
    }
    one.taken = false;
    one.after = after;
  }
  std::size_t reserved() const override { return budget(); }
  std::size_t peak() const override { return budget(); }
  std::size_t budget() const override {
    std::size_t sum = 0;
    for (const auto& each : of_.all) sum += each.bytes;
    return sum;
  }
  std::size_t largest_free() const override {
    std::size_t most = 0;
    for (const auto& each : of_.all) most = each.taken ? most : std::max(most, each.bytes);
    return most;
  }
  std::uint64_t allocations() const override { return 0; }

 private:
  state& of_;
};

// Where a handle's bytes lie in its content.
struct part {
  std::size_t offset = 0, width = 0, rows = 1, pitch = 0;
  [[nodiscard]] bool empty() const { return width == 0 || rows == 0; }
  // From the first byte to the end of the last row, at this pitch.
  [[nodiscard]] std::size_t span(std::size_t at) const {
    return empty() ? 0 : (rows - 1) * at + width;
  }
};

struct slot {
  bool is_view = false;
  buffer b;
  view v;
  content_ref of;  // also of an emptied handle, until its group is restored or dropped
  part where;
  bool whole = false;
  positions ready{};       // what any use comes after, on each stream
  positions used{};        // the last use through this handle
  unsigned follows = 0;    // streams behind which it may give its memory back without a word
  int group = -1;          // the number of the group that holds it
  bool by_hand = false;    // of that group: it may be reset before its restore
  positions handed{};      // what the stream that it was handed to had been given then
  int visits = -1;         // the state that it is of
  bool by_commit = false;  // a commit emptied the buffer
  std::size_t elements = 0;

  [[nodiscard]] handle& h() { return is_view ? static_cast<handle&>(v) : b; }
  [[nodiscard]] bool full() const { return is_view ? static_cast<bool>(v) : static_cast<bool>(b); }
  [[nodiscard]] std::size_t pitch() const { return is_view ? v.pitch() : where.width; }
};

struct argument {
  int slot = -1;
  bool left = false;   // emptied by the commit
  bool saved = false;  // left, or by hand
  content_ref of;
  part where;
  bool own = false;  // a view that comes back as memory of its own
};

struct group {
  int number = 0;
  int module = 0;
  int layer = 0;
  commit_way way = plain;
  bool restored = false;
  std::vector<argument> arguments;
};

struct discarded {
  int number = 0;
  int name = 0;
  int layer = 0;
  bool done = false;
  std::vector<argument> arguments;
};

struct pass {
  offloader::chunk chunk;
  bool open = false;
  int side = 0;
  bool forward_only = false;
  bool release = false;   // and commits give memory back
  bool ended = false;     // its forward
  bool restored = false;  // anything
  bool lost = false;      // part of a capture that failed
  std::vector<group> groups;
  std::vector<discarded> given;
};

struct visitor {
  std::optional<tp::host_state<device>> state;
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  int side = 0;
  std::uint64_t truth = 0, captured = 0;  // version of what lies on the host
  bool written = false, written_captured = false;
  bool unsure = false;  // a write_back failed, perhaps with part of it done
  bool maybe_ahead = false;
  bool ahead_inside = false;  // a capture prefetched it
  int slot = -1;              // where it visits
};

// ---- tensors by key ----

using keyed = tp::keyed<device, modules>;
template <class Keys>
inline constexpr bool has_questions = requires(Keys& keys) {
  keys.exclude_if(nullptr);
};
inline constexpr bool excludes = has_questions<keyed>;

struct key_tensor {
  int references = 0;
  int scope = 0;
  int region = 0, loan = 0;
  std::uint64_t words = 0, version = 0;
  std::size_t bytes = 0;
  bool excluded = false;  // belongs to no scope
  bool loaded = false;
  unsigned streams = 0;  // on which it was loaded
  std::byte* at = nullptr;
  unsigned readers = 0;  // streams that may read at `at` now
  int asked = 0;         // the operation that gave it
  positions used{};
};
struct key_scope {
  int module = 0, layer = 0;
  bool left = false, tried = false, restored = false, kept = false;
};
struct key_pass {
  std::optional<keyed::pass> pass;
  bool open = false;
  int side = 0;
  bool forward_only = false, release = false;
  bool ended = false, restored = false;
  std::vector<key_scope> scopes;
  std::vector<int> within;  // scopes that are open
  std::map<std::uint64_t, key_tensor> tensors;
  std::vector<std::pair<int, int>> dropped;  // loans of what has gone, and their scopes or -1
  std::vector<int> kept;                     // regions that the trainer keeps until the end
};

// ---- arrays of layers ----

// What a trainer of arrays has: its chunk, a group, and arrays.
struct arrays {
  using array = tp::saved_layers<quad, offloader>;
  offloader::chunk pass;
  tp::layer_group<offloader> group;
  std::vector<std::unique_ptr<array>> all;
  arrays(offloader& off, const char* module, int count) : group(off, pass, module) {
    for (int i = 0; i < count; ++i) all.push_back(std::make_unique<array>(group));
  }
};

struct layer_cell {
  enum class phase { none, fresh, done, back } now = phase::none;
  std::size_t elements = 0;
  std::uint64_t words = 0, version = 0;  // version 0: nobody knows
  bool zeros = false;                    // where nothing was written
  bool kept = false;                     // memory of a module that is not enabled
  unsigned asked = 0;                    // streams that `back` made wait for what it brought
  bool written = false;                  // since it came back
  positions ready{}, used{};
};
struct layer_set {
  std::optional<arrays> of;
  int side = 0, module = 0;
  bool open = false, forward_only = false, release = false, ended = false, restored = false;
  bool broken = false;  // a call of several arrays threw: only giving up is left
  std::array<std::array<layer_cell, array_count>, layer_count> cells{};
};

// What is alive: a content and an address of it on the device; 0 where it is saved.
using layout = std::set<std::pair<std::uint64_t, std::uintptr_t>>;

struct recorded_graph {
  std::optional<tp::graph<device>> graph;
  int side = 0;
  layout before, after;
  std::vector<std::function<void()>> effects;
  struct outer {
    content_ref of;
    const void* at = nullptr;  // where it lay when the capture began
  };
  std::vector<outer> touched;  // alive before, and used inside
  std::set<std::uint64_t> states;
  std::vector<int> states_used;
  std::uint64_t eager_calls = 0;
  bool ahead = false;    // prefetched state was about
  bool lent_to = false;  // it may copy to what is borrowed
  std::set<std::uint64_t> all_states;
};

struct side_model {
  own_blocks::state blocks;                            // of own memory
  std::map<void*, std::size_t> handed;                 // of memory_on
  std::vector<std::pair<void*, std::size_t>> at_home;  // free in it
  std::vector<void*> memory;                           // all that it ever had of the device
  std::optional<offloader> off;
  std::optional<keyed> keys;
  std::size_t in_use = 0, most = 0;
  std::size_t host_then = 0, device_then = 0;  // reserved when the first part was over
  std::size_t saved = 0, saved_then = 0;       // the most at the end of a forward pass; until then
  bool ending = false;                         // its destructor runs
  bool late = false;                           // memory may wait longer than the slack says
  bool gone = false;
  bool held = false;                    // to a plan, until a step of passes ended
  int passes = 0;                       // that were finished in this step
  bool begun = false, spoiled = false;  // the step; by a pass given up
  bool tracing = false;
  bool dirty = false;  // the device does not stand where the handles say
  layout on_device;    // where it stands, while dirty
  std::uint64_t eager_calls = 0;
  unsigned known = 0;  // streams that it was given
  bool evil_reports = false;
  std::optional<tp::lent_memory<device>> lent;  // to it, the last
  bool borrows = false, lender_here = false, moves_on = false, ever_borrowed = false;
  bool graphs_since = false;  // it borrowed
  bool forgiven = false;      // memory may have stayed taken, since a device call failed
};

// A trainer's exception.
struct trainer_error : std::runtime_error {
  trainer_error() : std::runtime_error("the trainer's own error") {}
};

}  // namespace stranger
