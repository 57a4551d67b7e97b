/// Declares to a checked device what torch's operators read and write, so that the device finds
/// races in trainers over torch. `torch.hpp` does not include this header.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tidepool/device/checked.hpp"
#include "tidepool/torch.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// `RecordFunction::inputs` by another way. A program in debug mode must not call that function over
// a libtorch in release mode, because it reads a flag that only a libtorch in debug mode sets.
[[nodiscard]] c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& of);
template <c10::ArrayRef<const c10::IValue> at::RecordFunction::*Inputs>
struct record_function_access {
  friend c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& of) {
    return of.*Inputs;
  }
};
template struct record_function_access<&at::RecordFunction::inputs_>;

// The arguments that an operator writes and the results that it makes, according to its schema.
// Operators that only reshape tensors, only request memory, or consist of other operators declare
// nothing.
class torch_operator_rule {
 public:
  torch_operator_rule() = default;
  explicit torch_operator_rule(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    if (is_made_of_others(op) || touches_nothing(schema.name())) return;
    for (const auto& each : schema.arguments()) {
      writes_.push_back(is_written(each));
      trains_.push_back(!schema.name().ends_with("_backward") &&
                        is_written_in_training(each.name()));
      if (each.name() == "training" || each.name() == "train") training_ = trains_.size() - 1;
    }
    reads_back_ = schema.name() == "aten::_local_scalar_dense";
    copies_ = schema.name() == "aten::copy_";
    for (const auto& each : schema.returns()) makes_.push_back(each.alias_info() == nullptr);
    declares_ = any(writes_) || any(makes_) || makes_.empty();
  }

  [[nodiscard]] bool declares() const { return declares_; }
  [[nodiscard]] bool writes(std::size_t argument, c10::ArrayRef<const c10::IValue> all) const {
    if (argument >= writes_.size()) return false;
    const bool trains =
        training_ < all.size() && all[training_].isBool() && all[training_].toBool();
    return writes_[argument] || (trains && trains_[argument]);
  }
  // True if the host waits for the stream at this operator: for `item()` always, for copies if they
  // go to the host.
  [[nodiscard]] bool reads_back() const { return reads_back_; }
  [[nodiscard]] bool copies() const { return copies_; }
  [[nodiscard]] bool makes(std::size_t result) const {
    return result < makes_.size() && makes_[result];
  }

 private:
  [[nodiscard]] static bool is_made_of_others(const c10::OperatorHandle& op) {
    const bool own = op.schema().name().starts_with("aten::");  // extensions have their own kernels
    return (own && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) ||
           op.hasTag(at::Tag::inplace_view);
  }
  // These operators are listed by name, because their schemas declare writes and results that no
  // kernel touches.
  [[nodiscard]] static bool touches_nothing(std::string_view name) {
    constexpr std::array names{"aten::empty",         "aten::empty_like", "aten::empty_strided",
                               "aten::new_empty",     "aten::set_",       "aten::new_empty_strided",
                               "aten::record_stream", "aten::resize_",    "aten::_resize_output_",
                               "aten::is_pinned"};
    return std::ranges::find(names, name) != names.end();
  }
  [[nodiscard]] static bool is_written(const c10::Argument& which) {
    return which.alias_info() != nullptr && which.alias_info()->isWrite();
  }
  // These arguments are listed by name, because schemas do not declare that they are written.
  [[nodiscard]] static bool is_written_in_training(std::string_view argument) {
    return argument == "running_mean" || argument == "running_var" || argument == "noise";
  }
  [[nodiscard]] static bool any(const std::vector<bool>& of) {
    return std::ranges::find(of, true) != of.end();
  }

  bool declares_ = false;
  bool reads_back_ = false;
  bool copies_ = false;
  std::size_t training_ = std::numeric_limits<std::size_t>::max();  // argument of training
  std::vector<bool> writes_;
  std::vector<bool> trains_;  // true if written in training
  std::vector<bool> makes_;
};

}  // namespace detail

/// While the object lives, every operator of torch declares the memory that it reads and writes to
/// a checked device, as a kernel on torch's current stream: in forward, backward and the optimizer.
/// `checked_device::report` then names operators ("aten::mm") beside the copies of the offloader.
///
/// A declared range reaches from the first to the last element of a tensor, so columns of one
/// matrix on two streams are reported as a conflict. Reads of memory that nothing has written are
/// not reported (`check_unwritten(false)`, also after the object's end), because kernels that are
/// not operators write, too. Waits of `item()` and of copies to the host are known. Order that
/// torch makes by its own events, or by `synchronize`, is not seen: declare it by `recorded`,
/// `waited` and `host_waited`. Kernels launched by hand must be declared by hand.
///
/// A process may have one object for each type of device, because torch's callbacks know no object.
/// `dev` and `off` must outlive it. Thread safety: make and destroy it while no operator runs;
/// operators of autograd's threads take a lock, and no two threads may compute at once. Blocks
/// neither the host nor a stream. An operator takes some microseconds longer. Throws `misuse_error`
/// if there is an object already.
///
/// Source: `ATen/record_function.h` for the callbacks, the schemas of operators for their writes.
///
///     tp::checked_device<tp::cuda_device> dev;
///     tp::torch_offloader off(dev, opts);
///     const tp::torch_declared_operators declared(dev, off);
template <device Device>
class torch_declared_operators {
 public:
  /// Declares operators that run on `dev`, with which `off` was made.
  torch_declared_operators(Device& dev, torch_offloader<Device>& off)
      : dev_(&dev), streams_(&off.streams()) {
    if (current() != nullptr) {
      throw misuse_error(
          "torch_declared_operators: there is one already for this type of device; destroy it"
          " first");
    }
    dev.check_unwritten(false);
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&starts, &ends)
                                          .needsInputs(true)
                                          .needsOutputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
    current() = this;
  }
  torch_declared_operators(const torch_declared_operators&) = delete;
  torch_declared_operators& operator=(const torch_declared_operators&) = delete;
  /// From then on, operators declare nothing.
  ~torch_declared_operators() {
    at::removeCallback(callback_);
    current() = nullptr;
  }

  /// Number of operators that have declared something.
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  using rule = detail::torch_operator_rule;

  // The facts about a running operator that its end needs.
  struct under_way final : at::ObserverContext {
    const rule* by = nullptr;
    std::vector<const void*> read;  // storages that it reads
    bool host_waits = false;
  };

  static torch_declared_operators*& current() {
    static torch_declared_operators* one = nullptr;
    return one;
  }
  static std::unique_ptr<at::ObserverContext> starts(const at::RecordFunction& op) {
    return current() == nullptr ? nullptr : current()->begin(op);
  }
  static void ends(const at::RecordFunction& op, at::ObserverContext* began) {
    if (began == nullptr || current() == nullptr) return;
    current()->end(op, static_cast<under_way&>(*began));
  }

  std::unique_ptr<under_way> begin(const at::RecordFunction& op) {
    const std::lock_guard guard(lock_);
    const auto& by = rule_of(op);
    if (!by.declares()) return nullptr;
    ++count_;
    auto result = std::make_unique<under_way>();
    result->by = &by;
    const auto inputs = detail::inputs_of(op);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      each_tensor(inputs[i], [&](const at::Tensor& tensor) {
        const bool writes = by.writes(i, inputs);
        if (!writes) result->read.push_back(tensor.storage().unsafeGetStorageImpl());
        declare(tensor, writes, op.name());
      });
    }
    result->host_waits = waits_for(by, inputs) && !result->read.empty();
    return result;
  }
  // True if the host waits for a copy: it goes to the host, and its third argument (`non_blocking`)
  // is false.
  [[nodiscard]] bool waits_for(const rule& by, c10::ArrayRef<const c10::IValue> inputs) const {
    if (!by.copies() || inputs.size() < 3) return by.reads_back();
    return inputs[0].isTensor() && inputs[0].toTensor().device() != streams_->device() &&
           inputs[2].isBool() && !inputs[2].toBool();
  }
  void end(const at::RecordFunction& op, const under_way& began) {
    const std::lock_guard guard(lock_);
    if (began.host_waits) dev_->host_waited(streams_->current());
    for (std::size_t i = 0; i < op.outputs().size(); ++i) {
      if (!began.by->makes(i)) continue;
      each_tensor(op.outputs()[i], [&](const at::Tensor& tensor) {
        // Some operators return an argument although their schemas do not say so; such a result is
        // no write.
        const void* storage = tensor.storage().unsafeGetStorageImpl();
        if (std::ranges::find(began.read, storage) == began.read.end()) {
          declare(tensor, true, op.name());
        }
      });
    }
  }

  // The rule of an operator. An operator that torch's dispatcher does not know declares nothing.
  const rule& rule_of(const at::RecordFunction& op) {
    const auto name = op.operator_name();
    if (!name) return none_;
    const auto [at, fresh] = rules_.try_emplace(*name);
    if (fresh) {
      if (const auto known = c10::Dispatcher::singleton().findSchema(*name)) {
        at->second = rule(*known);
      }
    }
    return at->second;
  }

  template <class Use>
  void each_tensor(const c10::IValue& value, const Use& use) const {
    if (value.isTensor()) {
      if (is_of_device(value.toTensor())) use(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) each_tensor(each, use);
    }
  }
  [[nodiscard]] bool is_of_device(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
           tensor.device() == streams_->device() && tensor.numel() > 0;
  }
  void declare(const at::Tensor& tensor, bool writes, const char* name) {
    const detail::torch_layout part(tensor);
    const auto* const begin = detail::bytes_of(tensor.storage()) + part.first;
    const auto bytes = part.last - part.first;
    if (writes) {
      dev_->writes(begin, bytes, streams_->current(), name);
    } else {
      dev_->reads(begin, bytes, streams_->current(), name);
    }
  }

  Device* dev_;
  torch_streams<Device>* streams_;
  std::mutex lock_;
  std::unordered_map<c10::OperatorName, rule> rules_;
  rule none_;
  std::size_t count_ = 0;
  at::CallbackHandle callback_{};
};

}  // namespace tidepool
