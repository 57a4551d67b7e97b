// Mistakes: each is caught, says where it happened and what to do, and leaves things as they were.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::device_error;
using tidepool::misuse_error;
using tidepool::out_of_budget;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 2048;

rig::buffer made(rig& desk, offloader& off, std::uint32_t tag) {
  auto x = off.allocate(size, desk.stream());
  desk.write(x, tag);
  return x;
}

// Four groups, of which two come back, and a fifth of twice the size in another chunk. Returns the
// words of the refusal, if there was one.
std::string fifth_group(std::size_t host_budget, std::size_t host_memory) {
  rig desk(tidepool::machine{.host_bytes = host_memory});
  auto opts = small_options();
  opts.host_budget = opts.host_step = host_budget;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  std::array<rig::buffer, 4> x;
  for (int l = 0; l < 4; ++l) {
    auto& each = x[static_cast<std::size_t>(l)] = made(desk, off, 1);
    open.commit<"core_attn">(l, desk.stream(), each);
  }
  for (const int l : {2, 0}) {
    open.restore<"core_attn">(l, desk.stream(), x[static_cast<std::size_t>(l)]);
  }
  auto other = off.begin({.microbatch = 1});
  auto large = off.allocate(2 * size, desk.stream());
  try {
    other.commit<"core_attn">(0, desk.stream(), large);
  } catch (const out_of_budget& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("misuse: restored before anything was committed") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin({.microbatch = 3});
  rig::buffer x;
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(5, desk.stream(), x),
                       doctest::Contains("restore of core_attn of layer 5, microbatch 3"),
                       misuse_error);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(5, desk.stream(), x),
                       doctest::Contains("never committed"), misuse_error);
}

TEST_CASE("misuse: restored in a layer of which nothing was committed, while others have it") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"core_attn">(4, desk.stream(), x);
  rig::buffer y;
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(5, desk.stream(), y),
                       doctest::Contains("never committed"), misuse_error);
}

TEST_CASE("misuse: restored twice") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  open.commit<"core_attn">(5, desk.stream(), x);
  open.restore<"core_attn">(5, desk.stream(), x);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(5, desk.stream(), x),
                       doctest::Contains("restored before"), misuse_error);
  desk.check(x, 1);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: committed after forward has ended, by a word or by a restore") {
  for (const bool by_restore : {false, true}) {
    rig desk;
    offloader off(desk.dev, small_options());
    auto open = off.begin({.microbatch = 2});
    auto x = made(desk, off, 1);
    auto y = made(desk, off, 2);
    open.commit<"core_attn">(0, desk.stream(), x);
    if (by_restore) {
      open.restore<"core_attn">(0, desk.stream(), x);
    } else {
      open.end_forward();
    }
    CHECK_THROWS_WITH_AS(open.commit<"core_attn">(1, desk.stream(), y),
                         doctest::Contains("core_attn of layer 1, microbatch 2"), misuse_error);
    CHECK(y);
    desk.check(y, 2);
    if (!by_restore) open.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, 1);
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("misuse: an empty handle committed, wherever it stands") {
  for (const std::size_t which : {0U, 1U, 2U}) {
    CAPTURE(which);
    rig desk;
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    std::array<rig::buffer, 3> x;
    for (std::size_t i = 0; i < 3; ++i) {
      if (i != which) x[i] = made(desk, off, static_cast<std::uint32_t>(i));
    }
    CHECK_THROWS_WITH_AS(open.commit<"core_attn">(4, desk.stream(), x[0], x[1], x[2]),
                         doctest::Contains(("argument " + std::to_string(which + 1)).c_str()),
                         misuse_error);
    // The others are as they were, and may be committed without it.
    CHECK(desk.dev.offloads() == 0);
    CHECK(off.counters().host_reserved >= 0);
    auto& a = x[which == 0 ? 1 : 0];
    auto& b = x[which == 2 ? 1 : 2];
    CHECK(a);
    CHECK(b);
    open.commit<"core_attn">(4, desk.stream(), a, b);
    open.restore<"core_attn">(4, desk.stream(), a, b);
    desk.check(a, which == 0 ? 1 : 0);
    desk.check(b, which == 2 ? 1 : 2);
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("misuse: committed twice, the second time empty") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  CHECK_THROWS_AS(open.commit<"core_attn">(1, desk.stream(), x), misuse_error);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  open.finish();  // the failed commit is no group
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: one handle given twice in a commit") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), x, x), misuse_error);
  desk.check(x, 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: one handle given twice in a commit that takes nothing away") {
  auto opts = small_options();
  SUBCASE("by its layer") { opts.offload_layers = {7}; }
  SUBCASE("too small") { opts.min_tensor_elements = 2 * size; }
  SUBCASE("by the margin") { opts.margin = true; }
  SUBCASE("opted out") {}
  const bool opted_out =
      !opts.margin && opts.offload_layers.empty() && opts.min_tensor_elements < size;
  rig desk;
  offloader off(desk.dev, opts);
  for (int i = 0; i < 3; ++i) {  // the rules hold once the first step is over
    CAPTURE(i);
    auto open = off.begin();
    auto x = made(desk, off, 1);
    auto y = made(desk, off, 2);
    if (opted_out) x.keep_resident();
    CHECK_THROWS_WITH_AS(open.commit<"core_attn">(0, desk.stream(), x, y, x),
                         doctest::Contains("argument 3 is given twice"), misuse_error);
    CHECK(x);
    CHECK(y);
    open.commit<"core_attn">(0, desk.stream(), x, y);
    open.end_forward();
    open.restore<"core_attn">(0, desk.stream(), x, y);
    desk.check(x, 1);
    desk.check(y, 2);
    open.finish();
    x.reset(desk.stream());
    y.reset(desk.stream());
    off.end_step();
  }
  CHECK(off.counters().modules[0].groups == 3);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: a mistake is told before memory that is short") {
  rig desk;
  auto opts = small_options();
  opts.host_budget = size;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(2 * size, desk.stream());
  rig::buffer none;
  CHECK_THROWS_WITH_AS(open.commit<"core_attn">(0, desk.stream(), x, x),
                       doctest::Contains("argument 2 is given twice"), misuse_error);
  CHECK_THROWS_WITH_AS(open.commit<"core_attn">(0, desk.stream(), x, none),
                       doctest::Contains("argument 2 holds no memory"), misuse_error);
  CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), x), tidepool::out_of_budget);
  CHECK(x);
}

TEST_CASE("misuse: a handle of another offloader committed") {
  rig desk;
  offloader one(desk.dev, small_options());
  offloader other(desk.dev, arena_options(4 * size));
  auto open = one.begin();
  auto x = made(desk, other, 1);
  CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), x), misuse_error);
  desk.check(x, 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: a handle that a commit of another offloader emptied") {
  rig desk;
  offloader one(desk.dev, small_options());
  offloader other(desk.dev, small_options());
  auto first = one.begin();
  auto second = other.begin();
  auto x = made(desk, one, 1);
  auto y = made(desk, other, 2);
  first.commit<"core_attn">(0, desk.stream(), x);
  second.commit<"core_attn">(0, desk.stream(), y);
  CHECK_THROWS_WITH_AS(first.restore<"core_attn">(0, desk.stream(), y),
                       doctest::Contains("of another offloader's"), misuse_error);
  CHECK_THROWS_AS(second.restore<"core_attn">(0, desk.stream(), x), misuse_error);
  first.restore<"core_attn">(0, desk.stream(), x);
  second.restore<"core_attn">(0, desk.stream(), y);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: another number of arguments than were committed") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  rig::buffer z;
  open.commit<"core_attn">(0, desk.stream(), x, y);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(0, desk.stream(), x),
                       doctest::Contains("1 arguments, but 2 were committed"), misuse_error);
  CHECK_THROWS_AS(open.restore<"core_attn">(0, desk.stream()), misuse_error);
  CHECK_THROWS_AS(open.restore<"core_attn">(0, desk.stream(), x, y, z), misuse_error);
  CHECK_FALSE(x);
  open.restore<"core_attn">(0, desk.stream(), x, y);
  desk.check(x, 1);
  desk.check(y, 2);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: restored into a handle that holds something else") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), x);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(0, desk.stream(), y),
                       doctest::Contains("argument 1 holds other memory"), misuse_error);
  desk.check(y, 2);
  y.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), y);
  desk.check(y, 1);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: finished with something not restored; the chunk stays open") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin({.microbatch = 6});
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), x);
  open.commit<"expert_fc1">(1, desk.stream(), y);
  CHECK_THROWS_WITH_AS(open.finish(), doctest::Contains("2 groups"), misuse_error);
  CHECK_THROWS_WITH_AS(open.finish(), doctest::Contains("core_attn of layer 0, microbatch 6"),
                       misuse_error);
  open.restore<"expert_fc1">(1, desk.stream(), y);
  CHECK_THROWS_WITH_AS(open.finish(), doctest::Contains("1 group committed"), misuse_error);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  desk.check(y, 2);
  open.finish();
  open.finish();  // it is none any more
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: a step ended with a chunk open") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  off.on_report([](std::string_view) {});
  auto open = off.begin({.microbatch = 4});
  CHECK_THROWS_WITH_AS(off.end_step(), doctest::Contains("microbatch 4"), misuse_error);
  CHECK_THROWS_WITH_AS(off.end_step(), doctest::Contains("destroy one to give its pass up"),
                       misuse_error);
  CHECK(off.counters().steps == 0);
  auto evaluation = off.begin({.microbatch = 7, .forward_only = true});
  open.finish();
  CHECK_THROWS_WITH_AS(off.end_step(),
                       doctest::Contains("end_step: the forward_only chunk of"
                                         " microbatch 7 is still open; finish"),
                       misuse_error);
  evaluation.finish();
  off.end_step();
  CHECK(off.counters().steps == 1);
}

TEST_CASE("misuse: too many streams for one offloader") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::vector<rig::device_type::stream> streams;
  std::vector<rig::buffer> x;
  for (std::size_t i = 0; i < tidepool::max_lanes - 2; ++i) {
    streams.push_back(desk.dev.make_stream());
    x.push_back(off.allocate(256, streams.back().ref()));
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(off.allocate(256, desk.stream())),
                       doctest::Contains("at most 6 streams"), misuse_error);
  x.push_back(off.allocate(256, streams.front().ref()));
}

TEST_CASE("misuse: host memory spent in the middle of a commit leaves every handle as it was") {
  rig desk;
  auto opts = small_options();
  opts.host_budget = 2 * size;
  opts.host_step = 2 * size;
  offloader off(desk.dev, opts);
  auto open = off.begin({.microbatch = 1});
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  auto z = made(desk, off, 3);
  try {
    open.commit<"core_attn">(7, desk.stream(), x, y, z);
    FAIL("nothing was refused");
  } catch (const out_of_budget& error) {
    const std::string text = error.what();
    CHECK(text.find("core_attn of layer 7, microbatch 1") != std::string::npos);
    CHECK(text.find("--host-budget") != std::string::npos);
    CHECK(error.requested == size);
    CHECK(error.budget == 2 * size);
  }
  CHECK(x);
  CHECK(y);
  CHECK(z);
  CHECK(desk.dev.offloads() == 0);
  open.commit<"core_attn">(7, desk.stream(), x, y);  // the host is free again
  open.restore<"core_attn">(7, desk.stream(), x, y);
  desk.check(x, 1);
  desk.check(y, 2);
  desk.check(z, 3);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: host memory in pieces, or refused by the machine, is told with its remedy") {
  const auto text = fifth_group(4 * size, 64 * size);
  CHECK(says(text, "Raise --host-budget to " + std::to_string(6 * size) +
                       " bytes or more (the rest is in pieces), offload fewer"));
  CHECK(fifth_group(6 * size, 64 * size).empty());
  CHECK(says(fifth_group(8 * size, 4 * size), "gives (less than --host-budget), offload fewer"));
}

TEST_CASE("misuse: a commit that failed does not forget who still reads its host blocks") {
  for (std::uint64_t seed = 0; seed <= 40; ++seed) {
    CAPTURE(seed);
    tidepool::machine model{.order_seed = seed};
    model.reload_rate = 0.1;  // by the clock the reload is slow
    rig desk(model);
    const auto other = desk.dev.make_stream();
    auto opts = small_options();
    opts.host_budget = 2 * size;
    opts.host_step = 2 * size;
    offloader off(desk.dev, opts);
    auto first = off.begin({.microbatch = 0});
    auto x = made(desk, off, 1);
    first.commit<"core_attn">(0, desk.stream(), x);
    // Restored on another stream, so that nothing else orders the next commit behind the reload.
    first.restore<"core_attn">(0, other.ref(), x);

    auto second = off.begin({.microbatch = 1});
    auto a = made(desk, off, 2);
    auto b = made(desk, off, 3);
    auto c = made(desk, off, 4);
    CHECK_THROWS_AS(second.commit<"core_attn">(0, desk.stream(), a, b, c), out_of_budget);
    second.commit<"core_attn">(0, desk.stream(), a, b);
    desk.check_rows(x.data(), {size, 1, size, 0}, 1, 0, other.ref());
    second.restore<"core_attn">(0, desk.stream(), a, b);
    desk.check(a, 2);
    desk.check(b, 3);
    x.reset(other.ref());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("misuse: a device budget too small names what is live, by module") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto kept = x.share();
  open.commit<"core_attn">(0, desk.stream(), x);
  auto loose = off.allocate(2 * size, desk.stream());
  try {
    static_cast<void>(off.allocate(2 * size, desk.stream()));
    FAIL("nothing was refused");
  } catch (const out_of_budget& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("core_attn 2048") != std::string::npos);
    CHECK(text.find("not committed 4096") != std::string::npos);
    CHECK(text.find("largest free block 2048") != std::string::npos);
    CHECK(text.find("--device-budget") != std::string::npos);
    CHECK(error.requested == 2 * size);
    CHECK(error.budget == 4 * size);
  }
  CHECK(loose);
  CHECK(off.allocate(size, desk.stream()));  // what fits still comes
}

TEST_CASE("misuse: what was committed and stays is named by its module, too") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  auto open = off.begin();
  auto x = made(desk, off, 1);
  x.keep_resident();
  open.commit<"core_attn">(0, desk.stream(), x);
  CHECK_THROWS_WITH_AS(static_cast<void>(off.allocate(2 * size, desk.stream())),
                       doctest::Contains("Live: core_attn 2048 bytes."), out_of_budget);
}

TEST_CASE("misuse: a pool that may not grow any more is refused in the same words") {
  rig desk;
  auto opts = small_options();
  opts.device_budget = 32 * 1024;
  offloader off(desk.dev, opts);
  const auto all = off.allocate(32 * 1024, desk.stream());
  CHECK_THROWS_WITH_AS(static_cast<void>(off.allocate(1, desk.stream())),
                       doctest::Contains("not committed 32768"), out_of_budget);
}

namespace {

// A machine that has one kind of host memory and says so of the others.
struct plain_machine : rig::device_type {
  using rig::device_type::device_type;
  [[nodiscard]] std::string why_not(tidepool::host_kind kind) const {
    return kind == tidepool::host_kind::system ? "no shared page tables" : "";
  }
};

}  // namespace

TEST_CASE("misuse: host memory that the machine does not have is refused with the reason") {
  plain_machine dev;
  auto opts = small_options();
  opts.host_memory = tidepool::host_kind::system;
  using plain_offloader = tidepool::offloader<plain_machine, tidepool::modules<"core_attn">>;
  CHECK_THROWS_WITH_AS(plain_offloader(dev, opts), doctest::Contains("no shared page tables"),
                       tidepool::option_error);
  opts.host_memory = tidepool::host_kind::pinned;
  CHECK_NOTHROW(plain_offloader(dev, opts));
}

TEST_CASE("misuse: an arena that the device cannot give is refused when it is made") {
  rig desk(tidepool::machine{.device_bytes = 64 * 1024});
  CHECK_THROWS_WITH_AS(offloader(desk.dev, arena_options(65 * 1024)),
                       doctest::Contains("--device-budget"), out_of_budget);
  CHECK(desk.dev.device_held == 0);
  const offloader fits(desk.dev, arena_options(64 * 1024));
}

TEST_CASE("misuse: a device that fails in a commit leaves the handles full") {
  for (const bool at_record : {false, true}) {
    CAPTURE(at_record);
    int calls = 0;  // the handles' last calls still count
    rig desk;
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    auto x = made(desk, off, 1);
    auto y = made(desk, off, 2);
    const auto fail = [&] {
      if (++calls == 2) throw device_error("broken", 7);
    };
    (at_record ? desk.dev.before_record : desk.dev.before_copy) = fail;
    CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), x, y), device_error);
    CHECK(x);
    CHECK(y);
    open.commit<"core_attn">(0, desk.stream(), x, y);
    open.restore<"core_attn">(0, desk.stream(), x, y);
    desk.check(x, 1);
    desk.check(y, 2);
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("misuse: a device that fails in a reload loses nothing") {
  int calls = 0;
  rig desk;
  auto opts = arena_options(2 * size);
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), x, y);
  desk.dev.before_copy = [&] {
    if (++calls == 2) throw device_error("broken", 7);
  };
  CHECK_THROWS_AS(open.restore<"core_attn">(0, desk.stream(), x, y), device_error);
  CHECK_FALSE(x);
  CHECK_FALSE(y);
  open.restore<"core_attn">(0, desk.stream(), x, y);
  desk.check(x, 1);
  desk.check(y, 2);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: a device that fails while an offloader is made leaves nothing behind") {
  rig desk;
  class failing : public tidepool::virtual_device {
   public:
    int left = 0;
    std::size_t held = 0;
    [[nodiscard]] event make_event(bool timing = false) {
      if (left-- == 0) throw device_error("no more events", 2);
      return virtual_device::make_event(timing);
    }
    [[nodiscard]] void* try_allocate(std::size_t bytes) {
      ++held;
      return virtual_device::try_allocate(bytes);
    }
    void deallocate(void* pointer) noexcept {
      if (pointer != nullptr) --held;
      virtual_device::deallocate(pointer);
    }
  };
  failing dev;
  for (const int events : {0, 1, 1500}) {
    dev.left = events;
    CHECK_THROWS_AS((tidepool::offloader<failing>(dev, arena_options(4096))), device_error);
    CHECK(dev.held == 0);
  }
  dev.left = 1 << 20;
  tidepool::offloader<failing> off(dev, arena_options(4096));
  dev.left = 10;  // fails for a stream of its own, not for the others
  const auto stream = dev.make_stream();
  CHECK_THROWS_AS(static_cast<void>(off.allocate(256, stream.ref())), device_error);
  dev.left = 1 << 20;
  CHECK(off.allocate(256, stream.ref()));
}

TEST_CASE("misuse: every call on a chunk that is not open, but finish, says which and why") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.recompute_modules = {"layernorm"};
  offloader off(desk.dev, opts);
  auto finished = off.begin({.microbatch = 6});
  finished.finish();
  auto moved = off.begin({.microbatch = 5});
  auto open = std::move(moved);
  offloader::chunk never;
  auto x = made(desk, off, 1);
  const auto s = desk.stream();
  for (auto* each : {&finished, &moved, &never}) {
    const auto refused = [&](const std::string& what, const auto& call) {
      const auto text = message_of(call);
      CAPTURE(what);
      CHECK(says(text, each == &finished
                           ? what + ", microbatch 6: its chunk is finished; call finish after"
                           : what + ": this chunk was never begun, or was moved from; use the"));
    };
    refused("commit of core_attn of layer 1", [&] { each->commit<"core_attn">(1, s, x); });
    // Of a module that does not leave, too: it may tomorrow.
    refused("commit of expert_fc1 of layer 1", [&] { each->commit<"expert_fc1">(1, s, x); });
    refused("commit of core_attn of layer 2",
            [&] { each->commit_or_discard<"core_attn">(2, s, x); });
    refused("start_offload of core_attn of layer 3",
            [&] { each->start_offload<"core_attn">(3, s, x); });
    refused("start_reload of core_attn of layer 3", [&] { each->start_reload<"core_attn">(3); });
    refused("restore of core_attn of layer 4", [&] { each->restore<"core_attn">(4, s, x); });
    refused("will_recompute of core_attn of layer 5",
            [&] { static_cast<void>(each->will_recompute<"core_attn">(5)); });
    refused("restore_or_recompute of core_attn of layer 5", [&] {
      each->restore_or_recompute<"core_attn">(
          5, s, [] {}, x);
    });
    refused("commit_or_discard of layernorm of layer 6",
            [&] { each->commit_or_discard<"layernorm">(6, s, x); });
    refused("restore_or_recompute of layernorm of layer 6", [&] {
      each->restore_or_recompute<"layernorm">(
          6, s, [] {}, x);
    });
    refused("end_forward", [&] { each->end_forward(); });
    CHECK_NOTHROW(each->finish());
  }
  CHECK(x);
  desk.check(x, 1);
  open.finish();
  CHECK(desk.wrong() == 0);
  CHECK(off.counters().modules[0].groups == 0);
}

TEST_CASE("misuse: a chunk that is not open tells a module of the run by its number") {
  rig desk;
  rig::offloader<> off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  rig::offloader<>::chunk never;
  const auto id = off.module("core_attn");
  CHECK(says(message_of([&] { never.commit(id, 1, desk.stream(), x); }),
             "commit of module " + std::to_string(static_cast<int>(id)) + " of layer 1: this"));
}

TEST_CASE("misuse: one handle restored in place of two") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), x, y);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(0, desk.stream(), x, x),
                       doctest::Contains("given twice"), misuse_error);
  open.restore<"core_attn">(0, desk.stream(), x, y);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: restored into the handle of another commit of the chunk") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin({.microbatch = 3});
  std::array<rig::buffer, 3> x;
  for (int l = 0; l < 3; ++l) {
    x[static_cast<std::size_t>(l)] = made(desk, off, static_cast<std::uint32_t>(l));
    open.commit<"core_attn">(l, desk.stream(), x[static_cast<std::size_t>(l)]);
  }
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(2, desk.stream(), x[0]),
                       doctest::Contains("emptied by the commit of core_attn of layer 0, microbatch"
                                         " 3, as argument 1"),
                       misuse_error);
  for (int l = 2; l >= 0; --l) {
    open.restore<"core_attn">(l, desk.stream(), x[static_cast<std::size_t>(l)]);
    desk.check(x[static_cast<std::size_t>(l)], static_cast<std::uint32_t>(l));
    x[static_cast<std::size_t>(l)].reset(desk.stream());
  }
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: commits of one module and layer restored first in first out") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), x);
  open.commit<"core_attn">(0, desk.stream(), y);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(0, desk.stream(), x),
                       doctest::Contains("an earlier one than this restores; of one module and"
                                         " layer the last commit comes back first"),
                       misuse_error);
  open.restore<"core_attn">(0, desk.stream(), y);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: arguments that changed places between commit and restore") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), x, y);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(0, desk.stream(), y, x),
                       doctest::Contains("as argument 2; pass what was committed"), misuse_error);
  rig::buffer elsewhere;
  auto moved = std::move(x);  // what it was emptied for goes with it
  open.restore<"core_attn">(0, desk.stream(), moved, elsewhere);
  desk.check(moved, 1);
  desk.check(elsewhere, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: restored from a chunk that took the place of the one that was meant") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin({.microbatch = 0});
  auto x = made(desk, off, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  open = off.begin({.microbatch = 1});
  auto y = made(desk, off, 2);
  open.commit<"core_attn">(0, desk.stream(), y);
  CHECK_THROWS_WITH_AS(open.restore<"core_attn">(0, desk.stream(), x),
                       doctest::Contains("chunk that was dropped"), misuse_error);
  open.restore<"core_attn">(0, desk.stream(), y);
  desk.check(y, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: a handle of another microbatch in flight is refused, unless it was reset") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto first = off.begin({.microbatch = 0});
  auto second = off.begin({.microbatch = 1});
  auto x = made(desk, off, 1);
  first.commit<"core_attn">(0, desk.stream(), x);
  x = made(desk, off, 2);
  second.commit<"core_attn">(0, desk.stream(), x);
  CHECK_THROWS_WITH_AS(
      first.restore<"core_attn">(0, desk.stream(), x),
      doctest::Contains(
          "argument 1 was emptied by the commit of core_attn of layer 0, microbatch 1,"
          " as argument 1; restore it in that one's chunk, or give each microbatch in flight"
          " handles of its own"),
      misuse_error);
  x.reset(desk.stream());
  first.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  x.reset(desk.stream());
  second.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: what stays by policy must still be in its handle") {
  rig desk;
  auto opts = small_options();
  opts.fraction = 0.5;
  offloader off(desk.dev, opts);
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    auto first = off.begin({.microbatch = 0});
    std::array<rig::buffer, 2> x;
    for (int l = 0; l < 2; ++l) {
      auto& tensor = x[static_cast<std::size_t>(l)];
      tensor = made(desk, off, static_cast<std::uint32_t>(l));
      first.commit<"core_attn">(l, desk.stream(), tensor);
    }
    rig::buffer spare;
    if (step == 0) {  // everything leaves, and comes back into any handle
      first.restore<"core_attn">(1, desk.stream(), spare);
    } else {
      auto kept = std::exchange(x[1], made(desk, off, 7));
      REQUIRE(kept);
      CHECK_THROWS_WITH_AS(
          first.restore<"core_attn">(1, desk.stream(), x[1]),
          doctest::Contains("argument 1 holds other memory, but its tensor stayed"), misuse_error);
      CHECK_THROWS_WITH_AS(first.restore<"core_attn">(1, desk.stream(), spare),
                           doctest::Contains("argument 1 is empty, but its tensor stayed"),
                           misuse_error);
      first.restore<"core_attn">(1, desk.stream(), kept);
      desk.check(kept, 1);
      kept.reset(desk.stream());
    }
    first.restore<"core_attn">(0, desk.stream(), x[0]);
    desk.check(x[0], 0);
    for (auto& each : x) each.reset(desk.stream());
    spare.reset(desk.stream());
    first.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: a restore that would leave a handle empty says so") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = made(desk, off, 1);
  open.commit<"core_attn">(4, desk.stream(), x);
  auto evaluation = off.begin({.forward_only = true});
  CHECK_THROWS_WITH_AS(evaluation.restore<"core_attn">(4, desk.stream(), x),
                       doctest::Contains("restore of layer 4: argument 1 was emptied"),
                       misuse_error);
  evaluation.finish();
  open.restore<"core_attn">(4, desk.stream(), x);
  desk.check(x, 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("misuse: more memory than any machine has, as of a count that overflowed") {
  rig desk;
  constexpr std::size_t top = std::size_t{1} << 62;
  auto fits = arena_options(16384);
  auto rings = small_options();
  rings.memory = tidepool::memory_kind::slots;
  rings.slots = {{16384, 2}};
  for (const auto& opts : {small_options(), fits, rings}) {
    offloader off(desk.dev, opts);
    for (const std::size_t count :
         {top, top + 1, static_cast<std::size_t>(-1), std::size_t{0} - 64}) {
      CAPTURE(count);
      CHECK_THROWS_WITH_AS(static_cast<void>(off.allocate<float>(count, desk.stream())),
                           doctest::Contains("did the count overflow"), misuse_error);
    }
    CHECK_THROWS_WITH_AS(
        static_cast<void>(off.allocate(static_cast<std::size_t>(-256), desk.stream())),
        doctest::Contains("did the count overflow"), misuse_error);
    CHECK_THROWS_AS(static_cast<void>(off.allocate(top, desk.stream())), out_of_budget);
    off.allocate(16384, desk.stream()).reset(desk.stream());
  }
}

TEST_CASE("misuse: every message says that it is Tidepool's, once") {
  const auto text_of = [](const auto& problem) { return std::string(problem.what()); };
  CHECK(text_of(misuse_error("finish: too soon")) == "tidepool: finish: too soon");
  CHECK(text_of(misuse_error("tidepool: finish")) == "tidepool: finish");
  CHECK(text_of(out_of_budget("allocate: full", 1, 1)) == "tidepool: allocate: full");
  CHECK(text_of(tidepool::unknown_module("module: x")) == "tidepool: module: x");
  CHECK(text_of(tidepool::option_error("--mine: no")) == "--mine: no");  // a trainer's own
  rig desk;
  offloader off(desk.dev, small_options());
  CHECK_THROWS_WITH_AS(static_cast<void>(off.module("x")), doctest::Contains("tidepool: module"),
                       tidepool::unknown_module);
}

TEST_CASE("misuse: an empty function for reports or measurements is none") {
  rig desk;
  auto opts = arena_options(8 * size);
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  tidepool::test::planning<offloader> off(desk.dev, opts);
  off.on_report(nullptr);
  off.on_measure(nullptr);
  for (int step = 0; step < 3; ++step) {
    auto open = off.begin();
    auto x = made(desk, off, 1);
    open.commit<"core_attn">(0, desk.stream(), x);
    open.restore<"core_attn">(0, desk.stream(), x);
    x.reset(desk.stream());
    open.finish();
    CHECK_NOTHROW(off.end_step());
  }
  CHECK(off.current_plan());
}

TEST_CASE("misuse: the address of what a commit took away") {
  rig desk;
  std::optional<offloader> off(std::in_place, desk.dev, small_options());
  auto open = off->begin();
  auto x = made(desk, *off, 1);
  auto part = made(desk, *off, 2).view({.offset = 256, .width = 512});
  auto stays = made(desk, *off, 3);
  stays.keep_resident();
  open.commit<"expert_fc1">(3, desk.stream(), x, part, stays);
  const auto address_of = [](const auto& handle) {
    return message_of([&] { static_cast<void>(handle.data()); });
  };
  const std::string told = "data: the commit of expert_fc1 of layer 3 emptied this handle";
  CHECK(says(address_of(x), told));
  CHECK(says(address_of(part), told));
  CHECK(says(message_of([&] { static_cast<void>(x.as<float>()); }), told));
  CHECK(stays.data() != nullptr);
  auto moved = std::move(x);
  CHECK(says(address_of(moved), told));
  CHECK(x.data() == nullptr);
  rig::buffer assigned;
  assigned = std::move(moved);
  CHECK(says(address_of(assigned), told));
  moved = std::move(assigned);
  open.restore<"expert_fc1">(3, desk.stream(), moved, part, stays);
  CHECK(moved.data() != nullptr);
  desk.check(moved, 1);
  moved.reset(desk.stream());
  CHECK(moved.data() == nullptr);
  open.finish();

  // Chunk and offloader gone, it still knows.
  auto other = off->begin();
  moved = made(desk, *off, 4);
  x = made(desk, *off, 5);
  other.commit<"core_attn">(7, desk.stream(), moved, x);
  other = {};
  CHECK(desk.wrong() == 0);
  off.reset();
  CHECK(says(address_of(moved), "the commit of core_attn of layer 7"));
  x.reset(desk.stream());  // by the user's word it is empty
  CHECK(x.data() == nullptr);
  moved = {};
  CHECK(moved.data() == nullptr);
}
