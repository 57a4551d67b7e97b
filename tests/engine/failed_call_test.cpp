// A call that a device refuses changes nothing: made again, it ends as if it had worked at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "faulty_device.hpp"
#include "rig.hpp"

namespace {

using namespace tidepool::test;
using tidepool::device_error;
using device = faulty_device<tidepool::virtual_device>;
using offloader = tidepool::offloader<device, tidepool::modules<"fc1", "core_attn">>;

constexpr std::size_t size = 2048;
constexpr int layers = 5;

struct variant {
  std::string name;
  tidepool::options opts;
  bool shares = false;  // the second handle is one more to the first tensor
  bool views = false;   // or a part of it
  bool traced = false;
};

tidepool::options capped(std::optional<std::size_t> groups, std::optional<std::size_t> bytes = {}) {
  auto opts = small_options();
  opts.max_inflight = groups;
  opts.max_inflight_bytes = bytes;
  return opts;
}

std::vector<variant> variants() {
  return {
      {"no cap", small_options()},
      {"each waited for", capped(0)},
      {"one in flight", capped(1)},
      {"two in flight", capped(2)},
      {"bytes", capped({}, 3 * size)},
      {"shares", capped(1), true},
      {"views", capped(0), false, true},
      {"traced", capped(1), false, false, true},
      {"arena", arena_options(16 * size), true},
  };
}

std::string in_words(const tidepool::trace::counters& totals) {
  std::string text;
  for (const auto& each : totals.modules) {
    for (const auto number :
         {each.groups, each.groups_offloaded, each.groups_resident, each.tensors_offloaded,
          each.tensors_shared, each.tensors_small, each.bytes_offloaded, each.bytes_reloaded,
          each.cap_joins, each.step_bytes}) {
      text += std::to_string(number) + ' ';
    }
  }
  for (const auto number : {totals.state_fetched, totals.state_written, totals.steps}) {
    text += "| " + std::to_string(number);
  }
  return text;
}

// The call to the device that fails, once, of those that the watched calls make.
struct failing {
  call_kind kind = call_kind::count;  // none
  std::uint64_t number = 0;
};

// A step in which one commit, restore or fetch may fail, and what was counted after each call; the
// joins for the cap tell what the windows hold.
class run {
 public:
  run(const variant& of, const failing& fault) : of_(of), fault_(fault) {}

  struct result {
    std::string log;  // a line for each call
    std::string end;  // the last
    bool tripped = false;
    bool threw = false;  // else it was a reload ahead of use that failed, which is made later
  };

  result operator()() {
    off_.on_report([](std::string_view) {});
    auto state = off_.state_on_host(size, "moments");
    {
      auto fresh = state.create(on());
      state.write_back(fresh, on());
    }
    if (of_.traced) off_.start_trace("step", on());
    std::array<std::array<saved, layers>, 2> all;
    for (auto& each : all) train(each, &each == &all.back());
    offloader::buffer moments;
    fails([&] { moments = state.fetch(on()); });
    note("fetch");
    moments.reset(on());
    off_.end_step();
    note("step");
    return {log_, in_words(off_.counters()), tripped_, threw_};
  }

 private:
  struct saved {
    offloader::buffer x, y;
    offloader::view part;
  };

  [[nodiscard]] device::stream_ref on() const { return stream_.ref(); }

  // In the second microbatch every call may be the one that fails, so that windows are full.
  void train(std::array<saved, layers>& all, bool watched) {
    auto open = off_.begin();
    for (int l = 0; l < layers; ++l) {
      auto& now = all[static_cast<std::size_t>(l)];
      now.x = off_.allocate(size, on());
      if (of_.shares) now.y = now.x.share();
      if (of_.views) now.part = now.x.view({.offset = 256, .width = 512});
      if (!of_.shares && !of_.views) now.y = off_.allocate(size / 2, on());
      const auto commit = [&] {
        if (of_.views) {
          open.commit<"fc1">(l, on(), now.part);
        } else {
          open.commit<"fc1">(l, on(), now.x, now.y);
        }
      };
      watched ? fails(commit, true) : commit();
      note("commit");
      if (of_.views) now.x.reset(on());
    }
    for (int l = layers; l-- > 0;) {
      auto& now = all[static_cast<std::size_t>(l)];
      const auto restore = [&] {
        if (of_.views) {
          open.restore<"fc1">(l, on(), now.part);
        } else {
          open.restore<"fc1">(l, on(), now.x, now.y);
        }
      };
      watched ? fails(restore) : restore();
      note("restore");
      now = {};
    }
    open.finish();
  }

  template <class Call>
  void fails(const Call& call, bool counts_nothing = false) {
    if (fault_.kind == call_kind::count || tripped_) return call();
    const auto before = in_words(off_.counters());
    dev_.arm({fault_.kind, fault_.number - passed_, manner::once});
    try {
      call();
      passed_ += dev_.calls(fault_.kind);
    } catch (const device_error&) {
      threw_ = true;
      if (counts_nothing) CHECK(in_words(off_.counters()) == before);
    }
    tripped_ = dev_.tripped();
    dev_.disarm();
    if (threw_) call();
  }

  void note(const char* what) { log_ += what + (" " + in_words(off_.counters())) + '\n'; }

  const variant& of_;
  failing fault_;
  device dev_;
  device::stream stream_ = dev_.make_stream();
  std::string log_;
  bool tripped_ = false;
  bool threw_ = false;
  std::uint64_t passed_ = 0;
  offloader off_{dev_, of_.opts};
};

}  // namespace

TEST_CASE("failed call: made again, every counter is as if nothing had failed") {
  std::size_t failed = 0;
  for (const auto& each : variants()) {
    const auto clean = run(each, {})();
    for (const auto kind : {call_kind::record, call_kind::wait, call_kind::copy}) {
      bool more = true;
      for (std::uint64_t number = 1; more; ++number) {
        CAPTURE(each.name);
        CAPTURE(name_of(kind));
        CAPTURE(number);
        const auto now = run(each, {kind, number})();
        more = now.tripped;
        failed += now.threw ? 1 : 0;
        CHECK(now.end == clean.end);
        const bool alike = !now.threw || now.log == clean.log;
        CHECK(alike);
      }
    }
  }
  CHECK(failed > 300);
}

TEST_CASE("failed call: a restore that is refused leaves forward open, and what it was given") {
  rig desk;
  rig::offloader<tidepool::modules<"fc1">> off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto part = x.view({.offset = 256, .width = 512});
  auto other = off.allocate(size, desk.stream());
  desk.write(other, 2);
  open.start_offload<"fc1">(0, desk.stream(), part, other);
  other.reset(desk.stream());
  auto wrong = off.allocate(size, desk.stream());
  CHECK_THROWS_AS(open.restore<"fc1">(0, desk.stream(), part, wrong), tidepool::misuse_error);
  CHECK_THROWS_AS(open.restore<"fc1">(1, desk.stream(), part, other), tidepool::misuse_error);
  open.commit<"fc1">(1, desk.stream(), wrong);
  open.restore<"fc1">(1, desk.stream(), wrong);
  part.reset(desk.stream());  // its copy is there all the same
  open.restore<"fc1">(0, desk.stream(), part, other);
  CHECK(part);
  desk.check(part, 1, 256, 512);
  desk.check(other, 2);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "failed call: whatever stops a reload ahead of its use does not stop the call before it") {
  struct own_error {};
  rig desk;
  rig::offloader<tidepool::modules<"fc1">> off(desk.dev, small_options());
  auto open = off.begin();
  std::array<rig::buffer, 3> x;
  for (int l = 0; l < 3; ++l) {
    x[static_cast<std::size_t>(l)] = off.allocate(size, desk.stream());
    desk.write(x[static_cast<std::size_t>(l)], static_cast<std::uint32_t>(l));
    open.commit<"fc1">(l, desk.stream(), x[static_cast<std::size_t>(l)]);
  }
  desk.dev.before_copy = [] { throw own_error(); };
  CHECK_NOTHROW(open.end_forward());
  CHECK_THROWS_AS(open.restore<"fc1">(2, desk.stream(), x[2]), own_error);
  desk.dev.before_copy = nullptr;
  for (int l = 3; l-- > 0;) {
    open.restore<"fc1">(l, desk.stream(), x[static_cast<std::size_t>(l)]);
    desk.check(x[static_cast<std::size_t>(l)], static_cast<std::uint32_t>(l));
  }
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("failed call: a commit that cannot wait for its host block gives the block back") {
  device dev;
  const auto stream = dev.make_stream();
  auto opts = small_options();
  opts.host_budget = size;
  opts.margin = false;
  offloader off(dev, opts);
  for (const bool fails : {false, false, true, false}) {
    CAPTURE(fails);
    auto open = off.begin();
    auto x = off.allocate(size, stream.ref());
    if (fails) {
      dev.arm({call_kind::wait, 1, manner::once});
      CHECK_THROWS_AS(open.commit<"fc1">(0, stream.ref(), x), device_error);
      CHECK(dev.tripped());
      dev.disarm();
    }
    CHECK_NOTHROW(open.commit<"fc1">(0, stream.ref(), x));
    open.end_forward();
    open.restore<"fc1">(0, stream.ref(), x);
    x.reset(stream.ref());
    open.finish();
    off.end_step();
  }
}

TEST_CASE("failed call: a capture that cannot begin or end is over, and the next one works") {
  int refused = 0;
  for (const auto kind :
       {call_kind::record, call_kind::wait, call_kind::begin_capture, call_kind::end_capture}) {
    for (std::uint64_t number = 1, went_through = 0; went_through == 0; ++number) {
      CAPTURE(name_of(kind));
      CAPTURE(number);
      device dev;
      const auto stream = dev.make_stream();
      offloader off(dev, arena_options(4 * size));
      off.on_report([](std::string_view) {});
      std::size_t wrong = 0;
      const auto step = [&] {
        auto open = off.begin();
        auto x = off.allocate(size, stream.ref());
        auto* const data = x.as<std::uint32_t>();
        dev.launch(stream.ref(), 100, [data] { std::fill_n(data, size / 4, 7U); });
        open.commit<"fc1">(0, stream.ref(), x);
        open.end_forward();
        open.restore<"fc1">(0, stream.ref(), x);
        const auto* const back = x.as<std::uint32_t>();
        dev.launch(stream.ref(), 100, [&wrong, back] {
          wrong += std::count(back, back + size / 4, 7U) == size / 4 ? 0 : 1;
        });
        x.reset(stream.ref());
        open.finish();
        off.end_step();
      };
      step();
      dev.arm({kind, number, manner::once});
      try {
        auto graph = off.capture(stream.ref(), step);
        dev.disarm();
        graph.launch(stream.ref());
        went_through = number;
      } catch (const device_error&) {
        CHECK(dev.tripped());
        dev.disarm();
        ++refused;
      }
      CHECK_FALSE(dev.capturing(stream.ref()));
      step();
      auto graph = off.capture(stream.ref(), step);
      graph.launch(stream.ref());
      step();
      dev.synchronize();
      CHECK(wrong == 0);
    }
  }
  CHECK(refused > 10);
}
