/// The object that a trainer embeds.
#pragma once

#if !defined(__cpp_concepts)
#error "tidepool needs C++20: compile with -std=c++20"
#endif

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
#include "tidepool/core/plan_source.hpp"
#include "tidepool/device/hardware_of.hpp"
#include "tidepool/engine/borrower.hpp"
#include "tidepool/engine/misuse.hpp"
#include "tidepool/engine/plan_maker.hpp"
#include "tidepool/engine/recorded_wait.hpp"
#include "tidepool/engine/traced_span.hpp"
#include "tidepool/error.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/host_state.hpp"
#include "tidepool/memory/fixed.hpp"
#include "tidepool/memory/lend.hpp"
#include "tidepool/memory/stream_memory.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/validate.hpp"

namespace tidepool::inline v0_2_0 {

/// What an offloader is made with beside its options; each may be left out.
struct parts {
  /// Who decides: `tidepool::planner()` of plan.hpp.
  std::unique_ptr<plan_source> planner = nullptr;
  /// Where saved tensors come back to, instead of memory of the offloader's own: a trainer's
  /// allocator (`memory_on`), or another source. `options::memory` stays `pool`, and
  /// `options::device_budget` is a soft limit then.
  std::unique_ptr<block_source> memory = nullptr;
};

/// Moves the saved tensors of chosen modules to the host and back, in step with one training loop.
///
/// `Modules` is `modules<"core_attn", …>`, the list compiled in, or `all_modules`, where the
/// options alone decide. It holds its two copy streams, its device memory for saved tensors and its
/// pinned host memory, and nothing global: any number of offloaders live side by side.
///
///     tidepool::offloader<device, tidepool::modules<"expert_fc1">> off(dev, options);
///     auto chunk = off.begin({.microbatch = 0});  // for each forward pass; see `chunk`
///     off.end_step();                             // once for each step
///
/// No call blocks the host, but for the constructor, the destructor, the two trace functions,
/// `borrow`, `return_loan`, the one `begin` that moves on from a lender that is gone, `end_step`
/// while an automatic plan is made, and a call for which a pool gives memory back to the device.
/// Thread safety: none; one thread at a time, with its handles and chunks. The device must outlive
/// the offloader and its handles. Streams given to it must live until the last call of both.
template <device Device, class Modules = all_modules>
class offloader {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.
  using handle = tidepool::handle<Device>;         ///< What buffers and views share.
  using buffer = tidepool::buffer<Device>;         ///< Owns a saved tensor.
  using view = tidepool::view<Device>;             ///< A rectangle of a buffer.
  using chunk = tidepool::chunk<Device, Modules>;  ///< One forward pass and its backward pass.

  /// Makes copy streams on `dev`, and memory as `opts` says, of which it keeps a copy. It may block
  /// the host, as it allocates.
  ///
  /// Throws `option_error` or `unknown_module` when the options cannot work, `out_of_budget` when
  /// the device cannot give the memory that they fix, `device_error` when it fails.
  ///
  /// `policy_kind::automatic`, and `follow`, need `with.planner` (`option_error`).
  explicit offloader(Device& dev, const options& opts = {}, parts with = {})
      : enabled_(checked(opts, with)),
        engine_(new detail::engine(std::make_unique<detail::hardware_of<Device>>(dev), opts,
                                   known_modules(opts), enabled_, std::move(with.memory))),
        plans_(*engine_, std::move(with.planner)) {}
  offloader(const offloader&) = delete;
  offloader& operator=(const offloader&) = delete;
  ~offloader() {
    if (std::uncaught_exceptions() > exceptions_) engine_->drop_work();
    engine_->close();
    detail::engine::release(engine_);
  }

  // ---- memory of saved tensors ----

  /// Device memory that work given to `stream` from now on may use. The elements count for
  /// `min_tensor_elements`; bytes are counted as elements by the second form.
  ///
  /// `contents` is `fill::none`, or `fill::zero`, which writes zeros first, on `stream`: a kernel
  /// that writes a part of recycled memory and reads all of it finds what was there before. Memory
  /// that `recompute` gives again has zeros again; what is restored has the bytes that it had.
  ///
  /// Does not block the host; `stream` may wait for copies that still use the memory. Throws
  /// `out_of_budget`, naming what is live, when the memory is full with nothing in flight;
  /// `misuse_error` for more than any memory has. 0 bytes take no memory; their address is null.
  ///
  ///     auto x = off.allocate<float>(rows * width, stream);
  ///     my_kernel<<<grid, block, 0, stream>>>(x.as<float>());
  template <class T>
  [[nodiscard]] buffer allocate(std::size_t count, stream_ref stream, fill contents = fill::none) {
    const auto bytes = detail::bytes_of(count, sizeof(T));
    return made(engine_->allocate(bytes, count, lane_of(stream), nullptr, contents));
  }
  /// The same in bytes.
  [[nodiscard]] buffer allocate(std::size_t bytes, stream_ref stream, fill contents = fill::none) {
    return made(engine_->allocate(bytes, bytes, lane_of(stream), nullptr, contents));
  }

  /// `bytes` from a `source` of the trainer's own instead, where they also come back to: for
  /// addresses that kernels or graphs know (`fixed_block`). Work given to `stream` from now on may
  /// use them. The source must outlive the buffer's storage and every graph that was captured with
  /// it, and serves no other offloader (`misuse_error`). Throws as `allocate`.
  [[nodiscard]] buffer allocate_from(block_source& source, std::size_t bytes, stream_ref stream) {
    return made(engine_->allocate(bytes, bytes, lane_of(stream), &source));
  }

  /// A tensor that lies in memory of somebody else's allocator, to be saved like any other.
  /// `stream` is the one that wrote it, and in whose order its owner takes memory back: once that
  /// stream has joined every use of it here, `owner` is called or destroyed (see `memory_owner`).
  /// It comes back in memory of the offloader's own, or of `parts::memory`.
  ///
  /// Bytes are counted as elements by the first form. Several tensors may share memory, with a
  /// reference each, as long as nobody writes to it. At the end owners get back what is left, the
  /// host blocking if need be. Not inside a capture, and a capture may not commit it.
  ///
  /// Does not block the host. Throws `misuse_error` for a null pointer, unless of 0 bytes, and in a
  /// capture. Its owner has the memory back then, and at once where there are no bytes.
  ///
  ///     auto x = off.adopt(data, bytes, stream, [=] { my_free(data); });
  ///     chunk.commit<"expert_fc1">(layer, stream, x);
  [[nodiscard]] buffer adopt(void* data, std::size_t bytes, stream_ref stream, memory_owner owner) {
    return made(engine_->adopt_memory(data, bytes, bytes, lane_of(stream), std::move(owner)));
  }
  /// The same for `count` elements of T.
  template <class T>
  [[nodiscard]] buffer adopt(std::type_identity_t<T>* data, std::size_t count, stream_ref stream,
                             memory_owner owner) {
    const auto bytes = detail::bytes_of(count, sizeof(T));
    return made(engine_->adopt_memory(data, bytes, count, lane_of(stream), std::move(owner)));
  }

  /// `stream` waits for the reload of what `saved` holds, and for what the stream that it was
  /// handed to had been given then: for a tensor that a second stream reads. Does not block the
  /// host. Throws `misuse_error` for an empty handle, `device_error`.
  void wait_for(const handle& saved, stream_ref stream) {
    engine_->wait_for(saved, lane_of(stream));
  }

  /// For adapters: no commit has a tensor of module `m`, since it lies on another device or is
  /// `excluded`. Reports say so where nothing of it leaves. Does not block the host.
  void note_elsewhere(module_id m, bool excluded = false) { engine_->note_elsewhere(m, excluded); }

  /// Gives borrowed memory that waits for its copies back now: its owners' streams join them. For
  /// an allocator that is about to grow. Does not block the host; does nothing in a capture.
  void release_borrowed() noexcept { engine_->memory().borrowed().give_back(0); }

  // ---- state that lives on the host ----

  /// `bytes` of pinned host memory for state that visits the device; empty of contents. `name` is
  /// for messages and traces. Pinning may block the host. Throws `out_of_budget` when the host
  /// budget is spent, `device_error`.
  [[nodiscard]] host_state<Device> state_on_host(std::size_t bytes, std::string_view name) {
    return {&engine_->make_state(bytes, name), name};
  }

  // ---- CUDA graphs ----

  /// Captures what `body` gives to `stream`, our copies included, and runs none of it. `body` calls
  /// this offloader and launches kernels as in any step.
  ///
  /// The same work must have run eagerly before, so that no memory has to be made. Other streams
  /// take part once they wait for an event of `stream`; all copy streams do, and are joined back.
  /// A whole step, or parts of it one after the other; see `graph`.
  ///
  /// Throws `misuse_error` before the warm-up is over, inside another capture, while tracing, or
  /// when memory would have to grow; `device_error`; and what `body` throws. After a failure no
  /// capture is left open, and what `body` committed or restored is lost: give its chunks up.
  template <class Body>
    requires capturing_device<Device>
  [[nodiscard]] auto capture(stream_ref stream, Body&& body) {
    const auto origin = detail::lane_to_release<Device>(*engine_, stream);
    const auto before = detail::bytes_to_neighbour(engine_->memory());
    engine_->begin_capture(origin);
    try {
      std::forward<Body>(body)();
    } catch (...) {
      engine_->abandon_capture(origin);
      throw;
    }
    auto content = engine_->end_capture(origin);
    return graph<Device>(*engine_, std::move(content), engine_->layout_before_capture(),
                         engine_->layout_after_capture(),
                         detail::bytes_to_neighbour(engine_->memory()) != before);
  }

  // ---- memory of another process ----

  /// Groups go to memory that another process of this host lends, while there is room, and then to
  /// the other places. `then` says what happens when a step begins and the lender of `lent` is
  /// gone; what was offloaded there comes back even then. Blocks the host, ten seconds at the most.
  /// Throws `lender_error` when nobody lends, `misuse_error` in a capture, with `place_kind::peer`
  /// and while it borrows, `device_error`.
  void borrow(const loan_handle& lent, lender_gone then = {}) {
    static_assert(lending_device<Device>, "tidepool: this kind of device cannot borrow memory");
    loans_.borrow(lent, then);
  }
  /// Gives it back, between steps, if there is any; blocks the host until its copies are over.
  /// Throws `misuse_error` while tensors lie there, and where a graph was captured; `device_error`.
  void return_loan() { loans_.give_back(); }

  // ---- a step ----

  /// Opens the chunk of one forward pass. `info` says which microbatch and model chunk it is, and
  /// whether a backward pass follows. Throws `misuse_error` for `release` without `forward_only`,
  /// and for a chunk that the plan of `follow` does not have; `lender_error` (see `borrow`).
  [[nodiscard]] chunk begin(const chunk_info& info = {}) {
    plans_.before_pass();
    if (loans_.alone(!info.forward_only)) loans_.go_on(plans_);
    return {*engine_, info, enabled_};
  }

  /// The step is over: every chunk is finished. The first step that trains is the warm-up; the
  /// residency of groups is settled at its end, and modules that moved no byte are reported. A step
  /// with more chunks or groups than any before it, some of them not planned for, is reported and
  /// begins the warm-up anew, unless graphs have been captured or a plan from elsewhere is followed
  /// beside Megatron's rule. Of a step in which a chunk was given up nothing is learnt, nor, eight
  /// times at the most, of one with fewer chunks or groups than one before it; each is reported,
  /// and another step takes its place.
  ///
  /// Throws `misuse_error` when a chunk is still open, a forward-only one as well.
  ///
  /// With `policy_kind::automatic` everything leaves in the first step, a first plan is tried in
  /// the second, which is timed, and the plan made of that is reported and followed from then on.
  /// At the end of both the host blocks until the device is idle and while it plans. A step that
  /// could not be recorded (no event, no memory) runs to its end; this then throws what it was, and
  /// the next step is the first again. So it is, and is reported, after a step that was given up
  /// since its memory did not suffice under the plan.
  void end_step() { plans_.after(engine_->end_step()); }

  /// What the warm-up recorded: structure alone, or with times where the policy is automatic.
  [[nodiscard]] const plan::profile& profile() const { return engine_->profile(); }

  /// The plan that is being followed; nothing with Megatron's policy, and before it is made. Where
  /// none was found for the device budget, `expected.runs` is false, and everything leaves.
  [[nodiscard]] const std::optional<plan::step_plan>& current_plan() const {
    return plans_.current();
  }

  /// Follows a plan from elsewhere, with no warm-up: `recorded` is what it was made for, a profile
  /// of the same steps, with the same modules enabled. Call it between steps.
  ///
  /// Throws `plan::profile_error` where the two do not fit each other, this offloader's modules or
  /// its device budget, or where the plan recomputes although `recompute_by_plan` is off or the
  /// profile has no time for it; what was followed before then goes on. In the first step after it,
  /// a chunk or group that the plan lacks there, one that is missing, or one to be recomputed that
  /// is not offered (`chunk::commit_or_discard`), is a `misuse_error`. Sizes are not compared.
  void follow(const plan::step_plan& made, const plan::profile& recorded) {
    plans_.follow(made, recorded, enabled_);
  }

  /// `sink` gets reports, a line each; by default `stderr` does. An empty function: nobody. It is
  /// called within `end_step` and `begin`.
  void on_report(std::function<void(std::string_view)> sink) { plans_.on_report(std::move(sink)); }

  /// `meet` is called before each of the three measurements of the link that an automatic plan
  /// rests on, at the end of the first step; by default, and where it is empty, nothing. Where GPUs
  /// of one host train together, wait in it for all of them, as in a barrier: each then plans with
  /// what it gets beside the others. Alone, each would count on the whole of the host's memory. All
  /// of them must be given it, and the same policy. The device is idle meanwhile. What it throws
  /// leaves `end_step`; the step is over all the same, and the next one is the first again.
  void on_measure(std::function<void()> meet) { plans_.on_measure(std::move(meet)); }

  // ---- modules ----

  /// True when the module's groups may leave.
  template <fixed_string Name>
  [[nodiscard]] bool enabled() const {
    if constexpr (Modules::open) {
      return enabled(module(Name.view()));
    } else if constexpr (detail::compiled_in<Modules, Name>::value) {
      return enabled(Modules::id(Name.view()));
    } else {
      return false;
    }
  }
  /// The same for an id.
  [[nodiscard]] bool enabled(module_id module) const {
    return (enabled_ >> static_cast<unsigned>(module) & 1U) != 0;
  }

  /// True when the trainer should `discard` and `recompute` what goes by that name.
  [[nodiscard]] bool recomputes(std::string_view name) const {
    return engine_->recomputed(name) != detail::engine::not_recomputed;
  }

  /// The id of the module `name`, to be looked up once. Throws `unknown_module`, with the nearest
  /// name.
  [[nodiscard]] module_id module(std::string_view name) const {
    return find_module(name, known_modules(engine_->settings()), Modules::open);
  }

  // ---- seeing it ----

  /// A copy of all totals so far.
  [[nodiscard]] trace::counters counters() const { return engine_->counters(); }
  /// The options that it was made with.
  [[nodiscard]] const options& settings() const { return engine_->settings(); }

  /// Records the spans of what follows, until `finish_trace`. Both block the host until the device
  /// is idle. `title` stands above the picture; `origin` is any stream in use. Throws
  /// `device_error`.
  ///
  ///     off.start_trace("step 10", stream);
  ///     train_step();
  ///     tidepool::trace::write_svg(file, off.finish_trace());
  void start_trace(std::string title, stream_ref origin) {
    engine_->start_trace(std::move(title), &origin);
  }
  /// Ends the record and returns it; an empty one where none was begun.
  [[nodiscard]] trace::record finish_trace() { return engine_->finish_trace(); }

  /// A span of the trainer's own work on `stream`, from here to the end of the object. Costs a
  /// branch while no trace is being recorded.
  using span = detail::traced_span;
  /// Begins one on `stream`. `name` must live as long as the span; `layer` and `microbatch` are
  /// shown where they are not negative.
  [[nodiscard]] span trace_span(std::string_view name, stream_ref stream, int layer = -1,
                                int microbatch = -1) {
    return {*engine_,
            [&] { return lane_of(stream); },
            {trace::span_kind::compute, name, layer, microbatch, 0}};
  }

  // ---- waits for other ranks ----

  /// Calls `wait`, in which `stream` or the host waits for ranks with a schedule of their own, such
  /// as the neighbours in a pipeline, and returns what it does.
  ///
  /// Automatic plans know then that being late before it costs nothing, as long as the others are
  /// later: in the bubbles of a pipeline copies may take their time. Records two timing events on
  /// `stream` in steps that are recorded, and does nothing in others. Does not block the host.
  /// Throws what `wait` throws, and `device_error`.
  template <class Wait>
  decltype(auto) wait_for_others(stream_ref stream, Wait&& wait) {
    const detail::recorded_wait until(*engine_, &stream, detail::waits_for::others);
    return std::forward<Wait>(wait)();
  }
  /// The same for ranks that do the same at the same time, as in an all-to-all or an all-reduce:
  /// who waits there waits for stalls like its own, which no plan should count on. A recorded step
  /// is without such waits, but for the shortest of each `kind`, which is taken for the transfer
  /// itself: give transfers of other sizes kinds of their own.
  template <class Wait>
  decltype(auto) wait_for_peers(stream_ref stream, Wait&& wait, std::uint32_t kind = 0) {
    const detail::recorded_wait until(*engine_, &stream, detail::waits_for::peers, kind);
    return std::forward<Wait>(wait)();
  }

 private:
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
    detail::expect_parts(opts, with.planner != nullptr, with.memory != nullptr);
    return resolve_modules(opts, known, Modules::open);
  }

  [[nodiscard]] static buffer made(const detail::granted& memory) {
    return detail::buffer_of<Device>(memory);
  }
  [[nodiscard]] lane_id lane_of(const stream_ref& stream) const {
    return detail::lane_of<Device>(*engine_, stream);
  }

  std::uint64_t enabled_;
  detail::engine* engine_;
  detail::plan_maker plans_;
  detail::borrower loans_{*engine_};
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tidepool
