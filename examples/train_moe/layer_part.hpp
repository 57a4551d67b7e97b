/// What the parts of a layer have in common.
#pragma once

#include <cstdint>
#include <tidepool/chunk.hpp>

#include "model_parts.hpp"
#include "parameters.hpp"

namespace moe {

template <class Device, class Kernels>
class layer_part {
 public:
  using buffer = tidepool::buffer<Device>;
  using chunk = tidepool::chunk<Device, saving_modules>;

 protected:
  layer_part(context<Device, Kernels>& on, int number)
      : on_(on),
        k_(on.kernels),
        m_(on.sizes),
        number_(number),
        norm_again_(on.offloader.recomputes("layernorm")) {}

  buffer floats(index count) { return on_.template allocate<float>(count); }
  static float* p(const buffer& b) { return b.template as<float>(); }
  static std::int32_t* ints(const buffer& b) { return b.template as<std::int32_t>(); }

  context<Device, Kernels>& on_;
  Kernels& k_;
  const model_sizes& m_;
  int number_;
  bool norm_again_;  // recomputed
};

}  // namespace moe
