/// Offloads tensors that autograd saves, in trainers that compute with libtorch or PyTorch.
///
/// Needs libtorch (CMake: component `torch`); no other header of Tidepool needs it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/offloader.hpp"
#include "tidepool/torch/current.hpp"
#include "tidepool/torch/hooks.hpp"
#include "tidepool/torch/open_pass.hpp"
#if defined(TIDEPOOL_TORCH_CUDA)
#include "tidepool/torch/cuda.hpp"
#include "tidepool/torch/cuda_captures.hpp"
#endif

namespace tidepool::inline v0_3_0 {

/// While this object lives, `tidepool::module` on this thread saves into one pass.
/// `torch_offloader::use` returns it. A second object takes the place of the first until the second
/// is destroyed. Destroy it on the thread that made it.
template <device Device>
class [[nodiscard]] torch_use final : detail::torch_current {
 public:
  torch_use(const torch_use&) = delete;
  torch_use& operator=(const torch_use&) = delete;
  ~torch_use() override = default;

 private:
  template <device>
  friend class torch_offloader;
  using open_pass = detail::torch_open_pass<Device>;

  explicit torch_use(std::shared_ptr<open_pass> pass) : pass_(std::move(pass)) {}
  std::unique_ptr<detail::torch_scope> open(std::string_view name, int layer) override {
    auto& off = pass_->core().off;
    if (!off) return nullptr;
    auto saver = pass_->saver(off->module(name), layer);
    return saver == nullptr ? nullptr : std::make_unique<detail::torch_scope>(std::move(saver));
  }

  std::shared_ptr<open_pass> pass_;
};

/// Tensors that one module saves in one layer of a pass, one by one: for frameworks with their own
/// hooks, such as Python's, and for modules that end later than their hooks. `torch_pass::group`
/// makes it. Move-only; false as a condition if no tensor of the module leaves.
///
/// Tensors of a group that is never committed stay where they are and may be read at any time.
template <device Device>
class torch_group {
 public:
  /// Makes an empty group.
  torch_group() = default;
  torch_group(torch_group&& other) noexcept = default;  ///< Leaves `other` empty.
  /// Drops the group of this object; leaves `other` empty.
  torch_group& operator=(torch_group&& other) noexcept = default;
  torch_group(const torch_group&) = delete;             // move-only; pass it by reference
  torch_group& operator=(const torch_group&) = delete;  // move-only; pass it by reference
  ~torch_group() = default;

  /// True while the module's tensors leave: false if the module is not enabled, and after `commit`.
  [[nodiscard]] explicit operator bool() const { return saver_ != nullptr; }

  /// Takes `tensor` as autograd saves it. `call_unpack_hook` of the result returns the tensor
  /// again, for torch's current stream. Does not block the host. Throws `misuse_error` on an empty
  /// group.
  ///
  ///     auto saved = group.save(tensor);
  [[nodiscard]] std::unique_ptr<::torch::autograd::SavedVariableHooks> save(
      const at::Tensor& tensor) const {
    if (saver_ == nullptr) throw misuse_error("torch_group::save: the group is empty");
    auto hooks = saver_->hooks();
    hooks->call_pack_hook(tensor);
    return hooks;
  }
  /// The module's forward is over: its saved tensors leave, in the order of torch's current stream.
  /// Empties the group. Does not block the host. Throws as `torch_pass::module`.
  void commit() {
    if (const auto saver = std::exchange(saver_, nullptr)) saver->leave();
  }

 private:
  template <device>
  friend class torch_pass;

  explicit torch_group(std::unique_ptr<detail::torch_saver> saver) : saver_(std::move(saver)) {}

  std::unique_ptr<detail::torch_saver> saver_;
};

/// A forward pass through a model and its backward passes. Move-only; a pass that is destroyed
/// unfinished is given up.
template <device Device>
class torch_pass {
 public:
  torch_pass() = default;
  torch_pass(torch_pass&& other) noexcept = default;  ///< Leaves `other` without a pass.
  /// Gives up an unfinished pass of this object; leaves `other` without a pass.
  torch_pass& operator=(torch_pass&& other) noexcept {
    if (this != &other) {
      close();
      state_ = std::move(other.state_);
    }
    return *this;
  }
  torch_pass(const torch_pass&) = delete;             // move-only; pass it by reference
  torch_pass& operator=(const torch_pass&) = delete;  // move-only; pass it by reference
  ~torch_pass() { close(); }

  /// Calls `body` as the module `name` and returns its result. Tensors that autograd saves in
  /// `body`, on this thread and in no inner scope, leave when `body` has returned, in the order of
  /// torch's current stream at that time. A storage that several nodes save leaves once, with the
  /// module that saved it first.
  ///
  /// The call costs a look-up if the options leave the module out. Nothing leaves once the pass's
  /// backward has begun (with `end_forward`, or the first tensor that it reads), because a tensor
  /// that a checkpoint computes again is read at once. If `body` throws, all tensors stay where
  /// they are.
  ///
  /// Inside a capture by torch on a CUDA device, copies become part of the graph, see
  /// docs/torch.md. On other devices such a scope throws `misuse_error`.
  ///
  /// Does not block the host. Throws `unknown_module`; `misuse_error` if the module ran in this
  /// layer before; and as `chunk::commit`.
  ///
  ///     auto h = pass.module("fc1", layer, [&] { return fc1->forward(x); });
  template <class Body>
  decltype(auto) module(std::string_view name, int layer, Body&& body) {
    return module(opened("module").core().off->module(name), layer, std::forward<Body>(body));
  }
  /// Like `module` by name, with an id from `torch_offloader::module`.
  template <class Body>
  decltype(auto) module(module_id id, int layer, Body&& body) {
    auto saver = opened("module").saver(id, layer);
    if (saver == nullptr) return std::forward<Body>(body)();
    detail::torch_scope scope(std::move(saver));
    return detail::run_in(&scope, std::forward<Body>(body));
  }

  /// Like `module`, for callers that cannot put the forward call into a function: `group.save`
  /// saves tensors, until `group.commit`. The group is empty if no tensor of the module would
  /// leave. Throws as `module`.
  ///
  ///     auto group = pass.group(id, layer);
  [[nodiscard]] torch_group<Device> group(module_id id, int layer) {
    return torch_group<Device>(opened("group").saver(id, layer));
  }

  /// The forward pass is complete: reloads may start ahead of backward. Without this call they
  /// start with the first tensor that backward reads. Does not block the host. Throws as
  /// `chunk::end_forward`.
  void end_forward() { opened("end_forward").end_forward(); }

  /// Backward is over. Tensors that no backward pass has read by now are given up, and a graph that
  /// reads one later throws `misuse_error`; tensors that were read stay as long as the graph
  /// (`retain_graph`). Does not block the host. Throws as `chunk::finish`.
  void finish() {
    if (state_ == nullptr) return;
    state_->finish();
    state_.reset();
  }

 private:
  template <device>
  friend class torch_offloader;
  using state = detail::torch_open_pass<Device>;

  explicit torch_pass(std::shared_ptr<state> of) : state_(std::move(of)) {}
  void close() noexcept {
    if (state_ != nullptr) state_->give_up();
    state_.reset();
  }
  [[nodiscard]] state& opened(const char* call) const {
    if (state_ != nullptr && state_->core().off) return *state_;
    throw misuse_error(std::string(call) +
                       ": this pass is finished, was never begun, was moved from, or its offloader"
                       " is gone; use the one that torch_offloader::begin returned");
  }

  std::shared_ptr<state> state_;
};

/// Objects that an offloader over torch is made with beside its options.
struct torch_parts {
  decltype(parts::planner) planner = nullptr;  ///< `tidepool::planner()`, as in `parts`
  detail::file_opener file = nullptr;          ///< `tidepool::file_place()`, as in `parts`
  decltype(parts::output) output = nullptr;    ///< `tidepool::trace_output()`, as in `parts`
  /// True: autograd asks for module scopes. Set it to false if another engine runs, such as
  /// Python's.
  bool install_hooks = true;
};

/// Offloads tensors that autograd saves, for a trainer that computes with torch on `Device`: the
/// virtual device over CPU tensors, or `cuda_device`.
///
/// Tensors of forward are torch's own, held until their copies are made. Reloaded tensors lie in
/// memory of torch's allocator as well, unless `--memory` says otherwise. Memory that is held for
/// its copies goes back before that allocator grows.
///
/// Thread safety: calls and hooks take a lock, so that autograd's threads may run at once; one
/// thread at a time makes and ends passes and steps. No call blocks the host, except as `offloader`
/// says. The device must outlive the offloader; graphs may outlive both.
///
///     tp::torch_offloader off(device, tp::take_options(argc, argv));
///     off.exclude(model->parameters());
template <device Device>
class torch_offloader {
 public:
  using pass = torch_pass<Device>;  ///< One pass, as `begin` returns it.

  /// Makes an `offloader` of `dev`, `opts` and the parts in `with`, and throws its errors. Throws
  /// `misuse_error` if autograd runs on another engine than torch's own.
  explicit torch_offloader(Device& dev, const options& opts = {}, torch_parts with = {})
      : core_(std::make_shared<core>(dev, opts,
                                     parts{.planner = std::move(with.planner),
                                           .file = with.file,
                                           .output = std::move(with.output)})) {
    core_->captures = detail::torch_captures_of<Device>(dev, *core_);
    if (with.install_hooks) detail::torch_saving_engine::install();
  }
  torch_offloader(const torch_offloader&) = delete;
  torch_offloader& operator=(const torch_offloader&) = delete;
  ~torch_offloader() { core_->end(); }

  /// Keeps `tensors` on the device, with their views, and with casts and transpositions that are
  /// made of one of them alone: for weights, which the optimizer writes to. Call it between steps.
  void exclude(const std::vector<at::Tensor>& tensors) {
    for (const auto& each : tensors) core_->excluded.add(each);
  }
  /// Like `exclude` of several tensors, for one `tensor`.
  void exclude(const at::Tensor& tensor) { core_->excluded.add(tensor); }
  /// Keeps a tensor on the device if `question` returns true for it when it is saved: for storages
  /// that come and go, such as gathered parameters. `question` may be called on any thread, and
  /// must not save tensors.
  void exclude_if(std::function<bool(const at::Tensor&)> question) {
    core_->excluded.add(std::move(question));
  }

  /// Begins a pass; see `torch_pass`. `info` as for `offloader::begin`, whose errors it throws.
  [[nodiscard]] pass begin(const chunk_info& info = {}) {
    return pass(std::make_shared<detail::torch_open_pass<Device>>(core_, info));
  }
  /// While the result lives, `tidepool::module` on this thread saves into `open`: for models that
  /// do not hand the pass to their inner modules. Throws `misuse_error` if `open` was never begun
  /// or is finished.
  ///
  ///     auto pass = off.begin();
  ///     auto loss = [&] { const auto use = off.use(pass); return model->forward(batch); }();
  [[nodiscard]] torch_use<Device> use(pass& open) {
    static_cast<void>(open.opened("use"));
    return torch_use<Device>(open.state_);
  }
  /// Like `offloader::end_step`. Inside a capture it ends a step of the captured passes, and does
  /// what `join_capture` does.
  void end_step() {
    if (capturing()) return core_->captures->end_step();
    const std::lock_guard guard(core_->lock);
    core_->off->end_step();
  }
  /// Makes a captured stream wait for all copies of its capture, because a capture cannot end while
  /// a copy stream is not joined. The end of a pass or of a step inside a capture does so as well.
  /// Captures of single layers call it after their last scope, and at the end of their backward.
  /// Does nothing outside a capture.
  void join_capture() {
    if (capturing()) core_->captures->join();
  }

  /// Looks up the id of the module `name`. Throws `unknown_module`.
  [[nodiscard]] module_id module(std::string_view name) const { return core_->off->module(name); }
  /// A copy of all totals so far. A launch of a graph counts nothing: its copies are counted once,
  /// by the capture.
  [[nodiscard]] trace::counters counters() const {
    const std::lock_guard guard(core_->lock);
    auto all = core_->off->counters();
    if (core_->captures != nullptr) core_->captures->add_to(all);
    return all;
  }
  /// The offloader beneath, for plans, traces and reports. Do not use it while autograd runs.
  [[nodiscard]] offloader<Device>& engine() { return *core_->off; }
  /// The streams of the device that torch works on.
  [[nodiscard]] torch_streams<Device>& streams() { return core_->streams; }

 private:
  using core = detail::torch_core<Device>;
  [[nodiscard]] bool capturing() const {
    return core_->captures != nullptr && core_->captures->under_way();
  }

  std::shared_ptr<core> core_;
};

}  // namespace tidepool
