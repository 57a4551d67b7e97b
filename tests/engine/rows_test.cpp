// Tensors of which only the device knows how many rows are valid.
#include "tidepool/rows.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "counted_desk.hpp"
#include "messages.hpp"
#include "packing_desk.hpp"
#include "rig.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/error.hpp"
#include "tidepool/places/file.hpp"

namespace {

using tidepool::aligned;
using tidepool::copy_direction;
using tidepool::join_site;
using tidepool::machine;
using tidepool::misuse_error;
using tidepool::unasked_overflow;
using tidepool::test::arena_options;
using tidepool::test::counted_trainer;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = counted_trainer::offloader;

constexpr auto capacity = counted_trainer::capacity;
constexpr auto row_bytes = counted_trainer::row_bytes;
constexpr auto layers = counted_trainer::layers;
constexpr auto out = static_cast<std::size_t>(copy_direction::device_to_host);
constexpr auto in = static_cast<std::size_t>(copy_direction::host_to_device);

}  // namespace

TEST_CASE("rows: the planned rows alone move, into a block of the whole size") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.planned = 10;
  work.choose([](int) { return 10; });
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  CHECK(work.all_wrong() == 0);
  CHECK(desk.dev.bytes[out] == layers * (10 * row_bytes + sizeof(std::uint32_t)));
  CHECK(desk.dev.bytes[in] == layers * 10 * row_bytes);
  CHECK(off.counters().modules[0].bytes_offloaded == layers * 10 * row_bytes);
  CHECK(off.counters().modules[0].bytes_reloaded == layers * 10 * row_bytes);
  CHECK(off.counters().host_peak == layers * aligned(10 * row_bytes));
  CHECK(work.smallest_block == capacity * row_bytes);
}

TEST_CASE("rows: a graph is launched fifty times with other counts, in forty orders") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, counted_trainer::roomy());
    counted_trainer work{desk, off};
    work.planned = capacity;
    work.step();
    CHECK_FALSE(off.rows_overflowed());
    work.planned = 12;
    work.step();
    CHECK_FALSE(off.rows_overflowed());
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    int overflows = 0;
    for (int launch = 0; launch < 50; ++launch) {
      CAPTURE(launch);
      // Two of the layers go over the plan now and then, the second by more.
      const bool over = (launch * 7 + static_cast<int>(seed)) % 11 == 0;
      work.choose(
          [&](int layer) { return over && layer > 1 ? 13 + layer : (launch + layer) % 13; });
      const auto before = work.all_wrong();
      const auto loss = work.loss;
      graph.launch(desk.stream());
      const auto told = off.rows_overflowed();
      CHECK(told.has_value() == over);
      CHECK_FALSE(off.rows_overflowed());  // it is told once
      if (!told) {
        CHECK(work.all_wrong() == before);
        CHECK(work.loss == loss + work.expected_loss());
        continue;
      }
      ++overflows;
      CHECK(told->module == "expert_fc1");
      CHECK(told->layer == layers - 1);
      CHECK(told->rows == 13 + layers - 1);
      CHECK(told->planned == 12);
      CHECK(work.all_wrong() > before);  // the rows beyond the plan are lost
      work.wrong = before;
      work.loss = loss;
      --work.round;
      work.planned = capacity;
      work.step();
      work.planned = 12;
      CHECK_FALSE(off.rows_overflowed());
      CHECK(work.all_wrong() == before);
      CHECK(work.loss == loss + work.expected_loss());
    }
    CHECK(overflows >= 4);
    CHECK(work.all_wrong() == 0);
  }
}

TEST_CASE("rows: an overflow that nobody asks for is an error of the next step") {
  for (int next = 0; next < 4; ++next) {
    CAPTURE(next);
    rig desk;
    offloader off(desk.dev, counted_trainer::roomy());
    counted_trainer work{desk, off};
    work.planned = 4;
    work.step();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    const bool launched = next % 2 == 0;
    work.choose([](int layer) { return layer == 1 ? 9 : 4; });
    launched ? graph.launch(desk.stream()) : work.step();
    const auto go_on = [&] {
      if (next == 0) graph.launch(desk.stream());
      if (next == 1) static_cast<void>(off.begin());
      if (next == 2) static_cast<void>(off.begin());
      if (next == 3) static_cast<void>(off.capture(desk.stream(), [] {}));
    };
    desk.dev.synchronize();
    const auto rounds = work.round;
    std::string told;
    try {
      go_on();
    } catch (const unasked_overflow& problem) {
      told = problem.what();
    }
    CHECK(says(told, "expert_fc1 of layer 1, microbatch 0 had 9 rows where 4 were planned"));
    desk.dev.synchronize();
    CHECK(work.round == rounds);  // a launch that was refused has not run
    work.choose([](int) { return 3; });
    work.wrong = 0;
    graph.launch(desk.stream());  // told once, the trainer may go on
    CHECK_FALSE(off.rows_overflowed());
    CHECK(work.all_wrong() == 0);
  }
}

TEST_CASE("rows: what is never asked is found at the next launch in every order") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, counted_trainer::roomy());
    counted_trainer work{desk, off};
    work.planned = 8;
    work.step();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
    work.choose([&](int layer) { return layer == static_cast<int>(seed) % layers ? 9 : 8; });
    graph.launch(desk.stream());
    work.choose([](int) { return 1; });
    CHECK_THROWS_AS(graph.launch(desk.stream()), unasked_overflow);
  }
}

TEST_CASE("rows: each join of the counts is needed") {
  for (const auto site : {join_site::producer, join_site::after_launch, join_site::row_count}) {
    CAPTURE(name_of(site));
    int missed = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      rig desk(machine{.order_seed = seed});
      offloader off(desk.dev, counted_trainer::roomy());
      counted_trainer work{desk, off};
      work.planned = 8;
      work.step();
      if (site == join_site::producer) desk.dev.leave_out(site);
      auto graph = off.capture(desk.stream(), [&] { work.step(); });
      graph.launch(desk.stream());
      work.choose([](int layer) { return layer == 0 ? 9 : 8; });
      desk.dev.leave_out(site);
      static_cast<void>(off.rows_overflowed());
      graph.launch(desk.stream());
      const auto told = off.rows_overflowed();
      missed += told && told->rows == 9 ? 0 : 1;
    }
    CHECK(missed > 0);
  }
}

TEST_CASE("rows: the trainer may write its count again at once") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, counted_trainer::roomy());
    counted_trainer work{desk, off};
    work.one_count = true;  // all layers share the memory of one
    work.planned = 8;
    work.choose([](int layer) { return layer == 2 ? 15 : 8; });
    work.step();
    const auto told = off.rows_overflowed();
    REQUIRE(told);
    CHECK(told->layer == 2);
    CHECK(told->rows == 15);
  }
}

TEST_CASE("rows: several microbatches in flight") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options((3 * layers + 2) * capacity * row_bytes));
    counted_trainer first{desk, off};
    counted_trainer second{desk, off};
    second.microbatch = 1;
    first.planned = second.planned = 8;
    second.choose([&](int layer) { return layer == 1 && seed % 2 == 0 ? 11 : 5; });
    for (int step = 0; step < 2; ++step) {
      first.forward();
      second.forward();
      first.backward();
      second.backward();
      off.end_step();
      const auto told = off.rows_overflowed();
      CHECK(told.has_value() == (seed % 2 == 0));
      if (told) CHECK(told->microbatch == 1);
      CHECK(first.all_wrong() == 0);
    }
  }
}

TEST_CASE("rows: the counters have the largest count, to plan for") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.choose([](int layer) { return 3 + layer; });
  work.step();
  CHECK(off.counters().modules[0].most_rows == 0);
  CHECK_FALSE(off.rows_overflowed());
  CHECK(off.counters().modules[0].most_rows == 3 + layers - 1);
}

TEST_CASE("rows: each device call of a counted step fails once, and the step after it is right") {
  int failures = 0;
  for (int nth = 0; nth < 40; ++nth) {
    for (const bool copies : {true, false}) {
      CAPTURE(nth);
      CAPTURE(copies);
      rig desk(machine{.order_seed = static_cast<std::uint64_t>(nth + 1)});
      offloader off(desk.dev, counted_trainer::roomy());
      off.on_report({});
      counted_trainer work{desk, off};
      work.planned = 4;
      work.choose([](int layer) { return layer == 3 ? 6 : 4; });
      int left = nth;
      const auto fail = [&] {
        if (left-- == 0) throw tidepool::device_error("a call that fails", 7);
      };
      (copies ? desk.dev.before_copy : desk.dev.before_record) = fail;
      try {
        work.step();
      } catch (const tidepool::device_error&) {
        ++failures;
        work.give_up();
      }
      desk.dev.before_copy = desk.dev.before_record = nullptr;
      static_cast<void>(off.rows_overflowed());
      desk.dev.synchronize();
      work.wrong = 0;
      work.choose([](int layer) { return layer == 2 ? 4 : 3; });
      work.step();
      CHECK_FALSE(off.rows_overflowed());
      CHECK(work.all_wrong() == 0);
      work.choose([](int layer) { return layer == 2 ? 5 : 3; });
      work.step();
      CHECK(off.rows_overflowed()->layer == 2);
    }
  }
  CHECK(failures > 20);
}

TEST_CASE("rows: a commit that fails in a capture counts nothing") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  work.planned = 4;
  work.choose([](int) { return 9; });
  int left = 3;  // the third copy of the first commit is the count's to the host
  desk.dev.before_copy = [&] {
    if (--left == 0) throw tidepool::device_error("a call that fails", 7);
  };
  auto graph = off.capture(desk.stream(), [&] {
    CHECK_THROWS(work.step());
    work.give_up();
  });
  desk.dev.before_copy = nullptr;
  graph.launch(desk.stream());
  CHECK_FALSE(off.rows_overflowed());
  work.step();
  CHECK(off.rows_overflowed()->rows == 9);
}

TEST_CASE("rows: a neighbour's memory and a file take the planned rows, too") {
  for (const auto place : {tidepool::place_kind::peer, tidepool::place_kind::file}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      rig desk(machine{.order_seed = seed});
      desk.dev.on_disk = std::make_shared<tidepool::test::disk>();
      auto opts = counted_trainer::roomy();
      opts.places = {place};
      const std::size_t budget = std::size_t{8} << 20;
      if (place == tidepool::place_kind::file) {
        opts.file_path = std::filesystem::temp_directory_path();
        opts.file_ring = 8192;
        opts.file_budget = budget;
      } else {
        opts.peer_budget = budget;
      }
      offloader off(desk.dev, opts, {.file = tidepool::file_place()});
      counted_trainer work{desk, off};
      work.planned = 5;
      work.choose([&](int layer) { return layer == 1 && seed % 2 == 0 ? 6 : 5; });
      work.step();
      const auto told = off.rows_overflowed();
      CHECK(told.has_value() == (seed % 2 == 0));
      if (told) CHECK(told->rows == 6);
      if (!told) CHECK(work.all_wrong() == 0);
    }
  }
}

TEST_CASE("rows: counts of eight bytes, below nothing, and one count for a group") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::int64_t wide = 3;
  std::int32_t narrow = -1;
  auto a = off.allocate(256, desk.stream());
  auto b = off.allocate(512, desk.stream());
  a.counts_rows({.count = &wide, .row_bytes = 16, .planned_rows = 5});
  b.counts_rows({.count = &wide, .row_bytes = 16, .planned_rows = 2});
  auto pass = off.begin();
  pass.commit(off.module("expert_fc1"), 7, desk.stream(), a, b);
  CHECK(desk.dev.bytes[out] == 7 * 16 + sizeof wide);
  auto told = off.rows_overflowed();
  REQUIRE(told);
  CHECK(told->rows == 3);
  CHECK(told->planned == 2);
  auto c = off.allocate(256, desk.stream());
  c.counts_rows({.count = &narrow, .row_bytes = 16, .planned_rows = 16});
  pass.commit(off.module("expert_fc1"), 8, desk.stream(), c);
  told = off.rows_overflowed();
  REQUIRE(told);  // a count below nothing is no count
  CHECK(told->layer == 8);
}

TEST_CASE("rows: packed tensors move the planned rows alone, and come back to the bit") {
  using tidepool::test::bf16_kind;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto model = tidepool::test::small_machine();
    model.order_seed = seed;
    tidepool::test::packing_desk desk(model);
    rig::offloader<tidepool::modules<"core_attn">> off(
        desk.dev, tidepool::test::packing(small_options({"core_attn"})));
    std::uint32_t rows = 4;
    constexpr std::size_t bytes_of_row = 2048;
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(8 * bytes_of_row / 2, desk.stream());
    desk.write_numbers(x, bf16_kind::one_far, seed);
    x.counts_rows({.count = &rows, .row_bytes = bytes_of_row, .planned_rows = 5});
    pass.commit<"core_attn">(0, desk.stream(), x);
    pass.restore<"core_attn">(0, desk.stream(), x);
    const auto all = tidepool::test::drawn(bf16_kind::one_far, 8 * bytes_of_row / 2, seed);
    desk.dev.launch(desk.stream(), 500, [&, at = x.data()] {
      desk.wrong_tensors += std::memcmp(at, all.data(), 5 * bytes_of_row) != 0 ? 1 : 0;
    });
    CHECK(desk.wrong_numbers() == 0);
    CHECK_FALSE(off.rows_overflowed());
    CHECK(off.counters().modules[0].bytes_packed == 5 * bytes_of_row);
    CHECK(desk.dev.bytes[out] == tidepool::pack_form::packed_bytes(5 * bytes_of_row) + sizeof rows);
    x.reset(desk.stream());
    pass.finish();
  }
}

TEST_CASE("rows: tensors that stay, are shared, or are views of a counted one") {
  rig desk;
  offloader off(desk.dev, small_options());
  const auto fc1 = off.module("expert_fc1");
  std::uint32_t rows = 99;  // beyond the plan, wherever it is asked for
  const auto made = [&] {
    auto x = off.allocate(1024, desk.stream());
    desk.write(x, 5);
    x.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 2});
    return x;
  };
  SUBCASE("a tensor that was kept moves nothing, so that nothing overflows") {
    auto pass = off.begin();
    auto x = made();
    x.keep_resident();
    pass.commit(fc1, 0, desk.stream(), x);
    CHECK_FALSE(off.rows_overflowed());
    pass.restore(fc1, 0, desk.stream(), x);
    desk.check(x, 5);
  }
  SUBCASE("a view leaves as its rectangle, all of it") {
    auto pass = off.begin();
    auto x = made();
    auto part = x.view({.offset = 512, .width = 256});
    pass.commit(fc1, 0, desk.stream(), part);
    x.reset(desk.stream());
    pass.restore(fc1, 0, desk.stream(), part);
    desk.check(part, 5, 512, 256);
    CHECK_FALSE(off.rows_overflowed());
  }
  SUBCASE("a view of the whole storage counts, and so does a second group, once") {
    auto pass = off.begin();
    auto x = made();
    auto head = x.view({.width = 128, .whole_storage = true});
    pass.commit(fc1, 0, desk.stream(), head);
    pass.commit(fc1, 1, desk.stream(), x);
    CHECK(off.rows_overflowed()->layer == 0);
    CHECK_FALSE(off.rows_overflowed());
    pass.restore(fc1, 1, desk.stream(), x);
    pass.restore(fc1, 0, desk.stream(), head);
    desk.check(head, 5, 0, 128);
    CHECK(desk.dev.bytes[in] == 128);
  }
  SUBCASE("a tensor with another owner never left") {
    auto pass = off.begin();
    auto x = made();
    auto held = x.share();
    pass.commit(fc1, 0, desk.stream(), x);
    pass.restore(fc1, 0, desk.stream(), x);
    desk.check(x, 5);
    CHECK(off.rows_overflowed());
  }
  SUBCASE("memory of another owner comes back into a block of its size") {
    auto pass = off.begin();
    std::vector<std::byte> own(1024);
    auto x = off.adopt(own.data(), own.size(), desk.stream(), [] {});
    x.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 16});
    desk.write(x, 6);
    pass.commit(fc1, 0, desk.stream(), x);
    pass.restore(fc1, 0, desk.stream(), x);
    desk.check(x, 6);
    CHECK(off.rows_overflowed()->planned == 16);
  }
  SUBCASE("a pass without backward moves nothing") {
    auto pass = off.begin({.forward_only = true});
    auto x = made();
    pass.commit(fc1, 0, desk.stream(), x);
    CHECK_FALSE(off.rows_overflowed());
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("rows: a tensor that is computed again needs no count") {
  rig desk;
  auto opts = small_options();
  opts.recompute_modules = {"layernorm"};
  offloader off(desk.dev, opts);
  std::uint32_t rows = 99;
  auto pass = off.begin();
  auto x = off.allocate(1024, desk.stream());
  x.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 2});
  pass.commit_or_discard("layernorm", 0, desk.stream(), x);
  pass.restore_or_recompute(
      "layernorm", 0, desk.stream(), [&] { desk.write(x, 7); }, x);
  desk.check(x, 7);
  x.reset(desk.stream());
  pass.finish();
  CHECK_FALSE(off.rows_overflowed());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("rows: refusals") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::uint32_t rows = 1;
  auto x = off.allocate(1024, desk.stream());
  const auto counts = [&](std::size_t row, std::size_t planned) {
    x.counts_rows({.count = &rows, .row_bytes = row, .planned_rows = planned});
  };
  CHECK(says(message_of([&] { counts(64, 17); }), "17 planned rows of 64 bytes"));
  CHECK_THROWS_AS(counts(64, 0), misuse_error);
  CHECK_THROWS_AS(counts(0, 1), misuse_error);
  CHECK_THROWS_AS(counts(std::size_t{1} << 62, 16), misuse_error);
  const std::uint32_t* nowhere = nullptr;
  CHECK_THROWS_AS(x.counts_rows({.count = nowhere, .row_bytes = 64, .planned_rows = 1}),
                  misuse_error);
  CHECK_THROWS_AS(
      offloader::buffer().counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 1}),
      misuse_error);
  auto state = off.state_on_host(1024, "moments");
  auto here = state.create(desk.stream());
  CHECK(says(
      message_of([&] { here.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 1}); }),
      "host_state"));
  here.reset(desk.stream());
  auto pass = off.begin();
  auto held = x.share();
  pass.commit(off.module("expert_fc1"), 0, desk.stream(), x);
  CHECK(says(
      message_of([&] { held.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 1}); }),
      "saved already"));
}

TEST_CASE("rows: a capture asks nothing, and makes no room for the first count") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.counts = false;
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  work.counts = true;
  CHECK(
      says(message_of([&] { static_cast<void>(off.capture(desk.stream(), [&] { work.step(); })); }),
           "run the step once without capture"));
  work.give_up();
  work.step();
  CHECK(says(message_of([&] {
               static_cast<void>(
                   off.capture(desk.stream(), [&] { static_cast<void>(off.rows_overflowed()); }));
             }),
             "ask after a launch"));
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(),
                                                [&] {
                                                  work.forward();
                                                  throw std::runtime_error("the trainer's");
                                                })),
                  std::runtime_error);
  work.give_up();
  work.planned = 2;
  work.choose([](int) { return 3; });
  work.step();
  CHECK(off.rows_overflowed()->rows == 3);
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  graph.launch(desk.stream());
  CHECK(off.rows_overflowed()->rows == 3);
}

TEST_CASE("rows: a pass that is given up may be told, and the next step is right") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.planned = 4;
  work.choose([](int) { return 9; });
  work.forward();
  work.give_up();
  CHECK(off.rows_overflowed());
  work.choose([](int) { return 4; });
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("rows: room for counts is used again, and graphs that are gone give theirs back") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  const auto in_use = desk.dev.host_held;
  for (int i = 0; i < 1200; ++i) {
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    graph.launch(desk.stream());
    if (i % 3 == 0) work.step();
    if (i % 2 == 0) CHECK_FALSE(off.rows_overflowed());
  }
  CHECK(desk.dev.host_held == in_use);
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("rows: a step that is never ended is asked after a while") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::uint32_t rows = 9;
  const auto commits = [&] {
    for (int i = 0; i < 70'000; ++i) {
      auto pass = off.begin();
      auto x = off.allocate(64, desk.stream());
      x.counts_rows({.count = &rows, .row_bytes = 16, .planned_rows = 2});
      pass.commit(off.module("expert_fc1"), 0, desk.stream(), x);
    }
  };
  CHECK_THROWS_AS(commits(), unasked_overflow);
}
