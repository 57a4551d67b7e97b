// A small training on a checked device: right as it stands, so that a test can break one thing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "checked_desk.hpp"
#include "tidepool/rows.hpp"

namespace tidepool::test {

using checked_offloader = checked_desk::offloader;

inline constexpr std::size_t tensor_bytes = 2048;

/// Layers of one tensor each; forward and backward passes on streams of their own.
template <class Desk>
struct basic_training {
  Desk& at;
  typename Desk::offloader& off;
  std::size_t bytes = tensor_bytes;  // of each tensor
  int layers = 5;
  const std::uint32_t* count = nullptr;  // of rows, if a kernel counts them

  using stream_ref = typename Desk::stream_ref;

  struct pass {
    typename Desk::offloader::chunk chunk;
    std::vector<typename Desk::buffer> saved;
  };

  pass forward(stream_ref on, int microbatch = 0) {
    pass made{off.begin({.microbatch = microbatch}), {}};
    for (int l = 0; l < layers; ++l) {
      auto x = off.allocate(bytes, on);
      at.write(x, on, "forward");
      if (count != nullptr) {
        at.dev.writes(count, sizeof *count, on, "count");
        x.counts_rows({.count = count, .row_bytes = 64, .planned_rows = bytes / 64});
      }
      made.chunk.template commit<"fc1">(l, on, x);
      made.saved.push_back(std::move(x));
    }
    made.chunk.end_forward();
    return made;
  }
  void backward(pass& of, stream_ref on) {
    for (int l = layers; l-- > 0;) {
      auto& x = of.saved[static_cast<std::size_t>(l)];
      of.chunk.template restore<"fc1">(l, on, x);
      at.read(x, on, "backward");
      x.reset(on);
    }
    of.chunk.finish();
  }
  void step(stream_ref on) {
    auto only = forward(on);
    backward(only, on);
    off.end_step();
  }
};

using checked_training = basic_training<checked_desk>;

}  // namespace tidepool::test
