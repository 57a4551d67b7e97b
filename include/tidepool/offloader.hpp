/// The object that a trainer embeds.
#pragma once

#if !defined(__cpp_concepts)
#error "tidepool needs C++20: compile with -std=c++20"
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tidepool/chunk.hpp"
#include "tidepool/device/hardware_of.hpp"
#include "tidepool/engine/misuse.hpp"
#include "tidepool/engine/plan_maker.hpp"
#include "tidepool/engine/recorded_wait.hpp"
#include "tidepool/engine/traced_span.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/fixed.hpp"
#include "tidepool/memory/stream_memory.hpp"
#include "tidepool/options.hpp"
#include "tidepool/parts.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/validate.hpp"

namespace tidepool::inline v0_3_0 {

/// Moves the saved tensors of chosen modules to the host and back, in step with one training loop.
///
/// `Modules` is `modules<"core_attn", …>`, the list compiled in, or `all_modules`, where the
/// options alone decide. An offloader holds its copy streams, its device memory for saved tensors
/// and its pinned host memory, and nothing global, so that several may exist side by side.
///
///     tidepool::offloader<device, tidepool::modules<"expert_fc1">> off(dev, options);
///     auto chunk = off.begin({.microbatch = 0});  // for each forward pass; see `chunk`
///     off.end_step();                             // once for each step
///
/// No call blocks the host, except: the constructor and the destructor; `start_trace` and
/// `finish_trace`; `state_on_host`; `borrow`, `return_loan`, and the `begin` that moves on from a
/// lender that is gone; `end_step`, when it times or records a step or waits for a plan; offloads
/// to a file and reloads from it; and a call for which a pool or pinned memory grows or shrinks.
/// `capture`, `state_on_host` and `start_trace` need graph.hpp, host_state.hpp and
/// observe/tracing.hpp; tidepool.hpp includes all three. Thread safety: none; handles share its
/// thread. The device must outlive offloader and handles, and a stream the last call with it.
template <device Device, class Modules = all_modules>
class offloader {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.
  using handle = tidepool::handle<Device>;         ///< The base of buffers and views.
  using buffer = tidepool::buffer<Device>;         ///< Owns a saved tensor.
  using view = tidepool::view<Device>;             ///< A rectangle of a buffer.
  using chunk = tidepool::chunk<Device, Modules>;  ///< One forward pass and its backward pass.

  /// Copies `opts`, and makes copy streams on `dev` and memory as they say. May block the host.
  ///
  /// Throws `option_error` or `unknown_module` for options that cannot work, `out_of_budget` if the
  /// device lacks the memory that they fix, `device_error`. Plans need `with.planner`, files
  /// `with.file`, `summary` and `trace_step` need `with.output` (`option_error`).
  explicit offloader(Device& dev, const options& opts = {}, parts with = {})
      : enabled_(checked(opts, with)),
        engine_(new detail::engine(std::make_unique<detail::hardware_of<Device>>(dev),
                                   detail::with_packed<Modules>(opts, enabled_),
                                   known_modules(opts), enabled_, std::move(with.memory),
                                   with.planner.get(), with.file)),
        plans_(*engine_, std::move(with.planner), std::move(with.output)) {}
  offloader(const offloader&) = delete;
  offloader& operator=(const offloader&) = delete;
  ~offloader() {
    plans_.close();
    if (std::uncaught_exceptions() > exceptions_) engine_->drop_work();
    engine_->close();
    detail::engine::release(engine_);
  }

  // ---- memory of saved tensors ----

  /// Allocates device memory for `count` elements, for work given to `stream` from now on.
  /// `min_tensor_elements` is compared with `count`.
  ///
  /// Recycled memory has old bytes, unless `contents` is `fill::zero`, which writes zeros on
  /// `stream`, now and before each recomputation. A restored tensor has the bytes that were saved.
  /// The host does not wait for copies; `stream` may wait for those that still use the memory.
  /// Throws `out_of_budget`, with the live tensors, if memory is full and no copy will free any;
  /// `misuse_error` for more than any memory has. 0 bytes take no memory, at a null address.
  ///
  ///     auto x = off.allocate<float>(rows * width, stream);
  ///     my_kernel<<<grid, block, 0, stream>>>(x.as<float>());
  template <class T>
  [[nodiscard]] buffer allocate(std::size_t count, stream_ref stream, fill contents = fill::none) {
    const auto bytes = detail::bytes_of(count, sizeof(T));
    return made<T>(engine_->allocate(bytes, count, lane_of(stream), nullptr, contents));
  }
  /// Like `allocate` of elements, with `stream` and `contents`; each of `bytes` is an element.
  [[nodiscard]] buffer allocate(std::size_t bytes, stream_ref stream, fill contents = fill::none) {
    return made(engine_->allocate(bytes, bytes, lane_of(stream), nullptr, contents));
  }

  /// Allocates `bytes` from a `source` of the trainer's own, such as a `fixed_block`, for kernels
  /// or graphs that know addresses. A reload takes its memory from `source`, too. Work given to
  /// `stream` from now on may use the memory. The source must outlive the buffer's storage and all
  /// graphs captured with it, and serves no other offloader (`misuse_error`). Throws as `allocate`.
  [[nodiscard]] buffer allocate_from(block_source& source, std::size_t bytes, stream_ref stream) {
    return made(engine_->allocate(bytes, bytes, lane_of(stream), &source));
  }

  /// Takes over a tensor in memory of another allocator, to save it like any other. `stream` wrote
  /// the tensor, and its owner takes memory back in the order of `stream`: once `stream` has joined
  /// every use here, `owner` is called or destroyed (see `memory_owner`). The tensor is reloaded
  /// into memory of the offloader's own, or of `parts::memory`.
  ///
  /// Each byte counts as an element. Several tensors may share memory, with a reference each, as
  /// long as no work writes to it. The offloader's destructor gives all memory back, and may block
  /// the host; `adopt` does not block it. Throws `misuse_error` for a null pointer to more than 0
  /// bytes, and in a capture; a capture may not commit the tensor either. After a throw, or for 0
  /// bytes, `owner` has the memory back.
  ///
  ///     auto x = off.adopt(data, bytes, stream, [=] { my_free(data); });
  ///     chunk.commit<"expert_fc1">(layer, stream, x);
  [[nodiscard]] buffer adopt(void* data, std::size_t bytes, stream_ref stream, memory_owner owner) {
    return made(engine_->adopt_memory(data, bytes, bytes, lane_of(stream), std::move(owner)));
  }
  /// Like `adopt` of bytes, for `count` elements of T at `data`, with `stream` and `owner`.
  template <class T>
  [[nodiscard]] buffer adopt(std::type_identity_t<T>* data, std::size_t count, stream_ref stream,
                             memory_owner owner) {
    const auto bytes = detail::bytes_of(count, sizeof(T));
    return made<T>(engine_->adopt_memory(data, bytes, count, lane_of(stream), std::move(owner)));
  }

  /// Lets a second stream read the tensor of `saved`: `stream` waits for its reload, and for the
  /// work that the stream of its allocation or restore had been given by then. Does not block the
  /// host. Throws `misuse_error` for an empty handle, `device_error`.
  void wait_for(const handle& saved, stream_ref stream) {
    engine_->wait_for(saved, lane_of(stream));
  }

  /// For adapters: notes that a tensor of module `m` is in no commit, because it is `excluded` or
  /// on another device. The report on a module that moves no byte says so. Does not block the host.
  void note_elsewhere(module_id m, bool excluded = false) { engine_->note_elsewhere(m, excluded); }

  /// Gives back borrowed memory held for its copies; its owners' streams wait for them instead. For
  /// an allocator that is about to grow. Does not block the host; does nothing in a capture.
  void release_borrowed() noexcept { engine_->memory().borrowed().give_back(0); }

  // ---- state that lives on the host ----

  /// Takes `bytes` of pinned host memory, without contents, for state that visits the device.
  /// `name` is for messages and traces. Pinning may block the host. Throws `out_of_budget` when the
  /// host budget is spent, `device_error`.
  template <class Engine = detail::engine>
  [[nodiscard]] auto state_on_host(std::size_t bytes, std::string_view name) {
    constexpr std::type_identity<Device> device;
    static_assert(
        requires(Engine & of) { state_in(device, of, bytes, name); },
        "tidepool: #include <tidepool/host_state.hpp> for state on the host");
    return state_in(device, static_cast<Engine&>(*engine_), bytes, name);
  }

  // ---- CUDA graphs ----

  /// Captures the work of `body` on `stream`, Tidepool's copies included, and runs none of it.
  /// `body` is a whole step, or one of its parts; see `graph`.
  ///
  /// The work must have run eagerly before, so that no memory has to be made. Other streams take
  /// part once they wait for an event of `stream`. All copy streams take part and are joined back.
  ///
  /// Throws `misuse_error` before the warm-up is over, inside another capture, while tracing, or
  /// when memory would have to grow; `device_error`; and what `body` throws. A failure ends the
  /// capture, and tensors that `body` committed or restored are lost: give its chunks up.
  template <class Body, class Engine = detail::engine>
    requires capturing_device<Device>
  [[nodiscard]] auto capture(stream_ref stream, Body&& body) {
    constexpr std::type_identity<Device> device;
    static_assert(
        requires(Engine & of) { capture_in(device, of, stream, body); },
        "tidepool: #include <tidepool/graph.hpp> for captures");
    return capture_in(device, static_cast<Engine&>(*engine_), stream, std::forward<Body>(body));
  }

  /// Waits for the row counts of all work so far, and returns the one that is furthest beyond its
  /// plan, if any is (see rows.hpp). Throws `misuse_error` in a capture, `device_error`.
  template <class Engine = detail::engine>
  [[nodiscard]] auto rows_overflowed() {
    return overflowed_rows(static_cast<Engine&>(*engine_));
  }

  // ---- memory of another process ----

  /// Sends groups to memory that another process of this host lends, while there is room, and then
  /// to the other places. `then` says what happens when a step begins and the lender of `lent` is
  /// gone; groups in its memory come back even then. Blocks the host for ten seconds at most.
  /// Throws `lender_error` if no process lends, `misuse_error` in a capture, with
  /// `place_kind::peer` and while memory is borrowed already, `device_error`.
  template <std::same_as<loan_handle> Loan>
  void borrow(const Loan& lent, lender_gone then = {}) {
    static_assert(lending_device<Device>, "tidepool: this kind of device cannot borrow memory");
    borrow_for(*engine_, lent, then);  // of places/lending.hpp
  }
  /// Gives borrowed memory back, between steps; blocks the host until its copies are over. Throws
  /// `misuse_error` while tensors lie there, and after a capture with it; `device_error`.
  void return_loan() {
    if (auto* const lent = engine_->memory().lent()) lent->give_back();
  }

  // ---- a step ----

  /// Opens the chunk of one forward pass. `info` says which microbatch and model chunk it is, and
  /// whether a backward pass follows. Throws `misuse_error` for `release` without `forward_only`,
  /// and for a chunk that the plan of `follow` does not have; `lender_error` (see `borrow`).
  [[nodiscard]] chunk begin(const chunk_info& info = {}) {
    plans_.before_pass();
    if (auto* const lent = engine_->memory().lent(); lent != nullptr && !info.forward_only) {
      lent->before_step([this](std::string_view line) { plans_.report(line); });
    }
    return {*engine_, info, enabled_};
  }

  /// Ends the step; throws `misuse_error` while any chunk is open. The first step that trains is
  /// the warm-up: its end settles the residency of groups and reports modules that moved no byte. A
  /// step with more chunks or groups than any before it, and some that the plan lacks, begins the
  /// warm-up anew, with a report; not if graphs were captured, or under Megatron's policy with a
  /// plan of `follow`. Nothing is learned from a step that gave a chunk up, nor, eight times at
  /// most, from one with fewer chunks or groups than a step before it. With an automatic policy the
  /// warm-up goes on until `options::timed_step`; the plan of that step is reported and followed.
  /// Each timed step ends with a wait for the device. Plans are made in line or on a thread
  /// (`options::adopt_after`), for which the destructor waits. Throws the error that kept a step
  /// from being recorded, and the planner's error at the step that would adopt its plan. After
  /// either, or a step that ran out of memory under a plan, the next step is the first again.
  void end_step() { plans_.step_ended(engine_->end_step()); }

  /// The profile of the warm-up step. It has times only under an automatic policy.
  [[nodiscard]] const plan::profile& profile() const { return engine_->profile(); }

  /// The plan that is followed; empty with Megatron's policy, and before the first plan is made. If
  /// no plan fits the device budget, `expected.runs` is false, and everything leaves.
  [[nodiscard]] const std::optional<plan::step_plan>& current_plan() const {
    return plans_.current();
  }

  /// Follows a plan from elsewhere, with no warm-up. `made` was planned for `recorded`, a profile
  /// of the same steps, with the same modules enabled. Call `follow` between steps. Throws
  /// `plan::profile_error`, and keeps the plan before, if the two do not fit each other, this
  /// offloader's modules or its device budget, or if the plan recomputes although
  /// `recompute_by_plan` is off or the profile has no time for it. The first step after `follow`
  /// throws `misuse_error` for a chunk or group that the plan lacks, for a missing one, and for a
  /// group to be recomputed that is not offered (`chunk::commit_or_discard`).
  void follow(const plan::step_plan& made, const plan::profile& recorded) {
    plans_.follow(made, recorded, enabled_);
  }

  /// Sends each line of a report to `sink` instead of `stderr`; an empty function stops them. An
  /// exception of `sink` leaves `begin`, before it opens a chunk, or `end_step`.
  void on_report(std::function<void(std::string_view)> sink) { plans_.on_report(std::move(sink)); }

  /// Sets a function that is called before each of the three measurements of the link, at the end
  /// of the first step of an automatic policy. GPUs of one host that train together all need a
  /// `meet` that is a barrier, because each plans with the speed that it gets beside the others. An
  /// exception of `meet` leaves `end_step`, and the next step is the first again.
  void on_measure(std::function<void()> meet) {
    if (auto* plans = engine_->learns()) plans->on_measure(std::move(meet));
  }

  /// Sets an all-reduce by which ranks that wait for each other plan together: `all` returns true
  /// if every rank is `ready`, with a step to plan or with a plan. Set it on all ranks or none;
  /// without it they plan in line, at steps that each counts. `end_step` calls it at each step that
  /// trains until a plan is followed, then at the 64th, 128th, 256th, ...; there a rank that needs
  /// another plan is not `ready`. Its exceptions act as of `meet`. Ranks give up steps together.
  void on_ready(std::function<bool(bool ready)> all) {
    if (auto* plans = engine_->learns()) plans->on_ready(std::move(all));
  }

  /// True when the module's groups may leave.
  template <fixed_string Name>
  [[nodiscard]] bool enabled() const {
    if constexpr (Modules::open) {
      return enabled(module(Name.view()));
    } else if constexpr (detail::compiled_in<Modules, Name>::value) {
      return enabled(Modules::id(Name.view()));
    }
    return false;
  }
  /// Like `enabled` by name, for the id `module`.
  [[nodiscard]] bool enabled(module_id module) const {
    return (enabled_ >> static_cast<unsigned>(module) & 1U) != 0;
  }

  /// True when every offer by that name is recomputed, because `recompute_modules` has the name.
  [[nodiscard]] bool recomputes(std::string_view name) const {
    return engine_->recomputed(name) != detail::engine::not_recomputed;
  }

  /// Looks up the id of the module `name`. Throws `unknown_module`, with the nearest name.
  [[nodiscard]] module_id module(std::string_view name) const {
    return find_module(name, known_modules(engine_->settings()), Modules::open);
  }

  // ---- seeing it ----

  /// A copy of all totals so far.
  [[nodiscard]] trace::counters counters() const { return engine_->counters(); }
  /// The options that the offloader was made with, without changes by a plan.
  [[nodiscard]] const options& settings() const { return engine_->settings(); }
  /// How much is reloaded ahead of its use now: by the options, or by the plan in use.
  [[nodiscard]] const reload_limits& reloads_ahead() const { return engine_->limits(); }

  /// Records spans from now on, until `finish_trace`. Both calls block the host until the device is
  /// idle. `title` stands above the picture; `origin` is any stream in use. Throws `device_error`.
  template <class Engine = detail::engine>
  void start_trace(std::string title, stream_ref origin) {
    static_assert(traces<Engine>, "tidepool: #include <tidepool/observe/tracing.hpp> for traces");
    begin_trace(static_cast<Engine&>(*engine_), std::move(title), &origin);
  }
  /// Ends the record and returns it; the record is empty if `start_trace` was not called.
  template <class Engine = detail::engine>
  [[nodiscard]] trace::record finish_trace() {
    static_assert(traces<Engine>, "tidepool: #include <tidepool/observe/tracing.hpp> for traces");
    return end_trace(static_cast<Engine&>(*engine_));
  }

  /// The trainer's own work, until the object ends; costs a branch while no trace is recorded.
  using span = detail::traced_span;
  /// Begins a span on `stream`. `name` must live as long as the span; `layer` and `microbatch` are
  /// shown unless they are negative.
  [[nodiscard]] span trace_span(std::string_view name, stream_ref stream, int layer = -1,
                                int microbatch = -1) {
    return {*engine_,
            [&] { return lane_of(stream); },
            {trace::span_kind::compute, name, layer, microbatch, 0}};
  }

  // ---- waits for other ranks ----

  /// Calls `wait` and returns its result. In `wait`, `stream` or the host waits for ranks with a
  /// schedule of their own, such as the neighbours in a pipeline.
  ///
  /// Automatic plans then know that being late before `wait` costs nothing as long as the others
  /// are later: copies may take their time in the bubbles of a pipeline. In recorded steps the call
  /// records two timing events on `stream`; in other steps it only calls `wait`. Does not block the
  /// host. Throws what `wait` throws, and `device_error`.
  template <class Wait>
  decltype(auto) wait_for_others(stream_ref stream, Wait&& wait) {
    const detail::recorded_wait until{*engine_, &stream, detail::waits_for::others};
    return std::forward<Wait>(wait)();
  }
  /// Like `wait_for_others`, for ranks that do the same at the same time, as in an all-to-all or an
  /// all-reduce. The shortest wait of a `kind` counts as the time of the transfer. A longer wait
  /// counts only as far as it exceeds the time that this rank stood still, because its peers stand
  /// still for that time, too. Give each size of transfer a `kind` of its own.
  template <class Wait>
  decltype(auto) wait_for_peers(stream_ref stream, Wait&& wait, std::uint32_t kind = 0) {
    const detail::recorded_wait until{*engine_, &stream, detail::waits_for::peers, kind};
    return std::forward<Wait>(wait)();
  }

 private:
  // Lookup in the engine's namespace finds `end_trace` at the call, because its header is optional.
  template <class Engine>
  static constexpr bool traces = requires(Engine& of) {
    end_trace(of);
  };

  static std::vector<std::string_view> known_modules(const options& opts) {
    if constexpr (Modules::open) {
      return open_module_list(opts);
    } else {
      return {Modules::names.begin(), Modules::names.end()};
    }
  }

  [[nodiscard]] static std::uint64_t checked(const options& opts, const parts& with) {
    const auto known = known_modules(opts);
    validate(opts, known, Modules::open);
    detail::expect_parts(opts, with);
    return resolve_modules(opts, known, Modules::open);
  }

  template <class T = std::byte>
  [[nodiscard]] static buffer made(const detail::granted& memory) {
    return detail::buffer_of<Device>(memory, is_bfloat16<T>);
  }
  [[nodiscard]] lane_id lane_of(const stream_ref& stream) const {
    return detail::lane_of<Device>(*engine_, stream);
  }

  std::uint64_t enabled_;
  detail::engine* engine_;
  detail::plan_maker plans_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tidepool
