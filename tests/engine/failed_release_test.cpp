// An event or a filling that a device refuses where memory is given back: nobody gets that memory
// too early, nothing is counted twice, and the next call runs.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "faulty_device.hpp"
#include "rig.hpp"
#include "tidepool/keyed.hpp"

namespace {

using namespace tidepool::test;
using device = faulty_device<tidepool::virtual_device>;
using modules = tidepool::modules<"fc1", "core_attn">;
using offloader = tidepool::offloader<device, modules>;
using keyed = tidepool::keyed<device, modules>;

constexpr std::size_t size = 2048;

tidepool::options fc1_alone() {
  auto opts = small_options();
  opts.offload_modules = {"fc1"};
  return opts;
}

// Memory of a framework, which writes into it as soon as it is back.
struct lent_memory {
  device& dev;
  device::stream_ref home;
  std::unique_ptr<std::array<std::uint32_t, size / 4>> words =
      std::make_unique<std::array<std::uint32_t, size / 4>>();
  int back = 0;

  void write(std::uint32_t value) {
    dev.launch(home, 700, [at = words.get(), value] { at->fill(value); });
  }
  void save(keyed::pass& pass, tidepool::tensor_key key) {
    pass.save(key, words.get(), size, home, [this] {
      ++back;
      write(0xABABABABU);
    });
  }
};

}  // namespace

TEST_CASE("refused event: a drop by key that threw keeps its reference, and works the next time") {
  bool tripped = true;
  for (std::uint64_t number = 1; tripped; ++number) {
    CAPTURE(number);
    device dev;
    const auto stream = dev.make_stream();
    std::array<lent_memory, 4> lent{
        {{dev, stream.ref()}, {dev, stream.ref()}, {dev, stream.ref()}, {dev, stream.ref()}}};
    offloader off(dev, fc1_alone());
    keyed keys(off);
    auto pass = keys.begin();
    for (std::size_t i = 0; i < 4; ++i) {
      if (i % 2 == 0) pass.enter(off.module(i == 0 ? "core_attn" : "fc1"), 0);
      lent[i].write(1);
      lent[i].save(pass, i);
      if (i % 2 == 1) pass.leave(stream.ref());
    }
    dev.arm({call_kind::record, number, manner::once});
    for (std::size_t i = 0; i < 4; ++i) {
      try {
        pass.drop(i, stream.ref());
      } catch (const tidepool::device_error&) {
        CHECK(pass.size() == 4 - i);
        pass.drop(i, stream.ref());
      }
      CHECK(pass.size() == 3 - i);
    }
    tripped = dev.tripped();
    dev.disarm();
    pass.finish();
    off.release_borrowed();
    dev.synchronize();
    for (const auto& each : lent) CHECK(each.back == 1);
  }
}

TEST_CASE("refused event: what another stream read goes to no owner before that") {
  bool tripped = true;
  for (std::uint64_t number = 1; tripped; ++number) {
    CAPTURE(number);
    tripped = false;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      device dev(tidepool::machine{.order_seed = seed});
      const auto home = dev.make_stream();
      const auto reader = dev.make_stream();
      int wrong = 0;
      lent_memory lent{dev, home.ref()};
      offloader off(dev, fc1_alone());
      keyed keys(off);
      auto pass = keys.begin();
      pass.enter(off.module("core_attn"), 0);
      lent.write(7);
      lent.save(pass, 1);
      pass.leave(home.ref());
      const auto* at = static_cast<const std::uint32_t*>(pass.load(1, reader.ref()));
      dev.launch(reader.ref(), 5000, [at, &wrong] {
        for (std::size_t i = 0; i < size / 4; ++i) wrong += at[i] != 7;
      });
      dev.arm({call_kind::record, number, manner::once});
      pass = {};
      tripped = tripped || dev.tripped();
      dev.disarm();
      off.release_borrowed();
      dev.synchronize();
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("refused event: memory that stays taken keeps nothing of its offloader alive") {
  bool tripped = true;
  for (std::uint64_t number = 1; tripped; ++number) {
    CAPTURE(number);
    device dev;
    const auto home = dev.make_stream();
    const auto reader = dev.make_stream();
    const auto before = dev.held();
    lent_memory lent{dev, home.ref()};
    {
      offloader off(dev, fc1_alone());
      keyed keys(off);
      auto pass = keys.begin();
      pass.enter(off.module("core_attn"), 0);
      lent.save(pass, 1);
      pass.leave(home.ref());
      static_cast<void>(pass.load(1, reader.ref()));
      dev.arm({call_kind::record, number, manner::once});
      pass = {};
      tripped = dev.tripped();
      dev.disarm();
    }
    CHECK(dev.held() == before);
  }
}

TEST_CASE("refused event: a handle of a capture that did not run leaves nothing in the way") {
  bool tripped = true;
  for (std::uint64_t number = 1; tripped; ++number) {
    CAPTURE(number);
    device dev;
    const auto stream = dev.make_stream();
    offloader off(dev, small_options());
    auto warm_up = off.begin();
    off.allocate(size, stream.ref()).reset(stream.ref());
    warm_up.finish();
    off.end_step();
    offloader::buffer inside;
    std::optional<tidepool::graph<device>> graph(
        off.capture(stream.ref(), [&] { inside = off.allocate(size, stream.ref()); }));
    dev.arm({call_kind::record, number, manner::once});
    inside = {};
    tripped = dev.tripped();
    dev.disarm();
    graph.reset();
    offloader::buffer next;
    CHECK_NOTHROW(next = off.allocate(size, stream.ref()));
  }
}

TEST_CASE("refused filling: who gets the memory next comes behind what was filled before") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    device dev(tidepool::machine{.order_seed = seed});
    const auto first = dev.make_stream();
    const auto second = dev.make_stream();
    offloader off(dev, arena_options(size));
    dev.launch(second.ref(), 5000, [] {});  // late
    dev.arm({call_kind::fill_bytes, 1, manner::once});
    CHECK_THROWS_AS(static_cast<void>(off.allocate(size, second.ref(), tidepool::fill::zero)),
                    tidepool::device_error);
    dev.disarm();
    auto next = off.allocate(size, first.ref());
    auto* const at = next.as<std::uint32_t>();
    int wrong = 0;
    dev.launch(first.ref(), 100, [at] {
      for (std::size_t i = 0; i < size / 4; ++i) at[i] = 7;
    });
    dev.launch(first.ref(), 9000, [at, &wrong] {
      for (std::size_t i = 0; i < size / 4; ++i) wrong += at[i] != 7;
    });
    dev.synchronize();
    CHECK(wrong == 0);
    next.reset(first.ref());
  }
}

TEST_CASE("refused event: memory that was filled and cannot say when is no longer handed out") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    device dev(tidepool::machine{.poison = false, .order_seed = seed});
    const auto first = dev.make_stream();
    const auto second = dev.make_stream();
    auto opts = arena_options(size);
    opts.poison = true;
    offloader off(dev, opts);
    auto given = off.allocate(size, second.ref());
    dev.launch(second.ref(), 5000, [] {});          // its filling is late
    dev.arm({call_kind::record, 2, manner::once});  // the first is that of its last use
    given.reset(second.ref());
    const bool refused = dev.tripped();
    dev.disarm();
    CHECK(refused);
    int wrong = 0;
    offloader::buffer next;
    try {
      next = off.allocate(size, first.ref());
    } catch (const tidepool::out_of_budget&) {
      continue;
    }
    auto* const at = next.as<std::uint32_t>();
    dev.launch(first.ref(), 100, [at] {
      for (std::size_t i = 0; i < size / 4; ++i) at[i] = 7;
    });
    dev.launch(first.ref(), 9000, [at, &wrong] {
      for (std::size_t i = 0; i < size / 4; ++i) wrong += at[i] != 7;
    });
    dev.synchronize();
    CHECK(wrong == 0);
    next.reset(first.ref());
  }
}
