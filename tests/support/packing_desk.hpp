// A rig whose kernels write BF16 numbers and compare their bits, for the tests of packing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "rig.hpp"

namespace tidepool::test {

[[nodiscard]] inline bf16_numbers drawn(bf16_kind kind, std::size_t count, std::uint64_t seed) {
  std::mt19937 from(static_cast<std::uint32_t>(seed));
  return bf16_tensor(kind, count, from);
}

class packing_desk : public rig {
 public:
  using rig::rig;

  void write_numbers(const buffer& to, bf16_kind kind, std::uint64_t seed, stream_ref on) {
    dev.launch(on, 500, [at = to.data(), n = to.size() / 2, kind, seed] {
      const auto all = drawn(kind, n, seed);
      std::memcpy(at, all.data(), 2 * n);
    });
  }
  void write_numbers(const buffer& to, bf16_kind kind, std::uint64_t seed) {
    write_numbers(to, kind, seed, stream());
  }
  // A kernel that takes `ns`, and counts the tensor in `wrong_tensors` if a bit differs.
  void check_numbers(const buffer& from, bf16_kind kind, std::uint64_t seed, stream_ref on,
                     double ns = 500) {
    dev.launch(on, ns, [this, at = from.data(), n = from.size() / 2, kind, seed] {
      const auto all = drawn(kind, n, seed);
      if (std::memcmp(at, all.data(), 2 * n) != 0) ++wrong_tensors;
    });
  }
  void check_numbers(const buffer& from, bf16_kind kind, std::uint64_t seed) {
    check_numbers(from, kind, seed, stream());
  }
  [[nodiscard]] std::size_t wrong_numbers() {
    dev.synchronize();
    return wrong_tensors;
  }

  std::size_t wrong_tensors = 0;
};

[[nodiscard]] inline options packing(options opts) {
  opts.offload_modules = {"core_attn"};
  opts.pack = {"core_attn"};
  return opts;
}

// A machine that packs small tensors as well.
[[nodiscard]] inline machine small_machine() {
  machine model;
  model.packs_from = 2048;
  return model;
}

// Tensor bytes of the smallest piece.
inline constexpr std::size_t small_piece = std::size_t{16} << 10;

}  // namespace tidepool::test
