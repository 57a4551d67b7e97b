// Tensors that are packed for the link: their bits, their memory, their order.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/error.hpp"

struct __nv_bfloat16 {  // as cuda_bf16.h has it
  std::uint16_t bits;
};

namespace {

using tidepool::copy_direction;
using tidepool::machine;
using tidepool::option_error;
using tidepool::test::arena_options;
using tidepool::test::bf16_kind;
using tidepool::test::bf16_kinds;
using tidepool::test::bf16_tensor;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;
namespace pack_form = tidepool::pack_form;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t numbers = 5'000;  // with a tail
constexpr std::size_t bytes = 2 * numbers;
constexpr auto out = static_cast<std::size_t>(copy_direction::device_to_host);
constexpr auto in = static_cast<std::size_t>(copy_direction::host_to_device);

std::vector<std::uint16_t> drawn(bf16_kind kind, std::size_t count, std::uint64_t seed) {
  std::mt19937 from(static_cast<std::uint32_t>(seed));
  return bf16_tensor(kind, count, from);
}

// Kernels that write numbers and compare their bits.
class desk : public rig {
 public:
  using rig::rig;

  void write_numbers(const buffer& to, bf16_kind kind, std::uint64_t seed) {
    dev.launch(stream(), 500, [at = to.data(), n = to.size() / 2, kind, seed] {
      const auto all = drawn(kind, n, seed);
      std::memcpy(at, all.data(), 2 * n);
    });
  }
  void check_numbers(const buffer& from, bf16_kind kind, std::uint64_t seed) {
    dev.launch(stream(), 500, [this, at = from.data(), n = from.size() / 2, kind, seed] {
      const auto all = drawn(kind, n, seed);
      if (std::memcmp(at, all.data(), 2 * n) != 0) ++wrong_tensors;
    });
  }
  [[nodiscard]] std::size_t wrong_numbers() {
    dev.synchronize();
    return wrong_tensors;
  }

  std::size_t wrong_tensors = 0;
};

tidepool::options packing(tidepool::options opts) {
  opts.offload_modules = {"core_attn"};
  opts.pack = {"core_attn"};
  return opts;
}

machine small_machine() {
  machine model;
  model.packs_from = 2048;
  return model;
}

// Steps of `layers` layers, each with a tensor of every kind.
void train(desk& on, offloader& off, int steps, int layers) {
  off.on_report({});
  for (int step = 0; step < steps; ++step) {
    auto pass = off.begin();
    std::vector<desk::buffer> saved;
    const auto kind_of = [&](int layer) {
      return bf16_kinds[static_cast<std::size_t>(layer + step) % bf16_kinds.size()];
    };
    const auto seed_of = [&](int layer) { return static_cast<std::uint64_t>(step * 100 + layer); };
    for (int l = 0; l < layers; ++l) {
      auto& x = saved.emplace_back(off.allocate<__nv_bfloat16>(numbers, on.stream()));
      on.write_numbers(x, kind_of(l), seed_of(l));
      pass.commit<"core_attn">(l, on.stream(), x);
    }
    pass.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      pass.restore<"core_attn">(l, on.stream(), x);
      on.check_numbers(x, kind_of(l), seed_of(l));
      x.reset(on.stream());
    }
    pass.finish();
    off.end_step();
  }
}

}  // namespace

TEST_CASE("packing: every kind of number comes back, over fewer bytes of the link") {
  desk on(small_machine());
  offloader off(on.dev, packing(small_options()));
  constexpr int layers = 10;
  train(on, off, 3, layers);
  CHECK(on.wrong_numbers() == 0);
  constexpr auto link = pack_form::packed_bytes(bytes);
  CHECK(on.dev.bytes[out] == 3 * layers * link);
  CHECK(on.dev.bytes[in] == 3 * layers * link);
  CHECK(off.counters().modules[0].bytes_offloaded == 3 * layers * bytes);
  CHECK(off.counters().modules[0].bytes_reloaded == 3 * layers * bytes);
}

TEST_CASE("packing: in any order that streams allow, and under little memory") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    auto model = small_machine();
    model.order_seed = seed;
    desk on(model);
    auto opts = packing(seed % 2 == 0 ? small_options() : arena_options((2 + seed % 7) * bytes));
    opts.host_step = 4096;
    opts.host_budget = (12 + seed % 3) * bytes;
    opts.reload_ahead = seed % 4;
    offloader off(on.dev, opts);
    train(on, off, 3, 8);
    CHECK(on.wrong_numbers() == 0);
  }
}
