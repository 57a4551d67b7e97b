/// The forward pass of one microbatch, and its backward pass in reverse.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tidepool/buffer.hpp"
#include "tidepool/core/closed_chunk.hpp"
#include "tidepool/core/module_name.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/module.hpp"

namespace tidepool::inline v0_3_0 {

template <device, class>
class offloader;

/// A handle of one chunk: all groups of one forward pass of one model chunk for one microbatch.
///
/// A call names a group by its module and `layer`. If a module and layer are committed twice, the
/// later commit comes back first. `stream` is the trainer's, and orders the call; `saved` are the
/// group's handles.
///
/// Several chunks may be open at once (1F1B at any depth, interleaved model chunks); backward
/// restores each in reverse of its commits, though any order works. `Name` overloads generate no
/// instruction for a module outside the compile-time list; a module disabled at run time costs one
/// test of a bit.
///
/// Move-only. Destroying an open chunk abandons it: its saved tensors are dropped, and nothing is
/// thrown. A chunk that is not open (finished, moved from, never begun) throws `misuse_error` from
/// every call but `finish`. Thread safety: none. Calls block the host only as `offloader` says.
template <device Device, class Modules>
class chunk {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.
  /// Pointers to buffers and views, as many as there are at run time.
  using handle_list = std::span<handle<Device>* const>;

  chunk() = default;
  /// Leaves `other` not open.
  chunk(chunk&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        state_(std::exchange(other.state_, nullptr)),
        enabled_(std::exchange(other.enabled_, every_module)),
        finished_(std::exchange(other.finished_, {})) {}
  /// Abandons the chunk that this one was; leaves `other` not open.
  chunk& operator=(chunk&& other) noexcept {
    if (this != &other) {
      end(false);
      engine_ = std::exchange(other.engine_, nullptr);
      state_ = std::exchange(other.state_, nullptr);
      enabled_ = std::exchange(other.enabled_, every_module);
      finished_ = std::exchange(other.finished_, {});
    }
    return *this;
  }
  chunk(const chunk&) = delete;             // move-only; pass it by reference
  chunk& operator=(const chunk&) = delete;  // move-only; pass it by reference
  ~chunk() { end(false); }

  /// The module's forward is over: its saved tensors leave the device.
  ///
  /// `stream` wrote and last read the tensors; the offload stream copies them once `stream` has
  /// come this far. A handle is emptied when its tensor leaves. A handle keeps its memory when the
  /// tensor stays: opted out, small, kept by policy, its whole group kept by other groups, or
  /// forward-only. In a chunk with `release` the commit gives back the memory of all handles,
  /// whether the module is enabled or not. With a cap, `stream` then waits until the module's
  /// offloads in flight are within the cap.
  ///
  /// Throws `misuse_error` (an empty handle, forward already ended), `out_of_budget` (host) or
  /// `device_error`; the handles are then as before.
  template <fixed_string Name, class... Handles>
  void commit(int layer, stream_ref stream, Handles&... saved) {
    if constexpr (compiled_in<Name>) commit(id_of<Name>, layer, stream, saved...);
  }
  /// Like `commit`, for a module whose id was looked up at run time.
  template <class... Handles>
  void commit(module_id module, int layer, stream_ref stream, Handles&... saved) {
    if (wants(module)) send(kind::plain, module, layer, stream, saved...);
  }
  /// Like `commit`, for a list that is known at run time: `std::span` over pointers to handles.
  template <fixed_string Name>
  void commit(int layer, stream_ref stream, handle_list saved) {
    if constexpr (compiled_in<Name>) commit(id_of<Name>, layer, stream, saved);
  }
  /// Like `commit`, for an id and a list.
  void commit(module_id module, int layer, stream_ref stream, handle_list saved) {
    if (wants(module)) send_list(kind::plain, module, layer, stream, saved);
  }
  /// Does not compile: a name that is known at run time is looked up once, by `offloader::module`.
  template <class Name, class... Handles>
    requires std::convertible_to<const Name&, std::string_view>
  void commit(const Name& /*name*/, int /*layer*/, stream_ref /*stream*/, Handles&... /*saved*/) {
    static_assert(
        sizeof(Name) == 0,
        "tidepool: a name is looked up once, by id = offloader::module(name); give commit "
        "that id");
  }

  /// The module's backward is next: its committed tensors come back, in the same order of handles.
  ///
  /// `stream` waits for their reload, and reloads of the groups before it are started ahead. A
  /// tensor that stayed is left alone, but if its handle is destroyed without a `reset`, its memory
  /// goes back behind the work of `stream`.
  ///
  /// A tensor that left may come back into any empty handle that no commit emptied. A tensor that
  /// stayed by policy must still be in the handle that was committed. Throws `misuse_error` (never
  /// committed, restored before, other arguments, a handle that a commit emptied and this call
  /// would leave empty), `out_of_budget` (device, naming what is live) or `device_error`.
  template <fixed_string Name, class... Handles>
  void restore(int layer, stream_ref stream, Handles&... saved) {
    if constexpr (compiled_in<Name>) restore(id_of<Name>, layer, stream, saved...);
  }
  /// Like `restore`, for a module whose id was looked up at run time.
  template <class... Handles>
  void restore(module_id module, int layer, stream_ref stream, Handles&... saved) {
    bring_back(module, layer, stream, pointers_to(saved...));
  }
  /// Like `restore`, for a list that is known at run time.
  template <fixed_string Name>
  void restore(int layer, stream_ref stream, handle_list saved) {
    if constexpr (compiled_in<Name>) restore(id_of<Name>, layer, stream, saved);
  }
  /// Like `restore`, for an id and a list.
  void restore(module_id module, int layer, stream_ref stream, handle_list saved) {
    bring_back(module, layer, stream, saved);
  }
  /// Does not compile: a name that is known at run time is looked up once, by `offloader::module`.
  template <class Name, class... Handles>
    requires std::convertible_to<const Name&, std::string_view>
  void restore(const Name& /*name*/, int /*layer*/, stream_ref /*stream*/, Handles&... /*saved*/) {
    static_assert(
        sizeof(Name) == 0,
        "tidepool: a name is looked up once, by id = offloader::module(name); give restore "
        "that id");
  }

  /// Like `commit`, with an offer: backward can compute these buffers again, with the same bits,
  /// from tensors that it has restored by then. If `recompute_modules` has the name, or a plan
  /// takes the offer, nothing is copied, and the memory is free behind `stream`'s work so far.
  ///
  /// A name in `recompute_modules` may also be a region, such as "layernorm", which is no module;
  /// its memory is given back in a forward-only chunk, too. If another handle or group holds any of
  /// the buffers, a name in `recompute_modules` throws `misuse_error`, and a group that a plan
  /// would discard leaves as by `commit`. Restore by `restore_or_recompute`. Throws as `commit`.
  template <fixed_string Name, class... Buffers>
  void commit_or_discard(int layer, stream_ref stream, Buffers&... saved) {
    if constexpr (offered<Name>) commit_or_discard(key_of<Name>, layer, stream, saved...);
  }
  /// Like `commit_or_discard`, for a module whose id was looked up at run time.
  template <class... Buffers>
  void commit_or_discard(module_id module, int layer, stream_ref stream, Buffers&... saved) {
    const auto handles = buffers_of(saved...);
    if (plans(module)) return send_list(kind::or_discard, module, layer, stream, handles);
    discard(engine_->recomputed(module), layer, stream, handles);
  }
  /// Like `commit_or_discard`, for a name at run time, of a module or a region.
  template <class... Buffers>
  void commit_or_discard(std::string_view name, int layer, stream_ref stream, Buffers&... saved) {
    expect_open("commit_or_discard", name, layer);
    if (const auto known = engine_->module_named(name)) {
      return commit_or_discard(*known, layer, stream, saved...);
    }
    discard(engine_->recomputed(name), layer, stream, buffers_of(saved...));
  }

  /// Like `restore`; but the buffers of a discarded group get memory for work given to `stream`
  /// from now on, and `again` is called to write all buffers, also those that stayed. The first
  /// step recorded for a plan calls `again`, to time it, for tensors that came back, too.
  ///
  /// Restore the tensors that `again` reads before this call (see `will_recompute`). `again` may
  /// call `restore_or_recompute` for other tensors first. Throws as `restore`, and what `again`
  /// throws. Then buffers that this call filled are empty again, the others are as before, and the
  /// call may be repeated.
  template <fixed_string Name, class Again, class... Buffers>
  void restore_or_recompute(int layer, stream_ref stream, Again&& again, Buffers&... saved) {
    if constexpr (offered<Name>) restore_or_recompute(key_of<Name>, layer, stream, again, saved...);
  }
  /// Like `restore_or_recompute`, with `again`, for a module whose id was looked up at run time.
  template <class Again, class... Buffers>
  void restore_or_recompute(module_id module, int layer, stream_ref stream, Again&& again,
                            Buffers&... saved) {
    const auto handles = buffers_of(saved...);
    if (!plans(module)) {
      return recompute(engine_->recomputed(module), layer, stream, again, handles);
    }
    expect_open("restore_or_recompute", module, layer);
    engine_->restore_or_recompute(*state_, module, layer, lane_of(stream), handles, again);
  }
  /// Like `restore_or_recompute`, with `again`, for a name at run time, of a module or a region.
  template <class Again, class... Buffers>
  void restore_or_recompute(std::string_view name, int layer, stream_ref stream, Again&& again,
                            Buffers&... saved) {
    expect_open("restore_or_recompute", name, layer);
    if (const auto known = engine_->module_named(name)) {
      return restore_or_recompute(*known, layer, stream, again, saved...);
    }
    recompute(engine_->recomputed(name), layer, stream, again, buffers_of(saved...));
  }

  /// True when the next `restore_or_recompute` will call its function: restore the tensors that it
  /// reads first. Otherwise restore in the order that takes least memory. In the first step that is
  /// recorded for a plan it is true of every offer, although the function is not called if a tensor
  /// has another owner or was saved twice. False before the commit.
  template <fixed_string Name>
  [[nodiscard]] bool will_recompute(int layer) const {
    if constexpr (offered<Name>) {
      return will_recompute(key_of<Name>, layer);
    } else {
      return false;
    }
  }
  /// Like `will_recompute`, for a module whose id was looked up at run time.
  [[nodiscard]] bool will_recompute(module_id module, int layer) const {
    if (!plans(module)) return engine_->will_recompute(*state_, engine_->recomputed(module), layer);
    expect_open("will_recompute", module, layer);
    return engine_->will_recompute(*state_, module, layer);
  }
  /// Like `will_recompute`, for a name at run time, of a module or a region.
  [[nodiscard]] bool will_recompute(std::string_view name, int layer) const {
    expect_open("will_recompute", name, layer);
    if (const auto known = engine_->module_named(name)) return will_recompute(*known, layer);
    return engine_->will_recompute(*state_, engine_->recomputed(name), layer);
  }

  /// Manual control: starts the copies of a commit but leaves the handles full. All tensors leave,
  /// even small ones and those that an opt-out or the policy would keep. Release each by hand with
  /// `reset`, if the module is enabled: otherwise nothing is copied. Its memory is free after its
  /// copy. A handle without `reset` keeps its memory. Restore as usual. Throws as `commit`.
  template <fixed_string Name, class... Handles>
  void start_offload(int layer, stream_ref stream, Handles&... saved) {
    if constexpr (compiled_in<Name>) start_offload(id_of<Name>, layer, stream, saved...);
  }
  /// Like `start_offload`, for a module whose id was looked up at run time.
  template <class... Handles>
  void start_offload(module_id module, int layer, stream_ref stream, Handles&... saved) {
    if (wants(module)) send(kind::by_hand, module, layer, stream, saved...);
  }

  /// Manual control: starts a reload now, beyond any limit of `reload_ahead`. Throws as `restore`.
  template <fixed_string Name>
  void start_reload(int layer) {
    if constexpr (compiled_in<Name>) start_reload(id_of<Name>, layer);
  }
  /// Like `start_reload`, for a module whose id was looked up at run time.
  void start_reload(module_id module, int layer) {
    if (!wants(module)) return;
    expect_open("start_reload", module, layer);
    engine_->start_reload(*state_, module, layer);
  }

  /// The `info` that the chunk was begun with; the default if the chunk is not open.
  [[nodiscard]] chunk_info info() const { return engine_ ? state_->info : chunk_info(); }
  /// Drops a group that backward will not read, in place of a restore: nothing is copied back.
  /// First reset the handles that its commit left full; the others stay empty.
  ///
  /// Unlike a restore, `forget` may come while the forward pass goes on, and does not end it. Plans
  /// learn that the group does not come back. Does not block the host. Throws `misuse_error` if
  /// there is no such group, or it was restored.
  template <fixed_string Name>
  void forget(int layer) {
    if constexpr (compiled_in<Name>) forget(id_of<Name>, layer);
  }
  /// Like `forget`, for a module whose id was looked up at run time.
  void forget(module_id module, int layer) {
    if (!wants(module)) return;
    expect_open("forget", module, layer);
    engine_->forget(*state_, module, layer);
  }

  /// The forward pass is complete: reloads for the backward pass may start ahead of it. Without
  /// this call they start with the first restore.
  void end_forward() {
    if (engine_ == nullptr) detail::throw_closed_chunk("end_forward", finished_);
    engine_->end_forward(*state_);
  }

  /// The backward pass is complete. Throws `misuse_error` when something was committed and never
  /// restored; the chunk then stays open. A chunk that is not open stays as it is.
  void finish() {
    if (engine_ == nullptr) return;
    if (!state_->info.forward_only) engine_->check_finished(*state_);
    end(true);
  }

 private:
  friend class offloader<Device, Modules>;
  template <device, class>
  friend class keyed_pass;
  using kind = detail::commit_kind;

  chunk(detail::engine& engine, const chunk_info& info, std::uint64_t enabled)
      : engine_(&engine),
        state_(&engine.begin(info)),
        enabled_(!info.forward_only ? enabled
                 : info.release     ? every_module
                                    : 0) {}

  template <fixed_string Name>
  static constexpr bool compiled_in = detail::compiled_in<Modules, Name>::value;

  template <fixed_string Name>
  static constexpr module_id id_of = Modules::id(Name.view());

  template <fixed_string Name>
  static constexpr bool offered = detail::offered<Modules, Name>();
  template <fixed_string Name>
  static constexpr auto key_of = detail::offer_of<Modules, Name>();

  // A closed chunk wants every module: its calls pass `wants` and throw, at no cost to open chunks.
  static constexpr std::uint64_t every_module = ~std::uint64_t{0};
  [[nodiscard]] bool wants(module_id module) const {
    return (enabled_ >> static_cast<unsigned>(module) & 1U) != 0;
  }
  [[nodiscard]] bool plans(module_id module) const {  // false for a name in `recompute_modules`
    return wants(module) && (enabled_ == every_module || !engine_->recomputes(module));
  }
  void expect_open(const char* call, module_id module, int layer) const {
    if (engine_ == nullptr) expect_open(call, name_of(module), layer);
  }
  void expect_open(const char* call, std::string_view name, int layer) const {
    if (engine_ == nullptr) detail::throw_closed_chunk(call, name, layer, finished_);
  }
  [[gnu::cold]] static std::string name_of(module_id module) {
    const auto index = static_cast<std::size_t>(module);
    if constexpr (!Modules::open) {
      if (index < Modules::names.size()) return std::string(Modules::names[index]);
    }
    return "module " + std::to_string(index);
  }

  template <class... Handles>
  static std::array<detail::handle_base*, sizeof...(Handles)> pointers_to(Handles&... saved) {
    static_assert((std::derived_from<Handles, handle<Device>> && ...),
                  "tidepool: commit and restore take buffers and views of the offloader's own "
                  "device");
    return {&saved...};
  }

  template <class... Buffers>
  static std::array<detail::handle_base*, sizeof...(Buffers)> buffers_of(Buffers&... tensors) {
    static_assert((std::same_as<Buffers, buffer<Device>> && ...),
                  "tidepool: what is discarded and recomputed is buffers of the offloader's own "
                  "device; a view has no memory of its own");
    return {&tensors...};
  }

  template <class... Handles>
  void send(kind how, module_id module, int layer, stream_ref stream, Handles&... saved) {
    send_list(how, module, layer, stream, pointers_to(saved...));
  }
  void send_list(kind how, module_id module, int layer, stream_ref stream, const auto& handles) {
    expect_open(how == kind::by_hand ? "start_offload" : "commit", module, layer);
    engine_->commit(*state_, module, layer, lane_of(stream), listed(handles), how);
  }
  void discard(std::size_t what, int layer, stream_ref stream, detail::handle_list handles) {
    if (what == detail::engine::not_recomputed) return;
    engine_->discard(*state_, what, layer, lane_of(stream), handles);
  }
  void recompute(std::size_t what, int layer, stream_ref stream, detail::call_ref again,
                 detail::handle_list handles) {
    if (what == detail::engine::not_recomputed) return expect_full(layer, handles);
    engine_->recompute(*state_, what, layer, lane_of(stream), handles, again);
  }
  void bring_back(module_id module, int layer, stream_ref stream, const auto& handles) {
    if (!wants(module)) return expect_full(layer, handles);
    expect_open("restore", module, layer);
    engine_->restore(*state_, module, layer, lane_of(stream), listed(handles));
  }
  static void expect_full(int layer, const auto& handles) {
    for (std::size_t i = 0; auto* each : handles) detail::engine::expect_full(layer, ++i, *each);
  }
  static detail::handle_list listed(detail::handle_list handles) { return handles; }
  [[nodiscard]] detail::listed_handles listed(handle_list handles) const {
    return {engine_->lists(), handles};
  }
  lane_id lane_of(const stream_ref& on) const { return detail::lane_of<Device>(*engine_, on); }

  void end(bool done) noexcept {
    if (engine_ == nullptr) return;
    if (done) finished_ = state_->info.microbatch;
    engine_->end_chunk(*state_, done);
    engine_ = nullptr;
    enabled_ = every_module;
  }

  detail::engine* engine_ = nullptr;
  detail::chunk_state* state_ = nullptr;
  std::uint64_t enabled_ = every_module;
  std::optional<int> finished_;  // set by `finish`: the microbatch, for messages
};

}  // namespace tidepool
