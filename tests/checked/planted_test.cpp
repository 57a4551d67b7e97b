// Mistakes of trainers, each planted into a program that is right without it. The report names the
// two accesses.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "checked_training.hpp"

namespace {

using tidepool::access_kind;
using tidepool::copy_direction;
using tidepool::finding_kind;
using tidepool::join_site;
using tidepool::test::arena_options;
using tidepool::test::checked;
using tidepool::test::checked_offloader;
using desk = tidepool::test::checked_desk;
using tidepool::test::in_stream;
using tidepool::test::out_stream;
using tidepool::test::small_options;
using tidepool::test::tensor_bytes;

constexpr bool ways[]{false, true};  // right, and with the mistake

// The one finding there may be.
void check_only(const desk& at, bool planted, finding_kind kind, access_kind first,
                std::string_view on, access_kind second, std::string_view then_on) {
  INFO(at.dev.report());
  CAPTURE(planted);
  CHECK(at.dev.findings().empty() == !planted);
  CHECK(at.found(kind, first, on, second, then_on) == planted);
}

}  // namespace

TEST_CASE("planted: a commit on another stream than the one that writes") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto chunk = off.begin({.microbatch = 7});
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.write(x, at.compute.ref(), "gelu");
    chunk.commit<"fc1">(3, planted ? at.side.ref() : at.compute.ref(), x);
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "compute",
               access_kind::offload, out_stream);
    if (!planted) continue;
    const auto& found = at.dev.findings().at(0);
    CHECK(found.missing == join_site::producer);
    CHECK(found.first.name == "gelu");
    CHECK(found.bytes == tensor_bytes);
    const auto text = to_text(found);
    CHECK(text.find("kernel 'gelu' writes on compute") != std::string::npos);
    CHECK(text.find("fc1 of layer 3, microbatch 7") != std::string::npos);
    CHECK(text.find("the offload stream has to wait for an event that compute records") !=
          std::string::npos);
  }
}

TEST_CASE("planted: a kernel reads on another stream than the one that restores") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto chunk = off.begin();
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.write(x, at.compute.ref());
    chunk.commit<"fc1">(0, at.compute.ref(), x);
    chunk.end_forward();
    chunk.restore<"fc1">(0, planted ? at.side.ref() : at.compute.ref(), x);
    at.read(x, at.compute.ref(), "backward");
    check_only(at, planted, finding_kind::unordered, access_kind::reload, in_stream,
               access_kind::kernel_read, "compute");
    if (planted) CHECK(at.dev.findings().at(0).missing == join_site::consumer);
  }
}

TEST_CASE("planted: no event between two streams of the trainer's") {
  for (const bool planted : ways) {
    desk at;
    std::array<float, 64> weights{};
    const std::span<float> all(weights);
    at.dev.writes(all, at.compute.ref(), "optimizer");
    if (!planted) at.join(at.compute.ref(), at.side.ref());
    at.dev.reads(all.subspan(32), at.side.ref(), "gemm");
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "compute",
               access_kind::kernel_read, "side");
    if (planted) CHECK(at.dev.findings().at(0).bytes == 128);
  }
}

TEST_CASE("planted: the event is recorded before the kernel that it should stand for") {
  for (const bool planted : ways) {
    desk at;
    std::array<float, 64> sums{};
    auto mark = at.dev.make_event();
    if (planted) at.dev.record(mark, at.compute.ref());
    at.dev.writes(std::span(sums), at.compute.ref(), "reduce");
    if (!planted) at.dev.record(mark, at.compute.ref());
    at.dev.wait(at.side.ref(), mark);
    at.dev.writes(std::span(sums), at.side.ref(), "clear");
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "compute",
               access_kind::kernel_write, "side");
  }
}

TEST_CASE("planted: a reset on a stream that does not wait for the last reader") {
  for (const bool planted : ways) {
    // With poison the offloader waits for more: for the fill of memory that nobody touched.
    desk at(tidepool::machine{.poison = false});
    checked_offloader off(at.dev, arena_options(tensor_bytes));
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.write(x, at.compute.ref());
    at.join(at.compute.ref(), at.side.ref());
    at.read(x, at.compute.ref(), "late reader");
    if (!planted) at.join(at.compute.ref(), at.side.ref());
    x.reset(at.side.ref());
    auto y = off.allocate(tensor_bytes, at.side.ref());
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_read, "compute",
               access_kind::handed_out, "side");
    if (planted) CHECK(at.dev.findings().at(0).missing == join_site::device_reuse);
    at.join(at.compute.ref(), at.side.ref());
  }
}

TEST_CASE("planted: a kernel reads what nothing has written") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    auto y = off.allocate(tensor_bytes, at.compute.ref());
    at.write(y, at.compute.ref());
    if (!planted) at.write(x, at.compute.ref());
    at.read(x, at.compute.ref(), "norm");
    check_only(at, planted, finding_kind::never_written, access_kind::handed_out, "compute",
               access_kind::kernel_read, "compute");
  }
}

TEST_CASE("planted: memory that was used before counts as unwritten when it is handed out anew") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, arena_options(tensor_bytes));
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.write(x, at.compute.ref());
    x.reset(at.compute.ref());
    x = off.allocate(tensor_bytes, at.compute.ref());
    if (!planted) at.write(x, at.compute.ref());
    at.read(x, at.compute.ref(), "accumulate");
    check_only(at, planted, finding_kind::never_written, access_kind::handed_out, "compute",
               access_kind::kernel_read, "compute");
  }
}

TEST_CASE("planted: what was never written comes back from the host, and is read") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto chunk = off.begin();
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.dev.writes(x.data(), planted ? tensor_bytes / 2 : tensor_bytes, at.compute.ref(), "half");
    chunk.commit<"fc1">(0, at.compute.ref(), x);
    chunk.end_forward();
    chunk.restore<"fc1">(0, at.compute.ref(), x);
    at.read(x, at.compute.ref(), "backward");
    check_only(at, planted, finding_kind::never_written, access_kind::handed_out, "compute",
               access_kind::kernel_read, "compute");
    if (planted) CHECK(at.dev.findings().at(0).bytes == tensor_bytes / 2);
  }
}

TEST_CASE("planted: a kernel uses a tensor after its commit") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto chunk = off.begin();
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.write(x, at.compute.ref());
    const void* const kept = x.data();
    if (!planted) at.dev.reads(kept, tensor_bytes, at.compute.ref(), "next layer");
    chunk.commit<"fc1">(2, at.compute.ref(), x);
    if (planted) at.dev.reads(kept, tensor_bytes, at.compute.ref(), "next layer");
    check_only(at, planted, finding_kind::given_back, access_kind::given_back, out_stream,
               access_kind::kernel_read, "compute");
    if (planted) CHECK(at.dev.findings().at(0).first.layer == 2);
  }
}

TEST_CASE("planted: a kernel writes to a tensor after its reset") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    void* const kept = x.data();
    if (planted) x.reset(at.compute.ref());
    at.dev.writes(kept, tensor_bytes, at.compute.ref(), "gradient");
    x.reset(at.compute.ref());
    check_only(at, planted, finding_kind::given_back, access_kind::given_back, "compute",
               access_kind::kernel_write, "compute");
  }
}

TEST_CASE("planted: a kernel changes a tensor while it is being offloaded") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto chunk = off.begin();
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    at.write(x, at.compute.ref());
    auto second = x.share();
    chunk.commit<"fc1">(0, at.compute.ref(), x);
    if (planted) {
      at.write(second, at.compute.ref(), "in place");
    } else {
      at.read(second, at.compute.ref(), "not in place");
    }
    check_only(at, planted, finding_kind::unordered, access_kind::offload, out_stream,
               access_kind::kernel_write, "compute");
  }
}

TEST_CASE("planted: an allocation is used on a stream that does not wait for the one that asked") {
  for (const bool planted : ways) {
    desk at;
    checked_offloader off(at.dev, small_options());
    auto x = off.allocate(tensor_bytes, at.compute.ref());
    if (!planted) at.join(at.compute.ref(), at.side.ref());
    at.write(x, at.side.ref(), "first writer");
    check_only(at, planted, finding_kind::unordered, access_kind::handed_out, "compute",
               access_kind::kernel_write, "side");
    at.join(at.side.ref(), at.compute.ref());
  }
}

TEST_CASE("planted: the host reads a loss before it waits for the stream") {
  for (const bool planted : ways) {
    desk at;
    auto* const loss = static_cast<float*>(at.dev.try_allocate_host(4));
    at.dev.writes(loss, 4, at.compute.ref(), "publish");
    if (!planted) at.dev.synchronize(at.compute.ref());
    at.dev.host_reads(loss, 4, "loss");
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "compute",
               access_kind::host_read, "");
    at.dev.deallocate_host(loss);
  }
}

TEST_CASE("planted: the host fills a staging buffer while it is being copied") {
  for (const bool planted : ways) {
    desk at;
    auto* const stage = at.dev.try_allocate_host(64);
    auto* const batch = at.dev.allocate(64);
    for (int i = 0; i < 2; ++i) {
      at.dev.host_writes(stage, 64, "batch");
      at.dev.copy(batch, stage, {.width = 64}, copy_direction::host_to_device, at.side.ref());
      if (!planted) at.dev.synchronize(at.side.ref());
    }
    check_only(at, planted, finding_kind::unordered, access_kind::copy, "side",
               access_kind::host_write, "");
    at.dev.deallocate(batch);
    at.dev.deallocate_host(stage);
  }
}

TEST_CASE("planted: borrowed memory goes back before its last use") {
  for (const bool planted : ways) {
    desk at;
    auto opts = small_options();
    opts.borrowed_slack = 0;
    checked_offloader off(at.dev, opts);
    auto* const own = at.dev.allocate(tensor_bytes);
    at.dev.writes(own, tensor_bytes, at.compute.ref(), "produce");
    bool back = false;
    auto x = off.adopt(own, tensor_bytes, at.compute.ref(), [&] { back = true; });
    at.join(at.compute.ref(), at.side.ref());
    at.read(x, at.side.ref(), "beside");
    x.reset(planted ? at.compute.ref() : at.side.ref());
    REQUIRE(back);
    check_only(at, planted, finding_kind::returned_early, access_kind::kernel_read, "side",
               access_kind::returned, "compute");
    if (planted) CHECK(at.dev.findings().at(0).missing == join_site::give_back);
    at.dev.deallocate(own);
  }
}

TEST_CASE("planted: a tensor that was adopted twice goes back before its last use") {
  for (const bool planted : ways) {
    desk at;
    auto opts = small_options();
    opts.borrowed_slack = 0;
    checked_offloader off(at.dev, opts);
    auto* const own = at.dev.allocate(tensor_bytes);
    at.dev.writes(own, tensor_bytes, at.compute.ref(), "produce");
    auto x = off.adopt(own, tensor_bytes, at.compute.ref(), [] {});
    auto y = off.adopt(own, tensor_bytes, at.compute.ref(), [] {});
    at.join(at.compute.ref(), at.side.ref());
    at.read(y, at.side.ref(), "beside");
    x.reset(at.compute.ref());
    CHECK(at.dev.findings().empty());
    y.reset(planted ? at.compute.ref() : at.side.ref());
    check_only(at, planted, finding_kind::returned_early, access_kind::kernel_read, "side",
               access_kind::returned, "compute");
    at.dev.deallocate(own);
  }
}

TEST_CASE("planted: memory with references on two streams is written before one of them is done") {
  for (const bool planted : ways) {
    desk at;
    auto opts = small_options();
    opts.borrowed_slack = 0;
    checked_offloader off(at.dev, opts);
    auto* const own = at.dev.allocate(tensor_bytes);
    at.dev.writes(own, tensor_bytes, at.compute.ref(), "produce");
    at.join(at.compute.ref(), at.side.ref());
    auto x = off.adopt(own, tensor_bytes, at.compute.ref(), [] {});
    auto y = off.adopt(own, tensor_bytes, at.side.ref(), [] {});
    at.read(y, at.side.ref(), "beside");
    y.reset(at.side.ref());
    x.reset(at.compute.ref());
    if (!planted) at.join(at.side.ref(), at.compute.ref());
    at.dev.writes(own, tensor_bytes, at.compute.ref(), "next");
    check_only(at, planted, finding_kind::unordered, access_kind::returned, "side",
               access_kind::kernel_write, "compute");
    at.dev.deallocate(own);
  }
}

TEST_CASE("planted: a kernel uses memory that the trainer has freed") {
  for (const bool planted : ways) {
    desk at;
    auto* const own = at.dev.allocate(256);
    if (!planted) at.dev.writes(own, 256, at.compute.ref(), "late");
    at.dev.deallocate(own);
    if (planted) at.dev.writes(own, 256, at.compute.ref(), "late");
    check_only(at, planted, finding_kind::given_back, access_kind::freed, "",
               access_kind::kernel_write, "compute");
  }
}

TEST_CASE("planted: a wait for an event of a capture that is over") {
  desk at;
  auto inside = at.dev.make_event();
  at.dev.begin_capture(at.compute.ref());
  at.dev.record(inside, at.compute.ref());
  auto graph = at.dev.end_capture(at.compute.ref());
  CHECK_THROWS_AS(at.dev.wait(at.side.ref(), inside), tidepool::device_error);
  check_only(at, true, finding_kind::foreign_capture, access_kind::recorded, "compute",
             access_kind::waited, "side");
  CHECK(at.dev.findings().at(0).first.graph == 1);
}

TEST_CASE("planted: a capture waits for an event from before it") {
  desk at;
  auto outside = at.dev.make_event();
  at.dev.record(outside, at.side.ref());
  at.dev.begin_capture(at.compute.ref());
  CHECK_THROWS_AS(at.dev.wait(at.compute.ref(), outside), tidepool::device_error);
  check_only(at, true, finding_kind::foreign_capture, access_kind::recorded, "side",
             access_kind::waited, "compute");
}

TEST_CASE("planted: a capture leaves out the work of a second stream") {
  for (const bool planted : ways) {
    desk at;
    auto fork = at.dev.make_event();
    at.dev.begin_capture(at.compute.ref());
    at.dev.record(fork, at.compute.ref());
    at.dev.wait(at.side.ref(), fork);
    at.dev.launch(at.side.ref(), 1, [] {}, "branch", {{&fork, 1, true}});
    if (!planted) at.join(at.side.ref(), at.compute.ref());
    const auto end = [&] { auto graph = at.dev.end_capture(at.compute.ref()); };
    if (planted) {
      CHECK_THROWS_AS(end(), tidepool::device_error);
    } else {
      end();
    }
    check_only(at, planted, finding_kind::not_joined, access_kind::kernel_write, "side",
               access_kind::capture_end, "compute");
  }
}

TEST_CASE("planted: a graph is launched before what it reads is there") {
  for (const bool planted : ways) {
    desk at;
    std::array<float, 16> input{};
    at.dev.begin_capture(at.compute.ref());
    at.dev.reads(std::span(input), at.compute.ref(), "captured gemm");
    auto graph = at.dev.end_capture(at.compute.ref());
    CHECK(at.dev.findings().empty());  // nothing of it has run
    at.dev.writes(std::span(input), at.side.ref(), "load");
    if (!planted) at.join(at.side.ref(), at.compute.ref());
    at.dev.replay(graph, at.compute.ref());
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "side",
               access_kind::kernel_read, "compute");
    if (planted) CHECK(at.dev.findings().at(0).missing == join_site::launch);
  }
}

TEST_CASE("planted: eager work does not wait for a graph") {
  for (const bool planted : ways) {
    desk at;
    std::array<float, 16> output{};
    at.dev.begin_capture(at.compute.ref());
    at.dev.writes(std::span(output), at.compute.ref(), "captured gemm");
    auto graph = at.dev.end_capture(at.compute.ref());
    at.dev.replay(graph, at.compute.ref());
    if (!planted) at.join(at.compute.ref(), at.side.ref());
    at.dev.reads(std::span(output), at.side.ref(), "metrics");
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "compute",
               access_kind::kernel_read, "side");
    if (planted) CHECK(at.dev.findings().at(0).missing == join_site::after_launch);
  }
}

TEST_CASE("planted: a graph is launched on another stream than it was captured on") {
  for (const bool planted : ways) {
    desk at;
    std::array<float, 16> output{};
    at.dev.begin_capture(at.compute.ref());
    at.dev.writes(std::span(output), at.compute.ref(), "captured gemm");
    auto graph = at.dev.end_capture(at.compute.ref());
    at.dev.replay(graph, at.side.ref());
    if (!planted) at.join(at.side.ref(), at.compute.ref());
    at.dev.reads(std::span(output), at.compute.ref(), "metrics");
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "side",
               access_kind::kernel_read, "compute");
  }
}

TEST_CASE("planted: a stream of the trainer's keeps its name where an offloader is given it too") {
  desk at;
  at.dev.name_copy_streams(at.side.ref(), at.side.ref(), at.side.ref(), tidepool::place_kind::host);
  std::array<float, 16> x{};
  at.dev.writes(std::span(x), at.compute.ref(), "fc1");
  at.dev.reads(std::span(x), at.side.ref(), "act");
  REQUIRE(at.dev.findings().size() == 1);
  CHECK(at.dev.findings().at(0).second.stream.starts_with("side, the offload stream"));
}

namespace {
struct all_is_over : checked {
  using checked::checked;
  [[nodiscard]] static bool passed(const event& /*which*/) { return true; }
};
}  // namespace

// The owner's next kernel comes before its memory is back, by the clock behind it.
TEST_CASE("planted: borrowed memory is used too early, and its copy happens to be over") {
  for (const bool planted : ways) {
    tidepool::test::basic_desk<all_is_over> at;
    auto opts = arena_options(std::size_t{1} << 20);
    const auto own = std::make_unique<std::array<float, 256>>();
    int back = 0;
    tidepool::offloader<all_is_over, tidepool::modules<"fc1">> off(at.dev, opts);
    auto chunk = off.begin();
    for (int l = 0; l < 2; ++l) {
      at.dev.writes(own->data() + 128 * l, 512, at.compute.ref(), "produce");
      auto x = off.adopt<float>(own->data() + 128 * l, 128, at.compute.ref(), [&] { ++back; });
      chunk.commit<"fc1">(l, at.compute.ref(), x);
    }
    if (!planted) off.release_borrowed();
    CHECK(back == (planted ? 0 : 2));
    at.dev.writes(own->data(), 512, at.compute.ref(), "next");
    INFO(at.dev.report());
    CHECK(at.dev.findings().empty() == !planted);
    CHECK(at.found(finding_kind::unordered, access_kind::offload, out_stream,
                   access_kind::kernel_write, "compute") == planted);
  }
}

TEST_CASE("planted: events of the trainer's own, declared, with one forgotten") {
  for (const bool planted : ways) {
    desk at;
    std::array<float, 16> sums{};
    const int own_event = 0;  // its address stands for it
    at.dev.writes(std::span(sums), at.compute.ref(), "reduce");
    if (!planted) at.dev.recorded(&own_event, at.compute.ref());
    at.dev.waited(at.side.ref(), &own_event);
    at.dev.reads(std::span(sums), at.side.ref(), "use");
    check_only(at, planted, finding_kind::unordered, access_kind::kernel_write, "compute",
               access_kind::kernel_read, "side");
  }
}

TEST_CASE("planted: the trainer says which part of the step it is in") {
  desk at;
  std::array<float, 16> sums{};
  {
    const auto part = at.dev.at("router", 4, 1);
    at.dev.writes(std::span(sums), at.compute.ref(), "scores");
  }
  at.dev.reads(std::span(sums), at.side.ref(), "top_k");
  REQUIRE(at.dev.findings().size() == 1);
  const auto& found = at.dev.findings().at(0);
  CHECK(found.first.module == "router");
  CHECK(found.first.layer == 4);
  CHECK(found.first.microbatch == 1);
  CHECK(found.second.module.empty());
}
