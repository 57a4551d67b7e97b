// The calls of a step, from the costs of its layers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tidepool/plan/profile.hpp>
#include <utility>
#include <vector>

#include "layer_costs.hpp"

namespace planning::detail {

namespace plan = tidepool::plan;

// Writes the calls of a step, pass by pass.
class step_writer {
 public:
  step_writer(const model_description& model, const machine_description& on)
      : model_(model), dense_(model, on, true), sparse_(model, on, false) {
    step_.modules.assign(model_modules.begin(), model_modules.end());
    for (std::size_t i = 0; i < model_modules.size(); ++i) {
      leaves_[i] = std::find(model.modules.begin(), model.modules.end(), model_modules[i]) !=
                   model.modules.end();
    }
    own_layers_ = model.layers / model.pipeline_parallel;
    first_layer_ = own_layers_ * model.pipeline_rank;
  }

  // 1F1B: `depth - 1` forward passes, then one of each in turns, then the backward passes that are
  // left. What the rank waits for its neighbours is left out: copies have that time as well.
  [[nodiscard]] plan::profile write() {
    std::size_t sent = 0;
    for (; sent + 1 < model_.depth(); ++sent) forward(sent);
    for (std::size_t back = 0; back < model_.microbatches; ++back) {
      if (sent < model_.microbatches) forward(sent++);
      backward(back);
    }
    step_.rest_us = pending_ + model_.rest_us;
    return std::move(step_);
  }

 private:
  static constexpr std::size_t no_module = 7;
  struct saved_layer {
    std::array<std::vector<std::uint32_t>, 8> storages;  // by module, then what stays
    std::array<std::uint32_t, 7> group{};
  };

  [[nodiscard]] const layer_costs& costs(std::size_t layer) const {
    return layer < model_.dense_layers ? dense_ : sparse_;
  }
  void call(plan::event_kind kind, std::uint32_t index, std::uint32_t chunk = 0) {
    step_.events.push_back({kind, index, chunk, std::exchange(pending_, 0.0)});
  }
  void compute(double us) { pending_ += us; }

  void allocate(saved_layer& layer, std::size_t module, std::size_t bytes) {
    if (bytes == 0) return;
    const auto index = static_cast<std::uint32_t>(step_.storages.size());
    plan::storage_profile made{bytes, plan::none, plan::none};
    if (module != no_module && leaves_[module]) {
      made.chunk = chunk_;
      made.group = layer.group[module];
      step_.chunks[chunk_].groups[made.group].bytes += bytes;
    }
    step_.storages.push_back(made);
    layer.storages[module].push_back(index);
    call(plan::event_kind::allocate, index);
  }
  void commit(const saved_layer& layer, std::size_t module) {
    if (leaves_[module]) call(plan::event_kind::commit, layer.group[module], chunk_);
  }
  void restore(const saved_layer& layer, std::size_t module) {
    if (leaves_[module]) call(plan::event_kind::restore, layer.group[module], chunk_);
  }
  void release(const saved_layer& layer, std::size_t module) {
    for (const auto each : layer.storages[module]) call(plan::event_kind::release, each);
  }

  void forward(std::size_t microbatch) {
    chunk_ = static_cast<std::uint32_t>(step_.chunks.size());
    step_.chunks.push_back({0, {}, static_cast<int>(microbatch)});
    step_.passes.push_back({chunk_, false});
    auto& layers = layers_.emplace_back(own_layers_);
    for (std::size_t i = 0; i < own_layers_; ++i) forward_layer(layers[i], first_layer_ + i);
    call(plan::event_kind::end_forward, 0, chunk_);
  }

  void forward_layer(saved_layer& layer, std::size_t index) {
    const auto& cost = costs(index);
    auto& groups = step_.chunks[chunk_].groups;
    for (std::size_t i = 0; i < model_modules.size(); ++i) {
      if (!leaves_[i]) continue;
      layer.group[i] = static_cast<std::uint32_t>(groups.size());
      groups.push_back(
          {static_cast<tidepool::module_id>(i), static_cast<int>(index), 0, cost.recompute[i]});
    }
    allocate(layer, 0, cost.saved[0]);
    allocate(layer, 1, cost.saved[1]);
    compute(cost.norm.forward);
    commit(layer, 0);
    allocate(layer, 2, cost.saved[2]);
    compute(cost.qkv.forward);
    commit(layer, 1);
    allocate(layer, 2, cost.statistics);
    allocate(layer, 3, cost.saved[3]);
    compute(cost.core.forward);
    commit(layer, 2);
    allocate(layer, 4, cost.saved[4]);
    compute(cost.proj.forward);
    commit(layer, 3);
    allocate(layer, no_module, cost.shared_saved);
    compute(cost.norm.forward);
    commit(layer, 4);
    compute(cost.router.forward + cost.shared.forward);
    allocate(layer, 5, cost.saved[5]);
    compute(cost.dispatch.forward);
    allocate(layer, 6, cost.saved[6]);
    compute(cost.fc1.forward);
    commit(layer, 5);
    compute(cost.act.forward);
    if (model_.fused_activation) commit(layer, 6);
    compute(cost.fc2.forward);
    if (!model_.fused_activation) commit(layer, 6);
    compute(cost.combine.forward);
  }

  void backward(std::size_t microbatch) {
    chunk_ = static_cast<std::uint32_t>(microbatch);
    step_.passes.push_back({chunk_, true});
    for (auto i = own_layers_; i-- > 0;) backward_layer(layers_[chunk_][i], first_layer_ + i);
    layers_[chunk_].clear();
  }

  void use(const saved_layer& layer, std::size_t module, double us) {
    restore(layer, module);
    compute(us);
    release(layer, module);
  }

  void backward_layer(const saved_layer& layer, std::size_t index) {
    const auto& cost = costs(index);
    compute(cost.combine.backward);
    use(layer, 6, cost.fc2.backward + cost.act.backward);
    use(layer, 5, cost.fc1.backward);
    compute(cost.dispatch.backward + cost.router.backward + cost.shared.backward);
    release(layer, no_module);
    use(layer, 4, cost.norm.backward);
    restore(layer, 3);
    compute(cost.proj.backward);
    restore(layer, 2);
    compute(cost.core.backward);  // needs its output, which is attn_proj's tensor
    release(layer, 3);
    release(layer, 2);
    use(layer, 1, cost.qkv.backward);
    use(layer, 0, cost.norm.backward);
  }

  const model_description& model_;
  layer_costs dense_;
  layer_costs sparse_;
  std::array<bool, 7> leaves_{};
  std::size_t own_layers_ = 0;
  std::size_t first_layer_ = 0;
  plan::profile step_;
  double pending_ = 0;
  std::uint32_t chunk_ = 0;
  std::vector<std::vector<saved_layer>> layers_;  // by chunk
};

}  // namespace planning::detail
