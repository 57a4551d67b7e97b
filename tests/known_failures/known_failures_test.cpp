// What gave others wrong data, crashes or lost offloads: each case is a bug somebody had, in short.
// What cost them memory or time is in known_costs_test.cpp.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rig.hpp"
#include "schedule.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/fixed.hpp"

namespace {

using tidepool::join_site;
using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn">>;

constexpr std::size_t size = 2048;
constexpr std::uint64_t orders = 40;

rig::buffer written(rig& desk, offloader& off, std::uint32_t tag) {
  auto x = off.allocate(size, desk.stream());
  desk.write(x, tag);
  return x;
}

// Runs `scenario` in random orders: its data is right in all of them, and without the join it is
// wrong in some, so that the check is known to see the failure.
template <class Scenario>
void check_needs(join_site site, const options& opts, const Scenario& scenario) {
  const auto wrong = [&](std::uint64_t seed, bool with) {
    rig desk(machine{.order_seed = seed});
    if (!with) desk.dev.leave_out(site);
    offloader off(desk.dev, opts);
    scenario(desk, off);
    return desk.wrong();
  };
  std::size_t without = 0;
  for (std::uint64_t seed = 1; seed <= orders; ++seed) {
    CAPTURE(seed);
    CHECK(wrong(seed, true) == 0);
    without += wrong(seed, false);
  }
  CHECK(without > 0);
}

// Asks for a tensor the moment that it left.
void save_and_load(rig& desk, offloader& off) {
  auto open = off.begin();
  auto x = written(desk, off, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
}

// A forward pass and its backward pass, to be captured.
struct four_layers {
  rig& desk;
  offloader& off;
  offloader::chunk open{};
  std::vector<rig::buffer> x = std::vector<rig::buffer>(4);

  void forward(std::uint32_t first = 1) {
    open = off.begin();
    for (std::uint32_t l = 0; l < 4; ++l) {
      x[l] = written(desk, off, first + l);
      open.commit<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
    }
  }
  void backward() {
    for (std::uint32_t l = 4; l-- > 0;) {
      open.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
      desk.check(x[l], l + 1);
      x[l].reset(desk.stream());
    }
    open.finish();
    off.end_step();
  }
};

}  // namespace

TEST_CASE(
    "known failure: silently wrong gradients when a reload does not wait for its offload, as in"
    " Megatron-LM #7398") {
  check_needs(join_site::own_offload, small_options(), save_and_load);
}

TEST_CASE(
    "known failure: a corrupt copy when an offload reads before its producer ends, as in"
    " vLLM #45704") {
  check_needs(join_site::producer, small_options(), save_and_load);
}

TEST_CASE(
    "known failure: garbled data when a reload overwrites memory that is still being read, as in"
    " vLLM #47282 and DeepSpeed #8186") {
  check_needs(join_site::reload_reuse, arena_options(size), [](rig& desk, offloader& off) {
    auto open = off.begin();
    auto x = written(desk, off, 1);
    open.commit<"core_attn">(0, desk.stream(), x);
    auto y = written(desk, off, 2);  // where x lay
    desk.check(y, 2);
    y.reset(desk.stream());
    open.restore<"core_attn">(0, desk.stream(), x);  // there again
    desk.check(x, 1);
  });
}

TEST_CASE(
    "known failure: an overwritten host copy when a host block is used again under its reload, as"
    " in vLLM #51667") {
  auto opts = small_options();
  opts.host_budget = opts.host_step = size;  // a single block
  check_needs(join_site::host_reuse, opts, [](rig& desk, offloader& off) {
    // Behind the restore on one stream the next commit would be ordered already.
    const auto backward = desk.dev.make_stream();
    auto first = off.begin({.microbatch = 0});
    auto second = off.begin({.microbatch = 1});
    auto x = written(desk, off, 1);
    auto y = written(desk, off, 2);
    first.commit<"core_attn">(0, desk.stream(), x);
    first.restore<"core_attn">(0, backward.ref(), x);
    second.commit<"core_attn">(0, desk.stream(), y);
    desk.check_rows(x.data(), {size, 1, size, 0}, 1, 0, backward.ref());
    x.reset(backward.ref());
    second.restore<"core_attn">(0, desk.stream(), y);
    desk.check(y, 2);
  });
}

TEST_CASE(
    "known failure: NaN when a tensor is freed while a view or a recompute still holds it, as in"
    " torchtune #1867 and #1936") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = written(desk, off, 1);
  auto part = x.view({.width = size / 2});
  auto input = x.share();  // of a recompute
  const auto disturb = [&] {
    for (std::uint32_t tag = 90; tag < 98; ++tag) {
      auto other = written(desk, off, tag);
      CHECK(other.data() != input.data());
      desk.check(input, 1);
    }
  };
  open.commit<"core_attn">(0, desk.stream(), x);
  disturb();
  desk.check(part, 1, 0, 0);
  part.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), x);
  x.reset(desk.stream());
  open.finish();
  disturb();
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "known failure: a capture fails or races when events cross graphs or a side stream escapes, as"
    " in Megatron-LM #7020 and pytorch #155372") {
  for (std::uint64_t seed = 1; seed <= orders; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(2 * size));
    four_layers step{desk, off};
    step.forward();
    step.backward();
    // In a capture of the trainer's own, our streams take no part.
    desk.dev.begin_capture(desk.stream());
    CHECK_THROWS_AS(step.forward(), tidepool::misuse_error);
    static_cast<void>(desk.dev.end_capture(desk.stream()));
    const auto abandon = [&] {  // with copies under way that nobody has waited for
      step.forward(90);
      step.open = {};
    };
    abandon();
    // The reloads of the second wait for offloads of the first, but not for an event in it.
    auto first = off.capture(desk.stream(), [&] { step.forward(); });
    auto second = off.capture(desk.stream(), [&] { step.backward(); });
    abandon();
    for (int i = 0; i < 2; ++i) {
      first.launch(desk.stream());
      second.launch(desk.stream());
    }
    CHECK(desk.wrong() == 0);
    desk.dev.leave_out(join_site::join_back);  // the device sees a stream that escapes
    CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), [&] { step.forward(); })),
                    tidepool::device_error);
  }
}

TEST_CASE(
    "known failure: a graph reads a stale address when a reload lands elsewhere, as in"
    " Megatron-LM #7474") {
  rig desk;
  auto opts = small_options();
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  void* const memory = desk.dev.allocate(size);
  {
    tidepool::fixed_block place(memory, size);
    auto open = off.begin();
    auto x = off.allocate_from(place, size, desk.stream());
    desk.write(x, 1);
    open.commit<"core_attn">(0, desk.stream(), x);
    open.restore<"core_attn">(0, desk.stream(), x);
    CHECK(x.data() == memory);
    desk.check(x, 1);
    x.reset(desk.stream());
    open.finish();
    off.end_step();
    CHECK(desk.wrong() == 0);
  }
  desk.dev.deallocate(memory);
  // Where the memory comes from the offloader, a graph that would find it elsewhere is refused.
  save_and_load(desk, off);
  auto graph = off.capture(desk.stream(), [&] { save_and_load(desk, off); });
  graph.launch(desk.stream());
  auto other = written(desk, off, 2);
  CHECK_THROWS_AS(graph.launch(desk.stream()), tidepool::misuse_error);
  other.reset(desk.stream());
  graph.launch(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "known failure: another microbatch's data when an empty queue reads as finished, with one layer"
    " per chunk, as in Megatron-LM #6783") {
  for (std::uint64_t seed = 1; seed <= orders; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = small_options();
    opts.reload_ahead = seed % 3;
    offloader off(desk.dev, opts);
    std::vector<offloader::chunk> open(5);
    std::vector<rig::buffer> x(5);
    for (const auto& pass : tidepool::test::one_f_one_b(5, 2)) {
      const auto mb = static_cast<std::size_t>(pass.microbatch);
      const auto tag = static_cast<std::uint32_t>(mb + 1);
      if (pass.backward) {
        open[mb].restore<"core_attn">(0, desk.stream(), x[mb]);
        desk.check(x[mb], tag);
        x[mb].reset(desk.stream());
        open[mb].finish();
      } else {
        open[mb] = off.begin({.microbatch = pass.microbatch});
        x[mb] = written(desk, off, tag);
        open[mb].commit<"core_attn">(0, desk.stream(), x[mb]);
        open[mb].end_forward();
      }
    }
    CHECK(desk.dev.reloads() == 5);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE(
    "known failure: a tensor silently stays when it is told by an address that was used before, as"
    " in TRL #6241") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  auto open = off.begin();
  auto kept = written(desk, off, 1);
  kept.keep_resident();
  void* const address = kept.data();
  kept.reset(desk.stream());
  std::vector<rig::buffer> x(2);
  for (std::uint32_t l = 0; l < 2; ++l) {
    x[l] = written(desk, off, l + 2);
    REQUIRE(x[l].data() == address);
    open.commit<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
    REQUIRE_FALSE(x[l]);
    CHECK(desk.dev.offloads() == l + 1);
  }
  for (std::uint32_t l = 2; l-- > 0;) {
    open.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
    desk.check(x[l], l + 2);
    x[l].reset(desk.stream());
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "known failure: one storage is copied twice when views of it are saved, as in TRL #5694 and"
    " DeepSpeed #8387") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = written(desk, off, 1);
  auto part = x.view({.offset = 64, .width = 128});
  auto same = x.view({.offset = 64, .width = 128});
  std::size_t bytes = 0;
  SUBCASE("beside it") {
    bytes = size;
    auto all = x.view({.width = size});
    open.commit<"core_attn">(0, desk.stream(), x, all);
    open.commit<"core_attn">(1, desk.stream(), part, same);
  }
  SUBCASE("alone") {
    bytes = part.width();
    open.commit<"core_attn">(0, desk.stream(), part);
    open.commit<"core_attn">(1, desk.stream(), same);
  }
  CHECK(desk.dev.bytes[0] == bytes);
  CHECK(desk.dev.offloads() == 1);
}
