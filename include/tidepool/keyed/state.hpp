// What a pass by keys knows: its tensors, the scopes that saved them, and the streams that read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/key_map.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::inline v0_2_0::detail {

// A tensor. Once its group is restored or forgotten, it goes with its last reference.
template <device Device>
struct keyed_entry {
  buffer<Device> handle;
  std::uint64_t key = 0;
  std::uint32_t references = 0;
  std::uint32_t group = 0;             // none: excluded, or dropped before its scope ended
  std::uint32_t next = key_map::none;  // of its group, or that is not in use
  std::uint32_t argument = 0;          // of its commit
  bool empty = false;                  // of no bytes
  bool loaded = false;
  bool read_again = false;   // in forward, behind its scope
  std::uint8_t readers = 0;  // of its memory: a bit for each of the pass's streams
};

enum class keyed_place : std::uint8_t { open, committed, restored, gone };

// What one scope saved.
struct keyed_group {
  module_id module{};
  int layer = 0;
  keyed_place place = keyed_place::open;
  bool left = false;                    // any of it
  bool kept = false;                    // all of it, by policy
  std::uint32_t outer = key_map::none;  // the scope that it was entered in
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
  std::vector<handle<Device>*> list;  // of one call
  std::vector<stream_ref> streams;    // that loaded anything
  key_map by_key;
  key_map by_place;  // groups, by module and layer
  std::uint32_t spare = key_map::none;
  std::uint32_t scope = key_map::none;  // the innermost that is open
  int microbatch = 0;
  bool trains = true;
  bool forward = true;

  // Calls `visit` with what the group commits, or has committed, in that order.
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

  // The lanes have made `stream` wait, so that there are no more of them than there may be.
  void note_reader(entry& of, const stream_ref& stream) {
    static_assert(max_lanes <= 8, "a bit for each");
    std::size_t which = 0;
    while (which < streams.size() && streams[which].key() != stream.key()) ++which;
    if (which == streams.size()) streams.push_back(stream);
    of.readers |= static_cast<std::uint8_t>(1U << which);
    of.loaded = true;
  }
  // Its memory is free behind all that loaded it so far, too.
  void go_behind_readers(entry& which) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if ((which.readers >> i & 1U) != 0) which.handle.share().reset(streams[i]);
    }
  }

  void begin(chunk<Device, Modules>&& fresh) {
    open = std::move(fresh);
    microbatch = open.info().microbatch;
    trains = !open.info().forward_only;
    forward = true;
  }
  // `lose` is given the handles of which no event tells when they were read.
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
    streams.clear();
    groups.clear();
    by_key.clear();
    by_place.clear();
    spare = scope = key_map::none;
  }
};

// Places of tensors that forward read again behind their scopes, in the latest pass that came by:
// they need not leave in the next. One that is taken for another costs memory, or a copy.
class reread_places {
 public:
  template <class Entry>
  void expect(const keyed_group& which, const Entry& each) {
    const auto at = place_of(which, each.argument);
    if (places_.find(at) == key_map::none) places_.insert(at, 0);
  }
  // True once for each.
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
