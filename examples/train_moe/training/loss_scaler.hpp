/// The scale of the loss under fp16: whether a step's gradients fit, and what becomes of it.
#pragma once

#include <cstdint>
#include <optional>

#include "../model/device_array.hpp"
#include "../model/parameters.hpp"
#include "../model/precision.hpp"

namespace moe {

/// In other precisions the scale is 1 and every step is good.
template <class Device>
class loss_scaler {
 public:
  loss_scaler(Device& dev, const settings& run) : state_(run.loss_scale) {
    if (run.precision == precision_kind::fp16) flag_.emplace(dev);
  }

  [[nodiscard]] float scale() const { return flag_ ? state_.scale : 1; }
  [[nodiscard]] const loss_scaling& state() const { return state_; }

  /// Whether AdamW may use the gradients; if one of them is not finite on any rank, they are
  /// dropped on all. Waits for the device. Then the scale is that of the next step.
  template <class Kernels, class Link>
  bool accepts(parameters<Device>& weights, Device& dev, typename Device::stream_ref stream,
               Kernels& k, Link& link) {
    if (!flag_) return true;
    weights.find_overflow(k, flag_->device.data());
    k.publish(flag_->host.data(), flag_->device.data(), 1);
    dev.synchronize(stream);
    const bool overflowed = link.sum(*flag_->host.data() != 0 ? 1 : 0) != 0;
    if (overflowed) weights.drop_gradients(k);
    advance(state_, overflowed);
    return !overflowed;
  }

 private:
  struct flag {
    explicit flag(Device& dev) : device(dev, 1, "overflow flag"), host(dev, 1, "overflow flag") {}
    device_array<Device, std::int32_t> device;
    device_array<Device, std::int32_t, side::host> host;
  };

  loss_scaling state_;
  std::optional<flag> flag_;
};

}  // namespace moe
