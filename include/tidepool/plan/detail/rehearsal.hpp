// The rehearsal: runs the calls of a profile through a real engine on the virtual device. Input is
// a profile; the outputs are the virtual time in microseconds and the engine's counters. Forecasts
// use it, because only the engine itself knows all of its own rules.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tidepool/buffer.hpp"
#include "tidepool/device/hardware_of.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/memory/stream_memory.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/rows.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

class rehearsal {
  using engine_type = tidepool::detail::engine;
  using hardware_type = tidepool::detail::hardware_of<virtual_device>;
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
        engine_(new engine_type(std::make_unique<hardware_type>(dev_), opts,
                                {step.modules.begin(), step.modules.end()}, ~std::uint64_t{0},
                                memory_of(step))) {
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
      if (chunks_[i] != nullptr) close(i);  // the chunk was given up in the middle
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
    if (const auto& peer = step.peer_link) {
      model.peer_bytes = model.host_bytes;
      model.peer_offload_rate = peer->out;
      model.peer_reload_rate = peer->in;
      model.peer_both_rate = peer->both;
      model.peer_latency_ns = peer->latency_us * 1e3;
      model.peer_shares_link = step.peer_shares_link;
    }
    model.moves_bytes = false;
    if (const auto& packing = step.packing) {
      constexpr double at_once = 1e12;
      model.offload_rate = packing->link.out;
      model.reload_rate = packing->link.in;
      model.both_rate = packing->link.both;
      model.pack_rate = packing->pack_rate > 0 ? packing->pack_rate : at_once;
      model.unpack_rate = packing->unpack_rate > 0 ? packing->unpack_rate : at_once;
      model.packs_from = packing->from;
    }
    return model;
  }

  // The source of device memory. None: the engine's own. A stream-ordered profile gets an allocator
  // that hands out new addresses and never waits for the device, as a caching allocator would. The
  // virtual device moves no bytes, so no memory needs to lie at these addresses.
  std::unique_ptr<block_source> memory_of(const profile& step) {
    if (!step.stream_ordered) return {};
    return memory_on<virtual_device>(
        stream_.ref(),
        [this](std::size_t bytes) {
          return reinterpret_cast<void*>(std::exchange(next_address_, next_address_ + bytes));
        },
        [](void*) {});
  }

  using chunk_state = tidepool::detail::chunk_state;

  // A handle that a group commits. Handles of `storages` are numbered first, then those of
  // `shared`.
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

  // Calls `what(handle)` for all handles of a storage that groups commit.
  void each_handle_of(std::uint32_t storage, const auto& what) {
    what(storage);
    if (also_.empty()) return;
    for (const auto other : also_[storage]) what(other);
  }

  // Runs computing, and waits for other ranks. These arrive at a fixed time, so a late step waits
  // less.
  void compute(double from_us, double us, double wait_us) {
    if (wait_us > 0) dev_.idle_until(stream_.ref(), (from_us + wait_us) * 1e3);
    if (us > wait_us) dev_.launch(stream_.ref(), (us - wait_us) * 1e3, nullptr);
  }

  // Opens chunks up to `index`. The engine numbers chunks in the order in which they are opened, so
  // they are opened in the order of the profile.
  chunk_state* opened(std::uint32_t index) {
    for (; next_chunk_ <= index; ++next_chunk_) {
      const auto& about = step_->chunks[next_chunk_];
      chunks_[next_chunk_] = &engine_->begin({about.microbatch, about.model_chunk});
      waiting_[next_chunk_] = about.groups.size();
      if (about.groups.empty()) close(next_chunk_);  // it has nothing that will come back
    }
    return chunks_[index];
  }

  [[nodiscard]] lane_id lane() {
    return tidepool::detail::lane_of<virtual_device>(*engine_, stream_.ref());
  }
  void close(std::uint32_t index) {
    engine_->end_chunk(*std::exchange(chunks_[index], nullptr), true);
  }

  tidepool::detail::handle_list handles_of(const event& each) {
    pointers_.clear();
    for (const auto& of : members_[each.chunk][each.index]) pointers_.push_back(&held_[of.held]);
    return pointers_;
  }

  void call(const event& each) {
    const auto stream = stream_.ref();
    switch (each.kind) {
      case event_kind::allocate: {
        const auto& about = step_->storages[each.index];
        const auto bytes = std::max<std::size_t>(about.bytes, 1);
        const auto memory = engine_->allocate(bytes, bytes, lane());
        // The device moves no bytes, so that any address does for the count. Each storage has one
        // of its own, as the tensors of experts do.
        if (about.moves > 0) count_rows(*engine_, *memory.store, {&about.chunk, 1, about.moves});
        auto& first = held_[each.index] =
            tidepool::detail::buffer_of<virtual_device>(memory, about.bfloat16);
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
        engine_->commit(*opened(each.chunk), group.module, group.layer, lane(), handles_of(each),
                        tidepool::detail::commit_kind::or_discard);
        break;
      }
      case event_kind::end_forward:
        if (auto* chunk = opened(each.chunk)) engine_->end_forward(*chunk);
        break;
      case event_kind::restore: {
        const auto& group = step_->chunks[each.chunk].groups[each.index];
        forget_later(each);
        engine_->restore_or_recompute(*chunks_[each.chunk], group.module, group.layer, lane(),
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
      case event_kind::synchronise:
        dev_.synchronize();
        break;
    }
  }

  // A group that is never restored is forgotten when its first storage is released.
  void forget_group_of(const storage_profile& store) {
    if (store.chunk != none && !comes_back_[store.chunk][store.group]) {
      forget_group(store.chunk, store.group);
    }
  }
  // Groups of one module and layer are restored last in, first out. So a later group of the same
  // module and layer that never comes back was forgotten before this restore. The profile may have
  // no release that tells of it.
  void forget_later(const event& restored) {
    const auto& groups = step_->chunks[restored.chunk].groups;
    const auto& of = groups[restored.index];
    for (auto i = restored.index + 1; i < groups.size(); ++i) {
      const bool alike = groups[i].module == of.module && groups[i].layer == of.layer;
      if (alike && !comes_back_[restored.chunk][i]) forget_group(restored.chunk, i);
    }
  }
  // The group is named by its index, because a group of its module and layer that still waits may
  // lie above it.
  void forget_group(std::uint32_t chunk, std::uint32_t index) {
    comes_back_[chunk][index] = true;
    engine_->forget(*chunks_[chunk], index);
    if (--waiting_[chunk] == 0) close(chunk);
  }

  const profile* step_;
  virtual_device dev_;
  virtual_device::stream stream_;
  std::unique_ptr<engine_type, end_engine> engine_;  // declared before handles, which must go first
  std::vector<std::vector<std::vector<member>>> members_;  // of each group
  std::vector<std::vector<std::size_t>> also_;             // further handles of each storage
  std::vector<buffer<virtual_device>> held_;
  std::vector<bool> returned_;                 // true for handles whose group was restored
  std::vector<buffer<virtual_device>> extra_;  // handles that the trainer holds beyond the commit
  std::vector<bool> outlives_;
  std::vector<std::vector<bool>> comes_back_;  // by chunk and group; true also if forgotten already
  std::vector<chunk_state*> chunks_;
  std::vector<std::size_t> waiting_;  // groups of each chunk that are not restored yet
  std::uint32_t next_chunk_ = 0;
  double recomputed_us_ = 0;
  std::uintptr_t next_address_ = block_alignment;
  bool waits_ = false;  // for other ranks
  std::vector<tidepool::detail::handle_base*> pointers_;
};

}  // namespace tidepool::plan::detail
