// Measuring the link, alone and beside others.
#include "tidepool/device/link.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/device/hardware_of.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"

TEST_SUITE_BEGIN("plan");

namespace {

using namespace tidepool;
using tidepool::test::rig;

constexpr std::size_t block_pair = std::size_t{64} << 20;

machine with_room() {
  machine about;
  about.device_bytes = about.host_bytes = std::size_t{256} << 20;
  about.offload_rate = 40;
  about.reload_rate = 50;
  about.both_rate = 60;
  about.poison = false;
  about.moves_bytes = false;
  return about;
}

/// It does not say what it was made with.
class measured_device : public virtual_device {
 public:
  using virtual_device::virtual_device;

 private:
  using virtual_device::model;
};

/// Others of the host begin later: until then copies take half the time.
struct beside_late_others : measured_device {
  using measured_device::measured_device;

  void copy(void* target, const void* source, copy_shape shape, copy_direction direction,
            stream_ref on) {
    auto& alone = direction == copy_direction::device_to_host ? out_alone : in_alone;
    if (alone > 0) {
      --alone;
      shape.width /= 2;
    }
    virtual_device::copy(target, source, shape, direction, on);
  }

  int out_alone = 0;
  int in_alone = 0;
};

/// Notes where copies go on the host, and where they come from there.
struct counting_places : measured_device {
  using measured_device::measured_device;

  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on) {
    if (direction == copy_direction::device_to_host) {
      to.insert(target);
    } else {
      from.insert(source);
    }
    virtual_device::copy(target, source, shape, direction, on);
  }

  std::set<const void*> to, from;
};

/// Lanes of a device, to measure on.
template <class Device>
struct lanes_of {
  explicit lanes_of(Device& dev) : on(dev) {
    on.open_own(lanes.out);
    on.open_own(lanes.in);
  }
  detail::hardware_of<Device> on;
  plan::link_lanes lanes{lane_id{0}, lane_id{1}};
};
template <class Device>
plan::link_rates measured_link(Device& dev, const std::function<void()>& meet, std::size_t bytes) {
  lanes_of<Device> its(dev);
  return plan::measure_link(its.on, its.lanes, meet, bytes);
}
template <class Device>
std::optional<plan::link_rates> measured_peer_link(Device& dev, void* lent = nullptr,
                                                   std::size_t bytes = 0) {
  lanes_of<Device> its(dev);
  return plan::measure_peer_link(its.on, its.lanes, 1, lent, bytes);
}

void check_rates(const plan::link_rates& rates, double out, double in, double both) {
  CHECK(rates.out == doctest::Approx(out).epsilon(0.01));
  CHECK(rates.in == doctest::Approx(in).epsilon(0.01));
  CHECK(rates.both == doctest::Approx(both).epsilon(0.01));
}

/// Steps of one group, until a plan is made of them.
template <class Offloader>
void train(rig& desk, Offloader& off, int steps) {
  for (int step = 0; step < steps; ++step) {
    auto open = off.begin();
    auto saved = off.allocate(4096, desk.stream());
    desk.write(saved, 1, 1000);
    open.commit(off.module("core_attn"), 0, desk.stream(), saved);
    open.end_forward();
    open.restore(off.module("core_attn"), 0, desk.stream(), saved);
    saved.reset(desk.stream());
    open.finish();
    off.end_step();
  }
}

machine with_neighbour() {
  auto about = with_room();
  about.peer_offload_rate = 100;
  about.peer_reload_rate = 120;
  about.peer_both_rate = 150;
  return about;
}

}  // namespace

TEST_CASE("link: what is measured is what the device has") {
  measured_device dev(with_room());
  check_rates(measured_link(
                  dev, [] {}, block_pair),
              40, 50, 60);
}

TEST_CASE("link: what is measured of the link to a neighbour is what the device has") {
  auto about = with_neighbour();
  measured_device dev(about);
  const auto rates = measured_peer_link(dev);
  REQUIRE(rates);
  check_rates(*rates, 100, 120, 150);
  virtual_device known(about);
  CHECK(measured_peer_link(known) == plan::link_rates{100, 120, 150, 2});
  about.peer_shares_link = true;
  virtual_device shared(about);
  CHECK(measured_peer_link(shared) == plan::link_rates{40, 50, 60, 2});
  null_device nothing;
  CHECK(!measured_peer_link(nothing));
}

TEST_CASE("link: what a process lends is measured in it, where it has room for two blocks") {
  measured_device dev(with_room());
  auto* const lent = dev.try_allocate_peer(1, block_pair);
  REQUIRE(lent != nullptr);
  const auto rates = measured_peer_link(dev, lent, block_pair);
  REQUIRE(rates);
  CHECK(rates->out == doctest::Approx(machine().peer_offload_rate).epsilon(0.05));
  CHECK(!measured_peer_link(dev, lent, block_pair - 1));
  dev.deallocate_peer(1, lent);
}

TEST_CASE("link: a plan rests on what the copy streams of its offloader measured") {
  auto about = with_neighbour();
  measured_device dev(about);
  const auto compute = dev.make_stream();
  options opts;
  opts.offload_modules = {"core_attn"};
  opts.places = {place_kind::peer, place_kind::host};
  opts.peer_budget = 1 << 20;
  opts.policy = policy_kind::automatic;
  opts.timed_step = 2;
  opts.plan_effort = 200;
  offloader<measured_device> off(dev, opts, {.planner = planner()});
  off.on_report([](std::string_view) {});
  for (int step = 0; step < 2; ++step) {
    auto open = off.begin();
    auto saved = off.allocate(4096, compute.ref());
    open.commit(off.module("core_attn"), 0, compute.ref(), saved);
    open.end_forward();
    open.restore(off.module("core_attn"), 0, compute.ref(), saved);
    saved.reset(compute.ref());
    open.finish();
    off.end_step();
  }
  check_rates(off.profile().link, 40, 50, 60);
  REQUIRE(off.profile().peer_link);
  check_rates(*off.profile().peer_link, 100, 120, 150);
}

TEST_CASE("link: who measures meets the others before each part, and nothing is under way then") {
  measured_device dev(with_room());
  std::vector<double> met;
  static_cast<void>(measured_link(
      dev,
      [&] {
        const auto now = dev.now_ns();
        dev.synchronize();
        CHECK(dev.now_ns() == now);
        met.push_back(now);
      },
      block_pair));
  REQUIRE(met.size() == 3);
  const auto moved = 192.0 * (32 << 20);
  CHECK(met[1] - met[0] == doctest::Approx(moved / 40).epsilon(0.01));
  CHECK(met[2] - met[1] == doctest::Approx(moved / 50).epsilon(0.01));
  CHECK(dev.now_ns() - met[2] == doctest::Approx(2 * moved / 60).epsilon(0.05));
}

TEST_CASE("link: copies take turns in as much host memory as there is to be, or half of it") {
  struct blocks {
    std::size_t mib_there;
    std::size_t mib_wanted;
    std::size_t expected;
  };
  for (const auto& [there, wanted, expected] : {blocks{512, 512, 8},
                                                {511, 512, 4},
                                                {512, 300, 4},
                                                {64, 512, 1},
                                                {512, 0, 1},
                                                {8192, 8192, 64}}) {
    const auto mib = std::pair(there, wanted);
    CAPTURE(mib.first);
    CAPTURE(mib.second);
    auto about = with_room();
    about.host_bytes = mib.first << 20;
    counting_places dev(about);
    const auto rates = measured_link(
        dev, [] {}, mib.second << 20);
    CHECK(rates.out == doctest::Approx(40).epsilon(0.01));
    CHECK(dev.to.size() == expected);
    CHECK(dev.from.size() == expected);
  }
}

TEST_CASE("link: others may begin late") {
  beside_late_others dev(with_room());
  const auto rates = measured_link(
      dev, [&] { dev.out_alone = dev.in_alone = 48; }, block_pair);
  check_rates(rates, 40, 50, 60);
}

TEST_CASE("link: who cannot measure does not keep the others waiting") {
  auto small = with_room();
  small.device_bytes = std::size_t{1} << 20;
  measured_device dev(small);
  int met = 0;
  CHECK(measured_link(
            dev, [&] { ++met; }, block_pair) == plan::link_rates{});
  CHECK(met == 3);

  met = 0;
  null_device nothing;
  CHECK(measured_link(
            nothing, [&] { ++met; }, block_pair) == plan::link_rates{});
  CHECK(met == 3);

  met = 0;
  virtual_device known(small);
  CHECK(measured_link(
            known, [&] { ++met; }, block_pair)
            .out == 40);
  CHECK(met == 3);
}

TEST_CASE("link: an automatic plan meets the others once, another policy never") {
  for (const auto policy : {policy_kind::automatic, policy_kind::megatron}) {
    rig desk;
    auto opts = test::arena_options(20480, {"core_attn"});
    opts.policy = policy;
    opts.plan_effort = 200;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    int met = 0;
    off.on_measure([&] { ++met; });
    train(desk, off, 1);
    CHECK(met == (policy == policy_kind::automatic ? 3 : 0));
    train(desk, off, 4);
    CHECK(met == (policy == policy_kind::automatic ? 3 : 0));
  }
}

TEST_CASE("link: what a meeting throws leaves end_step, and the offloader is safe to destroy") {
  rig desk;
  auto opts = test::arena_options(20480, {"core_attn"});
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
  off.on_measure([] { throw std::runtime_error("a rank is gone"); });
  CHECK_THROWS_WITH_AS(train(desk, off, 1), "a rank is gone", std::runtime_error);
}

TEST_CASE("link: after a meeting that threw, the next step is the first again") {
  const auto made = [](int failures) {
    rig desk;
    auto opts = test::arena_options(20480, {"core_attn"});
    opts.policy = policy_kind::automatic;
    opts.plan_effort = 200;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
    std::vector<std::string> reports;
    off.on_report([&](std::string_view line) { reports.emplace_back(line); });
    int met = 0;
    off.on_measure([&] {
      if (met++ < failures) throw std::runtime_error("a rank is late");
    });
    for (int i = 0; i < failures; ++i) CHECK_THROWS_AS(train(desk, off, 1), std::runtime_error);
    train(desk, off, 2);
    CHECK(met == failures + 3);
    CHECK(off.current_plan().has_value());
    CHECK(reports.size() == 1);
    CHECK(off.profile().chunks.size() == 1);
    CHECK(desk.wrong() == 0);
    return off.profile();
  };
  const auto plain = made(0);
  for (const int failures : {1, 2}) {
    const auto late = made(failures);
    CHECK(late.chunks == plain.chunks);
    CHECK(late.passes == plain.passes);
    CHECK(late.storages == plain.storages);
    CHECK(late.events.size() == plain.events.size());
    CHECK(late.shapes_vary == plain.shapes_vary);
    CHECK(plan::compute_us(late) == doctest::Approx(plan::compute_us(plain)));
  }
}

TEST_CASE("link: a report that throws takes no plan with it") {
  rig desk;
  auto opts = test::arena_options(20480, {"core_attn"});
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
  off.on_report([](std::string_view) { throw std::runtime_error("the log is full"); });
  train(desk, off, 1);
  CHECK_THROWS_WITH_AS(train(desk, off, 1), "the log is full", std::runtime_error);
  CHECK(off.current_plan().has_value());
  off.on_report([](std::string_view) {});
  train(desk, off, 2);
  CHECK(off.profile().chunks.size() == 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("link: after a step whose times could not be had, the next one is the first again") {
  rig desk;
  auto opts = test::arena_options(20480, {"core_attn"});
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  auto open = off.begin();
  auto saved = off.allocate(4096, desk.stream());
  desk.write(saved, 1, 1000);
  open.commit(off.module("core_attn"), 0, desk.stream(), saved);
  open.restore(off.module("core_attn"), 0, desk.stream(), saved);
  saved.reset(desk.stream());
  open.finish();
  desk.dev.before_record = [] { throw device_error("the device is busy", 1); };
  CHECK_THROWS_AS(off.end_step(), device_error);
  desk.dev.before_record = nullptr;
  train(desk, off, 2);
  CHECK(off.current_plan().has_value());
  CHECK(off.profile().chunks.size() == 1);
  CHECK(desk.wrong() == 0);
}
