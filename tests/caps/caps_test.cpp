// What `caps` says: against the engine's own counters and forecast.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "../../examples/caps/machines.hpp"
#include "../../examples/caps/measure.hpp"
#include "../../examples/caps/picture.hpp"
#include "../../examples/caps/table.hpp"
#include "tidepool/plan.hpp"

namespace {

constexpr double tolerance = 0.005;

caps::axes small_axes() {
  // No ratio of 1: what ends at the same time has no order.
  return {{{}, {0}, {1}, {2}, {4}}, {0.5, 1.1, 2}, {1, 2}, {{}, std::size_t{16} << 20, 6}, 1};
}

const caps::part_begins nobody = [](const std::string&, std::size_t, std::size_t) {};

std::vector<caps::series> measured() {
  caps::virtual_machine machine;
  return caps::measure(machine, small_axes(), nobody);
}

// A step of the same trainer, as the engine records it.
tidepool::plan::profile recorded(caps::virtual_machine& machine, const caps::workload& work,
                                 double compute_ns) {
  auto opts = caps::options_for(work);
  opts.offload_modules = {"expert_fc1"};
  opts.policy = tidepool::policy_kind::automatic;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = work.group_bytes * 40;
  caps::trainer<caps::virtual_machine> train(machine, work, compute_ns, opts,
                                             {.planner = tidepool::planner()});
  auto step = train.offloader().profile();
  REQUIRE(step.timed());
  step.events.front().compute_us -= caps::lead_us;  // before the time of a step begins
  const auto& link = machine.dev.model();
  step.link = {link.offload_rate, link.reload_rate, link.both_rate, link.copy_latency_ns / 1e3};
  return step;
}

caps::row point(caps::cap_limit cap, double us, std::size_t taken) {
  return {cap, us, 0, 0, taken, taken};
}

}  // namespace

TEST_CASE("caps: each time is computing and stalls, and memory is what the engine counts") {
  const auto all = measured();
  REQUIRE(all.size() == 6);
  for (const auto& each : all) {
    CAPTURE(each.order);
    CAPTURE(each.ratio);
    for (const auto& row : each.rows) {
      CAPTURE(caps::name_of(row.cap));
      CHECK(row.step_us == doctest::Approx(each.compute_us + row.stall_us).epsilon(1e-9));
      CHECK(row.cap_stall_us <= row.stall_us * (1 + 1e-12));
      CHECK((row.cap_stall_us > 0) <= row.cap.has_value());
      CHECK(row.held <= row.taken);
    }
  }
  // The same once more, by hand.
  const auto axes = small_axes();
  caps::virtual_machine machine;
  auto work = axes.work;
  const auto copy = caps::copy_ns(machine, work);
  work.order = caps::schedule_of(2);
  auto opts = caps::options_for(work);
  opts.offload_modules = {"expert_fc1"};
  opts.max_inflight = 1;
  caps::trainer<caps::virtual_machine> train(machine, work, axes.ratios[1] * copy, opts);
  const auto us = train.step_us();
  const auto& row = all[4].rows[2];
  REQUIRE(row.cap == caps::cap_limit{1});
  CHECK(row.step_us == doctest::Approx(us).epsilon(1e-9));
  CHECK(row.taken == train.counters().device_peak);
}

TEST_CASE("caps: the forecast of a recorded step of the same trainer says the same") {
  const auto axes = small_axes();
  const auto all = measured();
  caps::virtual_machine machine;
  auto work = axes.work;
  const auto copy = caps::copy_ns(machine, work);
  for (std::size_t d = 0; d < axes.depths.size(); ++d) {
    work.order = caps::schedule_of(axes.depths[d]);
    for (std::size_t r = 0; r < axes.ratios.size(); ++r) {
      const auto& seen = all[d * axes.ratios.size() + r];
      CAPTURE(seen.order);
      CAPTURE(seen.ratio);
      const auto step = recorded(machine, work, axes.ratios[r] * copy);
      const auto predicted = caps::predict(step, axes.limits, nobody);
      REQUIRE(predicted.rows.size() == seen.rows.size());
      CHECK(predicted.compute_us == doctest::Approx(seen.compute_us).epsilon(1e-6));
      for (std::size_t i = 0; i < seen.rows.size(); ++i) {
        CAPTURE(caps::name_of(seen.rows[i].cap));
        CHECK(predicted.rows[i].cap == seen.rows[i].cap);
        CHECK(predicted.rows[i].step_us == doctest::Approx(seen.rows[i].step_us).epsilon(1e-6));
        CHECK(predicted.rows[i].stall_us ==
              doctest::Approx(seen.rows[i].stall_us).epsilon(1e-6).scale(seen.compute_us));
        CHECK(predicted.rows[i].held == seen.rows[i].held);
      }
    }
  }
}

TEST_CASE("caps: the sentence names the cap that is free in the least memory, and what it saves") {
  constexpr std::size_t mib = std::size_t{1} << 20;
  caps::series one{"order", "ratio", 100, 512 * mib, {}};
  one.rows = {point({}, 110, 448 * mib), point({0}, 130, 256 * mib), point({1}, 110.2, 320 * mib),
              point({2}, 110, 384 * mib), point({4}, 110, 448 * mib)};
  CHECK(caps::sentence(one, tolerance) == "cap 1 is as fast as no cap here and takes 128 MiB less");
  CHECK(caps::sentence(one, 0.001) == "cap 2 is as fast as no cap here and takes 64.0 MiB less");

  auto slow = one;
  slow.rows[2].step_us = slow.rows[3].step_us = 121;
  CHECK(caps::sentence(slow, tolerance) ==
        "memory costs time here: cap 1, the fastest that takes less, takes 128 MiB less and 10 % "
        "more time than no cap");
  auto fast = one;
  fast.rows[2].step_us = 99;
  CHECK(caps::sentence(fast, tolerance) ==
        "cap 1 is 10 % faster than no cap here and takes 128 MiB less");
  auto flat = one;
  for (auto& row : flat.rows) row.taken = 448 * mib;
  CHECK(caps::sentence(flat, tolerance) == "no cap takes less memory than none here");

  CHECK(caps::conclusion({one, one}, tolerance) ==
        "Cap 1 is as fast as no cap in all 2 cases and takes 128 MiB less there.");
  CHECK(caps::conclusion({one, one, slow}, tolerance) ==
        "Cap 1 is as fast as no cap in 2 of 3 cases and takes 128 MiB less there; elsewhere it "
        "takes up to 10 % more time.");
  CHECK(caps::conclusion({flat, flat}, tolerance) ==
        "No cap that is as fast as none takes less memory.");
}

TEST_CASE("caps: the table has every figure, and marks the cap that the sentence names") {
  const auto all = measured();
  const auto text = caps::table_of(all, tolerance);
  std::istringstream lines(text);
  std::size_t marks = 0;
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    longest = std::max(longest, line.size());
    if (!line.starts_with("*")) marks += static_cast<std::size_t>(std::ranges::count(line, '*'));
  }
  CHECK(longest <= 100);
  std::size_t best = 0;
  for (const auto& each : all) {
    best += caps::best_of(each, tolerance) != nullptr ? 1 : 0;
    for (const auto& row : each.rows) {
      CHECK(text.find(tidepool::trace::detail::fixed(each.over(row), 2) + "x") !=
            std::string::npos);
      CHECK(text.find(tidepool::trace::detail::bytes_text(row.taken)) != std::string::npos);
    }
  }
  CHECK(marks == best);
  CHECK(best > 0);
}

TEST_CASE("caps: the picture has a line for each ratio, a point for each cap, and titled axes") {
  const auto all = measured();
  std::ostringstream out;
  caps::write_picture(out, "a device", all);
  const auto text = out.str();
  const auto count = [&](const std::string& what) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  CHECK(count("<polyline") == 6);
  CHECK(count(">compute 0.5 x copy</text>") == 2);
  CHECK(count(">step time, 1 = without offload</text>") == 2);
  CHECK(count(">device memory taken for saved tensors, MiB</text>") == 2);
  for (const auto& each : all) {
    CHECK(count(">" + each.order + "</text>") == 1);
    for (const auto& row : each.rows) {
      const auto about = "cap " + caps::name_of(row.cap) + ": " +
                         tidepool::trace::detail::trimmed(each.over(row), 3) + " x, " +
                         tidepool::trace::detail::bytes_text(row.taken);
      CAPTURE(about);
      CHECK(count(about) >= 1);
    }
  }
}
