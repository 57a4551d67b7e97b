/// Which tensors the model has: their names, sizes and starting values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../kernels/operand.hpp"
#include "../parallel/layout.hpp"

namespace moe {

/// One tensor of the model.
struct parameter {
  std::string name;
  index count;
  float range;         ///< starts uniform within ± this; 0 means that it starts as ones
  bool held;           ///< by this rank; else there is no memory
  bool split = false;  ///< over the ranks, of which each holds and trains a part
  index first = 0;     ///< element of the whole tensor with which this part starts
  index whole = 0;     ///< elements on all ranks together
  index parts = 1;     ///< of the whole tensor, all alike, of which each expert has one
  index in = 0;        ///< rows of each of those, where experts have them
  index offset = 0;
  index mine = 0;         ///< first element that this rank updates, and
  index mine_count = 0;   ///<   how many: all, or its shard of them
  index moments_at = 0;   ///< of those, in the memory of moments
  std::size_t slice = 0;  ///< of the moments on the host
  float* weight = nullptr;
  float* gradient = nullptr;  ///< accumulates over the microbatches of a step
  operand matrix{};           ///< the weight as GEMMs read it: itself, or a narrower copy
  operand codes{};            ///< each matrix as codes of FP8, if forward multiplies these:
  float* scale = nullptr;     ///<   then `matrix` is what they stand for, or, if backward
                              ///<   multiplies them too, the same codes as the weight lies

  /// Whether a GEMM reads it: gains and tables are not multiplied.
  [[nodiscard]] bool is_matrix() const {
    return range > 0 && !name.ends_with("embedding") && name != "positions";
  }

  // Of a tensor of experts:
  [[nodiscard]] index elements_each() const { return whole / parts; }
  [[nodiscard]] index out() const { return elements_each() / in; }
  [[nodiscard]] index scales_each(fp8_scaling scaling) const {
    if (matrix.type != number_type::e4m3) return weight_scale_count(in, out(), scaling);
    return turned_scales_at(in, out(), scaling) + weight_scale_count(out(), in, scaling);
  }
  [[nodiscard]] coded_operand codes_of(index expert, fp8_scaling scaling) const {
    return {codes + expert * elements_each(), scale + expert * scales_each(scaling)};
  }
  [[nodiscard]] coded_operand codes_for_backward(index expert, fp8_scaling scaling) const {
    return {matrix + expert * elements_each(),
            scale + expert * scales_each(scaling) + turned_scales_at(in, out(), scaling)};
  }
};

/// The tensors whose names start alike: those of one layer.
class parameters_of {
 public:
  parameters_of(const std::vector<parameter>& all, std::string prefix)
      : all_(all), prefix_(std::move(prefix)) {}

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != all_.end(); }
  [[nodiscard]] const parameter& operator[](std::string_view name) const {
    const auto found = find(name);
    if (found == all_.end()) throw std::logic_error("no tensor " + prefix_ + std::string(name));
    return *found;
  }

 private:
  [[nodiscard]] std::vector<parameter>::const_iterator find(std::string_view name) const {
    return std::find_if(all_.begin(), all_.end(), [&](const parameter& p) {
      return p.name.starts_with(prefix_) && std::string_view(p.name).substr(prefix_.size()) == name;
    });
  }

  const std::vector<parameter>& all_;
  std::string prefix_;
};

inline std::string layer_prefix(index number) { return "layer" + std::to_string(number) + "."; }
inline std::string mtp_prefix(index depth) { return "mtp" + std::to_string(depth) + "."; }

/// All tensors of the model, in the order of a checkpoint; `ranges` and `share` are those of this
/// rank.
inline std::vector<parameter> list_parameters(const model_sizes& m,
                                              const std::vector<layer_range>& ranges,
                                              expert_range share) {
  if (share.count == 0) share = {0, m.experts};
  // Uniform in ± sqrt(3/fan_in) has the standard deviation 1/sqrt(fan_in).
  const auto range = [](index fan_in) { return std::sqrt(3.0F / static_cast<float>(fan_in)); };
  // What adds to the residual stream starts smaller, so that depth does not blow it up.
  const float into_residual = 1 / std::sqrt(2 * static_cast<float>(m.layers));
  std::vector<parameter> list;
  bool held = false;
  const auto hold = [&](auto condition) {
    held = std::any_of(ranges.begin(), ranges.end(), condition);
  };
  const auto add = [&](std::string name, index count, float start) {
    list.push_back({std::move(name), count, start, held});
    list.back().whole = count;
  };
  const auto add_experts = [&](std::string name, index in, index out, float start) {
    const index each = in * out;
    add(std::move(name), share.count * each, start);
    list.back().in = in;
    list.back().split = share.count < m.experts;
    list.back().first = share.first * each;
    list.back().whole = m.experts * each;
    list.back().parts = m.experts;
  };
  const auto add_layer = [&](const std::string& layer, bool dense) {
    add(layer + "attn_gain", m.hidden, 0);
    add(layer + "qkv", m.hidden * 3 * m.hidden, range(m.hidden));
    add(layer + "proj", m.hidden * m.hidden, into_residual * range(m.hidden));
    add(layer + "mlp_gain", m.hidden, 0);
    const auto add_mlp = [&](const std::string& name, index ffn) {
      add(layer + name + "fc1", m.hidden * 2 * ffn, range(m.hidden));
      add(layer + name + "fc2", ffn * m.hidden, into_residual * range(ffn));
    };
    if (dense) {
      add_mlp("mlp_", m.dense_ffn);
      return;
    }
    add(layer + "router", m.hidden * m.experts, range(m.hidden));
    add_experts(layer + "fc1", m.hidden, 2 * m.ffn, range(m.hidden));
    add_experts(layer + "fc2", m.ffn, m.hidden, into_residual * range(m.ffn));
    if (m.shared_experts > 0) add_mlp("shared_", m.shared_ffn());
  };
  hold([](const layer_range& r) { return r.embedding; });
  constexpr float embedding_range = 0.5F;
  add("embedding", vocabulary * m.hidden, embedding_range);
  add("positions", m.seq * m.hidden, 0.1F);
  hold([](const layer_range& r) { return r.head; });
  add("final_gain", m.hidden, 0);
  add("head", m.hidden * vocabulary, 0.5F * range(m.hidden));
  for (index l = 0; l < m.layers; ++l) {
    hold([l](const layer_range& r) { return r.holds(l); });
    add_layer(layer_prefix(l), m.is_dense(l));
  }
  hold([](const layer_range& r) { return r.head; });
  for (index depth = 0; depth < m.mtp; ++depth) {
    const std::string prefix = mtp_prefix(depth);
    // A copy for all depths, since a pipeline has embedding and head on different ranks.
    if (depth == 0) add(prefix + "embedding", vocabulary * m.hidden, embedding_range);
    add(prefix + "hidden_gain", m.hidden, 0);
    add(prefix + "embedding_gain", m.hidden, 0);
    add(prefix + "mtp_proj", 2 * m.hidden * m.hidden, range(2 * m.hidden));
    add_layer(prefix, m.is_dense(m.layers - 1));
    add(prefix + "final_gain", m.hidden, 0);
  }
  return list;
}

}  // namespace moe
