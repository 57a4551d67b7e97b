// Runs a program once over the public API and keeps what it issued.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base_device.hpp"
#include "program.hpp"
#include "recording.hpp"
#include "tidepool/places/lending.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/rows.hpp"
#include "tidepool/tidepool.hpp"

namespace explore {

namespace tp = tidepool;

/// Why a program went wrong; empty words when it did not.
struct violation {
  std::string kind;  // "race", "content", "cap", "budget", "error"
  std::string words;
  std::uint32_t named = 0;  // joins, by a checked device

  explicit operator bool() const { return !kind.empty(); }
};

/// A virtual device that keeps its blocks until its end, so that what was issued can run again.
class kept_device : public base_device {
 public:
  using base_device::base_device;

  [[nodiscard]] void* try_allocate(std::size_t bytes) { return keep(bytes, in_use_); }
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) { return keep(bytes, in_use_); }
  [[nodiscard]] void* try_allocate_peer(int /*peer*/, std::size_t bytes) {
    if (bytes > model().peer_bytes - peer_used_) return nullptr;
    peer_used_ += bytes;
    return keep(bytes, in_use_);
  }
  void deallocate_peer(int /*peer*/, void* pointer) noexcept { deallocate(pointer); }
  [[nodiscard]] void* import_memory(int descriptor, std::size_t bytes) {
    imports_.emplace_back(base_device::import_memory(descriptor, bytes), bytes);
    ++in_use_;
    return imports_.back().first;
  }
  void drop_import(void* /*pointer*/) noexcept { --in_use_; }
  void deallocate(void* pointer) noexcept { in_use_ -= pointer != nullptr ? 1 : 0; }
  void deallocate_host(void* pointer) noexcept { in_use_ -= pointer != nullptr ? 1 : 0; }

  /// The host never asks: what was issued may run in any order.
  [[nodiscard]] bool passed(const event& /*which*/) const { return false; }

  /// The host reads counts of rows alone.
  void tell(recording& seen) { seen_ = &seen; }
  using base_device::synchronize;
  void synchronize(stream_ref which) {
    base_device::synchronize(which);
    if (seen_ != nullptr) seen_->host_looks(which.index());
  }
  void host_reads(const void* data, std::size_t bytes, std::string_view what) {
    tell_read<base_device>(*this, data, bytes, what);
    seen_->host_reads(data, bytes, what);
  }

  /// The addresses that copies and kernels of an offloader read, since it was emptied. Also those
  /// in captures.
  std::vector<const void*> sources;
  void copy(void* target, const void* source, const tp::copy_shape& shape,
            tp::copy_direction direction, stream_ref on) {
    sources.push_back(source);
    base_device::copy(target, source, shape, direction, on);
  }
  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            stream_ref on) {
    sources.push_back(tensor);
    base_device::pack(packed, spill, tensor, bytes, on);
  }

  [[nodiscard]] std::size_t in_use() const { return in_use_; }
  void poison_all() {
    for (auto& each : blocks_) std::memset(each.data.get(), 0xFF, each.bytes);
    for (const auto& [data, bytes] : imports_) std::memset(data, 0xFF, bytes);
  }

 private:
  struct block {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };
  void* keep(std::size_t bytes, std::size_t& count) {
    blocks_.push_back({std::make_unique<std::byte[]>(bytes), bytes});
    ++count;
    return blocks_.back().data.get();
  }
  std::vector<block> blocks_;
  std::vector<std::pair<void*, std::size_t>> imports_;
  std::size_t in_use_ = 0;
  std::size_t peer_used_ = 0;
  recording* seen_ = nullptr;
};

/// An allocator of the trainer's own, in the order of one stream. What comes back is overwritten at
/// once, and handed out again first.
class stream_allocator {
 public:
  stream_allocator(kept_device& dev, kept_device::stream_ref home) : dev_(&dev), home_(home) {}

  [[nodiscard]] void* take(std::size_t bytes) {
    auto& free = free_[bytes];
    if (free.empty()) {
      free.push_back(dev_->try_allocate(bytes));
      all_.push_back(free.back());
    }
    auto* const data = free.back();
    free.pop_back();
    return data;
  }
  void give(void* data, std::size_t bytes) {
    dev_->launch(home_, 70, [=] { std::memset(data, 0x5A, bytes); }, "reuse",
                 {{data, bytes, true}});
    free_[bytes].push_back(data);
  }
  void clear() {
    for (auto* each : all_) dev_->deallocate(each);
    all_.clear();
    free_.clear();
  }

 private:
  kept_device* dev_;
  kept_device::stream_ref home_;
  std::map<std::size_t, std::vector<void*>> free_;
  std::vector<void*> all_;
};

/// The trainer. Each kernel says what it touches; each check counts the words that are wrong.
class runner {
 public:
  using offloader = tp::offloader<kept_device, tp::modules<"core_attn", "expert_fc1", "moe_act">>;

  runner(const program& what, std::optional<tp::join_site> without)
      : program_(what), dev_(model_of(what)), seen_(std::make_unique<recording>()) {
    if (without) dev_.leave_out(*without);
    for (int i = 0; i < 3; ++i) {
      streams_.push_back(dev_.make_stream());
      own_.emplace_back(dev_, streams_.back().ref());
    }
    dev_.tell(*seen_);
    dev_.observe([this](const sim_position& at, const operation& op) {
      const bool of_count = op.shape.bytes() <= sizeof(std::uint64_t);
      if (op.kind == operation_kind::copy && is_offload(op.direction) && !of_count) {
        last_offload_ = seen_->ops().size();
      }
      seen_->add(at, op, by_);
    });
  }

  /// Issues everything; what the device thinks of it shows in `seen`.
  void run() {
    try {
      off_.emplace(dev_, program_.options, parts());
      off_->on_report([](std::string_view) {});
      if (program_.lent_bytes != 0) {
        lent_.emplace(neighbour_, program_.lent_bytes, "the neighbour");
        off_->borrow(lent_->handle());
      }
      if (program_.planned) follow_any();
      for (const auto& each : program_.actions) {
        by_ = describe(each);
        act(each);
        if (problem_) break;
      }
      by_ = "the end";
      clear();
      off_->end_step();
      expect_told(off_->rows_overflowed());
    } catch (const tp::out_of_budget&) {
      ++refused_;
    } catch (const tp::error& caught) {
      if (!problem_) problem_ = {"error", caught.what()};
    }
    try {
      clear();
      graphs_.clear();
      if (off_) {
        const auto totals = off_->counters();
        for (const auto& each : totals.modules) recomputed_ += each.groups_recomputed;
        for (const auto& each : totals.places) {
          if (each.name != "host") to_peer_ += each.bytes_offloaded;
        }
      }
      off_.reset();
      dev_.synchronize();  // an order in which nothing can go on is found here
    } catch (const tp::error& caught) {
      if (!problem_) problem_ = {"error", caught.what()};
    }
    for (auto& each : own_) each.clear();
    if (!problem_ && dev_.in_use() != 0) {
      problem_ = {"leak", std::to_string(dev_.in_use()) + " blocks were not given back"};
    }
    if (!problem_) {
      if (auto words = disagreement(dev_, seen_->first_race().has_value()); !words.empty()) {
        problem_ = {"judges", std::move(words)};
      }
    }
    if (const auto& found = seen_->first_race(); found && !problem_) {
      problem_ = {"race", describe(seen_->ops()[found->first]) + "\n    and " +
                              describe(seen_->ops()[found->second])};
    }
    if (wrong_ > 0 && !problem_) problem_ = {"content", "wrong words in the order of the clock"};
    problem_.named = joins_named(dev_);
  }

  [[nodiscard]] const violation& problem() const { return problem_; }
  [[nodiscard]] const recording& seen() const { return *seen_; }
  [[nodiscard]] std::size_t refused() const { return refused_; }
  [[nodiscard]] bool left() const { return moved_ > 0; }
  [[nodiscard]] bool recomputed() const { return recomputed_ > 0; }  // by plan
  [[nodiscard]] bool to_peer() const { return to_peer_ > 0; }        // at least one group
  [[nodiscard]] std::size_t overflows() const { return overflows_; }

  /// As before the first operation, for another order of the same operations.
  void rewind() {
    dev_.poison_all();
    counts_.fill(0);
    wrong_ = 0;
    round_ = 0;
  }
  [[nodiscard]] std::size_t wrong() const { return wrong_; }

 private:
  struct tensor {
    offloader::buffer whole;
    offloader::view part;
    std::uint32_t tag = 0;
    std::size_t first = 0;  // words into what was written, of a view
    std::size_t step = 0;
    const void* storage = nullptr;  // where it is saved from, if its rows are counted
    std::size_t planned = 0;        // rows that move; 0: all
    std::size_t cell = 0;           // of the count
    bool wide = false;              // the count has 8 bytes
    [[nodiscard]] bool is_view() const { return step != 0; }
  };
  // Rows that kernels count: behind every other launch of a graph there are more.
  struct row_count {
    std::uint64_t rows = 0;
    std::uint64_t more = 0;
    [[nodiscard]] std::uint64_t in(std::uint32_t round) const {
      return rows + (round % 2 == 0 ? more : 0);
    }
  };
  // A tensor with counted rows that a commit moved.
  struct claim {
    tp::row_overflow what;
    row_count rows;
    bool wide;
  };
  struct group {
    std::array<tensor, 2> saved;
    std::size_t count = 0;
    bool committed = false;
    bool recompute = false;
    bool offered = false;  // a plan may have it computed again
  };
  struct pass {
    offloader::chunk chunk;
    std::map<std::pair<int, int>, group> groups;  // by layer and module
    bool forward = true;
    bool open = true;
  };

  static tp::machine model_of(const program& what) {
    tp::machine model{.poison = true};
    if (what.peer_bytes != 0) model.peer_bytes = what.peer_bytes;
    model.packs_from = what.packs ? 1 : 0;
    return model;
  }

  using stream_ref = kept_device::stream_ref;
  [[nodiscard]] stream_ref stream() const { return streams_[current_].ref(); }

  [[nodiscard]] tp::parts parts() {
    tp::parts with{.planner = tp::planner()};
    if (!program_.given) return with;
    with.memory = tp::memory_on<kept_device>(
        streams_[0].ref(), [this](std::size_t bytes) { return own_[0].take(bytes); },
        [this](void* data, std::size_t bytes) { own_[0].give(data, bytes); });
    return with;
  }

  // A plan that knows nothing of the program: a first step alone is as it says.
  void follow_any() {
    by_ = "the plan's first step";
    draw_.seed(static_cast<std::minstd_rand::result_type>(program_.seed));
    tp::plan::profile step;
    tp::plan::step_plan made;
    step.modules = {"core_attn", "expert_fc1", "moe_act"};
    for (std::size_t c = 0; c < 6; ++c) {
      step.passes.push_back({c, false});
      step.passes.push_back({c, true});
      auto& chunk = step.chunks.emplace_back();
      auto& row = made.what.emplace_back();
      for (int g = 0; g < 9; ++g) {
        const auto module = static_cast<tp::module_id>(g % 3);
        if (!off_->enabled(module)) continue;
        chunk.groups.push_back({module, 0, 64, 1.0});
        row.push_back(static_cast<tp::plan::action>(any(3)));
      }
    }
    made.reload_ahead = program_.options.reload_ahead;
    made.reload_ahead_bytes = program_.options.reload_ahead_bytes.value_or(0);
    off_->follow(made, step);
    for (const auto& chunk : step.chunks) {
      auto open = off_->begin();
      std::vector<decltype(off_->allocate(64, stream()))> saved;
      for (const auto& each : chunk.groups) {
        auto& x = saved.emplace_back(off_->allocate(64, stream()));
        open.commit_or_discard(each.module, each.layer, stream(), x);
      }
      for (std::size_t g = saved.size(); g-- > 0;) {
        const auto& each = chunk.groups[g];
        open.restore_or_recompute(
            each.module, each.layer, stream(), [] {}, saved[g]);
        saved[g].reset(stream());
      }
      open.finish();
    }
    off_->end_step();
    ++steps_;
  }

  void act(const action& each) {
    draw_.seed(each.draw);
    using kind = action::kind;
    switch (each.what) {
      case kind::begin:
        return if_due([&] {
          passes_.try_emplace(each.microbatch,
                              pass{off_->begin({.microbatch = each.microbatch}), {}, true, true});
        });
      case kind::forward_layer:
        return forward_layer(each);
      case kind::end_forward:
        if (auto* at = find(each)) at->forward = false, at->chunk.end_forward();
        return;
      case kind::backward_layer:
        return backward_layer(each);
      case kind::finish:
        return finish(each);
      case kind::evaluate:
        return evaluate(each);
      case kind::end_step:
        return end_step();
      case kind::switch_stream:
        return switch_stream();
      case kind::capture:
        return capture(each);
      case kind::launch:
        return launch();
      case kind::start_reload:
        return start_reload(each);
      case kind::drop_chunk:
        if (auto* at = find(each)) drop(*at), passes_.erase(each.microbatch);
        return;
      case kind::side_work:
        return side_work();
    }
  }

  pass* find(const action& each) {
    const auto found = passes_.find(each.microbatch);
    return found == passes_.end() ? nullptr : &found->second;
  }
  int any(int count) { return static_cast<int>(draw_() % static_cast<unsigned>(count)); }

  template <class Call>
  void with(group& of, const Call& call) {
    const auto handle = [](tensor& t) -> tp::handle<kept_device>& {
      if (t.is_view()) return t.part;
      return t.whole;
    };
    if (of.count == 1) return call(handle(of.saved[0]));
    call(handle(of.saved[0]), handle(of.saved[1]));
  }

  template <class Call>
  void with_buffers(group& of, const Call& call) {
    if (of.count == 1) return call(of.saved[0].whole);
    call(of.saved[0].whole, of.saved[1].whole);
  }

  void fill(tensor& fresh) {
    const auto words = static_cast<std::size_t>(16 + any(9) * 24) * (program_.packs ? 2 : 1);
    fresh.whole = program_.adopts && !plain_ && any(2) == 0 ? adopt(words * 4)
                                                            : off_->allocate(words * 4, stream());
    if (program_.packs) fresh.whole.holds_bfloat16();
    fresh.tag = ++tag_;
    write(fresh);
    if (program_.counts && current_ != 2 && any(2) == 0) count_rows(fresh);
  }

  // Other tensors' counts lie in the same memory, and may be written there before the commit. What
  // lies behind a count of 4 bytes is no part of it.
  void count_rows(tensor& of) {
    of.storage = of.whole.data();
    of.planned = 1 + static_cast<std::size_t>(any(static_cast<int>(of.whole.size() / row_bytes)));
    of.cell = static_cast<std::size_t>(any(2));
    of.wide = any(2) == 0;
    auto* const at = &counts_[of.cell];
    const auto count = of.wide ? tp::device_count(at)
                               : tp::device_count(reinterpret_cast<const std::uint32_t*>(at));
    of.whole.counts_rows({.count = count, .row_bytes = row_bytes, .planned_rows = of.planned});
    const auto over = static_cast<std::uint64_t>(any(6) == 0 ? 1 + any(3) : 0);
    const auto behind = static_cast<std::uint64_t>(any(of.wide ? 20 : 2) == 0 ? 1 + any(9) : 0);
    const row_count rows{(behind << 32U) + of.planned - 1 + over,
                         static_cast<std::uint64_t>(any(3))};
    counted_[of.cell] = rows;
    dev_.launch(stream(), 10, [this, at, rows] { *at = rows.in(round_); }, "count",
                {{at, sizeof *at, true}});
  }

  [[nodiscard]] bool moved(const tensor& of) const {
    return of.storage != nullptr &&
           std::ranges::find(dev_.sources, of.storage) != dev_.sources.end();
  }

  void note_counts(const group& made, const action& each, int m) {
    constexpr const char* names[]{"core_attn", "expert_fc1", "moe_act"};
    for (const auto& of : made.saved) {
      if (!moved(of)) continue;
      const claim fresh{
          {names[m], each.layer, each.microbatch, 0, of.planned}, counted_[of.cell], of.wide};
      if (capturing_) {
        captured_.push_back(fresh);
      } else {
        expect(fresh);
      }
    }
  }
  void expect(claim of) {
    const auto rows = of.rows.in(launches_);
    of.what.rows = of.wide ? rows : static_cast<std::uint32_t>(rows);
    expected_.push_back(std::move(of.what));
  }

  // Of all commits since the last answer, the one that is furthest beyond its plan must be told.
  void expect_told(const std::optional<tp::row_overflow>& told) {
    due_ = false;
    const auto beyond = [](const tp::row_overflow& of) {
      return of.rows - std::min(of.rows, of.planned);
    };
    std::uint64_t most = 0;
    for (const auto& each : expected_) most = std::max(most, beyond(each));
    bool right = told.has_value() == (most > 0) && (!told || beyond(*told) == most);
    if (told) {
      ++overflows_;
      right = right && std::ranges::any_of(expected_, [&](const tp::row_overflow& each) {
                return each.module == told->module && each.layer == told->layer &&
                       each.microbatch == told->microbatch && each.rows == told->rows &&
                       each.planned == told->planned;
              });
    }
    expected_.clear();
    if (right || problem_) return;
    problem_ = {"count", !told ? "rows were left behind, and nobody was told"
                               : told->module + " of layer " + std::to_string(told->layer) +
                                     " is told to have " + std::to_string(told->rows) +
                                     " rows of " + std::to_string(told->planned)};
  }

  // Makes a call that throws if a step left rows behind and nobody asked.
  template <class Call>
  void if_due(const Call& call) {
    if (!due_) return call();
    std::optional<tp::row_overflow> told;
    try {
      call();
    } catch (const tp::unasked_overflow& late) {
      told = late.where;
    }
    expect_told(told);
    if (told) call();
  }

  void end_step() {
    if (!passes_.empty()) return;
    off_->end_step();
    ++steps_;
    if (capturing_ || !program_.counts) return;
    due_ = true;
    if (any(2) == 0) expect_told(off_->rows_overflowed());
  }

  void launch() {
    if (graphs_.empty() || !passes_.empty()) return;
    if_due([&] { graphs_.back().launch(stream()); });
    for (const auto& each : captured_) expect(each);
    ++launches_;
    due_ = program_.counts && graph_ends_step_;
  }

  [[nodiscard]] offloader::buffer adopt(std::size_t bytes) {
    auto* const from = &own_[current_];
    auto* const data = from->take(bytes);
    return off_->adopt(data, bytes, stream(), [=] { from->give(data, bytes); });
  }

  // Of what is recomputed: one for each layer and module.
  static int number_of(int layer, int module) { return layer * 3 + module; }

  void forward_layer(const action& each) {
    auto* at = find(each);
    if (at == nullptr || !at->forward) return;
    tensor* shareable = nullptr;
    for (int m = 0; m < 3; ++m) {
      if (at->groups.contains({each.layer, m})) continue;
      auto& made = at->groups[{each.layer, m}];
      made.recompute = any(9) == 0;
      if (made.recompute) {
        fill(made.saved[0]);
        at->chunk.commit_or_discard("layernorm", number_of(each.layer, m), stream(),
                                    made.saved[0].whole);
        continue;
      }
      fill(made.saved[0]);
      made.count = 1;
      if (any(3) == 0) {
        auto& second = made.saved[1];
        if (shareable != nullptr && shareable->whole && any(2) == 0) {
          share(second, *shareable);
        } else {
          fill(second);
        }
        made.count = 2;
      }
      // What the next module saves too: held on until that has been committed.
      tensor held;
      if (any(3) == 0) {
        held.whole = made.saved[0].whole.share();
        share_count(held, made.saved[0]);
      }
      commit(*at, made, each, m);
      note_counts(made, each, m);
      if (problem_) return;
      // What stays has all its rows, unless it leaves with a later module.
      if (!held.whole && !moved(made.saved[0])) made.saved[0].planned = 0;
      hand_over_ = std::move(held);
      shareable = hand_over_.whole ? &hand_over_ : nullptr;
    }
    if (hand_over_.whole) hand_over_.whole.reset(stream());
  }

  static void share_count(tensor& to, const tensor& from) {
    to.tag = from.tag;
    to.storage = from.storage;
    to.planned = from.planned;
    to.cell = from.cell;
    to.wide = from.wide;
  }

  void share(tensor& to, const tensor& from) {
    share_count(to, from);
    const auto words = from.whole.size() / 4;
    if (any(2) == 0 || words < 24) {
      to.whole = from.whole.share();
      return;
    }
    to.first = static_cast<std::size_t>(any(4));
    to.step = 6;
    to.part = from.whole.view({.offset = to.first * 4,
                               .width = 12,
                               .rows = (words - to.first - 3) / to.step,
                               .pitch = to.step * 4,
                               .whole_storage = any(3) == 0});
    if (!to.part.whole_storage()) to.storage = nullptr;
  }

  void commit(pass& at, group& made, const action& each, int m) {
    const auto id = static_cast<tp::module_id>(m);
    const bool by_hand = any(8) == 0 && off_->enabled(id);
    made.offered = !by_hand && any(2) == 0 && (made.count == 1 || !made.saved[1].is_view());
    last_offload_.reset();
    dev_.sources.clear();
    if (made.offered) {
      with_buffers(made, [&](auto&... buffers) {
        at.chunk.commit_or_discard(id, each.layer, stream(), buffers...);
      });
      made.committed = true;
      if (last_offload_) ++moved_;
      return check_cap(m);
    }
    with(made, [&](auto&... handles) {
      if (by_hand) {
        at.chunk.start_offload(id, each.layer, stream(), handles...);
        if (any(2) == 0) (handles.reset(stream()), ...);
      } else {
        at.chunk.commit(id, each.layer, stream(), handles...);
      }
    });
    made.committed = true;
    if (last_offload_) ++moved_;
    check_cap(m);
  }

  /// With a cap of n, the group before the last n has left before compute goes on.
  void check_cap(int m) {
    if (!last_offload_ || !program_.options.max_inflight || capturing_) return;
    auto& flying = flying_[static_cast<std::size_t>(m)];
    flying.push_back(*last_offload_);
    const auto cap = *program_.options.max_inflight;
    if (flying.size() <= cap) return;
    const auto must_be_over = flying[flying.size() - 1 - cap];
    if (!seen_->over_for(must_be_over, streams_[current_].ref().index())) {
      problem_ = {"cap", "more offloads in flight than the cap of " + std::to_string(cap) +
                             " allows; still under way: " + describe(seen_->ops()[must_be_over])};
    }
  }

  void backward_layer(const action& each) {
    auto* at = find(each);
    if (at == nullptr) return;
    at->forward = false;
    for (int m = 3; m-- > 0;) {
      const auto found = at->groups.find({each.layer, m});
      if (found == at->groups.end()) continue;
      auto& of = found->second;
      if (program_.forgets && of.committed && any(6) == 0) {
        for (std::size_t i = 0; i < of.count; ++i) reset(of.saved[i]);
        at->chunk.forget(static_cast<tp::module_id>(m), each.layer);
        at->groups.erase(found);
        continue;
      }
      if (of.recompute) {
        auto& again = of.saved[0];
        at->chunk.restore_or_recompute(
            "layernorm", number_of(each.layer, m), stream(), [&] { write(again); }, again.whole);
        of.count = 1;
      } else if (of.offered) {
        const auto id = static_cast<tp::module_id>(m);
        const auto again = [&] {
          for (std::size_t i = 0; i < of.count; ++i) write(of.saved[i]);
        };
        with_buffers(of, [&](auto&... buffers) {
          at->chunk.restore_or_recompute(id, each.layer, stream(), again, buffers...);
        });
      } else if (of.committed) {
        with(of, [&](auto&... handles) {
          at->chunk.restore(static_cast<tp::module_id>(m), each.layer, stream(), handles...);
        });
      }
      for (std::size_t i = 0; i < of.count; ++i) {
        check(of.saved[i]);
        reset(of.saved[i]);
      }
      at->groups.erase(found);
    }
  }

  void finish(const action& each) {
    auto* at = find(each);
    if (at == nullptr) return;
    if (!at->groups.empty()) drop(*at);  // actions were left out
    if (at->open) at->chunk.finish();
    passes_.erase(each.microbatch);
  }

  void drop(pass& at) {
    at.chunk = {};
    at.open = false;
    for (auto& [key, of] : at.groups) {
      for (std::size_t i = 0; i < of.count; ++i) reset(of.saved[i]);
    }
    at.groups.clear();
  }

  void evaluate(const action& each) {
    auto chunk = off_->begin({.microbatch = each.microbatch, .forward_only = true});
    for (int l = 0; l < program_.layers; ++l) {
      tensor x;
      fill(x);
      chunk.commit<"core_attn">(l, stream(), x.whole);
      check(x);
      reset(x);
    }
    chunk.finish();
  }

  void start_reload(const action& each) {
    auto* at = find(each);
    if (at == nullptr || at->forward) return;
    const auto found = at->groups.find({each.layer, 0});
    if (found == at->groups.end() || !found->second.committed) return;
    at->chunk.start_reload<"core_attn">(each.layer);
  }

  void switch_stream() {
    auto here = dev_.make_event();
    dev_.record(here, stream());
    current_ = 1 - current_;
    dev_.wait(stream(), here);
  }

  void side_work() {
    if (capturing_) return;
    const auto here = std::exchange(current_, 2);
    tensor x;
    fill(x);
    check(x);
    reset(x);
    current_ = here;
  }

  void capture(const action& each) {
    if (steps_ == 0 || !passes_.empty()) return;
    plain_ = true;
    capture_step(each);
    plain_ = false;
  }
  void capture_step(const action& each) {
    const auto work = generator::plain_step(each.draw, program_.layers);
    // Eagerly, as everybody must; once again where it was larger than any step before it.
    const auto warms_up = [&] { return off_->profile().chunks.empty(); };
    for (int times = 0; times == 0 || (times == 1 && warms_up()); ++times) {
      for (const auto& inner : work) act(inner);
      if (problem_ || !passes_.empty()) return;
    }
    if (warms_up()) return;  // too few steps that teach
    if (any(2) == 0) {       // copies that nobody waits for are under way when the capture begins
      const action lost{action::kind::begin, 50, 0, each.draw};
      act(lost);
      forward_layer(lost);
      drop(*find(lost));
      passes_.erase(50);
    }
    graph_ends_step_ = !program_.counts || any(3) != 0;
    try {
      if_due([&] {
        graphs_.push_back(off_->capture(stream(), [&] {
          capturing_ = true;
          for (const auto& inner : work) {
            if (graph_ends_step_ || inner.what != action::kind::end_step) act(inner);
          }
          next_round();
        }));
      });
    } catch (const tp::misuse_error& caught) {
      // The eager step may have stopped short of what the capture needs.
      capturing_ = false;
      clear();
      if (std::string_view(caught.what()).find("would have to be allocated") ==
          std::string_view::npos) {
        throw;
      }
      return;
    }
    capturing_ = false;
  }

  void clear() {
    if (hand_over_.whole) hand_over_.whole.reset(stream());
    for (auto& [number, at] : passes_) drop(at);
    passes_.clear();
  }

  // ---- kernels ----

  static std::uint32_t word(std::uint32_t tag, std::size_t i, std::uint32_t round) {
    return tag * 2654435761U + static_cast<std::uint32_t>(i) * 7U + round * 40503U;
  }

  void write(const tensor& to) {
    auto* const data = to.whole.as<std::uint32_t>();
    const auto count = to.whole.size() / 4;
    const auto tag = to.tag;
    dev_.launch(stream(), 100,
                [this, data, count, tag] {
                  for (std::size_t i = 0; i < count; ++i) data[i] = word(tag, i, round_);
                },
                "write", {{data, count * 4, true}});
  }

  void check(const tensor& from) {
    if (!from.is_view()) {
      const auto bytes = from.planned > 0 ? from.planned * row_bytes : from.whole.size();
      return check_rows(from.whole.as<std::uint32_t>(), bytes / 4, 1, 0, from.tag, 0, 0);
    }
    const auto width = from.part.width() / 4;
    auto rows = from.part.rows();
    if (from.planned > 0) {  // those that lie in rows that move
      const auto words = from.planned * row_bytes / 4;
      const auto before = from.first + width;
      rows = words < before ? 0 : std::min(rows, (words - before) / from.step + 1);
    }
    check_rows(from.part.as<std::uint32_t>(), width, rows, from.part.pitch() / 4, from.tag,
               from.first, from.step);
  }

  void check_rows(const std::uint32_t* data, std::size_t width, std::size_t rows, std::size_t pitch,
                  std::uint32_t tag, std::size_t first, std::size_t step) {
    if (data == nullptr) {
      problem_ = {"content", "a handle is empty after its restore"};
      return;
    }
    std::vector<tp::kernel_access> touches;
    for (std::size_t r = 0; r < rows; ++r) touches.push_back({data + r * pitch, width * 4, false});
    dev_.launch(
        stream(), 100,
        [=, this] {
          for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t i = 0; i < width; ++i) {
              wrong_ += data[r * pitch + i] != word(tag, first + r * step + i, round_) ? 1 : 0;
            }
          }
        },
        "check", std::move(touches));
  }

  void next_round() {
    dev_.launch(stream(), 10, [this] { ++round_; });
  }

  void reset(tensor& which) {
    if (which.is_view()) which.part.reset(stream());
    which.whole.reset(stream());
  }

  program program_;
  kept_device neighbour_;
  std::optional<tp::lent_memory<kept_device>> lent_;
  kept_device dev_;
  std::vector<kept_device::stream> streams_;
  std::vector<stream_allocator> own_;  // of each stream
  std::size_t current_ = 0;
  std::unique_ptr<recording> seen_;
  std::optional<offloader> off_;
  std::map<int, pass> passes_;
  std::vector<tp::graph<kept_device>> graphs_;
  static constexpr std::size_t row_bytes = 16;
  std::array<std::uint64_t, 2> counts_{};   // where kernels count
  std::array<row_count, 2> counted_{};      // what the latest of them write
  std::vector<claim> captured_;             // of the graph
  std::vector<tp::row_overflow> expected_;  // what may be told, and more
  std::uint32_t launches_ = 0;
  std::size_t overflows_ = 0;  // that were told
  bool due_ = false;           // a step is over, and nobody asked
  bool graph_ends_step_ = true;
  tensor hand_over_;
  std::minstd_rand draw_;
  std::array<std::vector<std::size_t>, 3> flying_;
  std::optional<std::size_t> last_offload_;
  std::string by_;
  violation problem_;
  std::uint32_t tag_ = 0;
  std::uint32_t round_ = 0;
  std::size_t wrong_ = 0;
  std::size_t moved_ = 0;
  std::uint64_t recomputed_ = 0;
  std::uint64_t to_peer_ = 0;
  std::size_t refused_ = 0;
  std::size_t steps_ = 0;
  bool capturing_ = false;
  bool plain_ = false;  // nothing is adopted: a step that becomes a graph
};

}  // namespace explore
