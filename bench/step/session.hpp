/// An offloader under observation: the calls of the public API, with the host's time in them.
#pragma once

#include <array>
#include <chrono>
#include <tidepool/graph.hpp>
#include <tidepool/offloader.hpp>
#include <tidepool/places/file.hpp>
#include <tidepool/plan.hpp>
#ifdef TIDEPOOL_BENCH_CHECKED
#endif
#include <utility>

#include "by_hand.hpp"
#include "traffic.hpp"

namespace bench {

using modules = tidepool::modules<"core_attn", "expert_fc1", "moe_act">;
static_assert(modules::names == module_names);
using engine = tidepool::offloader<cuda_device, modules>;
using buffer = engine::buffer;
using stream_ref = engine::stream_ref;

/// Host time inside calls of one kind.
struct host_time {
  double ns = 0;
  index calls = 0;

  /// In microseconds, less what reading the clock costs.
  [[nodiscard]] double us(double clock_ns) const {
    return (ns - clock_ns * static_cast<double>(calls)) / 1e3;
  }
};

struct host_times {
  host_time commit;
  host_time restore;  ///< end_forward included, which starts reloads too
  host_time rest;     ///< allocate, release, begin, finish, end_step
};

/// What one case needs to run steps. The model knows nothing but this: `allocate`, `begin`,
/// `commit`, `restore`, `release`.
class session {
 public:
  class chunk;

  session(cuda_device& dev, const tidepool::options& options, bool recompute)
      : dev_(&dev),
        off_(dev, options, {.planner = tidepool::planner(), .file = tidepool::file_place()}),
        recompute_(recompute) {
    host_time empty;
    for (int i = 0; i < 1000; ++i) const stopwatch time(&empty);
    clock_ns_ = empty.ns / 1000;
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  // ---- for the model ----

  template <class T>
  [[nodiscard]] buffer allocate(index count, stream_ref stream) {
    const stopwatch time(&times_.rest);
    return off_.allocate<T>(static_cast<std::size_t>(count), stream);
  }
  template <class... Buffers>
  void release(stream_ref stream, Buffers&... each) {
    const stopwatch time(&times_.rest);
    (each.reset(stream), ...);
  }
  [[nodiscard]] chunk begin(int microbatch);
  void end_step() {
    const stopwatch time(&times_.rest);
    off_.end_step();
  }

  [[nodiscard]] bool offloads_attention() const { return off_.enabled<"core_attn">(); }
  /// The experts' input and what they save are made again in backward.
  [[nodiscard]] bool recomputes_experts() const { return recompute_; }

  [[nodiscard]] engine::span trace_span(std::string_view name, stream_ref stream, int layer,
                                        int microbatch) {
    return off_.trace_span(name, stream, layer, microbatch);
  }
  /// Called before each layer; blocks the host only while `pace_host` is on.
  void pace(stream_ref stream) {
    if (paced_) dev_->synchronize(stream);
  }

  /// Blocks the host, as timers of trainers do.
  void wait_for_device() { dev_->synchronize(); }

  // ---- for the measurement ----

  [[nodiscard]] engine& off() { return off_; }

  /// Copies beside each commit and restore of the experts, over each link; null for none.
  void set_traffic(side_traffic* host, side_traffic* peer) { traffic_ = {host, peer}; }
  /// The same, written by hand, with the host's time in it.
  void set_by_hand(hand_written* hands) { hands_ = hands; }
  /// Keeps the host within a layer of the device, so that calls never wait for a full queue.
  void pace_host(bool on) { paced_ = on; }
  /// Recorded where the next group becomes ready to leave.
  void watch_next_commit(cuda_device::event* ready) { ready_ = ready; }

  void reset_times() { times_ = {}; }
  /// Microseconds of commit and restore for each pair of them.
  [[nodiscard]] double us_per_pair(bool with_rest) const {
    if (times_.commit.calls == 0) return 0;
    const auto us = times_.commit.us(clock_ns_) + times_.restore.us(clock_ns_) +
                    (with_rest ? times_.rest.us(clock_ns_) : 0);
    return us / static_cast<double>(times_.commit.calls);
  }

 private:
  class stopwatch {
   public:
    // Null: the call does nothing and is not counted.
    explicit stopwatch(host_time* into) : into_(into), start_(clock::now()) {}
    stopwatch(const stopwatch&) = delete;
    stopwatch& operator=(const stopwatch&) = delete;
    ~stopwatch() {
      if (into_ == nullptr) return;
      into_->ns += std::chrono::duration<double, std::nano>(clock::now() - start_).count();
      ++into_->calls;
    }

   private:
    using clock = std::chrono::steady_clock;
    host_time* into_;
    clock::time_point start_;
  };

  void group_ready(stream_ref stream) {
    if (auto* ready = std::exchange(ready_, nullptr)) dev_->record(*ready, stream);
  }
  void leaving(std::size_t bytes) {
    for (auto* each : traffic_) {
      if (each != nullptr) each->leave(bytes);
    }
    if (hands_ == nullptr) return;
    const stopwatch time(&times_.commit);
    hands_->leave(bytes);
  }
  void returning(std::size_t bytes) {
    for (auto* each : traffic_) {
      if (each != nullptr) each->arrive(bytes);
    }
    if (hands_ == nullptr) return;
    const stopwatch time(&times_.restore);
    hands_->arrive(bytes);
  }

  cuda_device* dev_;
  engine off_;
  bool recompute_;
  bool paced_ = false;
  std::array<side_traffic*, 2> traffic_{};
  hand_written* hands_ = nullptr;
  cuda_device::event* ready_ = nullptr;
  host_times times_;
  double clock_ns_ = 0;
};

/// The engine's chunk, observed. Same calls, same order, same handles.
class session::chunk {
 public:
  chunk() = default;

  template <tidepool::fixed_string Name, class... Saved>
  void commit(int layer, stream_ref stream, Saved&... saved) {
    const bool enabled = owner_->off_.enabled<Name>();
    if (enabled || of_experts<Name>) owner_->group_ready(stream);
    if constexpr (of_experts<Name>) owner_->leaving((saved.size() + ...));
    const stopwatch time(enabled ? &owner_->times_.commit : nullptr);
    inner_.commit<Name>(layer, stream, saved...);
  }
  template <tidepool::fixed_string Name, class... Saved>
  void restore(int layer, stream_ref stream, Saved&... saved) {
    if constexpr (of_experts<Name>) owner_->returning((saved.size() + ...));
    const stopwatch time(owner_->off_.enabled<Name>() ? &owner_->times_.restore : nullptr);
    inner_.restore<Name>(layer, stream, saved...);
  }
  void end_forward() {
    const stopwatch time(&owner_->times_.restore);
    inner_.end_forward();
  }
  void finish() {
    const stopwatch time(&owner_->times_.rest);
    inner_.finish();
  }

 private:
  friend class session;
  chunk(session& owner, engine::chunk inner) : owner_(&owner), inner_(std::move(inner)) {}

  template <tidepool::fixed_string Name>
  static constexpr bool of_experts = Name.view() != "core_attn";

  session* owner_ = nullptr;
  engine::chunk inner_;
};

inline session::chunk session::begin(int microbatch) {
  const stopwatch time(&times_.rest);
  return {*this, off_.begin({.microbatch = microbatch})};
}

}  // namespace bench
