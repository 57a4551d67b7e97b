/// One layer of the model, forward and backward: attention, then routed experts.
#pragma once

#include <utility>

#include "attention.hpp"
#include "experts.hpp"

namespace moe {

/// What one layer saves in forward for its backward.
template <class Buffer>
struct saved_layer {
  saved_attention<Buffer> attention;
  saved_experts<Buffer> experts;
};

template <class Device, class Kernels>
class layer {
 public:
  using buffer = tidepool::buffer<Device>;
  using chunk = tidepool::chunk<Device, saving_modules>;
  using saved = saved_layer<buffer>;

  layer(context<Device, Kernels>& on, int number, const parameters_of& w)
      : attention_(on, number, {w["attn_gain"], w["qkv"], w["proj"]}),
        experts_(on, number, {w["mlp_gain"], w["router"], w["fc1"], w["fc2"]}) {}

  /// Returns the residual stream that the next layer reads; `balance` receives the load-balancing
  /// loss.
  buffer forward(chunk& c, saved& s, buffer x, float* balance) {
    x = attention_.forward(c, s.attention, std::move(x));
    return experts_.forward(c, s.experts, std::move(x), balance);
  }

  /// `dx` is the gradient of what `forward` returned and becomes that of its input.
  void backward(chunk& c, saved& s, float* dx) {
    experts_.backward(c, s.experts, dx);
    attention_.backward(c, s.attention, dx);
  }

 private:
  attention<Device, Kernels> attention_;
  experts<Device, Kernels> experts_;
};

}  // namespace moe
