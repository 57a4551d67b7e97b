// Tensors by key in steps that are recorded for a plan, and in those that follow it.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/keyed.hpp"

namespace {

using tidepool::options;
using tidepool::tensor_key;
using tidepool::test::rig;

using modules = tidepool::modules<"core_attn">;
using offloader = tidepool::test::planning<rig::offloader<modules>>;
using keyed = tidepool::keyed<rig::device_type, modules>;

constexpr std::size_t size = 2048;

// Steps until one follows the plan. In each a tensor is dropped ahead of the load of another of its
// scope. `again`: both are read in forward behind the scope, and stay from the second step on.
void drop_ahead_of_load(options opts, bool again = false) {
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 20;
  std::array<std::array<std::byte, size>, 2> memory{};
  rig desk;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  keyed keys(off);
  const auto stream = desk.stream();
  int held = 0;
  for (int step = 0; step < 4; ++step) {
    auto pass = keys.begin();
    pass.run(off.module("core_attn"), 0, stream, [&] {
      for (const tensor_key key : {0, 1}) {
        ++held;
        desk.write_bytes(memory[key].data(), size, static_cast<std::uint32_t>(key), stream);
        pass.save(key, memory[key].data(), size, stream, [&held] { --held; });
      }
    });
    for (const tensor_key key : {0, 1}) {
      if (again) static_cast<void>(pass.load(key, stream));
    }
    pass.end_forward();
    pass.drop(0, stream);
    void* loaded = nullptr;
    REQUIRE_NOTHROW(loaded = pass.load(1, stream));
    desk.check_rows(loaded, {size, 1, size, 0}, 1, 0, stream);
    pass.drop(1, stream);
    pass.finish();
    REQUIRE_NOTHROW(off.end_step());
    off.release_borrowed();
    CHECK(held == 0);
  }
  CHECK(desk.dev.offloads() == (again ? 2 : 0));
  CHECK(desk.wrong() == 0);
}

}  // namespace

TEST_CASE("recorded keys: a tensor is dropped ahead of its scope, which stays for its layer") {
  auto opts = tidepool::test::small_options({"core_attn"});
  opts.offload_layers = {1};
  drop_ahead_of_load(opts);
}

TEST_CASE("recorded keys: a tensor is dropped ahead of its scope, which a plan keeps") {
  drop_ahead_of_load(tidepool::test::small_options({"core_attn"}), true);
}
