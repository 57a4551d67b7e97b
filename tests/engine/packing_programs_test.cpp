// Random programs with packed tensors: several streams, shares, views, failures.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "faulty_device.hpp"
#include "packing_desk.hpp"
#include "rig.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/stream_memory.hpp"

namespace {

using tidepool::machine;
using tidepool::virtual_device;
using tidepool::test::bf16_kind;
using tidepool::test::bf16_kinds;
using tidepool::test::bf16_tensor;
using tidepool::test::small_options;
using tidepool::test::small_piece;

std::vector<std::byte> contents(std::size_t bytes, std::uint64_t tag) {
  std::mt19937 from(static_cast<std::uint32_t>(tag));
  const auto all = bf16_tensor(bf16_kinds[tag % bf16_kinds.size()], bytes / 2 + 1, from);
  std::vector<std::byte> result(bytes);
  std::memcpy(result.data(), all.data(), bytes);
  return result;
}

struct outcome {
  std::size_t wrong = 0;
  std::size_t packed = 0;
  std::size_t failed = 0;
};

template <class Device>
struct program {
  using offloader =
      tidepool::offloader<Device, tidepool::modules<"core_attn", "expert_fc1", "moe_act">>;
  using buffer = tidepool::buffer<Device>;
  using view = tidepool::view<Device>;
  using ref = typename Device::stream_ref;

  Device& dev;
  std::mt19937_64 rng;
  std::vector<typename Device::stream> streams;
  std::shared_ptr<outcome> seen = std::make_shared<outcome>();

  std::size_t draw(std::size_t n) { return rng() % n; }
  ref stream(std::size_t i) { return streams[i].ref(); }
  void order(std::size_t from, std::size_t to) {
    if (from == to) return;
    auto e = dev.make_event();
    dev.record(e, stream(from));
    dev.wait(stream(to), e);
  }
  void write(void* at, std::size_t bytes, std::uint64_t tag, std::size_t on) {
    dev.launch(stream(on), 500,
               [=] {
                 const auto all = contents(bytes, tag);
                 std::memcpy(at, all.data(), bytes);
               },
               "write", {{at, bytes, true}});
  }
  void check(const void* at, std::size_t bytes, std::size_t offset, std::size_t whole,
             std::uint64_t tag, std::size_t on, double ns = 500) {
    if (at == nullptr) {
      ++seen->wrong;
      return;
    }
    dev.launch(stream(on), ns,
               [=, seen = seen] {
                 const auto all = contents(whole, tag);
                 if (std::memcmp(at, all.data() + offset, bytes) != 0) ++seen->wrong;
               },
               "check", {{at, bytes, false}});
  }

  struct tensor {
    buffer x, other, spare;
    view part;
    std::size_t bytes = 0, on = 0, at = 0, width = 0;
    std::uint64_t tag = 0;
    bool shared = false, viewed = false, saved_twice = false, ok = true;
  };
  struct micro {
    typename offloader::chunk pass;
    std::vector<std::unique_ptr<tensor>> layers;
    std::size_t back = 0;
  };

  template <class Call>
  bool attempt(const Call& call) {
    for (int left = 2; left-- > 0;) {
      try {
        call();
        return true;
      } catch (const tidepool::device_error&) {
        ++seen->failed;
        if (left == 0) throw;
      } catch (const tidepool::out_of_budget&) {
        if (left == 0) throw;
      }
    }
    return false;
  }

  void step(offloader& off, std::size_t& tags) {
    std::vector<micro> open(1 + draw(2));
    int id = 0;
    for (auto& m : open) {
      m.pass = off.begin({.microbatch = id++});
      const auto layers = 2 + draw(3);
      for (std::size_t l = 0; l < layers; ++l) {
        auto& t = *m.layers.emplace_back(std::make_unique<tensor>());
        // Of the large ones, two or three pieces come back through the memory of two.
        const std::size_t sizes[] = {2000, 2048, 5000, 10'000, 10'001, 20'480, 33'333, 50'000};
        t.bytes = sizes[draw(8)];
        t.on = draw(2);
        t.tag = ++tags;
        const auto layer = static_cast<int>(l);
        attempt([&] { t.x = off.allocate(t.bytes, stream(t.on)); });
        if (draw(5) != 0) t.x.holds_bfloat16();
        write(t.x.data(), t.bytes, t.tag, t.on);
        const auto by = draw(2);
        order(t.on, by);
        t.on = by;
        const auto how = draw(6);
        if (how == 0) {  // shared by a module that does not pack
          t.other = t.x.share();
          t.shared = true;
        } else if (how == 1) {
          t.viewed = true;
          t.at = 2 * draw(500);
          t.width = t.bytes - t.at - 2 * draw(400);
          t.part = t.x.view({.offset = t.at,
                             .width = t.width,
                             .rows = 1,
                             .pitch = t.width,
                             .whole_storage = draw(2) == 0});
        }
        const bool part_first = t.viewed && draw(2) == 0;
        if (part_first) {
          attempt([&] { m.pass.template commit<"moe_act">(layer, stream(by), t.part); });
          check(t.x.data(), t.bytes, 0, t.bytes, t.tag, by);
        }
        attempt([&] { m.pass.template commit<"core_attn">(layer, stream(by), t.x); });
        if (t.shared) {
          const auto then = draw(2);
          order(by, then);
          check(t.other.data(), t.bytes, 0, t.bytes, t.tag, then, 3000);
          attempt([&] { m.pass.template commit<"expert_fc1">(layer, stream(then), t.other); });
        }
        if (t.viewed && !part_first) {
          check(t.part.data(), t.width, t.at, t.bytes, t.tag, by, 3000);
          attempt([&] { m.pass.template commit<"moe_act">(layer, stream(by), t.part); });
        }
      }
      m.pass.end_forward();
    }
    while (draw(2) == 0) open.size() > 1 ? std::swap(open[0], open[1]) : void();
    for (auto& m : open) {
      for (std::size_t l = m.layers.size(); l-- > 0;) {
        auto& t = *m.layers[l];
        const auto layer = static_cast<int>(l);
        const auto on = draw(2);
        if (t.shared) {
          attempt([&] { m.pass.template restore<"expert_fc1">(layer, stream(on), t.other); });
          check(t.other.data(), t.bytes, 0, t.bytes, t.tag, on);
          if (draw(2) == 0) t.other.reset(stream(on));
        }
        const auto last = draw(2);
        if (t.viewed) {
          attempt([&] { m.pass.template restore<"moe_act">(layer, stream(on), t.part); });
          check(t.part.data(), t.width, t.at, t.bytes, t.tag, on);
          t.part.reset(stream(on));
        }
        attempt([&] { m.pass.template restore<"core_attn">(layer, stream(last), t.x); });
        check(t.x.data(), t.bytes, 0, t.bytes, t.tag, last);
        if (t.other) t.other.reset(stream(on));
        // saved again by a new pass, on the stream that read it
        if (draw(3) == 0) {
          auto again = off.begin({.microbatch = 7});
          attempt([&] { again.template commit<"expert_fc1">(0, stream(last), t.x); });
          again.end_forward();
          const auto to = draw(2);
          attempt([&] { again.template restore<"expert_fc1">(0, stream(to), t.x); });
          check(t.x.data(), t.bytes, 0, t.bytes, t.tag, to);
          t.x.reset(stream(to));
          again.finish();
        } else {
          t.x.reset(stream(last));
        }
      }
      m.pass.finish();
    }
    off.end_step();
  }
};

tidepool::options options_of(std::mt19937_64& rng) {
  const auto draw = [&](std::size_t n) { return rng() % n; };
  auto opts = small_options();
  opts.offload_modules = {"core_attn", "expert_fc1", "moe_act"};
  opts.pack =
      draw(3) == 0 ? std::vector<std::string>{"all"} : std::vector<std::string>{"core_attn"};
  opts.host_step = draw(2) == 0 ? 4096 : 65'536;
  opts.host_budget = (80 + draw(300)) * 1024;
  opts.device_step = draw(2) == 0 ? 256 : 16'384;
  if (draw(3) != 0) {
    opts.memory = draw(2) == 0 ? tidepool::memory_kind::arena : tidepool::memory_kind::pool;
    opts.device_budget = (70 + draw(150)) * 1024;
  }
  opts.reload_ahead = draw(4);
  opts.copy_piece = draw(3) == 0 ? 1000 : 1 << 20;
  if (draw(3) == 0) opts.max_inflight = draw(3);
  opts.poison = draw(3) == 0;
  if (draw(3) == 0) {
    opts.places = {tidepool::place_kind::host, tidepool::place_kind::peer};
    opts.peer_budget = 200 * 1024;
  }
  return opts;
}

machine machine_of(std::uint64_t seed) {
  machine model;
  model.packs_from = 2048;
  model.pack_piece = small_piece;
  model.order_seed = seed % 5 == 0 ? 0 : seed;
  if (seed % 5 == 0) model.reload_rate = model.offload_rate = seed % 2 ? 0.5 : 5;
  if (seed % 5 == 0) model.unpack_rate = seed % 3 ? 0.3 : 20;
  return model;
}

constexpr std::uint64_t seeds = 120;

}  // namespace

TEST_CASE("packing: random programs, checked") {
  using device = tidepool::checked_device<virtual_device>;
  std::size_t over = 0, packed = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    device dev(machine_of(seed));
    program<device> it{dev, std::mt19937_64(seed), {}};
    it.streams.push_back(dev.make_stream());
    it.streams.push_back(dev.make_stream());
    auto opts = options_of(it.rng);
    {
      std::unique_ptr<tidepool::block_source> memory;
      if (seed % 3 == 0) {
        opts.memory = tidepool::memory_kind::pool;
        memory = tidepool::memory_on<device>(
            it.stream(0), [&dev](std::size_t b) { return dev.try_allocate(b); },
            [&dev](void* at) { dev.deallocate(at); });
      }
      bool gave_up = false;
      typename program<device>::offloader off(dev, opts, {.memory = std::move(memory)});
      off.on_report({});
      std::size_t tags = seed * 1000;
      try {
        for (int s = 0; s < 4; ++s) it.step(off, tags);
      } catch (const tidepool::out_of_budget&) {
        ++over;
        gave_up = true;  // handles that were destroyed, not reset
      }
      dev.synchronize();
      if (gave_up) dev.forget_findings();
      packed += off.counters().modules[0].bytes_packed;
    }
    CHECK(it.seen->wrong == 0);
    if (dev.finding_count() > 0) {
      CHECK(dev.finding_count() == 0);
      MESSAGE(dev.report());
    }
  }
  CHECK(packed > 0);
  CHECK(over < seeds / 4);
}

TEST_CASE("packing: random programs with one failure") {
  using device = tidepool::test::faulty_device<virtual_device>;
  using tidepool::test::call_kind;
  std::size_t tripped = 0, over = 0, lost = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    device dev(machine_of(seed));
    const auto before = dev.held();
    {
      program<device> it{dev, std::mt19937_64(seed), {}};
      it.streams.push_back(dev.make_stream());
      it.streams.push_back(dev.make_stream());
      auto opts = options_of(it.rng);
      {
        typename program<device>::offloader off(dev, opts);
        off.on_report({});
        std::size_t tags = seed * 1000;
        const call_kind kinds[] = {call_kind::pack,   call_kind::unpack, call_kind::pack,
                                   call_kind::unpack, call_kind::record, call_kind::wait,
                                   call_kind::copy};
        const auto kind = kinds[it.draw(7)];
        for (int s = 0; s < 5; ++s) {
          try {
            if (s > 0 && s < 4) dev.arm({kind, 1 + it.draw(15), tidepool::test::manner::once});
            it.step(off, tags);
          } catch (const tidepool::out_of_budget&) {
            ++over;
          } catch (const tidepool::device_error&) {
            ++lost;
          }
          tripped += dev.tripped() ? 1 : 0;
          dev.disarm();
        }
        dev.synchronize();
      }
      CHECK(it.seen->wrong == 0);
    }
    CHECK(dev.held() == before);
  }
  CHECK(tripped > seeds / 4);
  CHECK(over + lost < tripped);
}
