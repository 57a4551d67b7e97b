// Trainers that compute on the CPU, function by function, over the virtual device: addresses are
// used as soon as they are known, and owners free their memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "rig.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/error.hpp"
#include "tidepool/keyed.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/memory/stream_memory.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"fc1", "fc2">>;

constexpr std::size_t words = 512;
constexpr std::size_t bytes = words * sizeof(std::uint32_t);
constexpr int layers = 6;
// Of the orders that streams and events allow; 0 is that of the clock.
constexpr std::uint64_t seeds = 20;

// A desk whose stream is the host's.
struct eager : rig {
  explicit eager(const machine& model = {}) : rig(model) { dev.host_executes(stream()); }
};

// Host functions in place of kernels.
void compute(void* to, std::uint32_t tag, std::size_t count = words) {
  auto* const at = static_cast<std::uint32_t*>(to);
  for (std::size_t i = 0; i < count; ++i) at[i] = rig::word(tag, i);
}
[[nodiscard]] bool holds(const void* data, std::uint32_t tag, std::size_t first = 0,
                         std::size_t count = words) {
  const auto* const at = static_cast<const std::uint32_t*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    if (at[i] != rig::word(tag, first + i)) return false;
  }
  return true;
}

// Frees as allocators do that write to what is free.
void give_to_heap(void* data) {
  std::memset(data, 0xDD, bytes);
  std::free(data);
}

[[nodiscard]] std::uint32_t tag_of(int step, int layer) {
  return static_cast<std::uint32_t>(step * layers + layer + 1);
}

}  // namespace

TEST_CASE("host executes: tensors by key, whose owners free them") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    for (const auto& opts : {arena_options(3 * bytes), small_options({"fc1"})}) {
      eager at(machine{.order_seed = seed});
      offloader off(at.dev, opts);
      tidepool::keyed keys(off);
      for (int step = 0; step < 3; ++step) {
        auto pass = keys.begin();
        for (int l = 0; l < layers; ++l) {
          pass.run(off.module(l % 2 == 0 ? "fc1" : "fc2"), l, at.stream(), [&] {
            auto* const data = std::malloc(bytes);
            compute(data, tag_of(step, l));
            pass.save(tidepool::tensor_key(l), data, bytes, at.stream(),
                      [data] { give_to_heap(data); });
          });
        }
        pass.end_forward();
        for (int l = layers; l-- > 0;) {
          const auto key = tidepool::tensor_key(l);
          CHECK(holds(pass.load(key, at.stream()), tag_of(step, l)));
          pass.drop(key, at.stream());
        }
        pass.finish();
        off.end_step();
      }
    }
  }
}

TEST_CASE("host executes: adopted memory that its owner frees, loaded on a second stream") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    eager at(machine{.order_seed = seed});
    const auto second = at.dev.make_stream();
    at.dev.host_executes(second.ref());
    auto opts = small_options({"fc1"});
    opts.borrowed_slack = seed % 2 == 0 ? 0 : 4 * bytes;
    offloader off(at.dev, opts);
    for (int step = 0; step < 3; ++step) {
      auto pass = off.begin();
      std::array<rig::buffer, layers> saved;
      int freed = 0;
      for (int l = 0; l < layers; ++l) {
        auto* const data = std::malloc(bytes);
        compute(data, tag_of(step, l));
        auto& x = saved[static_cast<std::size_t>(l)];
        x = off.adopt(data, bytes, at.stream(), [data, &freed] {
          ++freed;
          give_to_heap(data);
        });
        auto idle = x.share();  // is used on the second stream last
        pass.commit<"fc1">(l, at.stream(), x);
        off.wait_for(idle, second.ref());
        CHECK(holds(idle.data(), tag_of(step, l)));
        idle.reset(second.ref());
      }
      off.release_borrowed();
      CHECK(freed == layers);
      pass.end_forward();
      for (int l = layers; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        const auto on = l % 2 == 0 ? at.stream() : second.ref();
        pass.restore<"fc1">(l, on, x);
        CHECK(holds(x.data(), tag_of(step, l)));
        x.reset(on);
      }
      pass.finish();
      off.end_step();
    }
  }
}

TEST_CASE("host executes: allocation, zeros, views and layers, used at once") {
  constexpr std::size_t half = bytes / 2;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    eager at(machine{.order_seed = seed});
    offloader off(at.dev, arena_options(4 * bytes));
    offloader::chunk pass;
    tidepool::saved_layers<std::uint32_t, offloader> array(off, pass, "fc2");
    for (int step = 0; step < 3; ++step) {
      pass = off.begin();
      std::array<rig::view, layers> saved;
      for (int l = 0; l < layers; ++l) {
        auto x = off.allocate(bytes, at.stream(), tidepool::fill::zero);
        const auto* const zeros = x.as<std::uint32_t>();
        CHECK(std::all_of(zeros, zeros + words, [](auto word) { return word == 0; }));
        compute(x.data(), tag_of(step, l));
        auto& part = saved[static_cast<std::size_t>(l)];
        part = x.view({.offset = half, .width = half});
        pass.commit<"fc1">(l, at.stream(), part);
        x.reset(at.stream());
        compute(array.fresh(l, words, at.stream()), tag_of(step, l));
        array.done(l, at.stream());
      }
      pass.end_forward();
      for (int l = layers; l-- > 0;) {
        CHECK(holds(array.back(l, at.stream()), tag_of(step, l)));
        array.release(l, at.stream());
        auto& part = saved[static_cast<std::size_t>(l)];
        pass.restore<"fc1">(l, at.stream(), part);
        CHECK(holds(part.data(), tag_of(step, l), words / 2, words / 2));
        part.reset(at.stream());
      }
      pass.finish();
      off.end_step();
    }
  }
}

TEST_CASE("host executes: all memory is the heap's, and state visits it") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    eager at(machine{.order_seed = seed});
    offloader off(at.dev, small_options({"fc1"}),
                  {.memory = tidepool::memory_on<rig::device_type>(
                       at.stream(), [](std::size_t need) { return std::malloc(need); },
                       [](void* data) { give_to_heap(data); })});
    auto state = off.state_on_host(bytes, "momentum");
    auto momentum = state.create(at.stream());
    compute(momentum.data(), 1000);
    state.write_back(momentum, at.stream());
    for (int step = 0; step < 3; ++step) {
      auto pass = off.begin();
      std::array<rig::buffer, layers> saved;
      for (int l = 0; l < layers; ++l) {
        auto& x = saved[static_cast<std::size_t>(l)];
        x = off.allocate(bytes, at.stream());
        compute(x.data(), tag_of(step, l));
        pass.commit<"fc1">(l, at.stream(), x);
      }
      pass.end_forward();
      for (int l = layers; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        pass.restore<"fc1">(l, at.stream(), x);
        CHECK(holds(x.data(), tag_of(step, l)));
        x.reset(at.stream());
      }
      pass.finish();
      momentum = state.fetch(at.stream());
      CHECK(holds(momentum.data(), static_cast<std::uint32_t>(1000 + step)));
      compute(momentum.data(), static_cast<std::uint32_t>(1001 + step));
      state.write_back(momentum, at.stream());
      off.end_step();
    }
  }
}

TEST_CASE("host executes: what owners free is no longer read, where a pass is thrown out of") {
  for (const bool all : {false, true}) {
    eager at;
    std::optional<offloader> off(std::in_place, at.dev, small_options({"fc1"}));
    int freed = 0;
    const auto forward = [&] {
      std::optional<offloader> mine;
      if (all) mine.emplace(at.dev, small_options({"fc1"}));
      auto& with = all ? *mine : *off;
      auto pass = with.begin();
      for (int l = 0; l < layers; ++l) {
        auto* const data = std::malloc(bytes);
        auto x = with.adopt(data, bytes, at.stream(), [data, &freed] {
          ++freed;
          give_to_heap(data);
        });
        pass.commit<"fc1">(l, at.stream(), x);
      }
      throw 1;
    };
    CHECK_THROWS_AS(forward(), int);
    at.dev.synchronize();
    off.reset();
    CHECK(freed == layers);
  }
}

TEST_CASE("host executes: time passes by the bytes that a group saves, and copies run meanwhile") {
  const auto step_ns = [](double ns_per_byte) {
    rig at;
    at.dev.host_executes(at.stream(), ns_per_byte);
    offloader off(at.dev, small_options({"fc1"}));
    const auto begin = at.dev.now_ns();
    auto pass = off.begin();
    std::array<rig::buffer, layers> saved;
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate(bytes, at.stream());
      pass.commit<"fc1">(l, at.stream(), x);
    }
    pass.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      pass.restore<"fc1">(l, at.stream(), x);
      x.reset(at.stream());
    }
    pass.finish();
    off.end_step();
    return at.dev.now_ns() - begin;
  };
  const auto copies = step_ns(0);
  const auto compute = 2.0 * layers * bytes * 10;
  CHECK(copies > 0);
  CHECK(step_ns(10) >= compute);
  CHECK(step_ns(10) < compute + copies / 2);  // hidden behind it, but for the ends
}

TEST_CASE("host executes: the stream alone, and none that is captured") {
  tidepool::virtual_device dev;
  const auto own = dev.make_stream();
  const auto other = dev.make_stream();
  CHECK_THROWS_AS(dev.host_executes(own.ref(), -1), tidepool::misuse_error);
  CHECK_FALSE(dev.host_executed(own.ref()));
  int done = 0;
  dev.launch(own.ref(), 10, [&] { done = 1; });
  dev.host_executes(own.ref());
  CHECK(done == 1);  // what it had been given before
  dev.launch(other.ref(), 1000, [&] { done = 3; });
  auto mark = dev.make_event();
  dev.record(mark, other.ref());
  dev.launch(own.ref(), 10, [&] { done = 2; });
  CHECK(done == 2);
  dev.wait(own.ref(), mark);
  CHECK(done == 3);
  CHECK(dev.now_ns() == 1010);
  CHECK_THROWS_AS(dev.begin_capture(own.ref()), tidepool::device_error);
  {
    const auto passing = dev.make_stream();
    dev.host_executes(passing.ref());
  }
  const auto fresh = dev.make_stream();  // in the place of that
  CHECK_FALSE(dev.host_executed(fresh.ref()));
}

TEST_CASE("host executes: a checked device knows that the host has waited") {
  for (const bool planted : {false, true}) {
    tidepool::checked_device<tidepool::virtual_device> dev;
    const auto stream = dev.make_stream();
    if (!planted) dev.host_executes(stream.ref());
    tidepool::offloader<decltype(dev), tidepool::modules<"fc1">> off(dev, small_options());
    auto pass = off.begin();
    auto x = off.allocate(bytes, stream.ref(), tidepool::fill::zero);
    dev.host_writes(x.data(), bytes, "produce");
    pass.commit<"fc1">(0, stream.ref(), x);
    pass.end_forward();
    pass.restore<"fc1">(0, stream.ref(), x);
    dev.host_reads(x.data(), bytes, "consume");
    x.reset(stream.ref());
    pass.finish();
    INFO(dev.report());
    CHECK(dev.findings().empty() != planted);
  }
}
