/// Foretells a step: the engine itself on the virtual device, with the bytes left out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/device/virtual.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/placement.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_2_0::plan {

/// A step as the engine would run it.
struct forecast_result {
  outcome expected;          ///< times, stalls and peak
  std::size_t reserved = 0;  ///< device bytes taken from the device
  std::size_t host = 0;      ///< most host bytes in use
  std::string refusal;       ///< why it does not run; empty when it does
  trace::record picture;     ///< of the step; without spans unless it was asked for
};

namespace detail {

// One run of a profile through an engine.
class rehearsal {
  using engine_type = tidepool::detail::engine<virtual_device>;
  struct end_engine {
    void operator()(engine_type* which) const noexcept {
      which->close();
      engine_type::release(which);
    }
  };

 public:
  rehearsal(const profile& step, const options& opts)
      : step_(&step),
        dev_(machine_of(step)),
        stream_(dev_.make_stream()),
        engine_(new engine_type(dev_, opts, step.modules,
                                std::vector<bool>(step.modules.size(), true))) {
    held_.resize(step.storages.size() + step.shared.size());
    list_members();
    extra_.resize(step.storages.size());
    outlives_.resize(step.storages.size(), false);
    for (const auto& each : step.events) {
      if (each.kind == event_kind::drop) outlives_[each.index] = true;
      waits_ = waits_ || each.wait_us > 0;
    }
    waits_ = waits_ || step.rest_wait_us > 0;
    chunks_.resize(step.chunks.size(), nullptr);
    waiting_.resize(step.chunks.size(), 0);
  }
  rehearsal(const rehearsal&) = delete;
  rehearsal& operator=(const rehearsal&) = delete;
  ~rehearsal() {
    for (auto* open : chunks_) {
      if (open != nullptr) engine_->end_chunk(*open, false);
    }
  }

  [[nodiscard]] double now_us() {
    dev_.synchronize();
    return dev_.now_ns() / 1e3;
  }
  [[nodiscard]] double recomputed_us() const { return recomputed_us_; }  // in all runs
  [[nodiscard]] auto& engine() { return *engine_; }
  void adopt(const profile& step, actions what, placement where, bool by_rule) {
    using tidepool::detail::followed;
    engine_->adopt(step, std::move(what), std::move(where),
                   by_rule ? followed::by_rule : followed::planned);
  }
  [[nodiscard]] auto stream() const { return stream_.ref(); }

  void run() {
    find_forgotten();
    const double begin_us = waits_ ? now_us() : 0;
    double at_us = 0;
    for (const auto& each : step_->events) {
      compute(begin_us + at_us, each.compute_us, each.wait_us);
      at_us += each.compute_us;
      call(each);
    }
    if (!chunks_.empty()) static_cast<void>(opened(static_cast<std::uint32_t>(chunks_.size() - 1)));
    for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i] != nullptr) close(i);  // one that was given up in the middle
    }
    next_chunk_ = 0;
    compute(begin_us + at_us, step_->rest_us, step_->rest_wait_us);
    static_cast<void>(engine_->end_step());
  }

 private:
  static machine machine_of(const profile& step) {
    machine model;
    model.device_bytes = model.host_bytes = std::numeric_limits<std::size_t>::max() / 4;
    model.offload_rate = step.link.out;
    model.reload_rate = step.link.in;
    model.both_rate = step.link.both;
    model.copy_latency_ns = step.link.latency_us * 1e3;
    model.moves_bytes = false;
    return model;
  }

  using chunk_state = tidepool::detail::chunk_state;

  // A handle that a group commits: those of `storages` come first, then those of `shared`.
  struct member {
    std::uint32_t storage = 0;
    std::uint32_t place = 0;
    std::size_t held = 0;
  };

  void list_members() {
    for (const auto& each : step_->chunks) members_.emplace_back(each.groups.size());
    for (std::uint32_t s = 0; s < step_->storages.size(); ++s) {
      const auto& each = step_->storages[s];
      if (each.chunk != none) members_[each.chunk][each.group].push_back({s, each.place, s});
    }
    also_.resize(step_->shared.empty() ? 0 : step_->storages.size());
    returned_.resize(held_.size(), false);
    auto handle = step_->storages.size();
    for (const auto& each : step_->shared) {
      members_[each.chunk][each.group].push_back({each.storage, each.place, handle});
      also_[each.storage].push_back(handle++);
    }
    for (auto& chunk : members_) {
      for (auto& group : chunk) std::ranges::stable_sort(group, {}, &member::place);
    }
  }

  void find_forgotten() {
    comes_back_.clear();
    for (const auto& each : step_->chunks) comes_back_.emplace_back(each.groups.size(), false);
    for (const auto& each : step_->events) {
      if (each.kind == event_kind::restore) comes_back_[each.chunk][each.index] = true;
    }
  }

  // `what(handle)` for all handles of a storage that its groups commit.
  void each_handle_of(std::uint32_t storage, const auto& what) {
    what(storage);
    if (also_.empty()) return;
    for (const auto other : also_[storage]) what(other);
  }

  // Other ranks come when they would if nothing here were late.
  void compute(double from_us, double us, double wait_us) {
    if (wait_us > 0) dev_.idle_until(stream_.ref(), (from_us + wait_us) * 1e3);
    if (us > wait_us) dev_.launch(stream_.ref(), (us - wait_us) * 1e3, nullptr);
  }

  // The engine counts chunks in the order in which they are opened, which is that of the profile.
  chunk_state* opened(std::uint32_t index) {
    for (; next_chunk_ <= index; ++next_chunk_) {
      const auto& about = step_->chunks[next_chunk_];
      chunks_[next_chunk_] = &engine_->begin({about.microbatch, about.model_chunk});
      waiting_[next_chunk_] = about.groups.size();
      if (about.groups.empty()) close(next_chunk_);  // nothing of it will come back
    }
    return chunks_[index];
  }

  void close(std::uint32_t index) {
    engine_->end_chunk(*std::exchange(chunks_[index], nullptr), true);
  }

  std::span<handle<virtual_device>* const> handles_of(const event& each) {
    pointers_.clear();
    for (const auto& of : members_[each.chunk][each.index]) pointers_.push_back(&held_[of.held]);
    return pointers_;
  }

  void call(const event& each) {
    const auto stream = stream_.ref();
    switch (each.kind) {
      case event_kind::allocate: {
        const auto bytes = std::max<std::size_t>(step_->storages[each.index].bytes, 1);
        auto& first = held_[each.index] = engine_->allocate(bytes, bytes, stream);
        each_handle_of(each.index, [&](std::size_t handle) {
          if (handle != each.index) held_[handle] = first.share();
          returned_[handle] = false;
        });
        break;
      }
      case event_kind::commit: {
        const auto& group = step_->chunks[each.chunk].groups[each.index];
        for (const auto& of : members_[each.chunk][each.index]) {
          if (outlives_[of.storage]) extra_[of.storage] = held_[of.held].share();
        }
        engine_->commit(*opened(each.chunk), group.module, group.layer, engine_->lane_of(stream),
                        handles_of(each), tidepool::detail::commit_kind::or_discard);
        break;
      }
      case event_kind::end_forward:
        if (auto* chunk = opened(each.chunk)) engine_->end_forward(*chunk);
        break;
      case event_kind::restore: {
        const auto& group = step_->chunks[each.chunk].groups[each.index];
        forget_later(each);
        engine_->restore_or_recompute(*chunks_[each.chunk], group.module, group.layer, stream,
                                      handles_of(each), [&] {
                                        dev_.launch(stream, group.recompute_us * 1e3, nullptr);
                                        recomputed_us_ += group.recompute_us;
                                      });
        for (const auto& of : members_[each.chunk][each.index]) returned_[of.held] = true;
        if (--waiting_[each.chunk] == 0) close(each.chunk);
        break;
      }
      case event_kind::release:
        each_handle_of(each.index, [&](std::size_t handle) { held_[handle].reset(stream); });
        forget_group_of(step_->storages[each.index]);
        break;
      case event_kind::drop:
        extra_[each.index].reset(stream);
        each_handle_of(each.index, [&](std::size_t handle) {
          if (returned_[handle]) held_[handle].reset(stream);
        });
        break;
    }
  }

  // One that nobody restores goes when its first storage is released.
  void forget_group_of(const storage_profile& store) {
    if (store.chunk != none && !comes_back_[store.chunk][store.group]) {
      forget_group(store.chunk, store.group);
    }
  }
  // Of one module and layer the last comes back first: what was committed behind a group that is
  // restored, and does not come back, was forgotten before. Its storages may be known no more.
  void forget_later(const event& restored) {
    const auto& groups = step_->chunks[restored.chunk].groups;
    const auto& of = groups[restored.index];
    for (auto i = restored.index + 1; i < groups.size(); ++i) {
      const bool alike = groups[i].module == of.module && groups[i].layer == of.layer;
      if (alike && !comes_back_[restored.chunk][i]) forget_group(restored.chunk, i);
    }
  }
  void forget_group(std::uint32_t chunk, std::uint32_t index) {
    comes_back_[chunk][index] = true;
    const auto& group = step_->chunks[chunk].groups[index];
    engine_->forget(*chunks_[chunk], group.module, group.layer);
    if (--waiting_[chunk] == 0) close(chunk);
  }

  const profile* step_;
  virtual_device dev_;
  virtual_device::stream stream_;
  std::unique_ptr<engine_type, end_engine> engine_;  // handles are declared behind it, and go first
  std::vector<std::vector<std::vector<member>>> members_;  // of each group
  std::vector<std::vector<std::size_t>> also_;             // other handles of each storage
  std::vector<buffer<virtual_device>> held_;
  std::vector<bool> returned_;                 // of them, those whose group was restored
  std::vector<buffer<virtual_device>> extra_;  // beyond the commit
  std::vector<bool> outlives_;
  std::vector<std::vector<bool>> comes_back_;  // each group of each chunk, or is forgotten already
  std::vector<chunk_state*> chunks_;
  std::vector<std::size_t> waiting_;  // groups of each chunk that are not restored yet
  std::uint32_t next_chunk_ = 0;
  double recomputed_us_ = 0;
  bool waits_ = false;  // for other ranks
  std::vector<handle<virtual_device>*> pointers_;
};

// Two steps in which everything leaves. Where they do not fit, a plan can only be followed from the
// first step on.
inline void warm_up(std::optional<rehearsal>& stage, const profile& step, const options& opts,
                    bool by_rule) {
  actions everything;
  for (const auto& chunk : step.chunks) {
    everything.emplace_back(chunk.groups.size(), action::offload);
  }
  try {
    stage.emplace(step, opts).adopt(step, everything, {}, by_rule);
    stage->run();
    stage->run();
  } catch (const out_of_budget&) {
    stage.emplace(step, opts);
  }
}

[[nodiscard]] inline forecast_result rehearsed(const profile& step, options opts,
                                               const actions& what, placement where, bool picture,
                                               bool by_rule = false) {
  forecast_result result;
  opts.min_tensor_elements = 0;
  opts.host_budget = std::numeric_limits<std::size_t>::max() / 4;
  opts.host_memory = host_kind::automatic;
  opts.places.assign(1, place_kind::host);  // over whose link a plan counts
  opts.policy = policy_kind::megatron;      // nothing is recorded here
  opts.recompute_by_plan = true;
  opts.offload_layers.clear();
  try {
    std::optional<rehearsal> warm;
    warm_up(warm, step, opts, by_rule);
    auto& stage = *warm;
    stage.adopt(step, what, std::move(where), by_rule);
    double before = 0;
    for (int i = 0; i < constants::forecast_steps; ++i) {
      const auto begin = stage.now_us();
      const auto recomputed = stage.recomputed_us();
      stage.run();
      result.expected.step_us = stage.now_us() - begin;
      result.expected.extra_us = stage.recomputed_us() - recomputed;
      if (std::abs(result.expected.step_us - before) <= 1e-6 * before) break;
      before = result.expected.step_us;
    }
    if (picture) {
      stage.engine().start_trace("forecast", stage.stream());
      stage.run();
    }
    if (picture) result.picture = stage.engine().finish_trace();
    const auto counted = stage.engine().counters();
    result.expected.peak = counted.live_peak;
    for (const auto& module : counted.modules) result.expected.moved += module.step_bytes;
    result.expected.stall_us =
        std::max(0.0, result.expected.step_us - compute_us(step) - result.expected.extra_us);
    result.reserved = counted.device_reserved;
    result.host = counted.host_peak;
  } catch (const out_of_budget& problem) {
    result.expected.runs = false;
    result.refusal = problem.what();
  }
  return result;
}

// With places, and where copies may wait for them without as well: whichever takes less.
struct rehearsed_places {
  forecast_result seen;
  placement where;
};
[[nodiscard]] inline rehearsed_places rehearsed_in_places(const profile& step, const options& opts,
                                                          const actions& what, found_places found,
                                                          bool picture) {
  rehearsed_places placed{rehearsed(step, opts, what, found.where, picture),
                          std::move(found.where)};
  if (!found.waits) return placed;
  auto anywhere = rehearsed(step, opts, what, {}, picture);
  const auto key = [](const forecast_result& each) {
    return std::pair(!each.expected.runs, each.expected.step_us);
  };
  if (key(placed.seen) <= key(anywhere)) return placed;
  return {std::move(anywhere), {}};
}

}  // namespace detail

/// Runs a step through the engine on a virtual device with the profile's rates: twice with
/// everything leaving, as a warm-up does (where that fits), since where memory is then counts
/// later; then with `what`, until two steps in a row take the same, and tells what the last was
/// like. `opts` are those of the run to be predicted; `placed` says whether memory is where a plan
/// would have it (`best_places`), or as an arena gives it out under a rule. Durations are the
/// profile's; kernels are not slowed by copies beside them.
///
/// Where the engine would refuse, `expected.runs` is false and `refusal` says why. A recomputed
/// group takes the profile's time; what it is computed from is taken to be there. Takes about a
/// microsecond and a half a call. Thread safety: none shared.
[[nodiscard]] inline forecast_result forecast(const profile& step, const options& opts,
                                              const actions& what, bool picture = false,
                                              bool placed = true) {
  if (!placed) return detail::rehearsed(step, opts, what, {}, picture, true);
  return detail::rehearsed_in_places(step, opts, what, detail::find_places(step, what, opts),
                                     picture)
      .seen;
}

/// The places of `place_ahead`; where a copy may wait for memory by them, only if the step then
/// takes no longer than with whatever is free. Takes at most as long as two forecasts.
[[nodiscard]] inline placement best_places(const profile& step, const actions& what,
                                           const options& opts) {
  auto found = detail::find_places(step, what, opts);
  if (!found.waits) return std::move(found.where);
  return detail::rehearsed_in_places(step, opts, what, std::move(found), false).where;
}

/// The same for a rule that knows of staying and leaving alone, and of no places.
[[nodiscard]] inline forecast_result forecast(const profile& step, const options& opts,
                                              const residency& stays, bool picture = false) {
  return forecast(step, opts, actions_of(stays), picture, false);
}

/// The same for a plan: its actions and its run_limits, in an arena of its budget.
[[nodiscard]] inline forecast_result forecast(const profile& step, const step_plan& made,
                                              bool picture = false) {
  options opts;
  opts.memory = memory_kind::arena;
  opts.device_budget = made.device_budget;
  opts.reload_ahead = made.reload_ahead;
  if (made.reload_ahead_bytes > 0) opts.reload_ahead_bytes = made.reload_ahead_bytes;
  return forecast(step, opts, made.what, picture);
}

}  // namespace tidepool::plan
