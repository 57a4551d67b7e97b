// Random use of everything at once: shares, views, held handles, reloads by hand, abandoned chunks,
// evaluation in between, budgets that are met, plans that recompute, in random orders of the
// device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::machine;
using tidepool::memory_kind;
using tidepool::options;
using tidepool::view_shape;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = tidepool::test::planning<
    rig::offloader<tidepool::modules<"core_attn", "expert_fc1", "moe_act">>>;

/// A handle, and what should be seen through it.
struct tensor {
  rig::buffer whole;
  rig::view part;
  bool is_view = false;
  std::uint32_t tag = 0;
  view_shape shape;
  std::size_t bytes = 0;

  [[nodiscard]] rig::handle& handle() {
    return is_view ? static_cast<rig::handle&>(part) : static_cast<rig::handle&>(whole);
  }
};

struct group {
  tidepool::module_id module{};
  int layer = 0;
  bool by_hand = false;
  bool offered = false;
  std::vector<tensor> saved;
};

struct pass {
  offloader::chunk open;
  std::vector<group> groups;
  bool forward = true;
  bool evaluation = false;
};

class fuzz {
 public:
  fuzz(std::uint64_t seed, const options& opts)
      : random_(seed), desk_(machine{.order_seed = seed}), opts_(opts), off_(desk_.dev, opts) {
    off_.on_report([](std::string_view) {});
  }

  /// A plan that knows nothing of what will come: the first step alone is as it says.
  void follow_any() {
    tidepool::plan::profile step;
    tidepool::plan::step_plan made;
    step.modules = {"core_attn", "expert_fc1", "moe_act"};
    for (std::size_t c = 0; c < 8; ++c) {
      step.passes.push_back({c, false});
      step.passes.push_back({c, true});
      auto& chunk = step.chunks.emplace_back();
      auto& row = made.what.emplace_back();
      for (int g = 0; g < 8; ++g) {
        chunk.groups.push_back({static_cast<tidepool::module_id>(g % 3), 0, 64, 1.0});
        row.push_back(static_cast<tidepool::plan::action>(any(3)));
      }
    }
    made.reload_ahead = opts_.reload_ahead;
    off_.follow(made, step);
    for (const auto& chunk : step.chunks) {
      auto open = off_.begin();
      std::vector<rig::buffer> saved;
      for (const auto& group : chunk.groups) {
        auto& x = saved.emplace_back(off_.allocate(64, desk_.stream()));
        open.commit_or_discard(group.module, group.layer, desk_.stream(), x);
      }
      for (std::size_t g = saved.size(); g-- > 0;) {
        const auto& group = chunk.groups[g];
        open.restore_or_recompute(
            group.module, group.layer, desk_.stream(), [] {}, saved[g]);
        saved[g].reset(desk_.stream());
      }
      open.finish();
    }
    off_.end_step();
  }

  void run(int actions) {
    for (int i = 0; i < actions; ++i) act();
    while (!passes_.empty()) go_back(0);
    for (auto& each : held_) {
      look(each);
      each.handle().reset(desk_.stream());
    }
    off_.end_step();
    CHECK(desk_.wrong() == 0);
    // Whatever happened, everything is free now.
    CHECK(off_.allocate(std::max<std::size_t>(largest(), 1), desk_.stream()));
  }

  std::size_t refused = 0;  // requests for which there was no room
  std::size_t computed_again = 0;
  [[nodiscard]] tidepool::trace::counters counters() const { return off_.counters(); }

 private:
  std::size_t any(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
  bool once_in(std::size_t count) { return any(count) == 0; }

  [[nodiscard]] std::size_t largest() const {
    if (opts_.memory == memory_kind::arena) return *opts_.device_budget;
    return 1;
  }

  // Calls something that may find no room.
  template <class Call>
  bool tried(const Call& call) {
    try {
      call();
      return true;
    } catch (const tidepool::out_of_budget&) {
      ++refused;
      return false;
    }
  }

  void act() {
    switch (any(12)) {
      case 0:
        return begin();
      case 1:
      case 2:
        return make();
      case 3:
        return share();
      case 4:
      case 5:
      case 6:
        return commit();
      case 7:
        return drop();
      case 8:
        return end_forward();
      case 9:
        return reload();
      case 10:
        if (!passes_.empty()) return go_back(any(passes_.size()));
        return;
      default:
        return look_around();
    }
  }

  void begin() {
    if (passes_.size() == 4) return;
    if (passes_.empty() && once_in(2)) off_.end_step();
    passes_.emplace_back();
    auto& fresh = passes_.back();
    fresh.evaluation = once_in(5);
    fresh.open = off_.begin({.microbatch = ++microbatch_, .forward_only = fresh.evaluation});
  }

  void make() {
    if (held_.size() > 5) return drop();
    tensor fresh;
    fresh.bytes = 4 * (1 + any(700));
    fresh.tag = ++tag_;
    if (!tried([&] { fresh.whole = off_.allocate(fresh.bytes, desk_.stream()); })) return drop();
    desk_.write(fresh.whole, fresh.tag, 10);
    if (once_in(20)) fresh.whole.keep_resident();
    held_.push_back(std::move(fresh));
  }

  void share() {
    if (held_.empty() || held_.size() > 8) return;
    auto& from = held_[any(held_.size())];
    if (from.is_view || !from.whole) return;
    tensor more;
    more.tag = from.tag;
    more.bytes = from.bytes;
    if (from.bytes < 512 || once_in(2)) {
      more.whole = from.whole.share();
    } else {
      more.is_view = true;
      more.shape.width = 4 * (1 + any(8));
      more.shape.pitch = more.shape.width + 4 * any(8);
      more.shape.offset = 4 * any(16);
      more.shape.rows =
          1 + any((from.bytes - more.shape.offset - more.shape.width) / more.shape.pitch);
      more.shape.whole_storage = once_in(3);
      more.part = from.whole.view(more.shape);
    }
    held_.push_back(std::move(more));
  }

  // Takes a tensor out of the hand.
  tensor take() {
    std::swap(held_[any(held_.size())], held_.back());
    auto taken = std::move(held_.back());
    held_.pop_back();
    return taken;
  }

  void commit() {
    if (passes_.empty() || held_.empty()) return;
    auto& to = passes_[any(passes_.size())];
    if (!to.forward) return;
    group next;
    next.module = static_cast<tidepool::module_id>(any(3));
    next.layer = static_cast<int>(any(3));
    next.by_hand = once_in(6) && !to.evaluation;
    for (auto count = 1 + any(3); count > 0 && !held_.empty(); --count) {
      next.saved.push_back(take());
    }
    next.offered = !next.by_hand && once_in(2) &&
                   std::none_of(next.saved.begin(), next.saved.end(),
                                [](const tensor& each) { return each.is_view; });
    const auto done = tried([&] {
      if (next.offered) {
        return each_buffer(next, [&](auto&... buffers) {
          to.open.commit_or_discard(next.module, next.layer, desk_.stream(), buffers...);
        });
      }
      each_count(next, [&](auto&... handles) {
        if (next.by_hand) {
          to.open.start_offload(next.module, next.layer, desk_.stream(), handles...);
        } else {
          to.open.commit(next.module, next.layer, desk_.stream(), handles...);
        }
      });
    });
    if (!done) {
      for (auto& each : next.saved) held_.push_back(std::move(each));
      return drop();
    }
    if (to.evaluation) {
      for (auto& each : next.saved) held_.push_back(std::move(each));
    } else {
      to.groups.push_back(std::move(next));
    }
  }

  template <class Call>
  void each_count(group& which, const Call& call) {
    auto& x = which.saved;
    if (x.size() == 1) return call(x[0].handle());
    if (x.size() == 2) return call(x[0].handle(), x[1].handle());
    return call(x[0].handle(), x[1].handle(), x[2].handle());
  }

  template <class Call>
  void each_buffer(group& which, const Call& call) {
    auto& x = which.saved;
    if (x.size() == 1) return call(x[0].whole);
    if (x.size() == 2) return call(x[0].whole, x[1].whole);
    return call(x[0].whole, x[1].whole, x[2].whole);
  }

  void drop() {
    if (held_.empty()) return;
    auto gone = take();
    if (once_in(2)) look(gone);
    if (once_in(2)) gone.handle().reset(desk_.stream());
  }

  void end_forward() {
    if (passes_.empty()) return;
    auto& which = passes_[any(passes_.size())];
    which.forward = false;
    which.open.end_forward();
  }

  void reload() {
    if (passes_.empty()) return;
    auto& which = passes_[any(passes_.size())];
    if (which.groups.empty()) return;
    auto& next = which.groups[any(which.groups.size())];
    if (next.by_hand && once_in(2)) {
      for (auto& each : next.saved) each.handle().reset(desk_.stream());
    }
    tried([&] { which.open.start_reload(next.module, next.layer); });
  }

  // Some or all of a backward pass, in order or not.
  void go_back(std::size_t index) {
    auto& which = passes_[index];
    if (once_in(12)) {  // abandoned
      for (auto& each : which.groups) {
        for (auto& kept : each.saved) kept.handle().reset(desk_.stream());
      }
      passes_.erase(passes_.begin() + static_cast<std::ptrdiff_t>(index));
      return;
    }
    which.forward = false;
    const bool orderly = once_in(2);
    for (auto left = 1 + any(which.groups.size() + 2); left > 0 && !which.groups.empty(); --left) {
      const auto at = orderly ? which.groups.size() - 1 : any(which.groups.size());
      if (!restore(which, last_alike(which, at))) return;
    }
    if (!which.groups.empty()) return;
    which.open.finish();
    passes_.erase(passes_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Of the groups of one module and layer the last comes back first.
  static std::size_t last_alike(const pass& of, std::size_t at) {
    for (auto i = of.groups.size(); i-- > at;) {
      if (of.groups[i].module == of.groups[at].module &&
          of.groups[i].layer == of.groups[at].layer) {
        return i;
      }
    }
    return at;
  }

  bool restore(pass& of, std::size_t at) {
    auto& next = of.groups[at];
    const auto again = [&] {
      ++computed_again;
      for (auto& each : next.saved) desk_.write(each.whole, each.tag, 10);
    };
    const auto done = tried([&] {
      if (next.offered) {
        return each_buffer(next, [&](auto&... buffers) {
          of.open.restore_or_recompute(next.module, next.layer, desk_.stream(), again, buffers...);
        });
      }
      each_count(next, [&](auto&... handles) {
        of.open.restore(next.module, next.layer, desk_.stream(), handles...);
      });
    });
    if (!done) {
      if (held_.empty()) {  // another pass holds the memory
        make_room(of);
        return false;
      }
      drop();
      return false;
    }
    for (auto& each : next.saved) {
      look(each);
      if (once_in(4) && held_.size() < 8) {
        held_.push_back(std::move(each));
      } else {
        each.handle().reset(desk_.stream());
      }
    }
    of.groups.erase(of.groups.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }

  // Gives up what was offloaded by hand and is still on the device.
  void make_room(pass& except) {
    for (auto& each : passes_) {
      for (auto& which : each.groups) {
        if (!which.by_hand || &each == &except) continue;
        for (auto& kept : which.saved) kept.handle().reset(desk_.stream());
      }
    }
    for (auto& which : except.groups) {
      if (!which.by_hand) continue;
      for (auto& kept : which.saved) kept.handle().reset(desk_.stream());
    }
  }

  void look_around() {
    for (auto& each : held_) look(each);
  }

  void look(tensor& at) {
    REQUIRE(at.handle());
    REQUIRE(at.handle().data() != nullptr);
    if (!at.is_view) {
      CHECK(at.whole.size() == at.bytes);
      return desk_.check(at.whole, at.tag);
    }
    CHECK(at.part.width() == at.shape.width);
    CHECK(at.part.rows() == at.shape.rows);
    desk_.check(at.part, at.tag, at.shape.offset, at.shape.pitch);
  }

  std::mt19937_64 random_;
  rig desk_;
  options opts_;
  offloader off_;
  std::vector<tensor> held_;
  std::vector<pass> passes_;
  std::uint32_t tag_ = 0;
  int microbatch_ = 0;
};

}  // namespace

TEST_CASE("random use: nothing is ever wrong, lost or left over") {
  std::uint64_t evictions = 0;
  std::uint64_t shared = 0;
  std::uint64_t recomputed = 0;
  std::uint64_t held = 0;
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    auto opts = small_options();
    opts.reload_ahead = seed % 5;
    opts.margin = seed % 3 == 0;
    opts.fraction = seed % 7 == 0 ? 0.5 : 1;
    opts.min_tensor_elements = seed % 11 == 0 ? 600 : 1;
    if (seed % 4 == 0) opts.max_inflight = seed % 3;
    if (seed % 5 == 0) opts.copy_piece = 500;
    opts.poison = seed % 8 == 3;
    if (seed % 9 == 0) opts.host_budget = std::size_t{24} * 1024;
    switch (seed % 3) {
      case 0:
        opts.device_budget = std::size_t{32} * 1024;
        opts.device_step = 4096;
        break;
      case 1:
        opts.memory = memory_kind::arena;
        opts.device_budget = std::size_t{16} * 1024;
        break;
      default:
        opts.memory = memory_kind::slots;
        opts.slots = {{1024, 8}, {2816, 8}};
    }
    fuzz use(seed, opts);
    if (seed % 2 == 0) use.follow_any();
    use.run(400);
    const auto seen = use.counters();
    evictions += seen.evictions;
    for (const auto& each : seen.modules) {
      shared += each.tensors_shared;
      recomputed += each.groups_recomputed;
      held += each.groups_held;
    }
    refused += use.refused;
  }
  CHECK(evictions > 50);
  CHECK(shared > 50);
  CHECK(refused > 20);
  CHECK(recomputed > 20);
  CHECK(held > 5);
}
