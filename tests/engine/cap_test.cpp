// Windows hold: never more offloads of a module in flight behind a commit than its cap allows.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "rig.hpp"

namespace {

using tidepool::copy_direction;
using tidepool::join_site;
using tidepool::machine;
using tidepool::options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

/// Commits groups, and looks behind each commit, in stream order, at what is still in flight.
class watched {
 public:
  explicit watched(const options& opts, const machine& model = {})
      : desk_(model), off_(desk_.dev, opts) {
    desk_.dev.after_copy = [this](copy_direction direction, rig::stream_ref on) {
      if (direction != copy_direction::device_to_host) return;
      desk_.dev.launch(on, 0, [this, module = module_, bytes = bytes_] {
        ++ended_[module].first;
        ended_[module].second += bytes;
      });
    };
  }

  void leave_out_caps() { desk_.dev.leave_out(join_site::cap); }
  [[nodiscard]] offloader& off() { return off_; }
  [[nodiscard]] rig& desk() { return desk_; }

  void commit(offloader::chunk& open, std::size_t module, int layer, std::size_t bytes = 1024) {
    auto x = off_.allocate(bytes, desk_.stream());
    desk_.write(x, 1, 10);
    module_ = module;
    bytes_ = bytes;
    if (module == 0) open.commit<"core_attn">(layer, desk_.stream(), x);
    if (module == 1) open.commit<"expert_fc1">(layer, desk_.stream(), x);
    ++begun_[module].first;
    begun_[module].second += bytes;
    desk_.dev.launch(desk_.stream(), 1, [this, module, begun = begun_[module]] {
      auto& groups = most_groups_[module];
      auto& flying = most_bytes_[module];
      groups = std::max(groups, begun.first - ended_[module].first);
      flying = std::max(flying, begun.second - ended_[module].second);
    });
  }

  /// The most that was seen in flight of a module.
  [[nodiscard]] std::size_t most_groups(std::size_t module) {
    desk_.dev.synchronize();
    return most_groups_[module];
  }
  [[nodiscard]] std::size_t most_bytes(std::size_t module) {
    desk_.dev.synchronize();
    return most_bytes_[module];
  }
  [[nodiscard]] std::uint64_t joins(std::size_t module) const {
    return off_.counters().modules[module].cap_joins;
  }

 private:
  using groups_and_bytes = std::pair<std::size_t, std::size_t>;

  rig desk_;
  std::size_t module_ = 0;
  std::size_t bytes_ = 0;
  std::array<groups_and_bytes, 2> begun_{};
  std::array<groups_and_bytes, 2> ended_{};
  std::array<std::size_t, 2> most_groups_{};
  std::array<std::size_t, 2> most_bytes_{};
  offloader off_;
};

options capped(std::optional<std::size_t> groups, std::optional<std::size_t> bytes = {}) {
  auto opts = small_options();
  opts.max_inflight = groups;
  opts.max_inflight_bytes = bytes;
  // Room enough that no wait for memory hides the caps.
  opts.device_step = std::size_t{1} << 20;
  return opts;
}

machine in_order(std::uint64_t seed) { return {.order_seed = seed}; }
// Kernels never wait for a copy but at a cap.
machine slow() { return {.offload_rate = 0.001}; }

}  // namespace

TEST_CASE("cap: never more than N groups in flight, and as many as that") {
  for (const std::size_t cap : {0U, 1U, 2U, 5U}) {
    CAPTURE(cap);
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      watched run(capped(cap), in_order(seed));
      auto open = run.off().begin();
      for (int layer = 0; layer < 20; ++layer) run.commit(open, 0, layer);
      CHECK(run.most_groups(0) <= cap);
    }
    watched run(capped(cap), slow());
    auto open = run.off().begin();
    for (int layer = 0; layer < 20; ++layer) run.commit(open, 0, layer);
    CHECK(run.most_groups(0) == cap);
  }
}

TEST_CASE("cap: without the joins it does not hold") {
  std::size_t most = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    watched run(capped(2), in_order(seed));
    run.leave_out_caps();
    auto open = run.off().begin();
    for (int layer = 0; layer < 20; ++layer) run.commit(open, 0, layer);
    most = std::max(most, run.most_groups(0));
    CHECK(run.joins(0) == 0);
  }
  CHECK(most > 2);
}

TEST_CASE("cap: None makes no join") {
  watched run(capped({}));
  auto open = run.off().begin();
  for (int layer = 0; layer < 20; ++layer) run.commit(open, 0, layer);
  CHECK(run.joins(0) == 0);
  CHECK(run.most_groups(0) > 2);
}

TEST_CASE("cap: 0 waits at each commit, N from the commit after the N-th on") {
  for (const std::size_t cap : {0U, 1U, 3U}) {
    CAPTURE(cap);
    watched run(capped(cap));
    auto open = run.off().begin();
    for (int layer = 0; layer < 10; ++layer) run.commit(open, 0, layer);
    CHECK(run.joins(0) == 10 - cap);
  }
}

TEST_CASE("cap: 0 has the compute stream stand still for each copy") {
  machine model;
  model.offload_rate = 1;
  model.copy_latency_ns = 0;
  watched run(capped(0), model);
  auto open = run.off().begin();
  for (int layer = 0; layer < 10; ++layer) run.commit(open, 0, layer, 1000);
  run.desk().dev.synchronize();
  CHECK(run.desk().dev.now_ns() == doctest::Approx(10 * (10 + 1000 + 1)));
}

TEST_CASE("cap: bytes, where groups differ in size") {
  std::size_t most = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    watched run(capped({}, 4096), in_order(seed));
    auto open = run.off().begin();
    for (int layer = 0; layer < 30; ++layer) {
      run.commit(open, 0, layer, 256 + static_cast<std::size_t>(layer * 7 % 13) * 256);
    }
    CHECK(run.most_bytes(0) <= 4096);
    most = std::max(most, run.most_bytes(0));
  }
  CHECK(most > 2048);
}

TEST_CASE("cap: a group above the cap of bytes is waited for at once") {
  watched run(capped({}, 1000), in_order(3));
  auto open = run.off().begin();
  for (int layer = 0; layer < 5; ++layer) run.commit(open, 0, layer, 2000);
  CHECK(run.most_bytes(0) == 0);
  CHECK(run.joins(0) == 5);
}

TEST_CASE("cap: whichever of groups and bytes is met first") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    watched run(capped(3, 2048), in_order(seed));
    auto open = run.off().begin();
    for (int layer = 0; layer < 12; ++layer) run.commit(open, 0, layer, 256);
    for (int layer = 12; layer < 24; ++layer) run.commit(open, 0, layer, 1024);
    CHECK(run.most_groups(0) <= 3);
    CHECK(run.most_bytes(0) <= 2048);
  }
}

TEST_CASE("cap: each module has a window of its own, and may have a cap of its own") {
  auto opts = capped(1);
  opts.module_max_inflight["expert_fc1"] = 4;
  const auto commit_both = [](watched& run) {
    auto open = run.off().begin();
    for (int layer = 0; layer < 20; ++layer) {
      run.commit(open, 1, layer);
      if (layer % 6 == 5) run.commit(open, 0, layer);
    }
  };
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    watched run(opts, in_order(seed));
    commit_both(run);
    CHECK(run.most_groups(0) <= 1);
    CHECK(run.most_groups(1) <= 4);
  }
  watched run(opts, slow());
  commit_both(run);
  CHECK(run.most_groups(0) == 1);
  CHECK(run.most_groups(1) == 4);
}

TEST_CASE("cap: a module may have one where the others have none") {
  auto opts = capped({});
  opts.module_max_inflight["core_attn"] = 0;
  watched run(opts);
  auto open = run.off().begin();
  for (int layer = 0; layer < 6; ++layer) {
    run.commit(open, 1, layer);
    run.commit(open, 0, layer);
  }
  CHECK(run.joins(0) == 6);
  CHECK(run.joins(1) == 0);
  CHECK(run.most_groups(0) == 0);
}

TEST_CASE("cap: a window holds over all chunks in flight") {
  const auto commit_all = [](watched& run) {
    std::vector<offloader::chunk> open;
    for (int mb = 0; mb < 4; ++mb) open.push_back(run.off().begin({.microbatch = mb}));
    for (int layer = 0; layer < 5; ++layer) {
      for (auto& each : open) run.commit(each, 0, layer);
    }
  };
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    watched run(capped(2), in_order(seed));
    commit_all(run);
    CHECK(run.most_groups(0) <= 2);
  }
  watched run(capped(2), slow());
  commit_all(run);
  CHECK(run.most_groups(0) == 2);
}

TEST_CASE("cap: an offload that the stream has waited for otherwise is no longer in flight") {
  watched run(capped(1));
  auto open = run.off().begin();
  run.commit(open, 0, 0);
  run.commit(open, 0, 1);
  CHECK(run.joins(0) == 1);
  rig::buffer back;
  open.restore<"core_attn">(1, run.desk().stream(), back);  // waits for its reload, hence for both
  auto next = run.off().begin({.microbatch = 1});
  run.commit(next, 0, 0);
  CHECK(run.joins(0) == 1);
  run.commit(next, 0, 1);
  CHECK(run.joins(0) == 2);
}

TEST_CASE("cap: holds for every stream, whatever another one has waited for") {
  constexpr std::size_t size = 4096;
  rig desk(machine{.offload_rate = 0.001});
  auto opts = capped(2);
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = 6 * size;
  rig::offloader<tidepool::modules<"core_attn">> off(desk.dev, opts);
  const auto second = desk.dev.make_stream();
  const auto other = second.ref();
  auto open = off.begin();
  std::array<rig::buffer, 2> theirs{off.allocate(size, other), off.allocate(size, other)};
  auto hold = off.allocate(2 * size, desk.stream());
  for (int l = 0; l < 2; ++l) {
    auto x = off.allocate(size, desk.stream());
    open.commit<"core_attn">(l, desk.stream(), x);
  }
  auto waits = off.allocate(2 * size, desk.stream());  // for both offloads
  auto part = hold.view({.offset = 0, .width = size});
  open.commit<"core_attn">(2, desk.stream(), part);
  double behind[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    open.commit<"core_attn">(static_cast<int>(3 + i), other, theirs[i]);
    desk.dev.launch(other, 0, [&desk, at = &behind[i]] { *at = desk.dev.now_ns(); });
  }
  desk.dev.synchronize();
  const double each = static_cast<double>(size) / 0.001;
  CHECK(behind[0] >= 2 * each);  // of four offloads two at the most are still running
  CHECK(behind[1] >= 3 * each);
}

TEST_CASE("cap: a group from which nothing leaves is not in flight") {
  auto opts = capped(0);
  opts.min_tensor_elements = 512;
  watched run(opts);
  auto open = run.off().begin();
  auto small = run.off().allocate(256, run.desk().stream());
  open.commit<"core_attn">(0, run.desk().stream(), small);
  CHECK(small);
  CHECK(run.joins(0) == 0);
  CHECK(run.off().counters().modules[0].groups == 1);
  CHECK(run.off().counters().modules[0].groups_offloaded == 0);
}

TEST_CASE("cap: a group that copies nothing, since another has saved it all, is not in flight") {
  watched run(capped(1));
  auto open = run.off().begin();
  auto x = run.off().allocate(1024, run.desk().stream());
  auto same = x.share();
  open.commit<"core_attn">(0, run.desk().stream(), x);
  open.commit<"core_attn">(1, run.desk().stream(), same);
  CHECK(run.off().counters().modules[0].tensors_shared == 1);
  CHECK(run.joins(0) == 0);
  run.commit(open, 0, 2);
  CHECK(run.joins(0) == 1);
}
