// Tensors that are packed for the link: their bits, their memory, their order.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <sstream>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "messages.hpp"
#include "packing_desk.hpp"
#include "rig.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/error.hpp"
#include "tidepool/observe/tracing.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/report.hpp"
#include "tidepool/trace/silent.hpp"
#include "tidepool/trace/summary.hpp"
#include "tidepool/trace/timeline.hpp"

namespace {

using tidepool::aligned;
using tidepool::copy_direction;
using tidepool::machine;
using tidepool::option_error;

using tidepool::test::arena_options;
using tidepool::test::bf16_kind;
using tidepool::test::bf16_kinds;
using tidepool::test::packing;
using tidepool::test::rig;
using tidepool::test::small_machine;
using desk = tidepool::test::packing_desk;
using tidepool::test::says;
using tidepool::test::small_options;
namespace pack_form = tidepool::pack_form;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t numbers = 5'000;  // with a tail
constexpr std::size_t bytes = 2 * numbers;
constexpr auto out = static_cast<std::size_t>(copy_direction::device_to_host);
constexpr auto in = static_cast<std::size_t>(copy_direction::host_to_device);

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
      auto& x = saved.emplace_back(off.allocate<tidepool::test::bf16_number>(numbers, on.stream()));
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

TEST_CASE("packing: memory is free behind the packing, and the link is the limit later") {
  const auto time_of = [](bool packs, std::size_t budget) {
    auto model = small_machine();
    model.offload_rate = model.reload_rate = 1;
    model.both_rate = 2;
    model.pack_rate = model.unpack_rate = 100;
    desk on(model);
    auto opts = packing(arena_options(budget));
    if (!packs) opts.pack.clear();
    offloader off(on.dev, opts);
    train(on, off, 2, 8);
    CHECK(on.wrong_numbers() == 0);
    return on.dev.now_ns();
  };
  // The packed form has 0.719 of the bytes; the rest is kernels, latency and unpacking.
  CHECK(time_of(true, 4 * bytes) < 0.80 * time_of(false, 4 * bytes));
  // No room for a packed tensor beside the tensor: all go as they are, in the same time.
  CHECK(time_of(true, aligned(bytes)) == time_of(false, aligned(bytes)));
}

TEST_CASE("packing: without room beside the tensor it goes as it is, or comes out of host memory") {
  for (const bool from_host : {false, true}) {
    CAPTURE(from_host);
    desk on(small_machine());
    auto opts = packing(small_options());
    opts.device_step = 256;
    opts.reload_ahead = 0;
    opts.device_budget = from_host ? 2 * aligned(bytes) : aligned(bytes);
    offloader off(on.dev, opts);
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    on.write_numbers(x, bf16_kind::one_far, 5);
    pass.commit<"core_attn">(0, on.stream(), x);
    pass.end_forward();
    CHECK(on.dev.bytes[out] == (from_host ? pack_form::packed_bytes(bytes) : bytes));
    // Another tensor takes the room that the packed form had on its way out.
    auto other = off.allocate(from_host ? bytes / 2 : 1, on.stream());
    if (!from_host) other.reset(on.stream());
    pass.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::one_far, 5);
    x.reset(on.stream());
    CHECK(on.wrong_numbers() == 0);
    CHECK(on.dev.bytes[in] == (from_host ? 0 : bytes));
    other.reset(on.stream());
    pass.finish();
  }
}

TEST_CASE("packing: a reload ahead of its use waits for the memory of the packed form") {
  for (const std::size_t tensors : {2, 3, 4}) {
    CAPTURE(tensors);
    desk on(small_machine());
    auto opts = packing(arena_options(tensors * aligned(bytes) + 512));
    opts.reload_ahead = 4;
    offloader off(on.dev, opts);
    train(on, off, 2, 8);
    CHECK(on.wrong_numbers() == 0);
    CHECK(on.dev.bytes[in] == on.dev.bytes[out]);  // a kernel reads host memory without this copy
  }
}

TEST_CASE("packing: the link brings the next piece while a kernel unpacks the one before") {
  constexpr std::size_t piece = std::size_t{16} << 20;
  // The time in which all tensors come back, of `tensors` groups of a tensor each.
  const auto time_of = [](std::size_t tensors, std::size_t tensor_bytes, double reload_rate,
                          double unpack_rate) {
    auto model = small_machine();
    model.moves_bytes = false;
    model.device_bytes = model.host_bytes = std::size_t{4} << 30;
    model.reload_rate = reload_rate;
    model.unpack_rate = unpack_rate;
    desk on(model);
    auto opts = packing(small_options());
    opts.device_step = std::size_t{1} << 30;
    opts.host_step = opts.host_budget.emplace(std::size_t{1} << 30);
    opts.reload_ahead = tensors;
    offloader off(on.dev, opts);
    auto pass = off.begin();
    std::vector<desk::buffer> saved;
    for (std::size_t l = 0; l < tensors; ++l) {
      saved.push_back(off.allocate<tidepool::test::bf16_number>(tensor_bytes / 2, on.stream()));
      pass.commit<"core_attn">(static_cast<int>(l), on.stream(), saved.back());
    }
    on.dev.synchronize();
    const auto before = on.dev.now_ns();
    pass.end_forward();
    for (auto l = tensors; l-- > 0;) {
      pass.restore<"core_attn">(static_cast<int>(l), on.stream(), saved[l]);
    }
    on.dev.synchronize();
    for (auto& each : saved) each.reset(on.stream());
    pass.finish();
    return on.dev.now_ns() - before;
  };
  for (const std::size_t tensors : {1U, 4U, 12U}) {
    CAPTURE(tensors);
    const auto tensor_bytes = 12 / tensors * piece;
    const auto all = static_cast<double>(tensors * tensor_bytes);
    const auto link = static_cast<double>(pack_form::packed_bytes(tensors * tensor_bytes));
    // Both as fast as each other, the link slower, the kernels slower; a twelfth has nothing
    // beside.
    CHECK(time_of(tensors, tensor_bytes, 50, 50 * all / link) < 1.10 * link / 50);
    CHECK(time_of(tensors, tensor_bytes, 50, 150) < 1.05 * link / 50);
    CHECK(time_of(tensors, tensor_bytes, 100, 50) < 1.05 * all / 50);
  }
}

TEST_CASE("packing: a large tensor comes back through the memory of one piece") {
  constexpr std::size_t piece = std::size_t{16} << 20;
  constexpr std::size_t large = 2 * piece + 70'006;
  for (const bool from_host : {false, true}) {
    CAPTURE(from_host);
    auto model = small_machine();
    model.device_bytes = 6 * piece;
    model.host_bytes = 6 * piece;
    desk on(model);
    const auto budget = aligned(large) + aligned(pack_form::packed_bytes(large));
    auto opts = packing(arena_options(budget));
    opts.host_step = 4 * piece;
    opts.host_budget = 4 * piece;
    opts.reload_ahead = 0;
    offloader off(on.dev, opts);
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(large / 2, on.stream());
    on.write_numbers(x, bf16_kind::random, 3);
    pass.commit<"core_attn">(0, on.stream(), x);
    pass.end_forward();
    // What the budget leaves beside the tensor holds one piece, or less.
    const auto rest = budget - aligned(large) - pack_form::packed_bytes(piece);
    auto other = off.allocate(from_host ? rest + 4096 : rest - 4096, on.stream());
    pass.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::random, 3);
    x.reset(on.stream());
    CHECK(on.wrong_numbers() == 0);
    CHECK(on.dev.bytes[out] == pack_form::packed_bytes(large));
    CHECK(on.dev.bytes[in] == (from_host ? 0 : pack_form::packed_bytes(large)));
    other.reset(on.stream());
    pass.finish();
  }
}

TEST_CASE("packing: everything but whole BF16 tensors on their way to the host goes as it is") {
  desk on(small_machine());
  auto opts = packing(small_options());
  opts.offload_modules = {"core_attn", "expert_fc1"};
  offloader off(on.dev, opts);
  off.on_report({});
  auto pass = off.begin();
  auto floats = off.allocate<float>(numbers / 2, on.stream());
  auto small = off.allocate<tidepool::test::bf16_number>(1000, on.stream());
  auto other = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
  auto whole = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
  auto part = whole.view({.width = bytes / 2});
  auto own = off.allocate(bytes, on.stream());
  own.holds_bfloat16();
  for (auto* each : {&floats, &small, &other, &own}) on.write(*each, 3);
  on.write(whole, 4);
  pass.commit<"core_attn">(0, on.stream(), floats, small, part);
  whole.reset(on.stream());
  pass.commit<"expert_fc1">(1, on.stream(), other);
  CHECK(on.dev.bytes[out] == bytes + 2000 + bytes / 2 + bytes);
  pass.commit<"core_attn">(2, on.stream(), own);
  CHECK(on.dev.bytes[out] == bytes + 2000 + bytes / 2 + bytes + pack_form::packed_bytes(bytes));
  pass.restore<"core_attn">(2, on.stream(), own);
  pass.restore<"expert_fc1">(1, on.stream(), other);
  pass.restore<"core_attn">(0, on.stream(), floats, small, part);
  for (auto* each : {&floats, &small, &other, &own}) on.check(*each, 3);
  on.check(part, 4, 0, bytes / 2);
  CHECK(on.wrong() == 0);
  for (auto* each : {&floats, &small, &other, &own}) each->reset(on.stream());
  part.reset(on.stream());
  pass.finish();
}

TEST_CASE("packing: a borrowed tensor goes back to its owner behind the packing") {
  desk on(small_machine());
  auto opts = packing(small_options());
  opts.borrowed_slack = 0;  // the owner's stream joins what is left
  offloader off(on.dev, opts);
  auto* const data = on.dev.allocate(bytes);
  bool back = false;
  auto pass = off.begin();
  auto x = off.adopt<tidepool::test::bf16_number>(static_cast<tidepool::test::bf16_number*>(data),
                                                  numbers, on.stream(), [&back] { back = true; });
  on.write_numbers(x, bf16_kind::gated, 8);
  pass.commit<"core_attn">(0, on.stream(), x);
  off.release_borrowed();
  CHECK(back);
  CHECK(off.counters().borrowed_joins == 0);
  on.dev.launch(on.stream(), 10, [data] { std::memset(data, 0xAB, bytes); });
  pass.restore<"core_attn">(0, on.stream(), x);
  on.check_numbers(x, bf16_kind::gated, 8);
  CHECK(on.wrong_numbers() == 0);
  CHECK(on.dev.bytes[out] == pack_form::packed_bytes(bytes));
  x.reset(on.stream());
  pass.finish();
  on.dev.deallocate(data);
}

TEST_CASE("packing: graphs bring every number back, and the steps between them") {
  desk on(small_machine());
  offloader off(on.dev, packing(arena_options(6 * aligned(bytes))));
  train(on, off, 2, 6);
  auto graph = off.capture(on.stream(), [&] { train(on, off, 1, 6); });
  for (int launch = 0; launch < 50; ++launch) graph.launch(on.stream());
  train(on, off, 2, 6);
  graph.launch(on.stream());
  CHECK(on.wrong_numbers() == 0);
}

TEST_CASE("packing: caps hold, and steps allocate nothing once memory is in place") {
  desk on(small_machine());
  auto opts = packing(small_options());
  opts.max_inflight = 1;
  offloader off(on.dev, opts);
  train(on, off, 2, 8);
  const auto before = off.counters();
  CHECK(before.modules[0].cap_joins > 0);
  train(on, off, 4, 8);
  const auto after = off.counters();
  CHECK(after.device_allocations == before.device_allocations);
  CHECK(after.host_allocations == before.host_allocations);
  CHECK(on.wrong_numbers() == 0);
}

TEST_CASE("packing: what cannot work is refused with the remedy") {
  desk on(small_machine());
  auto opts = packing(small_options());
  opts.pack = {"expert_fc1"};
  CHECK_THROWS_WITH_AS(
      offloader(on.dev, opts),
      doctest::Contains("expert_fc1 is not offloaded; add expert_fc1 to --offload-modules"),
      option_error);
  opts.pack = {"auto"};
  CHECK_THROWS_WITH_AS(
      offloader(on.dev, opts),
      doctest::Contains("a plan decides whether tensors are packed, and this policy makes none; add"
                        " --policy=automatic, name the modules, or give all"),
      option_error);
  opts.pack = {"auto", "core_attn"};
  CHECK_THROWS_AS(offloader(on.dev, opts), tidepool::unknown_module);
  opts.pack = {"core_atn"};
  CHECK_THROWS_WITH_AS(offloader(on.dev, opts), doctest::Contains("did you mean 'core_attn'"),
                       tidepool::unknown_module);
  opts.pack = {"all"};
  machine plain;
  plain.packs_from = 0;
  desk without(plain);
  CHECK_THROWS_WITH_AS(offloader(without.dev, opts), doctest::Contains("tidepool::cuda_packer()"),
                       option_error);
}

TEST_CASE("packing: a list that is compiled in has the modules that are packed") {
  using listed = tidepool::packed<tidepool::modules<"core_attn", "expert_fc1">, "core_attn">;
  for (const bool offloaded : {true, false}) {
    desk on(small_machine());
    auto opts = packing(small_options());
    opts.pack.clear();
    if (!offloaded) opts.offload_modules = {"expert_fc1"};
    rig::offloader<listed> off(on.dev, opts);
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    on.write_numbers(x, bf16_kind::gauss, 1);
    pass.commit<"core_attn">(0, on.stream(), x);
    pass.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::gauss, 1);
    x.reset(on.stream());
    pass.finish();
    CHECK(on.wrong_numbers() == 0);
    CHECK(on.dev.bytes[out] == (offloaded ? pack_form::packed_bytes(bytes) : 0));
  }
}

TEST_CASE("packing: the summary tells the bytes on the link") {
  desk on(small_machine());
  offloader off(on.dev, packing(small_options()));
  train(on, off, 1, 4);
  std::ostringstream text;
  tidepool::trace::write_summary(text, off.counters());
  CHECK(says(text.str(), "packed core_attn"));
  const auto counters = off.counters();
  const auto& counted = counters.modules[0];
  CHECK(counted.bytes_packed == 4 * bytes);
  CHECK(counted.bytes_on_link == 4 * pack_form::packed_bytes(bytes));
}

TEST_CASE("packing: picture, timeline and report have the bytes on the link beside the tensors'") {
  desk on(small_machine());
  offloader off(on.dev, packing(small_options()));
  train(on, off, 1, 4);
  off.start_trace("step", on.stream());
  train(on, off, 1, 4);
  const auto step = off.finish_trace();
  constexpr auto link = pack_form::packed_bytes(bytes);
  std::size_t copies = 0, unpacked = 0;
  for (const auto& span : step.spans) {
    unpacked += span.name == "unpack" && step.lanes[span.lane] == "unpack" ? 1 : 0;
    if (span.kind == tidepool::trace::span_kind::stall && span.name == "consumer") {
      CHECK(span.module == "core_attn");  // the reload that a kernel unpacks
    }
    const bool copy = span.kind == tidepool::trace::span_kind::offload ||
                      span.kind == tidepool::trace::span_kind::reload;
    CHECK(span.spared == (copy ? bytes - link : 0));
    if (copy) CHECK(span.bytes == bytes);
    copies += copy ? 1 : 0;
  }
  CHECK(copies == 8);
  CHECK(unpacked == 4);
  std::ostringstream picture;
  tidepool::trace::write_svg(picture, step);
  CHECK(says(picture.str(), "offloaded 39.1 KiB (28.9 KiB on the link)"));
  CHECK(says(picture.str(), "9.77 KiB (7.23 KiB on the link) at "));
  std::ostringstream timeline;
  tidepool::trace::write_chrome_trace(timeline, step);
  CHECK(says(timeline.str(), "\"bytes on the link\":" + std::to_string(link)));
  std::ostringstream page;
  tidepool::trace::report about;
  about.step = step;
  tidepool::trace::write_report(page, about);
  CHECK(says(page.str(), "39.1 KiB (28.9 KiB on the link)</td>"));
}

TEST_CASE("packing: a traced reload does not have the wait for the memory that it comes through") {
  desk on(small_machine());
  auto opts = packing(arena_options(2 * aligned(bytes)));
  opts.reload_ahead = 0;
  offloader off(on.dev, opts);
  off.start_trace("step", on.stream());
  auto pass = off.begin();
  auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
  on.write_numbers(x, bf16_kind::gauss, 1);
  pass.commit<"core_attn">(0, on.stream(), x);
  pass.end_forward();
  auto free = off.allocate(bytes, on.stream());
  auto used = off.allocate(bytes, on.stream());
  on.dev.synchronize();
  free.reset(on.stream());
  constexpr double kernel_us = 1e3;
  on.dev.launch(on.stream(), 1e3 * kernel_us, [] {});
  used.reset(on.stream());
  pass.restore<"core_attn">(0, on.stream(), x);
  on.check_numbers(x, bf16_kind::gauss, 1);
  x.reset(on.stream());
  pass.finish();
  const auto step = off.finish_trace();
  CHECK(on.wrong_numbers() == 0);
  CHECK(on.dev.bytes[in] == pack_form::packed_bytes(bytes));
  double end = 0;
  for (const auto& span : step.spans) {
    if (span.kind != tidepool::trace::span_kind::reload) continue;
    CHECK(span.end - span.start < kernel_us / 10);
    end = span.end;
  }
  CHECK(end > kernel_us);  // it did wait
}

TEST_CASE("packing: the share of records that do not fit is seen, and a high one is told") {
  desk on(small_machine());
  auto opts = packing(small_options());
  opts.offload_modules = opts.pack = {"core_attn", "expert_fc1"};
  offloader off(on.dev, opts);
  off.on_report({});
  constexpr std::size_t large = 128 * pack_form::numbers_of_record;
  const auto step = [&](bool over) {
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(large, on.stream());
    auto y = off.allocate<tidepool::test::bf16_number>(large, on.stream());
    on.write_numbers(x, bf16_kind::gauss, 1);
    on.write_numbers(y, bf16_kind::random, 2);
    pass.commit<"core_attn">(0, on.stream(), x);
    pass.commit<"expert_fc1">(0, on.stream(), y);
    pass.end_forward();
    if (over) on.dev.synchronize();
    pass.restore<"expert_fc1">(0, on.stream(), y);
    pass.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::gauss, 1);
    on.check_numbers(y, bf16_kind::random, 2);
    x.reset(on.stream());
    y.reset(on.stream());
    pass.finish();
    off.end_step();
  };
  const auto about = [&](std::size_t module) { return off.counters().modules[module]; };
  step(false);  // the host waits for no copy, and looks at none that may be under way
  CHECK(about(0).records_seen == 0);
  for (int i = 0; i < 6; ++i) step(true);
  CHECK(on.wrong_numbers() == 0);
  CHECK(about(0).records_seen == 6 * 16);
  CHECK(about(0).records_raw == 0);
  CHECK(about(1).records_seen == 6 * 16);
  CHECK(about(1).records_raw == 6 * 16);
  std::ostringstream text;
  tidepool::trace::write_summary(text, off.counters());
  CHECK(says(text.str(), ", raw 0.0%"));
  CHECK(says(text.str(), ", raw 100.0%"));
  const auto messages = tidepool::trace::silent_messages(off.counters());
  REQUIRE(messages.size() == 1);
  CHECK(says(messages[0], "100 % of what is packed of 'expert_fc1'"));
  CHECK(says(messages[0], "name the other modules in --pack"));
}

TEST_CASE("packing: a host block that a commit leaves again is free behind the commit's stream") {
  for (const bool moves : {false, true}) {  // to another place, or the commit is refused
    CAPTURE(moves);
    auto model = small_machine();
    model.reload_rate = 0.5;  // the reload reads the block for long
    desk on(model);
    auto side = on.dev.make_stream();
    auto opts = packing(small_options());
    opts.host_step = 256;
    opts.host_budget = aligned(pack_form::host_bytes(bytes));  // of one tensor
    if (moves) {
      opts.places = {tidepool::place_kind::host, tidepool::place_kind::peer};
      opts.peer_budget = 4 * aligned(bytes);
    }
    offloader off(on.dev, opts);
    auto first = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    on.write_numbers(x, bf16_kind::random, 1);
    first.commit<"core_attn">(0, on.stream(), x);
    first.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::random, 1);
    auto second = off.begin();
    auto y = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    auto z = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    const auto commit = [&] { second.commit<"core_attn">(0, on.stream(), y, z); };
    if (moves) {
      commit();
    } else {
      CHECK_THROWS_AS(commit(), tidepool::out_of_budget);
    }
    // Another stream, which waited for nothing, saves a tensor in the same block.
    auto other = off.allocate<float>(numbers / 2, side.ref());
    on.write_bytes(other.data(), bytes, 9, side.ref(), 1);
    second.commit<"core_attn">(1, side.ref(), other);
    CHECK(on.wrong_numbers() == 0);
    second.restore<"core_attn">(1, side.ref(), other);
    if (moves) second.restore<"core_attn">(0, on.stream(), y, z);
    for (auto* each : {&x, &y, &z}) each->reset(on.stream());
    other.reset(side.ref());
    first.finish();
    second.finish();
  }
}
