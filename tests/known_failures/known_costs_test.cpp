// What cost others memory or time, or did nothing at all: each case is a bug somebody had, in
// short. What gave them wrong data is in known_failures_test.cpp.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "options/refusal.hpp"
#include "rig.hpp"
#include "tidepool/device/host_pages.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/pinned.hpp"
#include "tidepool/parse.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::check_says;
using tidepool::test::refusal;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn">>;

constexpr std::size_t size = 16 * 1024;

// A microbatch of layers that save a buffer each; nothing waits for the device.
struct microbatch {
  rig& desk;
  offloader::chunk open;
  std::vector<rig::buffer> x{};
  std::string stayed{};  // ".#" where the second layer's did

  microbatch(rig& on, offloader& off, const std::vector<std::size_t>& bytes)
      : desk(on), open(off.begin()), x(bytes.size()) {
    for (std::size_t l = 0; l < x.size(); ++l) {
      x[l] = off.allocate(bytes[l], desk.stream());
      desk.write(x[l], static_cast<std::uint32_t>(l));
      open.commit<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
      stayed += x[l] ? '#' : '.';
    }
  }
  void restore(std::size_t l) {
    open.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
    desk.check(x[l], static_cast<std::uint32_t>(l));
    x[l].reset(desk.stream());
  }
};

// A whole step; what stayed of it.
std::string train(rig& desk, offloader& off, const std::vector<std::size_t>& bytes) {
  microbatch all(desk, off, bytes);
  all.open.end_forward();
  for (auto l = bytes.size(); l-- > 0;) all.restore(l);
  all.open.finish();
  off.end_step();
  return all.stayed;
}

std::vector<std::size_t> equal(std::size_t layers) { return std::vector(layers, size); }

}  // namespace

TEST_CASE(
    "known failure: memory grows while the host runs ahead of its copies, as in Megatron-LM #4383"
    " and torchtitan #735") {
  rig desk;
  offloader off(desk.dev, small_options());
  for (int step = 0; step < 3; ++step) train(desk, off, equal(64));
  CHECK(off.counters().device_peak <= 8 * size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "known failure: evaluation breaks training when it counts as the warm-up, as in"
    " Megatron-LM #3043 and #3739") {
  const auto stayed = [](bool evaluates) {
    rig desk;
    auto opts = small_options();
    opts.margin = true;
    opts.fraction = 0.5;
    offloader off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    std::string text;
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < 2 && evaluates; ++i) {  // a step of its own, then one inside
        auto open = off.begin({.forward_only = true});
        auto x = off.allocate(size, desk.stream());
        open.commit<"core_attn">(0, desk.stream(), x);
        CHECK(x);
        if (i == 0) open.finish();
        if (i == 0) off.end_step();
      }
      text += train(desk, off, equal(5)) + ' ';
    }
    CHECK(desk.wrong() == 0);
    return text;
  };
  CHECK(stayed(false) == "..... ..### ..### ");
  CHECK(stayed(true) == stayed(false));
}

TEST_CASE(
    "known failure: memory is not freed while something left over refers to it, as in TE #1582 and"
    " TRL #5700") {
  rig desk;
  auto opts = arena_options(size);
  opts.host_budget = opts.host_step = size;
  offloader off(desk.dev, opts);
  for (int i = 0; i < 6; ++i) {
    CAPTURE(i);
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    auto part = x.view({.width = size / 2});
    auto again = x.share();
    open.commit<"core_attn">(0, desk.stream(), x, part, again);
    REQUIRE_NOTHROW(off.allocate(size, desk.stream()).reset(desk.stream()));  // all there is
    open.end_forward();
    if (i % 3 > 0) open.restore<"core_attn">(0, desk.stream(), x, part, again);
    if (i % 3 > 1) open.finish();  // the others are abandoned, before and after their restore
  }
  off.end_step();
  CHECK(off.counters().evictions == 0);
}

TEST_CASE(
    "known failure: pinned memory doubles when sizes go up to a power of two, as in"
    " pytorch #150517") {
  constexpr auto bytes = 1025 * tidepool::block_alignment;
  rig desk;
  auto opts = small_options();
  opts.host_step = tidepool::block_alignment;
  offloader off(desk.dev, opts);
  const microbatch saved(desk, off, {bytes});
  CHECK(off.counters().host_reserved == bytes);
}

TEST_CASE(
    "known failure: the host runs out of memory without a budget that knows cgroup and ranks, as in"
    " DeepSpeed #1891") {
  constexpr std::size_t mib = std::size_t{1} << 20;
  const auto root = std::filesystem::temp_directory_path() / "tidepool-known-failures";
  std::filesystem::create_directories(root / "job");
  const auto file = [&](const char* name, const std::string& text) {
    std::ofstream(root / name) << text << '\n';
    return (root / name).string();
  };
  const tidepool::host_files machine_of_8_ranks{
      file("meminfo", "MemAvailable: " + std::to_string(400 * 1024) + " kB"),
      file("cgroup", "0::/job"), root.string()};
  file("job/memory.max", std::to_string(100 * mib));
  file("job/memory.current", std::to_string(20 * mib));
  options opts;
  opts.local_ranks = 8;
  CHECK(tidepool::host_budget(opts, machine_of_8_ranks) == 80 * mib / 10 * 9 / 8);
  std::filesystem::remove_all(root);

  rig desk;
  opts = small_options();
  opts.host_budget = 2 * size;
  offloader off(desk.dev, opts);
  microbatch saved(desk, off, equal(2));
  auto x = off.allocate(size, desk.stream());
  CHECK_THROWS_AS(saved.open.commit<"core_attn">(2, desk.stream(), x), tidepool::out_of_budget);
  CHECK(x);
  CHECK(desk.dev.offloads() == 2);
  CHECK(off.counters().host_reserved <= 2 * size);
}

TEST_CASE(
    "known failure: shapes that change with every step defeat the pool, as in Megatron-LM #4247") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::mt19937 random(7);
  for (int step = 0; step < 60; ++step) {
    std::vector<std::size_t> bytes(6);
    for (auto& each : bytes) each = size + random() % 256 * 64;  // one to two times that
    train(desk, off, bytes);
  }
  // Room for what is in use, for four groups in flight, and for gaps; not for every shape.
  CHECK(off.counters().device_reserved <= 4 * off.counters().live_peak);
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "known failure: a stall at the start of backward when the last group has left, as in"
    " torchtune #1443") {
  const auto first_gradient = [](bool margin) {
    rig desk(machine{.reload_rate = 1});
    auto opts = small_options();
    opts.margin = margin;
    offloader off(desk.dev, opts);
    train(desk, off, equal(3));
    microbatch next(desk, off, equal(3));
    desk.dev.synchronize();
    const auto begin = desk.dev.now_ns();
    next.open.end_forward();
    next.restore(2);
    desk.dev.synchronize(desk.stream());
    const auto taken = desk.dev.now_ns() - begin;
    CHECK(desk.wrong() == 0);
    return taken;
  };
  CHECK(first_gradient(true) == doctest::Approx(1000));  // the kernel alone
  CHECK(first_gradient(false) > 1000 + size);
}

TEST_CASE(
    "known failure: bulk copies hold up small ones and each other, as in nccl #2218 and"
    " torchrec #4339") {
  rig desk;
  auto opts = small_options();
  opts.copy_piece = 1024;
  offloader off(desk.dev, opts);
  std::array<std::set<std::uint64_t>, 2> streams;
  desk.dev.after_copy = [&](tidepool::copy_direction direction, rig::stream_ref on) {
    streams[static_cast<std::size_t>(direction)].insert(on.key());
  };
  train(desk, off, equal(4));
  CHECK(desk.dev.offloads() == 4 * size / opts.copy_piece);
  CHECK(desk.dev.reloads() == 4 * size / opts.copy_piece);
  for (const auto& each : streams) CHECK(each.size() == 1);  // one at a time in each direction
}

#if defined(__linux__) && defined(SYS_mbind)
TEST_CASE(
    "known failure: three times slower on ranks whose pinned memory is on another NUMA node, as in"
    " torchtitan #3519") {
  const tidepool::host_pages anywhere(1, {.threads = 1});
  constexpr int prefer = 1;  // MPOL_PREFERRED
  const unsigned long first_node = 1;
  const bool may_bind =
      syscall(SYS_mbind, anywhere.data(), anywhere.bytes(), prefer, &first_node, 64UL, 0U) == 0;
  const tidepool::host_pages there(1, {.node = 0, .threads = 1});
  CHECK_FALSE(anywhere.bound());
  CHECK(there.bound() == may_bind);  // a container may forbid it
}
#endif

TEST_CASE(
    "known failure: many small copies freeze the loop when each is launched alone, as in"
    " torchtitan #467") {
  struct batching_device : tidepool::virtual_device {
    int launches = 0;
    bool copy_batch(std::span<const tidepool::copy_item> items, tidepool::copy_direction direction,
                    stream_ref on) {
      for (const auto& [target, source, bytes] : items) {
        virtual_device::copy(target, source, {bytes, 1, bytes, bytes}, direction, on);
      }
      return ++launches > 0;
    }
    void copy(void* target, const void* source, const tidepool::copy_shape& shape,
              tidepool::copy_direction direction, stream_ref on) {
      ++launches;
      virtual_device::copy(target, source, shape, direction, on);
    }
  };
  batching_device dev;
  const auto stream = dev.make_stream();
  tidepool::offloader<batching_device, tidepool::modules<"core_attn">> off(dev, small_options());
  auto open = off.begin();
  std::array<tidepool::buffer<batching_device>, 16> x;
  for (auto& each : x) each = off.allocate(256, stream.ref());
  const auto all = [&](const auto& call) { std::apply(call, x); };
  all([&](auto&... each) { open.commit<"core_attn">(0, stream.ref(), each...); });
  CHECK(dev.launches == 1);
  all([&](auto&... each) { open.restore<"core_attn">(0, stream.ref(), each...); });
  CHECK(dev.launches == 2);
}

TEST_CASE(
    "known failure: an option has no effect and nobody says so, as in Megatron-LM #7090 and"
    " #4173") {
  rig desk;
  const auto refused = [&](const options& opts) {
    return refusal<tidepool::unknown_module>([&] { offloader off(desk.dev, opts); });
  };
  check_says(refused(small_options({"moe_act"})), {"moe_act", "is not compiled into this program"});
  check_says(refusal([] {
               static_cast<void>(tidepool::parse_options("--fine-grained-activation-offloading"));
             }),
             {"alone it offloads nothing"});
  CHECK(tidepool::parse_options("--fine-grained-offloading-max-inflight-offloads 2").max_inflight ==
        2);
  auto opts = small_options();
  opts.min_tensor_elements = 2 * size;
  offloader off(desk.dev, opts);
  std::string said;
  off.on_report([&](std::string_view line) { said += line; });
  CHECK(train(desk, off, equal(2)) == "##");
  check_says(said, {"core_attn", "moved no byte", "--min-tensor-elements"});
}
