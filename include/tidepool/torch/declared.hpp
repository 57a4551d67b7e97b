/// Tells a checked device what torch's operators read and write, so that it finds races in trainers
/// over torch. Not part of `torch.hpp`. With `tidepool::compiled`, a file that makes an offloader
/// for a checked device also includes `tidepool/engine/definitions.hpp`.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tidepool/device/checked.hpp"
#include "tidepool/torch.hpp"

namespace tidepool::inline v0_2_0 {

/// As those of the device that is checked.
template <class Device>
class torch_streams<checked_device<Device>> : public torch_streams<Device> {
 public:
  /// The streams of `dev`, which must outlive this object.
  explicit torch_streams(checked_device<Device>& dev) : torch_streams<Device>(dev) {}
};

namespace detail {

// Which arguments an operator writes, and which results it makes, as its schema says. Those that
// only look at memory in another way, ask for it, or are made of other operators declare nothing.
class torch_operator_rule {
 public:
  torch_operator_rule() = default;
  explicit torch_operator_rule(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    if (is_made_of_others(op) || touches_nothing(schema.name())) return;
    for (const auto& each : schema.arguments()) writes_.push_back(is_written(each));
    for (const auto& each : schema.returns()) makes_.push_back(each.alias_info() == nullptr);
    declares_ = any(writes_) || any(makes_) || makes_.empty();
  }

  [[nodiscard]] bool declares() const { return declares_; }
  [[nodiscard]] bool writes(std::size_t argument) const {
    return argument < writes_.size() && writes_[argument];
  }
  [[nodiscard]] bool makes(std::size_t result) const {
    return result < makes_.size() && makes_[result];
  }

 private:
  [[nodiscard]] static bool is_made_of_others(const c10::OperatorHandle& op) {
    return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
           op.hasTag(at::Tag::inplace_view);
  }
  // By name: their schemas say that they write, or make, what no kernel touches.
  [[nodiscard]] static bool touches_nothing(std::string_view name) {
    constexpr std::array names{"aten::empty",         "aten::empty_like", "aten::empty_strided",
                               "aten::new_empty",     "aten::set_",       "aten::new_empty_strided",
                               "aten::record_stream", "aten::resize_",    "aten::_resize_output_"};
    return std::ranges::find(names, name) != names.end();
  }
  [[nodiscard]] static bool is_written(const c10::Argument& which) {
    return which.alias_info() != nullptr && which.alias_info()->isWrite();
  }
  [[nodiscard]] static bool any(const std::vector<bool>& of) {
    return std::ranges::find(of, true) != of.end();
  }

  bool declares_ = false;
  std::vector<bool> writes_;
  std::vector<bool> makes_;
};

}  // namespace detail

/// While it lives, every operator of torch says to a checked device what it reads and writes, as
/// kernels on the stream that is torch's current one: in forward, backward and the optimizer.
/// `checked_device::report` then names operators ("aten::mm") beside the copies of the offloader.
///
/// Ranges are those from the first to the last element of a tensor. Reads of memory that nothing
/// has written are not told of (`check_unwritten(false)`), since kernels that are no operators
/// write too. Order that torch makes by events of its own, between several streams, is not seen:
/// say it by `recorded` and `waited`. Kernels launched by hand declare themselves.
///
/// One in a process: torch's callbacks know no object. `dev` and `off` must outlive it. Thread
/// safety: made and destroyed while no operator runs; operators of autograd's threads take a lock,
/// and no two threads may compute at once. Blocks neither the host nor a stream. An operator takes
/// some microseconds longer. Throws `misuse_error` where there is one already.
///
/// Source: `ATen/record_function.h` for the callbacks, the schemas of operators for who writes.
///
///     tp::checked_device<tp::cuda_device> dev;
///     tp::torch_offloader off(dev, opts);
///     const tp::torch_declared_operators declared(dev, off);
template <device Device>
class torch_declared_operators {
 public:
  /// Of what runs on `dev`, which `off` was made with.
  torch_declared_operators(Device& dev, torch_offloader<Device>& off)
      : dev_(&dev), streams_(&off.streams()) {
    if (current() != nullptr) {
      throw misuse_error(
          "torch_declared_operators: there is one already, and torch has one for all; destroy it"
          " first");
    }
    dev.check_unwritten(false);
    current() = this;
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&starts, &ends)
                                          .needsInputs(true)
                                          .needsOutputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  }
  torch_declared_operators(const torch_declared_operators&) = delete;
  torch_declared_operators& operator=(const torch_declared_operators&) = delete;
  ~torch_declared_operators() {
    at::removeCallback(callback_);
    current() = nullptr;
  }

  /// Operators that have declared something.
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  using rule = detail::torch_operator_rule;

  // What its end has to know of an operator that began.
  struct under_way final : at::ObserverContext {
    const rule* by = nullptr;
    std::vector<const void*> read;  // storages
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
        if (!by.writes(i)) result->read.push_back(tensor.storage().unsafeGetStorageImpl());
        declare(tensor, by.writes(i), op.name());
      });
    }
    return result;
  }
  void end(const at::RecordFunction& op, const under_way& began) {
    const std::lock_guard guard(lock_);
    for (std::size_t i = 0; i < op.outputs().size(); ++i) {
      if (!began.by->makes(i)) continue;
      each_tensor(op.outputs()[i], [&](const at::Tensor& tensor) {
        // Some return what they were given, though their schemas do not say so.
        const void* storage = tensor.storage().unsafeGetStorageImpl();
        if (std::ranges::find(began.read, storage) == began.read.end()) {
          declare(tensor, true, op.name());
        }
      });
    }
  }

  // One that torch's dispatcher does not know declares nothing.
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
