// What a trace of a step shows.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "program.hpp"
#include "rig.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/picture.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;
using tidepool::trace::record;
using tidepool::trace::span;
using tidepool::trace::span_kind;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 1024;

// Two microbatches, one after the other; core_attn saves one buffer in each layer, expert_fc1 two.
void step(rig& desk, offloader& off, std::size_t layers = 3) {
  for (int mb = 0; mb < 2; ++mb) {
    auto open = off.begin({.microbatch = mb});
    std::vector<std::array<rig::buffer, 3>> x(layers);
    for (std::size_t l = 0; l < layers; ++l) {
      const auto layer = static_cast<int>(l);
      const auto compute = off.trace_span("layer", desk.stream(), layer, mb);
      for (std::size_t i = 0; i < 3; ++i) {
        x[l][i] = off.allocate(size, desk.stream());
        desk.write(x[l][i], static_cast<std::uint32_t>(10 * l + i));
      }
      open.commit<"core_attn">(layer, desk.stream(), x[l][0]);
      open.commit<"expert_fc1">(layer, desk.stream(), x[l][1], x[l][2]);
    }
    open.end_forward();
    for (std::size_t l = layers; l-- > 0;) {
      const auto layer = static_cast<int>(l);
      open.restore<"expert_fc1">(layer, desk.stream(), x[l][1], x[l][2]);
      open.restore<"core_attn">(layer, desk.stream(), x[l][0]);
      for (std::size_t i = 0; i < 3; ++i) {
        desk.check(x[l][i], static_cast<std::uint32_t>(10 * l + i));
        x[l][i].reset(desk.stream());
      }
    }
    open.finish();
  }
  off.end_step();
}

std::vector<span> of_kind(const record& seen, span_kind kind) {
  std::vector<span> result;
  for (const auto& each : seen.spans) {
    if (each.kind == kind) result.push_back(each);
  }
  return result;
}

// A device on which copies take a while beside kernels of 1 us.
machine slow_link() {
  machine model;
  model.offload_rate = 0.5;
  model.reload_rate = 1;
  model.both_rate = 1;
  model.copy_latency_ns = 100;
  return model;
}

}  // namespace

TEST_CASE("trace: a span for each copy, with module, layer, microbatch and bytes") {
  rig desk(slow_link());
  offloader off(desk.dev, small_options());
  off.start_trace("the step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  CHECK(seen.title == "the step");
  REQUIRE(seen.lanes == std::vector<std::string>{"offload", "reload", "compute 0"});
  for (const auto kind : {span_kind::offload, span_kind::reload}) {
    std::map<std::string, std::map<std::pair<int, int>, std::size_t>> bytes;
    for (const auto& each : of_kind(seen, kind)) {
      CHECK(each.lane == (kind == span_kind::offload ? 0 : 1));
      CHECK(bytes[each.name].emplace(std::pair(each.microbatch, each.layer), each.bytes).second);
      CHECK(each.end - each.start >= static_cast<double>(each.bytes) / 1000);  // at 1 byte per ns
      CHECK(each.start >= 0);
    }
    REQUIRE(bytes.size() == 2);
    CHECK(bytes["core_attn"].size() == 6);
    CHECK(bytes["expert_fc1"].size() == 6);
    for (int mb = 0; mb < 2; ++mb) {
      for (int layer = 0; layer < 3; ++layer) {
        CHECK(bytes["core_attn"][{mb, layer}] == size);
        CHECK(bytes["expert_fc1"][{mb, layer}] == 2 * size);
      }
    }
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("trace: the copies of a lane do not overlap, and come after what they need") {
  rig desk(slow_link());
  offloader off(desk.dev, arena_options(5 * size));
  off.start_trace("step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  std::map<std::string, double> offloaded;
  for (const auto kind : {span_kind::offload, span_kind::reload}) {
    double end = 0;
    for (const auto& each : of_kind(seen, kind)) {
      const auto key = each.name + std::to_string(each.layer) + std::to_string(each.microbatch);
      CHECK(each.start >= end);
      CHECK(each.end > each.start);
      end = each.end;
      if (kind == span_kind::offload) offloaded[key] = each.end;
      if (kind == span_kind::reload) CHECK(each.start >= offloaded.at(key));
    }
  }
}

TEST_CASE("trace: the trainer's own spans, on the lane of their stream") {
  rig desk;
  const auto other = desk.dev.make_stream();
  offloader off(desk.dev, small_options());
  off.start_trace("step", desk.stream());
  {
    const auto outer = off.trace_span("outer", desk.stream(), 4, 2);
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1, 5000);
    const auto beside = off.trace_span("beside", other.ref());
    desk.dev.launch(other.ref(), 7000, {});
  }
  const auto seen = of_kind(off.finish_trace(), span_kind::compute);
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].name == "beside");
  CHECK(seen[0].layer == -1);
  CHECK(seen[0].end - seen[0].start == doctest::Approx(7));
  CHECK(seen[1].name == "outer");
  CHECK(seen[1].layer == 4);
  CHECK(seen[1].microbatch == 2);
  CHECK(seen[1].end - seen[1].start == doctest::Approx(5));
  CHECK(seen[0].lane != seen[1].lane);
}

TEST_CASE("trace: stalls of compute streams carry the name of their join") {
  rig desk(slow_link());
  auto opts = small_options();
  opts.max_inflight = 0;
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  off.start_trace("step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  std::map<std::string, double> total;
  std::map<std::string, int> count;
  for (const auto& each : of_kind(seen, span_kind::stall)) {
    CHECK(each.lane == 2);
    CHECK(each.end >= each.start);
    total[each.name] += each.end - each.start;
    ++count[each.name];
  }
  CHECK(count["cap"] == 12);
  CHECK(count["consumer"] == 12);
  CHECK(count.size() == 2);  // copy streams that wait are no stalls, memory was never short
  // At each commit the stream stands still for the whole copy.
  CHECK(total["cap"] == doctest::Approx(2 * 3 * (100 + 2048 + 2 * (100 + 2048)) / 1000.0));
  CHECK(total["consumer"] > 0);
}

TEST_CASE("trace: a wait for memory is a stall, too") {
  rig desk(slow_link());
  const auto other = desk.dev.make_stream();
  offloader off(desk.dev, tidepool::test::arena_options(size));
  off.start_trace("step", desk.stream());
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1, 5'000);
  x.reset(desk.stream());
  const auto y = off.allocate(size, other.ref());
  const auto seen = of_kind(off.finish_trace(), span_kind::stall);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].name == "device_reuse");
  CHECK(seen[0].end - seen[0].start == doctest::Approx(5));
}

TEST_CASE("trace: the curve of device bytes begins and ends with what is live") {
  rig desk(slow_link());
  offloader off(desk.dev, small_options());
  auto before = off.allocate(3 * size, desk.stream());
  off.start_trace("step", desk.stream());
  step(desk, off);
  auto after = off.allocate(5 * size, desk.stream());
  const auto seen = off.finish_trace();
  REQUIRE(seen.device_bytes.size() > 20);
  CHECK(seen.device_bytes.front().time == 0);
  CHECK(seen.device_bytes.front().bytes == 3 * size);
  CHECK(seen.device_bytes.back().bytes == 8 * size);
  std::size_t most = 0;
  double last = 0;
  for (const auto& each : seen.device_bytes) {
    CHECK(each.time >= last);
    last = each.time;
    most = std::max(most, each.bytes);
  }
  CHECK(most <= off.counters().device_peak);
  CHECK(most >= 3 * size + 3 * size);  // a layer of forward at least
}

TEST_CASE("trace: what stays on the device lies under the curve all the time") {
  rig desk(slow_link());
  offloader off(desk.dev, small_options({}));
  off.start_trace("step", desk.stream());
  std::vector<rig::buffer> x;
  for (int i = 0; i < 4; ++i) {
    x.push_back(off.allocate(size, desk.stream()));
    desk.write(x.back(), 1);
  }
  for (auto& each : x) {
    desk.check(each, 1);
    each.reset(desk.stream());
  }
  const auto seen = off.finish_trace();
  std::vector<std::size_t> levels;
  for (const auto& each : seen.device_bytes) levels.push_back(each.bytes / size);
  CHECK(levels == std::vector<std::size_t>{0, 1, 2, 3, 4, 3, 2, 1, 0});
  CHECK(seen.device_bytes.back().time == doctest::Approx(8));
}

TEST_CASE("trace: without one no event is made, the second reuses those of the first") {
  rig desk;
  offloader off(desk.dev, small_options());
  step(desk, off);
  const auto before = desk.dev.events_made;
  step(desk, off);
  CHECK(desk.dev.events_made == before);
  off.start_trace("first", desk.stream());
  step(desk, off);
  const auto first = off.finish_trace();
  const auto made = desk.dev.events_made;
  CHECK(made > before);
  off.start_trace("second", desk.stream());
  step(desk, off);
  const auto second = off.finish_trace();
  CHECK(desk.dev.events_made == made);
  CHECK(second.title == "second");
  CHECK(second.spans.size() == first.spans.size());
  step(desk, off);
  CHECK(desk.dev.events_made == made);
}

TEST_CASE("trace: looking changes nothing") {
  const auto clock = [](bool traced) {
    rig desk(slow_link());
    auto opts = arena_options(6 * size);
    opts.max_inflight = 1;
    offloader off(desk.dev, opts);
    step(desk, off);
    desk.dev.synchronize();
    if (traced) off.start_trace("step", desk.stream());
    step(desk, off);
    if (traced) static_cast<void>(off.finish_trace());
    CHECK(desk.wrong() == 0);
    return std::pair(desk.dev.now_ns(), off.counters());
  };
  const auto plain = clock(false);
  const auto traced = clock(true);
  CHECK(traced.first == doctest::Approx(plain.first));
  CHECK(traced.second == plain.second);
}

TEST_CASE("trace: a span that outlives its trace, or begins before it, is left out") {
  rig desk;
  offloader off(desk.dev, small_options());
  {
    const auto early = off.trace_span("early", desk.stream());
    off.start_trace("first", desk.stream());
  }
  CHECK(off.finish_trace().spans.empty());
  off.start_trace("second", desk.stream());
  {
    const auto late = off.trace_span("late", desk.stream());
    CHECK(off.finish_trace().spans.empty());
  }
}

TEST_CASE("trace: a span of an earlier trace is not taken for one of the next") {
  rig desk;
  offloader off(desk.dev, small_options());
  off.start_trace("first", desk.stream());
  {
    const auto across = off.trace_span("across", desk.stream());
    static_cast<void>(off.finish_trace());
    off.start_trace("second", desk.stream());
  }
  CHECK(off.finish_trace().spans.empty());
}

TEST_CASE("trace: a stall names the copy that it waited for") {
  rig desk(slow_link());
  auto opts = small_options();
  opts.max_inflight = 0;
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  step(desk, off);
  off.start_trace("step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  std::size_t named = 0;
  for (const auto& stall : of_kind(seen, span_kind::stall)) {
    if (!(stall.end > stall.start)) continue;
    ++named;
    CAPTURE(stall.name);
    CHECK(!stall.module.empty());
    const auto kind = stall.name == "cap" ? span_kind::offload : span_kind::reload;
    const auto copies = of_kind(seen, kind);
    CHECK(std::ranges::any_of(copies, [&](const span& copy) {
      return copy.name == stall.module && copy.layer == stall.layer &&
             copy.microbatch == stall.microbatch && copy.bytes == stall.bytes &&
             copy.end == doctest::Approx(stall.end);
    }));
  }
  CHECK(named >= 12);
}

TEST_CASE("trace: what computes is known on the virtual device, and each pass") {
  rig desk(slow_link());
  offloader off(desk.dev, small_options());
  step(desk, off);  // without a span of the trainer's in backward
  off.start_trace("step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  REQUIRE(seen.passes.size() == 4);
  double end = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(seen.passes[i].backward == (i % 2 == 1));
    CHECK(seen.passes[i].microbatch == static_cast<int>(i / 2));
    CHECK(seen.passes[i].start >= end);
    end = seen.passes[i].end;
    CHECK(end > seen.passes[i].start);
  }
  // Kernels of 1 us each, three a layer: named in forward, told by the device in backward.
  double named = 0;
  double told = 0;
  for (const auto& each : of_kind(seen, span_kind::compute)) {
    CHECK(each.lane == 2);
    (each.name == "layer" ? named : told) += each.end - each.start;
    if (each.name == "layer") continue;
    CHECK(std::ranges::any_of(seen.passes, [&](const auto& pass) {
      return pass.backward && each.start >= pass.start - 1e-9 && each.end <= pass.end + 1e-9;
    }));
  }
  CHECK(named >= 2 * 3 * 3);
  CHECK(told == doctest::Approx(2 * 3 * 3));
  CHECK(seen.traced(2));
}

TEST_CASE("trace: where a device does not tell what computes, what nobody named is marked") {
  tidepool::null_device none;
  tidepool::offloader<tidepool::null_device, tidepool::modules<"core_attn">> off(
      none, small_options({"core_attn"}));
  const auto named = none.make_stream();
  const auto copied = none.make_stream();
  off.start_trace("step", named.ref());
  {
    const auto span = off.trace_span("forward", named.ref());
    auto x = off.allocate(size, copied.ref());
    auto open = off.begin();
    open.commit<"core_attn">(0, copied.ref(), x);
    open.end_forward();
    open.restore<"core_attn">(0, copied.ref(), x);
    open.finish();
  }
  const auto seen = off.finish_trace();
  const auto untraced = [&](const char* kind) {
    std::vector<std::string> lanes;
    for (std::size_t lane = 0; lane < seen.lanes.size(); ++lane) {
      if (!seen.traced(lane)) lanes.push_back(seen.lanes[lane]);
    }
    return std::pair(lanes, std::ranges::count_if(lanes, [&](const std::string& each) {
                       return each.find(kind) != std::string::npos;
                     }));
  };
  const auto [lanes, copying] = untraced("load");
  CAPTURE(seen.lanes);
  CHECK(lanes.size() == 1);  // that on which nobody named anything
  CHECK(copying == 0);       // what copies is known
}

TEST_CASE("trace: the curve without offload, and the budget") {
  rig desk(slow_link());
  auto opts = arena_options(6 * size);
  offloader off(desk.dev, opts);
  step(desk, off);
  off.start_trace("step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  CHECK(seen.budget == 6 * size);
  std::size_t held = 0;
  std::size_t without = 0;
  for (const auto& each : seen.device_bytes) held = std::max(held, each.bytes);
  for (const auto& each : seen.device_bytes_without) without = std::max(without, each.bytes);
  CHECK(held <= seen.budget);
  CHECK(without == off.counters().live_peak_without);
  CHECK(without == 9 * size);

  // Level for level what a step that offloads nothing holds.
  rig other(slow_link());
  opts.offload_modules.clear();
  opts.device_budget = 9 * size;
  offloader plain(other.dev, opts);
  step(other, plain);
  plain.start_trace("step", other.stream());
  step(other, plain);
  const auto changes = [](const std::vector<tidepool::trace::level>& of) {
    std::vector<std::size_t> result;
    for (const auto& each : of) {
      if (result.empty() || result.back() != each.bytes) result.push_back(each.bytes);
    }
    return result;
  };
  CHECK(changes(seen.device_bytes_without) == changes(plain.finish_trace().device_bytes));
}

TEST_CASE("trace: its picture has each reason, module and layer, and the budget, as text") {
  rig desk(slow_link());
  auto opts = arena_options(6 * size);
  opts.max_inflight = 1;
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  step(desk, off);
  off.start_trace("step", desk.stream());
  step(desk, off);
  const auto seen = off.finish_trace();
  std::ostringstream out;
  tidepool::trace::write_svg(out, seen);
  const auto text = out.str();
  namespace print = tidepool::trace::detail;
  CHECK(text.find(">budget " + print::bytes_text(seen.budget) + "</text>") != std::string::npos);

  struct sum {
    std::size_t count = 0;
    double time = 0;
    span longest;
  };
  std::map<std::pair<std::string, std::string>, sum> sums;
  for (const auto& each : of_kind(seen, span_kind::stall)) {
    if (!(each.end > each.start)) continue;
    auto& of = sums[{each.name, each.module}];
    ++of.count;
    of.time += each.end - each.start;
    if (each.end - each.start > of.longest.end - of.longest.start) of.longest = each;
  }
  REQUIRE(sums.size() >= 2);
  REQUIRE(sums.size() <= 6);  // as many lines as there are
  for (const auto& [key, of] : sums) {
    const auto begin = ">" + print::duration_text(of.time) + " in " + std::to_string(of.count) +
                       (of.count == 1 ? " stall: " : " stalls: ") + key.first + " (";
    const auto end = "waits for " + key.second + "; the longest, " +
                     print::duration_text(of.longest.end - of.longest.start) + ", at layer " +
                     std::to_string(of.longest.layer) + ", microbatch " +
                     std::to_string(of.longest.microbatch) + "</text>";
    CAPTURE(begin);
    CAPTURE(end);
    CHECK(text.find(begin) != std::string::npos);
    CHECK(text.find(end) != std::string::npos);
  }
}
