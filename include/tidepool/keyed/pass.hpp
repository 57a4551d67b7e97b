/// A pass by keys: scopes save tensors, and loads bring them back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tidepool/core/key_map.hpp"
#include "tidepool/keyed/state.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::inline v0_3_0 {

/// The name that a framework gives a tensor: any number that no other tensor of the same pass has,
/// such as a count of storages. An address is no key, because the memory of a tensor that left is
/// used again, and a second tensor of the key counts as the first.
using tensor_key = std::uint64_t;

/// A tensor as an argument of `keyed_pass::save`.
struct keyed_tensor {
  tensor_key key = 0;          ///< The name of the tensor.
  const void* data = nullptr;  ///< The device address of the tensor.
  std::size_t bytes = 0;       ///< The size of the tensor.
};

template <device Device, class Modules>
class keyed;

/// A forward pass and its backward pass, with tensors known by keys; see `keyed`. Move-only.
///
/// A pass that is destroyed before `finish` is given up. A tensor belongs to the innermost module
/// scope in which it was first saved. The tensors of a scope leave and come back together: the
/// first `load` of one restores all. Each module and layer can be entered once in a pass.
template <device Device, class Modules = all_modules>
class keyed_pass {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.

  keyed_pass() = default;
  keyed_pass(keyed_pass&&) = default;  ///< Leaves the other object without a pass.
  /// Gives up an unfinished pass of this object; leaves the other one without a pass.
  keyed_pass& operator=(keyed_pass&&) = default;
  keyed_pass(const keyed_pass&) = delete;             // move-only; pass it by reference
  keyed_pass& operator=(const keyed_pass&) = delete;  // move-only; pass it by reference

  /// Begins the forward of a module: tensors saved from now on belong to it. Scopes may be nested.
  /// Throws `misuse_error` if the module already ran in this layer.
  void enter(module_id module, int layer) {
    auto& at = opened("enter");
    const auto place = place_of(module, layer);
    if (at.by_place.find(place) != none) {
      refuse("enter", "module " + number_of(module) + " of layer " + std::to_string(layer) +
                          " ran in this pass before; give each run a layer number of its own");
    }
    at.by_place.make_room();
    at.groups.push_back({.module = module, .layer = layer, .outer = at.scope});
    at.scope = static_cast<std::uint32_t>(at.groups.size() - 1);
    at.by_place.insert(place, at.scope);
  }
  /// Ends the innermost scope: its tensors leave as by `chunk::commit`, after the work that
  /// `stream` was given so far. Throws as `commit`; the tensors then stay on the device while they
  /// have references.
  void leave(stream_ref stream) {
    auto& at = opened("leave");
    if (at.scope == none) refuse("leave", "no scope is open; enter one first");
    const auto index = at.scope;
    at.scope = at.groups[index].outer;
    auto& which = at.groups[index];
    which.place = where::gone;  // in case the commit throws
    if (which.wanted == 0) return;
    const auto least = keys_of().off_->settings().min_tensor_elements;
    std::uint32_t argument = 0;
    bool may_leave = false;
    at.each_of(which, [&](auto& each) {
      each.argument = argument++;
      const bool stays = at.trains && keys_of().rereads_.expects(which, each);
      if (stays) each.handle.keep_resident();
      may_leave = may_leave || (!stays && each.handle.size() >= least);
      at.go_behind_readers(each);
    });
    at.open.commit(which.module, which.layer, stream, at.handles_of(which));
    which.place = where::committed;
    at.each_of(which, [&](auto& each) {
      if (each.handle) return;
      which.left = true;
      each.readers = 0;  // the memory of these tensors is gone
    });
    which.kept = at.trains && keys_of().off_->enabled(which.module) &&
                 ((may_leave && !which.left) || at.open.state_->last_commit_keeps_any());
  }
  /// Calls `enter(module, layer)`, `body()`, `leave(stream)`. An exception of `body` closes the
  /// scope, and none of its tensors leaves.
  template <class Body>
  void run(module_id module, int layer, stream_ref stream, Body&& body) {
    enter(module, layer);
    try {
      std::forward<Body>(body)();
    } catch (...) {
      auto& which = state_->groups[state_->scope];
      which.place = where::gone;
      state_->scope = which.outer;
      throw;
    }
    leave(stream);
  }

  /// Saves a tensor: `bytes` at `data`, which `stream` wrote. `owner` gets the memory back as by
  /// `offloader::adopt`.
  ///
  /// A tensor saved again under the same key gets one more reference, and is copied once; the
  /// second `owner` is given back at once, since the first holds the memory. A tensor of 0 bytes
  /// may have the key of another, because a framework may not tell them apart; it counts as one
  /// more reference to that one. With `bfloat16` the tensor holds BF16 numbers, as `holds_bfloat16`
  /// tells. Throws as `adopt`, and `misuse_error` outside of any scope.
  void save(tensor_key key, void* data, std::size_t bytes, stream_ref stream, memory_owner owner,
            bool bfloat16 = false) {
    auto& at = opened("save");
    if (at.scope == none) refuse("save", "no module scope is open; enter one first");
    const auto known = at.by_key.find(key);
    if (known != none && (bytes == 0 || !at.entries[known].empty)) {
      ++at.entries[known].references;
      return;
    }
    at.by_key.make_room();
    if (at.spare == none) {
      at.entries.emplace_back();
      at.spare = static_cast<std::uint32_t>(at.entries.size() - 1);
    }
    // An excluded tensor is adopted as a single byte. The adoption keeps the order of the streams,
    // and the budget does not count memory that the trainer keeps anyway.
    const bool excluded = keys_of().excludes({key, data, bytes});
    auto memory = keys_of().off_->adopt(data, excluded ? std::min<std::size_t>(bytes, 1) : bytes,
                                        stream, std::move(owner));
    if (bfloat16) memory.holds_bfloat16();
    // Nothing has changed up to here, in case the question or the adoption throws.
    const auto references = 1 + (known == none ? 0 : give_way(key, known, stream));
    auto& fresh = at.entries[at.spare];
    fresh.handle = std::move(memory);
    const auto index = std::exchange(at.spare, fresh.next);
    fresh.key = key;
    fresh.references = references;
    fresh.group = excluded ? none : at.scope;
    fresh.empty = bytes == 0;
    fresh.next = none;
    at.by_key.insert(key, index);
    if (excluded) return;
    auto& which = at.groups[at.scope];
    (which.first == none ? which.first : at.entries[which.last].next) = index;
    which.last = index;
    ++which.wanted;
  }

  /// Returns the address of a tensor; work given to `stream` from now on may read there. Every
  /// stream that reads the tensor must call `load`, and may call it again.
  ///
  /// After `end_forward`, the first load of a tensor that left brings its whole scope back. Before
  /// `end_forward`, a load is a further read in forward: a tensor that left comes back alone and
  /// stays, and the tensor at the same place in the next pass does not leave at all. The address is
  /// valid until the last `drop`. An address given while the scope that saved the tensor is open is
  /// valid until the scope ends.
  ///
  /// Throws as `chunk::restore`, and `misuse_error` for an unknown key.
  [[nodiscard]] void* load(tensor_key key, stream_ref stream) {
    auto& at = opened("load");
    auto& wanted = at.entries[known("load", key)];
    if (wanted.group != none) bring(at.groups[wanted.group], wanted, stream);
    keys_of().off_->wait_for(wanted.handle, stream);  // the stream may be new to it
    at.note_reader(wanted, detail::lane_of<Device>(*at.open.engine_, stream), stream);
    return wanted.handle.data();
  }

  /// Drops one reference; `stream` used the tensor last. After the last reference the memory is
  /// free once `stream` has done the work that it was given so far. If the policy keeps the scope,
  /// the memory is freed once the scope was loaded in backward or forgotten. A group whose tensors
  /// were all dropped and never loaded is forgotten, as by `chunk::forget`. Throws `misuse_error`
  /// for an unknown key, and `device_error`; the reference then stays, and `drop` may be called
  /// again.
  void drop(tensor_key key, stream_ref stream) {
    auto& at = opened("drop");
    const auto index = known("drop", key);
    auto& gone = at.entries[index];
    if (gone.references > 1) {
      --gone.references;
      return;
    }
    give_back(gone, stream);
    gone.references = 0;
    at.by_key.erase(key);
  }

  /// Ends forward, as `chunk::end_forward`: later loads belong to the backward pass. A pass without
  /// this call computes the same values, but each tensor comes back alone when it is loaded.
  void end_forward() {
    auto& at = opened("end_forward");
    at.open.end_forward();
    at.forward = false;
    for (const auto& each : at.entries) {
      if (each.read_again) keys_of().rereads_.expect(at.groups[each.group], each);
    }
  }

  /// Completes the backward pass. Throws `misuse_error` if a tensor of an enabled module was
  /// neither loaded nor dropped and did not come back with another; and as `chunk::finish`. Memory
  /// of tensors that were loaded and not dropped is free once the loading streams have done the
  /// work that they were given, also if the pass is given up.
  void finish() {
    if (state_ == nullptr) return;
    if (state_->scope != none) refuse("finish", "a scope is still open; leave it first");
    for (const auto& each : state_->groups) expect_read(each);
    for (auto& each : state_->groups) {  // nobody reads the tensors that are still away
      if (each.place == where::committed) forget(each);
    }
    state_->open.finish();
    state_.reset();
  }

  /// True while a scope is open, so that `save` works. Hooks that a framework calls for every
  /// tensor ask this, and leave a tensor of no scope where it is. False for a pass that is over.
  [[nodiscard]] bool in_scope() const { return state_ != nullptr && state_->scope != none; }
  /// Number of keys that have references.
  [[nodiscard]] std::size_t size() const { return state_ == nullptr ? 0 : state_->by_key.size(); }

 private:
  friend class keyed<Device, Modules>;
  using keys = keyed<Device, Modules>;
  using where = detail::keyed_place;
  using state = typename keys::state;
  using entry = typename state::entry;
  using group = detail::keyed_group;
  static constexpr auto none = detail::key_map::none;

  struct giver {
    void operator()(state* done) const noexcept { owner->give(*done); }
    keys* owner = nullptr;
  };

  keyed_pass(keys& of, const chunk_info& info) : state_(&of.take(), giver{&of}) {
    state_->begin(of.off_->begin(info));
  }

  [[nodiscard]] keys& keys_of() const { return *state_.get_deleter().owner; }
  [[nodiscard]] state& opened(const char* call) {
    if (state_ != nullptr) return *state_;
    throw misuse_error(std::string(call) +
                       ": this pass is finished, was never begun, or was moved from; use the one"
                       " that keyed::begin returned");
  }
  [[nodiscard]] std::uint32_t known(const char* call, tensor_key key) const {
    const auto index = state_->by_key.find(key);
    if (index == none) {
      refuse(call, "no tensor has the key " + std::to_string(key) +
                       ": it was never saved in this pass, or its last reference was dropped");
    }
    return index;
  }
  [[noreturn, gnu::cold]] void refuse(const char* call, const std::string& why) const {
    throw misuse_error(std::string(call) + ", microbatch " + std::to_string(state_->microbatch) +
                       ": " + why);
  }
  [[nodiscard]] static std::string number_of(module_id module) {
    return std::to_string(static_cast<std::size_t>(module));
  }
  [[nodiscard]] static std::uint64_t place_of(module_id module, int layer) {
    return static_cast<std::uint64_t>(module) << 32 | static_cast<std::uint32_t>(layer);
  }

  // Drops a tensor of 0 bytes because another tensor gets its key; returns how many references it
  // had.
  [[nodiscard]] std::uint32_t give_way(tensor_key key, std::uint32_t index, stream_ref stream) {
    const auto references = std::exchange(state_->entries[index].references, 1U);
    try {
      drop(key, stream);
    } catch (...) {
      state_->entries[index].references = references;
      throw;
    }
    return references;
  }

  // Checks that the tensors of a committed group were read or dropped. Groups in other states need
  // no reload.
  void expect_read(const group& which) {
    if (which.place != where::committed || !keys_of().off_->enabled(which.module)) return;
    if (!state_->trains) return;
    state_->each_of(which, [&](auto& each) {
      if (each.references == 0 || each.loaded) return;
      refuse("finish", "the tensor with the key " + std::to_string(each.key) +
                           ", saved by module " + number_of(which.module) + " of layer " +
                           std::to_string(which.layer) +
                           ", was neither loaded nor dropped; do either in backward, begin the pass"
                           " with forward_only, or destroy it to give it up");
    });
  }

  void bring(group& which, entry& wanted, stream_ref stream) {
    if (which.place != where::committed) return;
    if (state_->forward) return read_again(which, wanted, stream);
    // A small tensor that stayed does not need the others of its scope.
    if (!wanted.handle || !which.left) restore(which, stream);
  }
  void read_again(const group& which, entry& wanted, stream_ref stream) {
    auto& open = state_->open;
    if (!wanted.handle) {
      wanted.handle = detail::buffer_of<Device>(
          open.engine_->read_again(*open.state_, which.module, which.layer, wanted.argument,
                                   detail::lane_of<Device>(*open.engine_, stream)));
    }
    wanted.read_again = state_->trains;
  }
  // Frees a tensor's memory with its last reference.
  void give_back(entry& gone, stream_ref stream) {
    if (gone.group == none) return gone.handle.reset(stream);
    auto& which = state_->groups[gone.group];
    const bool committed = which.place == where::committed;
    if (committed && which.wanted == 1) {
      reset_all(which, stream);
      forget(which);
    } else if (!committed || !which.kept) {
      gone.handle.reset(stream);
    } else if (gone.handle) {  // the restore still needs the handle; the memory is freed after both
      gone.handle.share().reset(stream);
    }
    if (which.place == where::open) gone.group = none;
    --which.wanted;
  }
  void restore(group& which, stream_ref stream) {
    state_->open.restore(which.module, which.layer, stream, state_->handles_of(which));
    which.place = where::restored;
    state_->each_of(which, [](auto& each) {
      if (each.references == 0) each.handle = {};
    });
  }
  // Resets the tensors that stayed, of a group that will not be loaded.
  void reset_all(const group& which, stream_ref stream) {
    state_->each_of(which, [&](auto& each) { each.handle.reset(stream); });
  }
  void forget(group& which) {
    state_->open.forget(which.module, which.layer);
    which.place = where::gone;
  }

  std::unique_ptr<state, giver> state_;
};

}  // namespace tidepool
