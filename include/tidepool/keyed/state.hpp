// The state of a pass by keys: its tensors, the scopes that saved them, and the streams that read
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/key_map.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::inline v0_3_0::detail {

// A tensor. After its group was restored or forgotten, dropping its last reference frees it.
template <device Device>
struct keyed_entry {
  buffer<Device> handle;
  std::uint64_t key = 0;
  std::uint32_t references = 0;
  std::uint32_t group = 0;  // its scope; none: it was excluded, or dropped before the scope ended
  std::uint32_t next = key_map::none;  // next of its group, or next unused entry
  std::uint32_t argument = 0;          // position in the commit of its group
  bool empty = false;                  // it has 0 bytes
  bool loaded = false;
  bool read_again = false;   // read again in forward, after its scope ended
  std::uint8_t readers = 0;  // of the present memory, a bit for each lane
};

enum class keyed_place : std::uint8_t { open, committed, restored, gone };

// The tensors that one scope saved.
struct keyed_group {
  module_id module{};
  int layer = 0;
  keyed_place place = keyed_place::open;
  bool left = false;                    // at least one of its tensors left
  bool kept = false;                    // the policy keeps some of it that may leave
  std::uint32_t outer = key_map::none;  // scope in which it was entered
  std::uint32_t first = key_map::none;
  std::uint32_t last = key_map::none;
  std::uint32_t wanted = 0;  // tensors with references
};

template <device Device, class Modules>
struct keyed_state {
  using stream_ref = typename Device::stream_ref;
  using entry = keyed_entry<Device>;

  chunk<Device, Modules> open;
  std::vector<entry> entries;
  std::vector<keyed_group> groups;
  std::vector<handle<Device>*> list;                         // handles of one call
  std::array<std::optional<stream_ref>, max_lanes> readers;  // streams that loaded, by lane
  key_map by_key;
  key_map by_place;  // finds groups, by module and layer
  std::uint32_t spare = key_map::none;
  std::uint32_t scope = key_map::none;  // the innermost open scope
  int microbatch = 0;
  bool trains = true;
  bool forward = true;

  // Calls `visit` with the tensors that the group commits or has committed, in that order.
  template <class Visit>
  void each_of(const keyed_group& which, const Visit& visit) {
    for (auto i = which.first; i != key_map::none; i = entries[i].next) {
      if (entries[i].group != key_map::none) visit(entries[i]);
    }
  }
  [[nodiscard]] typename chunk<Device, Modules>::handle_list handles_of(const keyed_group& which) {
    list.clear();
    each_of(which, [&](entry& each) { list.push_back(&each.handle); });
    return list;
  }

  void note_reader(entry& of, lane_id lane, const stream_ref& stream) {
    static_assert(max_lanes <= 8, "a bit for each");
    readers[index_of(lane)] = stream;
    of.readers |= static_cast<std::uint8_t>(1U << index_of(lane));
    of.loaded = true;
  }
  // Frees the tensor's memory only after the work that all streams that loaded it were given so
  // far.
  void go_behind_readers(entry& which) {
    for (std::size_t lane = 0; lane < max_lanes; ++lane) {
      if ((which.readers >> lane & 1U) != 0) which.handle.share().reset(*readers[lane]);
    }
  }

  void begin(chunk<Device, Modules>&& fresh) {
    open = std::move(fresh);
    microbatch = open.info().microbatch;
    trains = !open.info().forward_only;
    forward = true;
  }
  // Calls `lose` with handles whose last read has no event, so that their memory is never reused.
  template <class Lose>
  void end(const Lose& lose) noexcept {
    open = {};
    for (auto& left : entries) {
      try {
        if (left.references > 0) go_behind_readers(left);
      } catch (const error&) {
        lose(left.handle);
      }
    }
    entries.clear();
    readers = {};
    groups.clear();
    by_key.clear();
    by_place.clear();
    spare = scope = key_map::none;
  }
};

// The tensors that forward read again after their scopes ended, in the latest pass. Such a tensor
// is kept in the next pass, since it would only leave and come back. A wrong match is harmless: it
// costs memory or a copy.
class reread_places {
 public:
  template <class Entry>
  void expect(const keyed_group& which, const Entry& each) {
    const auto at = place_of(which, each.argument);
    if (places_.find(at) == key_map::none) places_.insert(at, 0);
  }
  // True once for each tensor that was expected.
  template <class Entry>
  [[nodiscard]] bool expects(const keyed_group& which, const Entry& each) {
    const auto at = place_of(which, each.argument);
    if (places_.size() == 0 || places_.find(at) == key_map::none) return false;
    places_.erase(at);
    return true;
  }

 private:
  [[nodiscard]] static std::uint64_t place_of(const keyed_group& which, std::uint32_t argument) {
    return static_cast<std::uint64_t>(which.module) << 58 |
           std::uint64_t{static_cast<std::uint32_t>(which.layer)} << 26 | argument;
  }

  key_map places_;  // a set
};

}  // namespace tidepool::detail
