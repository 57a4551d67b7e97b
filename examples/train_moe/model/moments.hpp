/// The two moments of AdamW: on the device all the time, or on the host, from where they visit it
/// layer by layer while the weights are updated.
#pragma once

#include <string>
#include <tidepool/host_state.hpp>
#include <utility>
#include <vector>

#include "device_array.hpp"

namespace moe {

/// Consecutive floats of all that is trained: of one layer, say.
struct slice {
  std::string name;
  index first = 0;
  index count = 0;
  std::size_t number = 0;
};

/// Both moments of one slice.
struct moment_pair {
  float* momentum;
  float* variance;
};

/// What moments on the device are wanted for.
enum class moments_use { read, change };

/// Moments that stay.
template <class Device>
class resident_moments {
 public:
  resident_moments(Device& dev, index total)
      : momentum_(dev, total, "AdamW momentum"), variance_(dev, total, "AdamW variance") {}

  template <class Kernels>
  void clear(Kernels& k) {
    for (const auto* each : {&momentum_, &variance_}) k.fill(each->data(), each->size(), 0);
  }
  [[nodiscard]] moment_pair at(index offset) const {
    return {momentum_.data() + offset, variance_.data() + offset};
  }

 private:
  device_array<Device, float> momentum_, variance_;
};

/// Moments that visit: of each slice one piece of state, momentum first.
template <class Device>
class visiting_moments {
 public:
  using stream_ref = typename Device::stream_ref;

  template <class Offloader, class Kernels>
  visiting_moments(Offloader& off, Kernels& k, stream_ref stream, std::vector<slice> slices)
      : stream_(stream), slices_(std::move(slices)) {
    for (const slice& each : slices_) {
      const auto floats = static_cast<std::size_t>(2 * each.count);
      auto& state = states_.emplace_back(off.state_on_host(floats * sizeof(float), each.name));
      auto fresh = state.create(stream);
      k.fill(fresh.template as<float>(), 2 * each.count, 0);
      state.write_back(fresh, stream);
    }
  }

  /// Calls `body(slice, moments)` for each slice. The next one comes while `body` is at this one,
  /// and the one before leaves.
  template <class Body>
  void each(moments_use use, Body body) {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      auto here = states_[i].fetch(stream_);
      if (i + 1 < slices_.size()) states_[i + 1].prefetch();
      auto* const data = here.template as<float>();
      body(slices_[i], moment_pair{data, data + slices_[i].count});
      if (use == moments_use::change) {
        states_[i].write_back(here, stream_);
      } else {
        here.reset(stream_);
      }
    }
  }

 private:
  stream_ref stream_;
  std::vector<slice> slices_;
  std::vector<tidepool::host_state<Device>> states_;
};

}  // namespace moe
