// What the documentation says that a trainer may count on: which bytes stand where, and which calls
// are allowed now. It asks the library nothing but whether a handle is full.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tidepool/offloader.hpp>
#include <tidepool/plan.hpp>
#include <vector>

#include "device.hpp"
#include "program.hpp"

namespace stranger {

using modules = tp::modules<"core_attn", "expert_fc1", "moe_act", "mine", "mine_again">;
using offloader = tp::offloader<device, modules>;
using buffer = offloader::buffer;
using view = offloader::view;
using handle = tp::handle<device>;
using stream_ref = device::stream_ref;

inline constexpr int most_streams = 4;
using positions = std::array<std::uint32_t, most_streams>;

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
  bool copied = false;  // while a handle held it: the copy may last beyond a restore
  int side = 0;
  int source = 0;
  positions past{};  // uses through handles that are gone
};
using content_ref = std::shared_ptr<content>;

// Where a handle's bytes lie in its content.
struct part {
  std::size_t offset = 0, width = 0, rows = 1, pitch = 0;
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
  bool maybe_ahead = false;
  bool ahead_inside = false;  // a capture prefetched it
  int slot = -1;              // where it visits
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
  bool ahead = false;  // prefetched state was about
  std::set<std::uint64_t> all_states;
};

struct side_model {
  std::optional<offloader> off;
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
  bool forgiven = false;  // memory may have stayed taken, since a device call failed
};

// A trainer's exception.
struct trainer_error : std::runtime_error {
  trainer_error() : std::runtime_error("the trainer's own error") {}
};

[[nodiscard]] inline std::uint64_t word_of(std::uint64_t id, std::uint64_t version,
                                           std::uint64_t offset) {
  auto z = id * 0x9E3779B97F4A7C15U + version * 0xC2B2AE3D27D4EB4FU + offset * 0x165667B19E3779F9U;
  z = (z ^ (z >> 31)) * 0xBF58476D1CE4E5B9U;
  return (z ^ (z >> 28)) >> 1;  // never the poison
}

}  // namespace stranger
