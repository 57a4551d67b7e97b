// Tensors by key: what a framework without handles calls, over borrowed memory.
#include "tidepool/keyed.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "caching_allocator.hpp"
#include "heap_counter.hpp"
#include "rig.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::join_site;
using tidepool::machine;
using tidepool::options;
using tidepool::tensor_key;
using tidepool::test::rig;
using tidepool::test::small_options;

using device = rig::device_type;
using allocator = tidepool::test::caching_allocator<device>;
using offloader = rig::offloader<tidepool::modules<"core_attn", "moe_act">>;
using keyed = tidepool::keyed<device, tidepool::modules<"core_attn", "moe_act">>;

constexpr std::size_t size = 2048;
constexpr std::uint64_t seeds = 40;

struct bench {
  rig desk;
  allocator from{desk.dev, desk.stream()};
  offloader off;
  keyed keys{off};
  tidepool::module_id attention = off.module("core_attn");
  tidepool::module_id activation = off.module("moe_act");

  explicit bench(const options& opts, const machine& model = {}, bool given = true)
      : desk(model), off(desk.dev, opts, parts(given)) {
    off.on_report([](std::string_view) {});
  }
  tidepool::parts parts(bool given) {
    if (!given) return {};
    return {.memory = tidepool::memory_on<device>(
                desk.stream(), [this](std::size_t bytes) { return from.take(bytes); },
                [this](void* data) { from.give(data); })};
  }

  /// A tensor as a framework has them: counted references, of which a saved one is one.
  using tensor = std::shared_ptr<void>;
  tensor make(std::uint32_t tag) {
    tensor made(from.take(size), [this](void* data) { from.give(data); });
    desk.write_bytes(made.get(), size, tag, desk.stream());
    return made;
  }
  void save(keyed::pass& pass, tensor_key key, const tensor& what) {
    pass.save(key, what.get(), size, desk.stream(), what);
  }
  void check(const void* data, std::uint32_t tag) {
    desk.check_rows(data, {size, 1, size, 0}, tag, 0, desk.stream());
  }
};

options all_leave(std::optional<std::size_t> slack = size) {
  auto opts = small_options({"core_attn", "moe_act"});
  opts.borrowed_slack = slack;
  return opts;
}

}  // namespace

TEST_CASE("keyed: what is saved under a key comes back under it") {
  bench on(all_leave());
  auto pass = on.keys.begin();
  for (int l = 0; l < 3; ++l) {
    pass.run(on.attention, l, on.desk.stream(), [&] {
      on.save(pass, static_cast<tensor_key>(10 * l + 1), on.make(static_cast<std::uint32_t>(l)));
      on.save(pass, static_cast<tensor_key>(10 * l + 2), on.make(100));
    });
  }
  CHECK(on.from.in_use() <= size);
  pass.end_forward();
  for (int l = 3; l-- > 0;) {
    on.check(pass.load(static_cast<tensor_key>(10 * l + 2), on.desk.stream()), 100);
    on.check(pass.load(static_cast<tensor_key>(10 * l + 1), on.desk.stream()),
             static_cast<std::uint32_t>(l));
    pass.drop(static_cast<tensor_key>(10 * l + 1), on.desk.stream());
    pass.drop(static_cast<tensor_key>(10 * l + 2), on.desk.stream());
  }
  CHECK(pass.size() == 0);
  pass.finish();
  on.off.end_step();
  on.off.release_borrowed();
  CHECK(on.from.in_use() == 0);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: random programs over keys, right in every order of the device") {
  const auto run = [](std::uint64_t seed, std::optional<join_site> without) {
    std::mt19937_64 random(seed);
    const auto any = [&](std::size_t count) { return random() % count; };
    auto opts = all_leave(any(3) * size);
    if (any(4) == 0) opts.min_tensor_elements = size + 1;
    bench on(opts, machine{.poison = true, .order_seed = seed}, any(2) == 0);
    if (without) on.desk.dev.leave_out(*without);
    const auto second = on.desk.dev.make_stream();
    const std::array<rig::stream_ref, 2> streams{on.desk.stream(), second.ref()};
    auto event = on.desk.dev.make_event();
    for (int s = 0; s < 3; ++s) {
      std::array<keyed::pass, 2> passes;
      std::array<std::unordered_map<tensor_key, std::pair<std::uint32_t, int>>, 2> saved;
      std::uint32_t tag = 0;
      for (std::size_t p = 0; p < 2; ++p) {
        auto& pass = passes[p] = on.keys.begin({.microbatch = static_cast<int>(p)});
        const auto save = [&](tensor_key key) {
          auto& known = saved[p][key];
          if (known.second == 0) known.first = ++tag;
          ++known.second;
          on.save(pass, key, on.make(known.first));
        };
        const auto read = [&] {  // forward goes on
          for (auto n = saved[p].empty() ? 0 : any(3); n > 0; --n) {
            auto at = saved[p].begin();
            std::advance(at, static_cast<std::ptrdiff_t>(any(saved[p].size())));
            const auto on_stream = streams[any(2)];
            on.desk.check_rows(pass.load(at->first, on_stream), {size, 1, size, 0},
                               at->second.first, 0, on_stream);
          }
        };
        for (int l = 0; l < 4; ++l) {
          pass.enter(on.attention, l);
          for (std::size_t n = any(3); n > 0; --n) save(any(1000));
          pass.run(on.activation, l, on.desk.stream(),
                   [&] { save(2000 + static_cast<tensor_key>(l)); });
          if (any(2) == 0) save(2000 + static_cast<tensor_key>(l));
          read();
          pass.leave(on.desk.stream());
          read();
        }
        on.desk.dev.record(event, streams[1]);
        on.desk.dev.wait(streams[0], event);
        if (any(8) != 0) pass.end_forward();
      }
      for (std::size_t p = 0; p < 2; ++p) {
        while (!saved[p].empty()) {  // in any order
          auto at = saved[p].begin();
          std::advance(at, static_cast<std::ptrdiff_t>(any(saved[p].size())));
          auto& [key, known] = *at;
          if (any(4) != 0) on.check(passes[p].load(key, on.desk.stream()), known.first);
          passes[p].drop(key, on.desk.stream());
          if (--known.second == 0) saved[p].erase(at);
        }
        CHECK(passes[p].size() == 0);
        passes[p].finish();
      }
      on.off.end_step();
    }
    on.off.release_borrowed();
    if (!without) CHECK(on.from.in_use() == 0);
    return on.desk.wrong();
  };
  std::size_t caught = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    CHECK(run(seed, {}) == 0);
    caught += run(seed, join_site::give_back) > 0 ? 1 : 0;
  }
  CHECK(caught > 0);
}

TEST_CASE(
    "keyed: a tensor saved by several nodes is copied once, and goes with its last reference") {
  bench on(all_leave(0));
  auto pass = on.keys.begin();
  auto shared = on.make(7);
  pass.run(on.attention, 0, on.desk.stream(), [&] {
    on.save(pass, 1, shared);
    on.save(pass, 1, shared);
  });
  pass.run(on.activation, 0, on.desk.stream(), [&] { on.save(pass, 1, shared); });
  shared.reset();
  CHECK(on.from.in_use() == 0);
  CHECK(on.desk.dev.bytes[0] == size);
  pass.end_forward();
  on.check(pass.load(1, on.desk.stream()), 7);
  pass.drop(1, on.desk.stream());
  pass.drop(1, on.desk.stream());
  CHECK(pass.size() == 1);
  on.check(pass.load(1, on.desk.stream()), 7);
  pass.drop(1, on.desk.stream());
  CHECK_THROWS_WITH_AS(static_cast<void>(pass.load(1, on.desk.stream())),
                       doctest::Contains("load, microbatch 0: no tensor has the key 1"),
                       tidepool::misuse_error);
  pass.finish();
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: a group whose tensors go unread is forgotten") {
  auto opts = all_leave(0);
  opts.reload_ahead = 0;
  bench on(opts);
  auto pass = on.keys.begin();
  for (int l = 0; l < 3; ++l) {
    pass.run(on.attention, l, on.desk.stream(),
             [&] { on.save(pass, static_cast<tensor_key>(l), on.make(1)); });
  }
  pass.end_forward();
  pass.drop(2, on.desk.stream());
  pass.drop(0, on.desk.stream());
  on.check(pass.load(1, on.desk.stream()), 1);
  pass.drop(1, on.desk.stream());
  pass.finish();
  CHECK(on.desk.dev.reloads() == 1);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: what is dropped before its scope ends never leaves") {
  bench on(all_leave(0));
  auto pass = on.keys.begin();
  pass.run(on.attention, 0, on.desk.stream(), [&] {
    on.save(pass, 1, on.make(1));
    on.save(pass, 2, on.make(2));
    on.check(pass.load(1, on.desk.stream()), 1);
    pass.drop(1, on.desk.stream());
    CHECK(on.from.in_use() == size);
    on.save(pass, 1, on.make(3));
  });
  pass.run(on.attention, 1, on.desk.stream(), [&] {
    on.save(pass, 5, on.make(1));
    pass.drop(5, on.desk.stream());
  });
  CHECK(on.desk.dev.offloads() == 2);
  pass.end_forward();
  on.check(pass.load(2, on.desk.stream()), 2);
  on.check(pass.load(1, on.desk.stream()), 3);
  pass.drop(1, on.desk.stream());
  pass.drop(2, on.desk.stream());
  pass.finish();
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: what stays by size or since its module does, is loaded from where it is") {
  auto opts = small_options({"core_attn"});
  opts.min_tensor_elements = size + 1;
  bench on(opts);
  auto pass = on.keys.begin();
  const auto small = on.make(3);
  const auto other = on.make(4);
  pass.run(on.attention, 0, on.desk.stream(), [&] { on.save(pass, 1, small); });
  pass.run(on.activation, 0, on.desk.stream(), [&] { on.save(pass, 2, other); });
  pass.end_forward();
  CHECK(pass.load(1, on.desk.stream()) == small.get());
  CHECK(pass.load(2, on.desk.stream()) == other.get());
  pass.drop(1, on.desk.stream());
  CHECK(small.use_count() == 1);
  pass.drop(2, on.desk.stream());
  CHECK(other.use_count() == 1);
  pass.finish();
}

TEST_CASE("keyed: evaluation keeps tensors in their memory") {
  bench on(all_leave(0));
  auto pass = on.keys.begin({.forward_only = true});
  const auto x = on.make(1);
  pass.run(on.attention, 0, on.desk.stream(), [&] { on.save(pass, 1, x); });
  CHECK(pass.load(1, on.desk.stream()) == x.get());
  pass.drop(1, on.desk.stream());
  pass.finish();
  CHECK(x.use_count() == 1);
  CHECK(on.desk.dev.offloads() == 0);
}

TEST_CASE("keyed: a second stream waits for the reload as well") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    bench on(all_leave(0), machine{.poison = true, .order_seed = seed});
    const auto second = on.desk.dev.make_stream();
    auto pass = on.keys.begin();
    pass.run(on.attention, 0, on.desk.stream(), [&] {
      on.save(pass, 1, on.make(1));
      on.save(pass, 2, on.make(2));
    });
    pass.end_forward();
    on.check(pass.load(1, on.desk.stream()), 1);
    on.desk.check_rows(pass.load(2, second.ref()), {size, 1, size, 0}, 2, 0, second.ref());
    pass.drop(1, on.desk.stream());
    pass.drop(2, second.ref());
    pass.finish();
    wrong += on.desk.wrong();
  }
  CHECK(wrong == 0);
}

TEST_CASE("keyed: a stream that loaded a tensor before it left waits for its reload as well") {
  for (const bool joins : {true, false}) {  // or what it read is free behind it all the same
    std::size_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      bench on(all_leave(0), machine{.poison = true, .order_seed = seed});
      const auto second = on.desk.dev.make_stream();
      auto pass = on.keys.begin();
      pass.run(on.attention, 0, on.desk.stream(), [&] {
        on.save(pass, 1, on.make(1));
        on.save(pass, 2, on.make(2));
        const auto* const data = pass.load(1, second.ref());
        for (int i = 0; i < 16; ++i) {  // so that it may be late
          on.desk.check_rows(data, {size, 1, size, 0}, 1, 0, second.ref());
        }
        auto event = on.desk.dev.make_event();
        on.desk.dev.record(event, second.ref());
        if (joins) on.desk.dev.wait(on.desk.stream(), event);
      });
      static_cast<void>(on.make(3));  // the same memory again
      static_cast<void>(on.make(3));
      pass.end_forward();
      on.check(pass.load(2, on.desk.stream()), 2);
      on.desk.check_rows(pass.load(1, second.ref()), {size, 1, size, 0}, 1, 0, second.ref());
      pass.drop(1, second.ref());
      pass.drop(2, on.desk.stream());
      pass.finish();
      wrong += on.desk.wrong();
    }
    CAPTURE(joins);
    CHECK(wrong == 0);
  }
}

TEST_CASE("keyed: a tensor that was loaded while its scope was open alone is missed by nobody") {
  bench on(all_leave(0));
  auto pass = on.keys.begin();
  pass.run(on.attention, 0, on.desk.stream(), [&] {
    on.save(pass, 1, on.make(1));
    on.check(pass.load(1, on.desk.stream()), 1);
  });
  pass.run(on.activation, 0, on.desk.stream(), [&] { on.save(pass, 2, on.make(2)); });
  pass.end_forward();
  CHECK_THROWS_WITH_AS(pass.finish(), doctest::Contains("the key 2, saved by"),
                       tidepool::misuse_error);
  on.check(pass.load(1, on.desk.stream()), 1);  // finish gave nothing up
  on.check(pass.load(2, on.desk.stream()), 2);
  pass.finish();
  on.off.end_step();

  pass = on.keys.begin();
  pass.run(on.attention, 0, on.desk.stream(), [&] {
    on.save(pass, 1, on.make(1));
    on.check(pass.load(1, on.desk.stream()), 1);
  });
  pass.end_forward();
  pass.finish();
  on.off.end_step();
  on.off.release_borrowed();
  CHECK(on.from.in_use() == 0);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: what forward reads again behind its scope stays, and forward goes on") {
  for (const bool given : {true, false}) {
    CAPTURE(given);
    std::size_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      bench on(all_leave(0), machine{.poison = true, .order_seed = seed}, given);
      const auto second = on.desk.dev.make_stream();
      for (int s = 0; s < 2; ++s) {
        const auto copied = on.desk.dev.offloads();
        auto pass = on.keys.begin();
        std::array<void*, 4> at{};
        for (int l = 0; l < 4; ++l) {
          const auto key = static_cast<tensor_key>(l);
          pass.run(on.attention, l, on.desk.stream(), [&] {
            on.save(pass, key, on.make(static_cast<std::uint32_t>(l)));
            on.save(pass, key + 10, on.make(100));
          });
          if (l == 0) continue;
          const auto read = [&](tensor_key which, auto stream) {  // a residual
            auto* const data = at[which] = pass.load(which, stream);
            on.desk.check_rows(data, {size, 1, size, 0}, static_cast<std::uint32_t>(which), 0,
                               stream);
          };
          read(key - 1, second.ref());
          read(key - 1, on.desk.stream());
          read(0, second.ref());
        }
        CHECK(on.desk.dev.offloads() - copied == (s == 0 ? 8 : 5));  // of the next pass they stay
        const auto back = on.desk.dev.reloads();
        pass.end_forward();
        for (tensor_key key = 4; key-- > 0;) {
          auto* const data = pass.load(key, on.desk.stream());
          if (key < 3) CHECK(data == at[key]);
          on.check(data, static_cast<std::uint32_t>(key));
          on.check(pass.load(key + 10, on.desk.stream()), 100);
          auto event = on.desk.dev.make_event();
          on.desk.dev.record(event, second.ref());
          on.desk.dev.wait(on.desk.stream(), event);
          pass.drop(key, on.desk.stream());
          pass.drop(key + 10, on.desk.stream());
        }
        pass.finish();
        CHECK(on.desk.dev.reloads() - back == 5);
        on.off.end_step();
      }
      wrong += on.desk.wrong();
      on.off.release_borrowed();
      CHECK(on.from.in_use() == 0);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("keyed: a place that forward does not read again leaves in the pass after the next") {
  bench on(all_leave(0));
  int number = 0;
  for (const bool reads : {true, false, false}) {
    const auto before = on.desk.dev.offloads();
    auto pass = on.keys.begin();
    pass.run(on.attention, 0, on.desk.stream(), [&] { on.save(pass, 1, on.make(1)); });
    if (reads) on.check(pass.load(1, on.desk.stream()), 1);
    const bool stayed = on.desk.dev.offloads() == before;
    pass.end_forward();
    pass.drop(1, on.desk.stream());
    pass.finish();
    on.off.end_step();
    CHECK(stayed == (++number == 2));
  }
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: a pass without end_forward computes the same, and leaves in every step") {
  bench on(all_leave(0));
  for (int s = 0; s < 3; ++s) {
    const auto before = on.desk.dev.offloads();
    auto pass = on.keys.begin();
    for (int l = 0; l < 3; ++l) {
      pass.run(on.attention, l, on.desk.stream(), [&] {
        on.save(pass, static_cast<tensor_key>(l), on.make(static_cast<std::uint32_t>(l)));
      });
    }
    CHECK(on.desk.dev.offloads() == before + 3);
    for (tensor_key key = 3; key-- > 0;) {
      on.check(pass.load(key, on.desk.stream()), static_cast<std::uint32_t>(key));
      if (key > 0) pass.drop(key, on.desk.stream());
    }
    pass.finish();
    on.off.end_step();
  }
  CHECK(on.desk.wrong() == 0);
  on.off.release_borrowed();
  CHECK(on.from.in_use() == 0);
}

TEST_CASE("keyed: a small tensor comes without what left with its scope") {
  auto opts = all_leave(0);
  opts.min_tensor_elements = size;
  opts.reload_ahead = 0;
  bench on(opts);
  std::array<std::byte, 256> small{};
  bool back = false;
  auto pass = on.keys.begin();
  pass.run(on.attention, 0, on.desk.stream(), [&] {
    on.save(pass, 1, on.make(1));
    pass.save(2, small.data(), small.size(), on.desk.stream(), [&] { back = true; });
  });
  CHECK(pass.load(2, on.desk.stream()) == small.data());
  pass.end_forward();
  CHECK(pass.load(2, on.desk.stream()) == small.data());
  CHECK(on.desk.dev.reloads() == 0);
  pass.drop(2, on.desk.stream());
  on.off.release_borrowed();
  CHECK(back);  // nor does it wait for them
  on.check(pass.load(1, on.desk.stream()), 1);
  CHECK(on.desk.dev.reloads() == 1);
  pass.drop(1, on.desk.stream());
  pass.finish();
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: a save that throws leaves the tensor of no bytes that has its key") {
  bench on(all_leave(0), machine{});
  bool refuses = false;
  on.keys.exclude_if([&](const tidepool::keyed_tensor&) -> bool {
    if (refuses) throw std::runtime_error("the trainer's own");
    return false;
  });
  auto pass = on.keys.begin();
  pass.enter(on.attention, 0);
  pass.save(1, nullptr, 0, on.desk.stream(), [] {});
  refuses = true;
  CHECK_THROWS_AS(on.save(pass, 1, on.make(1)), std::runtime_error);
  CHECK(pass.size() == 1);
  refuses = false;
  on.save(pass, 1, on.make(1));
  pass.drop(1, on.desk.stream());
  CHECK(pass.size() == 1);  // both were references to the key
  pass.drop(1, on.desk.stream());
  CHECK(pass.size() == 0);
  pass.leave(on.desk.stream());
}

TEST_CASE("keyed: what is excluded stays where it was, and goes back with its last reference") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    auto opts = all_leave(0);
    opts.reload_ahead = 0;
    bench on(opts, machine{.poison = true, .order_seed = seed});
    auto weight = on.make(9);
    auto* const data = weight.get();
    std::vector<tensor_key> asked;
    on.keys.exclude_if([&](const tidepool::keyed_tensor& each) {
      asked.push_back(each.key);
      CHECK(each.bytes == size);
      return each.data == data;
    });
    const auto second = on.desk.dev.make_stream();
    auto pass = on.keys.begin();
    pass.run(on.attention, 0, on.desk.stream(), [&] {
      on.save(pass, 1, on.make(1));
      on.save(pass, 2, weight);
      on.save(pass, 2, weight);
    });
    weight.reset();
    CHECK(asked == std::vector<tensor_key>{1, 2});
    CHECK(on.desk.dev.offloads() == 1);
    CHECK(on.off.counters().borrowed < size);  // no budget counts a weight
    CHECK(pass.load(2, on.desk.stream()) == data);
    pass.end_forward();
    CHECK(pass.load(2, second.ref()) == data);
    on.desk.check_rows(data, {size, 1, size, 0}, 9, 0, second.ref());
    CHECK(on.desk.dev.reloads() == 0);
    pass.drop(2, second.ref());
    CHECK(pass.load(2, second.ref()) == data);
    pass.drop(2, second.ref());
    on.off.release_borrowed();
    CHECK(on.from.in_use() == 0);
    static_cast<void>(on.make(3));  // the same memory again
    pass.drop(1, on.desk.stream());
    pass.finish();
    wrong += on.desk.wrong();
  }
  CHECK(wrong == 0);
}

TEST_CASE("keyed: a second stream comes behind who wrote what stayed") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    bench on(small_options({"core_attn"}), machine{.poison = true, .order_seed = seed});
    const auto second = on.desk.dev.make_stream();
    for (const bool evaluates : {false, true}) {
      auto pass = on.keys.begin({.forward_only = evaluates});
      const auto module = evaluates ? on.attention : on.activation;
      pass.run(module, 0, on.desk.stream(), [&] { on.save(pass, 1, on.make(1)); });
      pass.end_forward();
      on.desk.check_rows(pass.load(1, second.ref()), {size, 1, size, 0}, 1, 0, second.ref());
      pass.drop(1, second.ref());
      pass.finish();
    }
    wrong += on.desk.wrong();
  }
  CHECK(wrong == 0);
}

TEST_CASE("keyed: what nobody dropped is free behind all streams that loaded it") {
  for (const bool finishes : {true, false}) {
    for (const bool leaves : {true, false}) {
      CAPTURE(finishes);
      CAPTURE(leaves);
      std::size_t wrong = 0;
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        bench on(all_leave(0), machine{.poison = true, .order_seed = seed});
        const auto second = on.desk.dev.make_stream();
        const auto third = on.desk.dev.make_stream();
        auto pass = on.keys.begin({.forward_only = !leaves});
        pass.run(on.attention, 0, on.desk.stream(), [&] { on.save(pass, 1, on.make(1)); });
        pass.end_forward();
        on.check(pass.load(1, on.desk.stream()), 1);
        for (const auto reader : {second.ref(), third.ref()}) {
          on.desk.check_rows(pass.load(1, reader), {size, 1, size, 0}, 1, 0, reader);
        }
        if (finishes) pass.finish();
        pass = {};
        on.off.release_borrowed();
        for (int i = 0; i < 4; ++i) static_cast<void>(on.make(2));  // the same memory again
        wrong += on.desk.wrong();
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("keyed: what stayed and was dropped ahead of its group is free behind both") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    auto opts = all_leave(0);
    opts.min_tensor_elements = size;
    bench on(opts, machine{.poison = true, .order_seed = seed});
    const auto second = on.desk.dev.make_stream();
    constexpr std::size_t half = size / 2;
    auto* const small = on.from.take(half);
    on.desk.write_bytes(small, half, 3, on.desk.stream());
    auto pass = on.keys.begin();
    pass.run(on.attention, 0, on.desk.stream(), [&] {
      on.save(pass, 1, on.make(1));
      pass.save(2, small, half, on.desk.stream(), [&] { on.from.give(small); });
    });
    auto event = on.desk.dev.make_event();
    on.desk.dev.record(event, on.desk.stream());
    on.desk.dev.wait(second.ref(), event);
    for (int i = 0; i < 16; ++i) {  // so that it may be late
      on.desk.check_rows(small, {half, 1, half, 0}, 3, 0, second.ref());
    }
    pass.drop(2, second.ref());
    pass.end_forward();
    on.check(pass.load(1, on.desk.stream()), 1);
    on.off.release_borrowed();
    auto* const again = on.from.take(half);
    on.desk.write_bytes(again, half, 4, on.desk.stream());
    wrong += on.desk.wrong();
    on.from.give(again);
    pass.drop(1, on.desk.stream());
    pass.finish();
  }
  CHECK(wrong == 0);
}

TEST_CASE("keyed: a scope that throws saves nothing for good, and the pass goes on") {
  bench on(all_leave(0));
  auto pass = on.keys.begin();
  CHECK_THROWS_AS(pass.run(on.attention, 0, on.desk.stream(),
                           [&] {
                             on.save(pass, 1, on.make(1));
                             throw 1;
                           }),
                  int);
  pass.drop(1, on.desk.stream());
  CHECK(on.from.in_use() == 0);
  pass.run(on.attention, 1, on.desk.stream(), [&] { on.save(pass, 1, on.make(2)); });
  pass.end_forward();
  on.check(pass.load(1, on.desk.stream()), 2);
  pass.drop(1, on.desk.stream());
  pass.finish();
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("keyed: a commit that fails leaves tensors where they were") {
  auto opts = all_leave(0);
  opts.host_budget = size;
  opts.host_step = size;
  bench on(opts);
  auto pass = on.keys.begin();
  const auto x = on.make(1);
  const auto y = on.make(2);
  const auto both = [&] {
    on.save(pass, 1, x);
    on.save(pass, 2, y);
  };
  CHECK_THROWS_AS(pass.run(on.attention, 0, on.desk.stream(), both), tidepool::out_of_budget);
  CHECK(pass.load(1, on.desk.stream()) == x.get());
  CHECK(pass.load(2, on.desk.stream()) == y.get());
  pass.drop(1, on.desk.stream());
  pass.drop(2, on.desk.stream());
  CHECK(x.use_count() == 1);
  CHECK(y.use_count() == 1);
  pass.finish();
}

TEST_CASE("keyed: mistakes say what, where and what to do") {
  bench on(all_leave(0));
  keyed::pass never;
  CHECK_THROWS_WITH_AS(never.enter(on.attention, 0), doctest::Contains("was never begun"),
                       tidepool::misuse_error);
  auto pass = on.keys.begin({.microbatch = 5});
  CHECK_THROWS_WITH_AS(on.save(pass, 1, on.make(1)),
                       doctest::Contains("save, microbatch 5: no module scope is open"),
                       tidepool::misuse_error);
  CHECK(on.from.in_use() == 0);
  CHECK_THROWS_WITH_AS(pass.leave(on.desk.stream()), doctest::Contains("no scope is open"),
                       tidepool::misuse_error);
  pass.enter(on.attention, 3);
  CHECK_THROWS_WITH_AS(pass.enter(on.attention, 3),
                       doctest::Contains("of layer 3 ran in this pass before"),
                       tidepool::misuse_error);
  CHECK_THROWS_WITH_AS(pass.finish(), doctest::Contains("a scope is still open"),
                       tidepool::misuse_error);
  on.save(pass, 8, on.make(1));
  pass.leave(on.desk.stream());
  CHECK_THROWS_WITH_AS(on.save(pass, 8, on.make(1)), doctest::Contains("no module scope is open"),
                       tidepool::misuse_error);
  CHECK_THROWS_WITH_AS(pass.drop(9, on.desk.stream()), doctest::Contains("the key 9"),
                       tidepool::misuse_error);
  pass.end_forward();
  CHECK_THROWS_WITH_AS(pass.finish(),
                       doctest::Contains("finish, microbatch 5: the tensor with the key 8, saved"),
                       tidepool::misuse_error);
  pass = {};  // given up
  on.off.release_borrowed();
  CHECK(on.from.in_use() == 0);
}

TEST_CASE("keyed: a step allocates nothing on the heap once it has run") {
  using null = tidepool::test::counting_device<tidepool::null_device>;
  null dev;
  const auto stream = dev.make_stream();
  tidepool::offloader<null, tidepool::modules<"core_attn", "moe_act">> off(dev, all_leave());
  off.on_report([](std::string_view) {});
  tidepool::keyed keys(off);
  const auto module = off.module("core_attn");
  std::array<std::array<std::byte, size>, 16> memory;
  for (int s = 0; s < 5; ++s) {
    const auto heap = tidepool::test::heap_allocations();
    auto pass = keys.begin();
    for (int l = 0; l < 8; ++l) {
      pass.run(module, l, stream.ref(), [&] {
        for (tensor_key k = 0; k < 2; ++k) {
          const auto key = static_cast<tensor_key>(l) * 2 + k;
          pass.save(key * 4096, memory[key].data(), size, stream.ref(), {});
        }
      });
      if (l % 2 == 1)
        static_cast<void>(pass.load((static_cast<tensor_key>(l) * 2 - 1) * 4096, stream.ref()));
    }
    pass.end_forward();
    for (tensor_key key = 16; key-- > 0;) {
      static_cast<void>(pass.load(key * 4096, stream.ref()));
      pass.drop(key * 4096, stream.ref());
    }
    pass.finish();
    off.end_step();
    if (s >= 2) CHECK(tidepool::test::heap_allocations() == heap);
  }
}
