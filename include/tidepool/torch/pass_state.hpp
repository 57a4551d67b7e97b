/// The state of one pass over torch: the tensors of its scopes, where they are, and how many
/// references they have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tidepool/torch/core.hpp"
#include "tidepool/torch/saved.hpp"

namespace tidepool::inline v0_3_0::detail {

// The tensors of one module scope leave and come back together: the first tensor that backward asks
// for brings all back. Every call takes the core's lock, and uses the thread's current stream.
template <device Device>
class torch_pass_state final : public torch_pass_end {
 public:
  using stream_ref = typename Device::stream_ref;
  using saved = torch_saved<Device>;
  using core_type = torch_core<Device>;
  using call = torch_call<Device>;

  torch_pass_state(std::shared_ptr<core_type> core, const chunk_info& info)
      : core_(std::move(core)), info_(info) {
    const call guard(*core_);
    core_->passes.push_back(this);
    try {
      open_ = core_->off->begin(info);
    } catch (...) {
      core_->passes.pop_back();
      throw;
    }
  }
  ~torch_pass_state() {
    const call guard(*core_);
    std::erase(core_->passes, this);
    entries_.clear();
    open_ = {};
  }
  torch_pass_state(const torch_pass_state&) = delete;
  torch_pass_state& operator=(const torch_pass_state&) = delete;

  [[nodiscard]] core_type& core() { return *core_; }

  // ---- forward ----

  // True if a scope of this module saves tensors here. In backward no scope saves, because a
  // checkpoint runs a part of forward again and reads its tensors at once.
  [[nodiscard]] bool saves(module_id module) {
    const call guard(*core_);
    return stage_ == stage::forward && !info_.forward_only && core_->off->enabled(module);
  }
  [[nodiscard]] bool in_forward() {
    const call guard(*core_);
    return stage_ == stage::forward;
  }
  [[nodiscard]] std::uint32_t enter(module_id module, int layer) {
    const call guard(*core_);
    if (const char* why = core_->streams.why_not(core_->streams.current())) {
      refuse(module, layer, why);
    }
    groups_.push_back({module, layer, place::scope, {}, 0, {}});
    return static_cast<std::uint32_t>(groups_.size() - 1);
  }

  // Notes a tensor that stays because it lies on another device or was excluded.
  void note_elsewhere(std::uint32_t in_group, bool excluded) {
    const call guard(*core_);
    if (core_->off) core_->off->note_elsewhere(groups_[in_group].module, excluded);
  }

  // Returns the entry of the bytes of `tensor`, with one more reference.
  [[nodiscard]] saved& save(const at::Tensor& tensor, const torch_layout& part,
                            std::uint32_t in_group) {
    const call guard(*core_);
    auto& newest = by_storage_[tensor.storage().unsafeGetStorageImpl()];
    if (newest == nullptr || !serves(*newest, part)) {
      newest = &entries_.emplace_back(tensor, in_group);
      groups_[in_group].list.push_back(newest);
    }
    if (newest->storage && !newest->views.gathered()) newest->widen(part);
    if (newest->references++ == 0) ++groups_[newest->group].wanted;
    return *newest;
  }

  // Ends a scope: its saved tensors leave.
  void leave(std::uint32_t index) {
    const call guard(*core_);
    auto& group = groups_[index];
    std::erase_if(group.list,
                  [](const saved* each) { return each->references == 0 || !each->is_whole(); });
    if (group.list.empty()) return;
    expect_first(group);
    group.stream = core_->streams.current();
    std::size_t bytes = 0;
    core_->lock.allocate([&] {
      for (auto* each : group.list) each->gather_if_thin();
    });
    try {
      for (auto* each : group.list) {
        each->handle = core_->adopt(*each, group.stream);
        bytes += each->bytes();
      }
      core_->streams.worked(bytes, group.stream);
      open_.commit(group.module, group.layer, group.stream, handles_of(group));
    } catch (...) {  // the tensors stay in torch's memory
      for (auto* each : group.list) each->handle = {};
      throw;
    }
    group.where = place::committed;
    for (auto* each : group.list) each->storage = {};
    core_->streams.settle(group.stream);
  }

  void end_forward() {
    const call guard(*core_);
    if (stage_ != stage::forward) return;
    open_.end_forward();
    begin_backward();
  }

  // ---- backward ----

  // The memory in which backward reads a tensor: a storage `live` that is still there, or one that
  // has come back.
  struct found {
    c10::Storage live;
    std::byte* begin = nullptr;  // of the whole storage
    const torch_layout* as = nullptr;
  };

  // Finds `part` for the thread's current stream.
  [[nodiscard]] found load(saved& from, const torch_layout& part, const tensor_version& version) {
    const call guard(*core_);
    auto& group = groups_[from.group];
    expect_unchanged(version, group.module, group.layer, part);
    const auto& as = from.place_of(part);
    if (from.storage) return live_in(from.storage, as, group);  // the storage never left
    const auto stream = core_->streams.current();
    if (group.where == place::committed) {
      if (const char* why = core_->streams.why_not(stream)) refuse(group.module, group.layer, why);
      restore(group, stream);
    } else if (group.where == place::gone) {
      refuse(group.module, group.layer,
             "backward reads what it saved after its pass was finished or given up; call finish"
             " behind the last backward of its graph");
    } else if (stream.key() != group.stream.key()) {
      use_too(from, stream);
    }
    if (const auto live = from.live()) return live_in(live, part, group);
    return {{}, from.begin(), &as};
  }
  void expect_unchanged(const tensor_version& version, std::uint32_t group,
                        const torch_layout& part) {
    if (!version.changed()) return;
    const call guard(*core_);
    expect_unchanged(version, groups_[group].module, groups_[group].layer, part);
  }
  // Checks that a leaf still has its storage, since autograd without hooks would read the leaf's
  // new memory.
  void expect_same_storage(const c10::TensorImpl& leaf, const saved& from,
                           const torch_layout& part) {
    const auto* const known = from.identity._unsafe_get_target();
    if (leaf.has_storage() && leaf.storage().unsafeGetStorageImpl() == known) return;
    const call guard(*core_);
    const auto& group = groups_[from.group];
    refuse(group.module, group.layer,
           "a leaf of " + in_words(part) +
               " elements that it saved was given other memory since (`leaf.data = other`); keep it"
               " out of offload by exclude or exclude_if, and backward reads what it is then");
  }
  void add_reference(saved& to) {
    const call guard(*core_);
    ++to.references;
  }
  void drop_reference(saved& from) noexcept {
    const call guard(*core_);
    if (--from.references > 0) return;
    auto& group = groups_[from.group];
    --group.wanted;
    from.storage = {};
    from.watch.reset();
    if (!core_->off) return;
    try {
      forget(from, group);
    } catch (...) {  // the handle keeps its memory until the pass ends
    }
  }

  // Ends the pass, and gives up tensors that no backward has asked for.
  void finish() {
    const call guard(*core_);
    if (stage_ == stage::over) return;
    for (auto& group : groups_) {
      if (group.where == place::committed) forget(group);
    }
    open_.finish();
    stage_ = stage::over;
  }
  // Gives the pass up, like an abandoned chunk.
  void give_up() noexcept {
    const call guard(*core_);
    if (stage_ == stage::over) return;
    stage_ = stage::over;
    for (auto& group : groups_) {
      if (group.where == place::committed) empty(group);
    }
    open_ = {};
  }
  void offloader_ends() noexcept override {
    for (auto& group : groups_) empty(group);
    open_ = {};
    stage_ = stage::over;
  }

 private:
  enum class stage : std::uint8_t { forward, backward, over };
  enum class place : std::uint8_t { scope, committed, restored, gone };
  struct group_state {
    module_id module{};
    int layer = 0;
    place where = place::scope;
    std::vector<saved*> list;
    std::uint32_t wanted = 0;  // tensors that have references
    stream_ref stream;         // the stream that committed it, or restored it
  };

  // True if the bytes saved before are unchanged and contain `part`, or can still be widened to it.
  [[nodiscard]] bool serves(const saved& known, const torch_layout& part) const {
    const auto where = groups_[known.group].where;
    if (known.version.changed() || where == place::gone) return false;
    if (known.views.gathered() && !known.covers(part)) return false;
    if (known.watch && known.watch->taken()) return false;
    return known.storage ? where == place::scope : known.references > 0 && known.covers(part);
  }
  [[nodiscard]] typename chunk<Device, all_modules>::handle_list handles_of(
      const group_state& group) {
    list_.clear();
    for (auto* each : group.list) list_.push_back(&each->handle);
    return list_;
  }

  void restore(group_state& group, stream_ref stream) {
    open_.restore(group.module, group.layer, stream, handles_of(group));
    begin_backward();
    group.where = place::restored;
    group.stream = stream;
    std::size_t bytes = 0;
    for (auto* each : group.list) {
      bytes += each->bytes();
      if (each->references == 0) each->let_go(stream);
    }
    core_->streams.worked(bytes, stream);
    core_->streams.settle(stream);
  }
  // Checks memory that was taken in forward. The check must come before backward refills storages
  // that forward has emptied, because a refill hides that.
  void begin_backward() {
    if (stage_ == stage::backward) return;
    stage_ = stage::backward;
    for (const auto& group : groups_) {
      for (auto* each : group.list) {
        core_->look_after(*each, group.module, group.layer, info_.microbatch);
      }
    }
  }
  [[nodiscard]] found live_in(const c10::Storage& storage, const torch_layout& part,
                              const group_state& group) const {
    if (part.lies_in(storage)) return {storage, nullptr, &part};
    refuse(group.module, group.layer,
           "the storage of a tensor of " + in_words(part) +
               " elements that it saved was emptied or resized since, and is not filled again now"
               " that backward reads it; fill it before, or keep it out of offload by exclude or"
               " exclude_if");
  }
  // Notes a use by a second stream, so that the memory is freed only when both streams are done
  // with it.
  void use_too(saved& what, stream_ref stream) {
    for (const auto& each : what.others) {
      if (each.stream.key() == stream.key()) return;
    }
    core_->off->wait_for(what.handle, stream);
    what.others.push_back({what.handle.share(), stream});
    core_->streams.settle(stream);
  }

  // Frees a tensor without references.
  void forget(saved& gone, group_state& group) {
    if (group.where != place::committed) {
      gone.let_go(group.stream);
      core_->streams.settle(group.stream);
    } else if (group.wanted == 0) {
      forget(group);
    }
  }
  void forget(group_state& group) {
    empty(group);
    open_.forget(group.module, group.layer);
    core_->streams.settle(group.stream);
  }
  void empty(group_state& group) noexcept {
    for (auto* each : group.list) {
      each->others.clear();
      each->handle = {};
    }
    if (group.where != place::scope) group.where = place::gone;
  }

  void expect_first(const group_state& group) const {
    for (const auto& each : groups_) {
      if (&each == &group || each.where == place::scope) continue;
      if (each.module != group.module || each.layer != group.layer) continue;
      refuse(group.module, group.layer,
             "it ran in this pass before; give each run a layer number of its own");
    }
  }
  void expect_unchanged(const tensor_version& version, module_id module, int layer,
                        const torch_layout& part) const {
    if (!version.changed()) return;
    refuse(module, layer,
           "a tensor of " + in_words(part) +
               " elements that it saved was written to in place since (version " +
               std::to_string(version.then()) + " then, " + std::to_string(version.now()) +
               " now), so that its gradient would be wrong; write to a copy");
  }
  [[nodiscard]] static std::string in_words(const torch_layout& part) {
    std::string sizes;
    for (const auto size : part.sizes) sizes += (sizes.empty() ? "" : "x") + std::to_string(size);
    return sizes;
  }
  [[noreturn]] void refuse(module_id module, int layer, const std::string& why) const {
    throw misuse_error("module " + core_->name_of(module) + " of layer " + std::to_string(layer) +
                       ", microbatch " + std::to_string(info_.microbatch) + ": " + why);
  }

  std::shared_ptr<core_type> core_;
  chunk_info info_;
  chunk<Device, all_modules> open_;
  stage stage_ = stage::forward;
  std::deque<group_state> groups_;
  std::deque<saved> entries_;
  std::unordered_map<const c10::StorageImpl*, saved*> by_storage_;
  std::vector<handle<Device>*> list_;
};

}  // namespace tidepool::detail
