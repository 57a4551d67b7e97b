// Modules by name at compile time, by id at run time, and by options.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::module_id;
using tidepool::modules;
using tidepool::option_error;
using tidepool::unknown_module;
using tidepool::test::rig;
using tidepool::test::small_options;

constexpr std::size_t size = 1024;

// Commits and restores one buffer in a chunk of its own; true if it left in between.
template <class Offloader>
bool leaves(rig& desk, Offloader& off, module_id module) {
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.commit(module, 0, desk.stream(), x);
  const bool left = !x;
  open.restore(module, 0, desk.stream(), x);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  return left;
}

}  // namespace

TEST_CASE("modules: by id at run time, with every name compiled in") {
  rig desk;
  auto opts = small_options({"core_attn", "my_mlp"});
  opts.own_modules = {"my_mlp", "my_norm"};
  rig::offloader<> off(desk.dev, opts);
  CHECK(off.enabled(off.module("core_attn")));
  CHECK(off.enabled(off.module("my_mlp")));
  CHECK_FALSE(off.enabled(off.module("my_norm")));
  CHECK_FALSE(off.enabled(off.module("expert_fc1")));
  CHECK(off.enabled<"my_mlp">());
  CHECK_FALSE(off.enabled<"moe_act">());
  CHECK(leaves(desk, off, off.module("core_attn")));
  CHECK(leaves(desk, off, off.module("my_mlp")));
  CHECK_FALSE(leaves(desk, off, off.module("my_norm")));
  CHECK_FALSE(leaves(desk, off, off.module("expert_fc1")));
  CHECK(desk.wrong() == 0);
  const auto counted = off.counters().modules;
  constexpr auto own = tidepool::standard_modules.size();
  REQUIRE(counted.size() == own + 2);
  CHECK(counted[2].name == "core_attn");
  CHECK(counted[own].name == "my_mlp");
  CHECK(counted[own].groups_offloaded == 1);
  CHECK(counted[own + 1].groups == 0);
}

TEST_CASE("modules: a name that nobody declared is refused, with the name") {
  rig desk;
  rig::offloader<> off(desk.dev, small_options({"core_attn"}));
  CHECK_THROWS_WITH_AS(
      static_cast<void>(off.module("core_atn")),
      doctest::Contains(
          "tidepool: module() names 'core_atn', which is no known module; did you mean "
          "'core_attn'? Known here: "),
      unknown_module);
  CHECK_THROWS_AS(static_cast<void>(off.enabled<"my_mlp">()), unknown_module);
  rig::offloader<modules<"core_attn">> closed(desk.dev, small_options({"core_attn"}));
  CHECK_THROWS_WITH_AS(static_cast<void>(closed.module("moe_act")),
                       doctest::Contains("'moe_act', which is not compiled into this program"),
                       unknown_module);
}

TEST_CASE("modules: a superset compiled in, of which the options enable some") {
  rig desk;
  using compiled = modules<"qkv_linear", "core_attn", "my_own", "expert_fc1">;
  rig::offloader<compiled> off(desk.dev, small_options({"my_own", "core_attn"}));
  CHECK_FALSE(off.enabled<"qkv_linear">());
  CHECK(off.enabled<"core_attn">());
  CHECK(off.enabled<"my_own">());
  CHECK_FALSE(off.enabled<"moe_act">());  // not compiled in: no error, just not enabled
  CHECK(off.module("my_own") == compiled::id("my_own"));
  auto open = off.begin();
  auto a = off.allocate(size, desk.stream());
  auto b = off.allocate(size, desk.stream());
  auto c = off.allocate(size, desk.stream());
  desk.write(b, 2);
  open.commit<"qkv_linear">(0, desk.stream(), a);
  open.commit<"my_own">(0, desk.stream(), b);
  open.commit<"moe_act">(0, desk.stream(), c);  // generates nothing
  CHECK(a);
  CHECK_FALSE(b);
  CHECK(c);
  open.restore<"moe_act">(0, desk.stream(), c);
  open.restore<"my_own">(0, desk.stream(), b);
  open.restore<"qkv_linear">(0, desk.stream(), a);
  desk.check(b, 2);
  open.start_offload<"moe_act">(1, desk.stream(), c);
  open.start_reload<"moe_act">(1);
  open.finish();
  CHECK(leaves(desk, off, off.module("core_attn")));
  CHECK(desk.wrong() == 0);
}

TEST_CASE("modules: names and ids of one list are the same modules") {
  rig desk;
  rig::offloader<modules<"core_attn", "expert_fc1">> off(desk.dev, small_options());
  const auto id = off.module("expert_fc1");
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.commit<"expert_fc1">(3, desk.stream(), x);
  CHECK_FALSE(x);
  open.restore(id, 3, desk.stream(), x);
  desk.check(x, 1);
  CHECK(off.counters().modules[1].groups == 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("modules: \"all\" is every module but those that exclude each other") {
  rig desk;
  rig::offloader<> off(desk.dev, small_options({"all"}));
  for (const auto name : tidepool::standard_modules) {
    CAPTURE(std::string(name));
    CHECK(off.enabled(off.module(name)) == (name != "fused_group_mlp"));
  }
  rig::offloader<modules<"fused_group_mlp", "core_attn">> fused(desk.dev, small_options({"all"}));
  CHECK(fused.enabled<"fused_group_mlp">());
}

TEST_CASE("modules: as many as a word has bits, the last of them as good as the first") {
  rig desk;
  auto opts = small_options({});
  for (std::size_t i = tidepool::standard_modules.size(); i < tidepool::max_modules; ++i) {
    opts.own_modules.push_back("own_" + std::to_string(i));
  }
  opts.offload_modules = {"own_63", "attn_norm"};
  rig::offloader<> off(desk.dev, opts);
  CHECK(static_cast<std::size_t>(off.module("own_63")) == 63);
  {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    auto y = off.allocate(size, desk.stream());
    open.commit(off.module("own_63"), 0, desk.stream(), x);
    open.commit(off.module("own_62"), 0, desk.stream(), y);
    CHECK_FALSE(x);
    CHECK(y);
  }
  opts.own_modules.push_back("own_64");
  CHECK_THROWS_AS(rig::offloader<>(desk.dev, opts), option_error);
}

TEST_CASE("modules: an offloader refuses options before it takes anything") {
  rig desk;
  const auto refuse = [&](const tidepool::options& opts, const char* name) {
    CHECK_THROWS_WITH_AS(rig::offloader<>(desk.dev, opts), doctest::Contains(name), option_error);
  };
  refuse(small_options({"core_atn"}), "core_atn");
  refuse(small_options({"attn_proj"}), "core_attn");
  refuse(small_options({"fused_group_mlp", "moe_act"}), "moe_act");
  auto opts = small_options();
  opts.fraction = 1.5;
  refuse(opts, "1.5");
  opts = small_options();
  opts.memory = tidepool::memory_kind::arena;
  refuse(opts, "device_budget");
  CHECK_THROWS_AS((rig::offloader<modules<"core_attn">>(desk.dev, small_options({"moe_act"}))),
                  unknown_module);
  CHECK(desk.dev.device_allocations + desk.dev.host_allocations == 0);
  CHECK(desk.dev.events_made == 0);
}

TEST_CASE("modules: an offloader without modules costs no event and no memory until it is used") {
  rig desk;
  rig::offloader<modules<"core_attn">> off(desk.dev);
  CHECK(desk.dev.device_allocations + desk.dev.host_allocations == 0);
  CHECK(off.settings() == tidepool::options{});
}

TEST_CASE("modules: a strict list serves its own names as any list does") {
  using list = tidepool::strict_modules<"core_attn", "expert_fc1", "my_mlp">;
  static_assert(list::strict && !list::open && !modules<"core_attn">::strict);
  rig desk;
  std::vector<std::string> reports;
  rig::offloader<list> off(desk.dev, small_options({"core_attn", "expert_fc1"}));
  off.on_report([&](std::string_view text) { reports.emplace_back(text); });
  CHECK(off.enabled<"core_attn">());
  CHECK_FALSE(off.enabled<"my_mlp">());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  CHECK_FALSE(x);
  open.commit_or_discard<"moe_permute">(0, desk.stream(), x);  // a region, and not of the list
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  off.end_step();
  CHECK(desk.wrong() == 0);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].find("'expert_fc1' was asked for and moved no byte") != std::string::npos);
}

TEST_CASE("modules: a module whose only group the margin keeps is reported, with the remedy") {
  for (const bool others : {false, true}) {
    for (const bool margin : {true, false}) {
      CAPTURE(others);
      CAPTURE(margin);
      rig desk;
      std::vector<std::string> reports;
      auto opts = small_options({"core_attn", "expert_fc1"});
      opts.margin = margin;
      rig::offloader<tidepool::modules<"core_attn", "expert_fc1">> off(desk.dev, opts);
      off.on_report([&](std::string_view text) { reports.emplace_back(text); });
      for (int step = 0; step < 3; ++step) {
        auto open = off.begin();
        std::vector<rig::buffer> x(3);
        const auto module = [&](std::size_t l) {
          return off.module(l == 0 || (others && l == 1) ? "core_attn" : "expert_fc1");
        };
        const std::size_t layers = others ? 3 : 2;
        for (std::size_t l = 0; l < layers; ++l) {
          x[l] = off.allocate(size, desk.stream());
          open.commit(module(l), static_cast<int>(l), desk.stream(), x[l]);
        }
        open.end_forward();
        for (std::size_t l = layers; l-- > 0;) {
          open.restore(module(l), static_cast<int>(l), desk.stream(), x[l]);
          x[l].reset(desk.stream());
        }
        open.finish();
        off.end_step();
      }
      REQUIRE(reports.size() == (margin ? 1 : 0));
      if (!margin) continue;
      CAPTURE(reports[0]);
      const auto names = others ? "nothing of 'expert_fc1' is offloaded"
                                : "nothing of 'core_attn', 'expert_fc1' is offloaded";
      CHECK(reports[0].find(names) != std::string::npos);
      CHECK(reports[0].find("take --no-margin (margin = false in code)") != std::string::npos);
    }
  }
}

TEST_CASE("modules: of all, what the margin keeps is reported where nothing else leaves") {
  for (const bool others : {false, true}) {
    CAPTURE(others);
    rig desk;
    std::vector<std::string> reports;
    auto opts = small_options();
    opts.margin = true;
    rig::offloader<tidepool::modules<"core_attn", "expert_fc1">> off(desk.dev, opts);
    off.on_report([&](std::string_view text) { reports.emplace_back(text); });
    auto open = off.begin();
    std::vector<rig::buffer> x(3);
    for (std::size_t l = others ? 0 : 1; l < 3; ++l) {
      x[l] = off.allocate(size, desk.stream());
      open.commit(off.module(l < 2 ? "core_attn" : "expert_fc1"), static_cast<int>(l),
                  desk.stream(), x[l]);
    }
    open.end_forward();
    for (std::size_t l = 3; l-- > (others ? 0U : 1U);) {
      open.restore(off.module(l < 2 ? "core_attn" : "expert_fc1"), static_cast<int>(l),
                   desk.stream(), x[l]);
      x[l].reset(desk.stream());
    }
    open.finish();
    off.end_step();
    CHECK(reports.size() == (others ? 0 : 1));
  }
}
