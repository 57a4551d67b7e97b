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

namespace tidepool::inline v0_2_0 {

template <device, class>
class offloader;

/// A handle of one chunk: all groups of one forward pass of one model chunk for one microbatch.
///
/// A call names a group by its module and `layer`; one that is committed twice comes back last in,
/// first out. `stream` is the trainer's, and orders the call; `saved` are the group's handles.
///
/// Several may be open at once (1F1B at any depth, interleaved model chunks); each is restored in
/// reverse of its commits, though any order works. `Name` overloads generate no instruction for a
/// module outside the compile-time list; a module disabled at run time costs one test of a bit.
///
/// Move-only. Destroying an open chunk abandons it: what it saved is dropped, nothing is thrown.
/// One that is not open (finished, moved from, never begun) throws `misuse_error` from every call
/// but `finish`. Thread safety: none. No call blocks the host.
template <device Device, class Modules>
class chunk {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.
  /// Pointers to buffers and views, as many as there are at run time.
  using handle_list = std::span<handle<Device>* const>;

  chunk() = default;
  /// The other is not open afterwards.
  chunk(chunk&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        state_(std::exchange(other.state_, nullptr)),
        enabled_(std::exchange(other.enabled_, closed)),
        finished_(std::exchange(other.finished_, {})) {}
  /// Abandons what it was; the other is not open afterwards.
  chunk& operator=(chunk&& other) noexcept {
    if (this != &other) {
      abandon();
      engine_ = std::exchange(other.engine_, nullptr);
      state_ = std::exchange(other.state_, nullptr);
      enabled_ = std::exchange(other.enabled_, closed);
      finished_ = std::exchange(other.finished_, {});
    }
    return *this;
  }
  chunk(const chunk&) = delete;             // move-only; pass it by reference
  chunk& operator=(const chunk&) = delete;  // move-only; pass it by reference
  ~chunk() { abandon(); }

  /// The module's forward is over: its saved tensors leave.
  ///
  /// `stream` is the one that wrote and last read them; copies start once it has come this far, on
  /// the offload stream. Handles of what leaves are emptied; what stays (opted out, small, kept by
  /// policy or all of it by groups that are, forward-only) keeps its memory and stays full. In a
  /// chunk with `release` the memory of all of them is given back instead, enabled or not. With a
  /// cap, `stream` then waits until no more of the module's offloads are in flight than that.
  ///
  /// Throws `misuse_error` (an empty handle, forward already ended), `out_of_budget` (host) or
  /// `device_error`; the handles are then as before.
  template <fixed_string Name, class... Handles>
  void commit(int layer, stream_ref stream, Handles&... saved) {
    if constexpr (compiled_in<Name>) commit(id_of<Name>, layer, stream, saved...);
  }
  /// The same for a module whose id was looked up at run time.
  template <class... Handles>
  void commit(module_id module, int layer, stream_ref stream, Handles&... saved) {
    if (wants(module)) send(kind::plain, module, layer, stream, saved...);
  }
  /// The same for a list that is known at run time: `std::span` over pointers to handles.
  template <fixed_string Name>
  void commit(int layer, stream_ref stream, handle_list saved) {
    if constexpr (compiled_in<Name>) commit(id_of<Name>, layer, stream, saved);
  }
  /// The same for an id and a list.
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

  /// The module's backward is next: the tensors of its commit come back into the same handles, in
  /// the same order. `stream` waits for their reload; those of the groups before it are started
  /// ahead. What had stayed is left alone, but for its handle, which follows `stream` from now on:
  /// one that goes without a word gives its memory back behind what that was given.
  ///
  /// An empty handle that no commit emptied may be given for a tensor that left: it just is where
  /// that goes. What stayed by policy must still be in the handle that was committed.
  ///
  /// Throws `misuse_error` (never committed, restored before, other arguments, a handle that a
  /// commit emptied and this call would leave empty), `out_of_budget` (device, naming what is live)
  /// or `device_error`.
  template <fixed_string Name, class... Handles>
  void restore(int layer, stream_ref stream, Handles&... saved) {
    if constexpr (compiled_in<Name>) restore(id_of<Name>, layer, stream, saved...);
  }
  /// The same for a module whose id was looked up at run time.
  template <class... Handles>
  void restore(module_id module, int layer, stream_ref stream, Handles&... saved) {
    bring_back(module, layer, stream, pointers_to(saved...));
  }
  /// The same for a list that is known at run time.
  template <fixed_string Name>
  void restore(int layer, stream_ref stream, handle_list saved) {
    if constexpr (compiled_in<Name>) restore(id_of<Name>, layer, stream, saved);
  }
  /// The same for an id and a list.
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

  /// `commit`, with an offer: backward can compute these buffers again from what it has restored by
  /// then, with the same bits. Where a plan takes it, nothing is copied: the memory behind what
  /// `stream` has been given so far is free, and what would have left is gone. Without such a plan,
  /// or where another handle or group holds any of them, it is as `commit`.
  ///
  /// Restore by `restore_or_recompute`. Throws as `commit`.
  template <fixed_string Name, class... Buffers>
  void commit_or_discard(int layer, stream_ref stream, Buffers&... saved) {
    if constexpr (compiled_in<Name>) commit_or_discard(id_of<Name>, layer, stream, saved...);
  }
  /// The same for a module whose id was looked up at run time.
  template <class... Buffers>
  void commit_or_discard(module_id module, int layer, stream_ref stream, Buffers&... saved) {
    static_cast<void>(buffers_of(saved...));
    if (wants(module)) send(kind::or_discard, module, layer, stream, saved...);
  }

  /// `restore`, or, where a plan had the group discarded: its buffers get memory that work given to
  /// `stream` from now on may use, and `again` is called to give it that work. It writes all of the
  /// group's buffers, those that stayed as well. It is also called over tensors that did come back
  /// in the first step that is recorded for a plan, to be timed; elsewhere it is not called.
  ///
  /// What `again` reads is restored before (see `will_recompute`). Throws as `restore`, and what
  /// `again` throws: what had left or was discarded is empty then, and it may be tried again.
  template <fixed_string Name, class Again, class... Buffers>
  void restore_or_recompute(int layer, stream_ref stream, Again&& again, Buffers&... saved) {
    if constexpr (compiled_in<Name>) {
      restore_or_recompute(id_of<Name>, layer, stream, std::forward<Again>(again), saved...);
    }
  }
  /// The same for a module whose id was looked up at run time.
  template <class Again, class... Buffers>
  void restore_or_recompute(module_id module, int layer, stream_ref stream, Again&& again,
                            Buffers&... saved) {
    static_cast<void>(buffers_of(saved...));
    const auto handles = pointers_to(saved...);
    if (!wants(module)) return expect_full(layer, handles);
    expect_open("restore_or_recompute", module, layer);
    engine_->restore_or_recompute(*state_, module, layer, lane_of(stream), handles, again);
  }

  /// True when the `restore_or_recompute` that comes next will call its function: then what that
  /// reads is to be restored first, and else in the order that takes least memory. In the first
  /// step that is recorded for a plan it is true of every offer, though one of which a buffer that
  /// stayed has another owner by then is not timed. Known from the commit on; false before it.
  template <fixed_string Name>
  [[nodiscard]] bool will_recompute(int layer) const {
    if constexpr (compiled_in<Name>) {
      return will_recompute(id_of<Name>, layer);
    } else {
      return false;
    }
  }
  /// The same for a module whose id was looked up at run time.
  [[nodiscard]] bool will_recompute(module_id module, int layer) const {
    if (!wants(module)) return false;
    expect_open("will_recompute", module, layer);
    return engine_->will_recompute(*state_, module, layer);
  }

  /// Manual control: starts the copies of a commit but leaves the handles full. All of them leave,
  /// whatever size, opt-out and policy would say. Release each by hand with `reset`; its memory is
  /// free after its copy. Restore as usual; one never released is kept. Throws as `commit`.
  template <fixed_string Name, class... Handles>
  void start_offload(int layer, stream_ref stream, Handles&... saved) {
    if constexpr (compiled_in<Name>) start_offload(id_of<Name>, layer, stream, saved...);
  }
  /// The same for a module whose id was looked up at run time.
  template <class... Handles>
  void start_offload(module_id module, int layer, stream_ref stream, Handles&... saved) {
    if (wants(module)) send(kind::by_hand, module, layer, stream, saved...);
  }

  /// Manual control: starts a reload now, whatever `reload_ahead` says. Throws as `restore`.
  template <fixed_string Name>
  void start_reload(int layer) {
    if constexpr (compiled_in<Name>) start_reload(id_of<Name>, layer);
  }
  /// The same for a module whose id was looked up at run time.
  void start_reload(module_id module, int layer) {
    if (!wants(module)) return;
    expect_open("start_reload", module, layer);
    engine_->start_reload(*state_, module, layer);
  }

  /// In place of a commit, for what backward can compute again from tensors that it has: where
  /// `Name` stands in `recompute_modules`, the memory is given back, free after what `stream` has
  /// been given so far, and the buffers are emptied. Elsewhere nothing happens.
  ///
  /// Throws `misuse_error` when a buffer is empty, was committed too, or has another owner, without
  /// which nothing would be freed; nothing has changed then.
  template <fixed_string Name, class... Buffers>
  void discard(int layer, stream_ref stream, Buffers&... tensors) {
    detail::check_recomputed<Modules, Name>();
    discard(Name.view(), layer, stream, tensors...);
  }
  /// The same for a name that is known at run time.
  template <class... Buffers>
  void discard(std::string_view name, int layer, stream_ref stream, Buffers&... tensors) {
    expect_open("discard", name, layer);
    const auto what = engine_->recomputed(name);
    if (what == detail::engine::not_recomputed) return;
    engine_->discard(*state_, what, layer, lane_of(stream), buffers_of(tensors...));
  }

  /// What was discarded is read next: the buffers get memory again, which work given to `stream`
  /// from now on may use, and `again` is called to give it that work. Elsewhere nothing happens.
  ///
  /// The order in backward: `restore` what `again` reads, `recompute`, use, `reset`. Tensors that
  /// leave and tensors that are computed again may so depend on each other.
  ///
  /// Throws `misuse_error` (never discarded, computed before, other arguments), `out_of_budget`,
  /// `device_error`, and what `again` throws; the buffers are empty then, and it may be repeated.
  template <fixed_string Name, class Again, class... Buffers>
  void recompute(int layer, stream_ref stream, Again&& again, Buffers&... tensors) {
    detail::check_recomputed<Modules, Name>();
    recompute(Name.view(), layer, stream, again, tensors...);
  }
  /// The same for a name that is known at run time.
  template <class Again, class... Buffers>
  void recompute(std::string_view name, int layer, stream_ref stream, Again&& again,
                 Buffers&... tensors) {
    expect_open("recompute", name, layer);
    const auto what = engine_->recomputed(name);
    if (what == detail::engine::not_recomputed) return;
    engine_->recompute(*state_, what, layer, lane_of(stream), buffers_of(tensors...), again);
  }

  /// What it was begun with; the default where it is not open.
  [[nodiscard]] chunk_info info() const { return engine_ ? state_->info : chunk_info(); }
  /// In place of a restore, for a group that backward will not read: what was saved of it goes, and
  /// nothing is copied back. Handles that its commit emptied stay empty; those that stayed full are
  /// the trainer's, to be reset before.
  ///
  /// Unlike a restore it may come while the forward pass goes on, and does not end it. Plans learn
  /// that the group does not come back. Does not block the host. Throws `misuse_error` where there
  /// is no such group, or it was restored.
  template <fixed_string Name>
  void forget(int layer) {
    if constexpr (compiled_in<Name>) forget(id_of<Name>, layer);
  }
  /// The same for a module whose id was looked up at run time.
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
  /// restored; the chunk then stays open. One that is not open stays as it is.
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

  // One that is not open wants every module, so that calls that do nothing cost one test still.
  static constexpr std::uint64_t every_module = ~std::uint64_t{0};
  static constexpr std::uint64_t closed = every_module;
  [[nodiscard]] bool wants(module_id module) const {
    return (enabled_ >> static_cast<unsigned>(module) & 1U) != 0;
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
  void bring_back(module_id module, int layer, stream_ref stream, const auto& handles) {
    if (!wants(module)) return expect_full(layer, handles);
    expect_open("restore", module, layer);
    engine_->restore(*state_, module, layer, lane_of(stream), listed(handles));
  }
  static void expect_full(int layer, const auto& handles) {
    std::size_t argument = 0;
    for (const auto* each : handles) detail::engine::expect_full(layer, ++argument, *each);
  }
  static detail::handle_list listed(detail::handle_list handles) { return handles; }
  [[nodiscard]] detail::listed_handles listed(handle_list handles) const {
    return {engine_->lists(), handles};
  }
  lane_id lane_of(const stream_ref& on) const { return detail::lane_of<Device>(*engine_, on); }

  void abandon() noexcept { end(false); }
  void end(bool done) noexcept {
    if (engine_ == nullptr) return;
    if (done) finished_ = state_->info.microbatch;
    engine_->end_chunk(*state_, done);
    engine_ = nullptr;
    enabled_ = closed;
  }

  detail::engine* engine_ = nullptr;
  detail::chunk_state* state_ = nullptr;
  std::uint64_t enabled_ = closed;
  std::optional<int> finished_;  // the microbatch, once it is
};

}  // namespace tidepool
