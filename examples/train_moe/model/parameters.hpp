/// The model's weights with their gradients and AdamW state, in memory of the trainer's own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "../kernels/kernels.hpp"
#include "../parallel/exchange.hpp"
#include "device_array.hpp"
#include "moments.hpp"
#include "parameter_list.hpp"
#include "precision.hpp"

namespace moe {

/// Ranks that hold the same tensors may share the moments out (ZeRO-1): each has those of its part
/// of every such tensor, updates that part, and gets the others' parts from them.
struct moment_shards {
  int rank = 0;
  int ranks = 1;
  expert_exchange* exchange = nullptr;  ///< of more than one rank

  /// Elements of the parts of a tensor, in the order of the ranks. Each begins at a multiple of 64.
  [[nodiscard]] std::vector<index> parts_of(index count) const {
    const index rows = (count + 63) / 64;
    std::vector<index> parts;
    for (index r = 0; r < ranks; ++r) {
      const auto end = [&](index upto) { return std::min(count, rows * upto / ranks * 64); };
      parts.push_back(end(r + 1) - end(r));
    }
    return parts;
  }
};

template <class Device>
class parameters {
 public:
  parameters(Device& dev, const model_sizes& m) : parameters(dev, m, {whole_of(m)}) {}
  /// Those of `ranges`; the others are known by name and size alone. Without `moments_here` the
  /// moments of AdamW are nowhere until `keep_moments_on_host`.
  parameters(Device& dev, const model_sizes& m, const std::vector<layer_range>& ranges,
             bool moments_here = true, expert_range share = {}, const number_types& types = {},
             const moment_shards& shards = {})
      : types_(types),
        shards_(shards),
        list_(list_parameters(m, ranges, share)),
        total_(lay_out(list_)),
        moment_count_(lay_out_moments()),
        weights_(dev, total_, "weights"),
        gradients_(dev, total_, "gradients") {
    if (moments_here) moments_.emplace(dev, moment_count_);
    for (parameter& p : list_) {
      if (!p.held) continue;
      p.weight = weights_.data() + p.offset;
      p.gradient = gradients_.data() + p.offset;
      p.matrix = p.weight;
    }
    if (types.operands != number_type::fp32) make_copies(dev);
    if (types.multiplies_codes) make_codes(dev);
  }

  [[nodiscard]] const std::vector<parameter>& all() const { return list_; }
  [[nodiscard]] index count() const { return total_; }

  /// Calls `body(tensor, moments)` for every tensor here, in order, with the moments of the
  /// elements that this rank updates. They are on the device meanwhile, for work on the trainer's
  /// stream; only after `change` do those on the host become what `body` made of them.
  template <class Body>
  void each_with_moments(moments_use use, Body body) {
    if (moments_) {
      for (const parameter& p : list_) {
        if (p.held) body(p, moments_->at(p.moments_at));
      }
      return;
    }
    visitors_->each(use, [&](const slice& part, const moment_pair& moments) {
      for (const parameter& p : list_) {
        const index at = p.moments_at - part.first;
        if (!p.held || p.slice != part.number) continue;
        body(p, moment_pair{moments.momentum + at, moments.variance + at});
      }
    });
  }

  /// The same with the moments of whole tensors, for files. All ranks must call.
  template <class Kernels, class Body>
  void each_with_whole_moments(Device& dev, Kernels& k, moments_use use, Body body) {
    index largest = 0;
    for (const parameter& p : list_) {
      if (p.held && is_sharded(p)) largest = std::max(largest, p.count);
    }
    resident_moments<Device> whole(dev, std::max<index>(largest, 1));
    each_with_moments(use, [&](const parameter& p, const moment_pair& moments) {
      if (!is_sharded(p)) return body(p, moments);
      const moment_pair all = whole.at(0);
      for (const auto& [to, from] :
           {std::pair{all.momentum, moments.momentum}, std::pair{all.variance, moments.variance}}) {
        if (use == moments_use::change) continue;
        if (p.mine_count > 0) k.publish(to + p.mine, from, p.mine_count);
        shards_.exchange->gather_parts(to, shards_.parts_of(p.count));
      }
      body(p, all);
      if (use != moments_use::change || p.mine_count == 0) return;
      k.publish(moments.momentum, all.momentum + p.mine, p.mine_count);
      k.publish(moments.variance, all.variance + p.mine, p.mine_count);
    });
  }

  /// From now on the moments live on the host.
  template <class Offloader, class Kernels>
  void keep_moments_on_host(Offloader& off, Kernels& k, typename Device::stream_ref stream) {
    moments_.reset();
    visitors_.emplace(off, k, stream, slices());
  }

  [[nodiscard]] const parameter& embedding() const { return list_[0]; }
  [[nodiscard]] const parameter& positions() const { return list_[1]; }
  [[nodiscard]] const parameter& final_gain() const { return list_[2]; }
  [[nodiscard]] const parameter& head() const { return list_[3]; }
  [[nodiscard]] parameters_of mtp(index depth) const { return {list_, mtp_prefix(depth)}; }
  /// The copy of the embedding that multi-token prediction reads.
  [[nodiscard]] const parameter& mtp_embedding() const { return mtp(0)["embedding"]; }
  [[nodiscard]] parameters_of layer(index number) const { return {list_, layer_prefix(number)}; }

  /// Sets the starting weights; the same on every device.
  template <class Kernels>
  void initialise(Kernels& k, std::uint64_t seed) {
    k.fill(gradients_.data(), total_, 0);
    if (moments_) moments_->clear(k);
    const std::uint64_t seed_of_embedding = mix(seed);
    for (const parameter& p : list_) {
      seed = mix(seed);
      if (!p.held) continue;
      if (p.range > 0) {
        const bool is_copy = p.name == mtp_prefix(0) + "embedding";
        k.randomize(p.weight, p.count, p.range,
                    (is_copy ? seed_of_embedding : seed) + static_cast<std::uint64_t>(p.first));
      } else {
        k.fill(p.weight, p.count, 1);
      }
    }
    refresh_copies(k);
  }

  /// Brings the copies that GEMMs read in line with the weights.
  template <class Kernels>
  void refresh_copies(Kernels& k) const {
    for (const parameter& p : list_) refresh_copy(k, p);
  }

  /// found[0] = 1 if a gradient is not finite, else 0.
  template <class Kernels>
  void find_overflow(Kernels& k, std::int32_t* found) const {
    k.find_not_finite(found, gradients_.data(), total_);
  }
  /// In place of an update.
  template <class Kernels>
  void drop_gradients(Kernels& k) {
    k.fill(gradients_.data(), total_, 0);
  }

  /// One step of AdamW on everything; `step` counts from 0. Gains do not decay. Every gradient has
  /// the factor `loss_scale`.
  template <class Kernels>
  void update(Kernels& k, int step, float learning_rate, float loss_scale = 1) {
    constexpr float beta1 = 0.9F;
    constexpr float beta2 = 0.95F;
    const auto t = static_cast<float>(step + 1);
    each_with_moments(moments_use::change, [&](const parameter& p, const moment_pair& moments) {
      if (p.mine_count > 0) {
        k.adamw(p.weight + p.mine, p.gradient + p.mine, moments.momentum, moments.variance,
                p.mine_count,
                {learning_rate, beta1, beta2, 1e-8F, p.range > 0 ? 0.01F : 0.0F,
                 1 - std::pow(beta1, t), 1 - std::pow(beta2, t), 1 / loss_scale});
      }
      if (is_sharded(p)) {
        k.fill(p.gradient, p.count, 0);  // adamw left its part so
        shards_.exchange->gather_parts(p.weight, shards_.parts_of(p.count));
      }
      refresh_copy(k, p);
    });
  }

 private:
  /// Places the tensors one after the other, each at a multiple of 256 bytes; returns the end.
  static index lay_out(std::vector<parameter>& list) {
    index end = 0;
    for (parameter& p : list) {
      if (!p.held) continue;
      p.offset = end;
      end += (p.count + 63) / 64 * 64;
    }
    return end;
  }

  /// Each of the experts is on one rank alone.
  [[nodiscard]] bool is_sharded(const parameter& p) const { return shards_.ranks > 1 && !p.split; }

  /// Likewise for the moments of what this rank updates; returns the end.
  index lay_out_moments() {
    index end = 0;
    for (parameter& p : list_) {
      if (!p.held) continue;
      p.mine_count = p.count;
      if (is_sharded(p)) {
        const std::vector<index> parts = shards_.parts_of(p.count);
        const auto rank = parts.begin() + shards_.rank;
        p.mine = std::accumulate(parts.begin(), rank, index{0});
        p.mine_count = *rank;
      }
      p.moments_at = end;
      end += (p.mine_count + 63) / 64 * 64;
    }
    return end;
  }

  void make_copies(Device& dev) {
    const auto type_of = [this](const parameter& p) {
      return types_.multiplies_gradients && p.in > 0 ? number_type::e4m3 : types_.operands;
    };
    const auto bytes = [&](const parameter& p) {
      return (p.count * bytes_of(type_of(p)) + 255) / 256 * 256;
    };
    index end = 0;
    for (const parameter& p : list_) end += p.held && p.is_matrix() ? bytes(p) : 0;
    copies_.emplace(dev, end, "weights to multiply with");
    char* at = copies_->data();
    for (parameter& p : list_) {
      if (!p.held || !p.is_matrix()) continue;
      p.matrix = {at, type_of(p)};
      at += bytes(p);
    }
  }

  void make_codes(Device& dev) {
    const auto scales = [this](const parameter& p) {
      return p.count / p.elements_each() * p.scales_each(types_.scaling);
    };
    const auto each = [this](auto body) {
      for (parameter& p : list_) {
        if (p.held && p.in > 0) body(p);
      }
    };
    index count = 0, count_of_scales = 0;
    each([&](const parameter& p) {
      count += p.count;
      count_of_scales += scales(p);
    });
    if (count == 0) return;  // a rank of a pipeline may have no experts
    codes_.emplace(dev, count, "weights as codes of FP8");
    scales_.emplace(dev, count_of_scales, "scales of weights");
    e4m3* codes = codes_->data();
    float* scale = scales_->data();
    each([&](parameter& p) {
      p.codes = {codes, number_type::e4m3};
      p.scale = scale;
      codes += p.count;
      scale += scales(p);
    });
  }

  template <class Kernels>
  void refresh_copy(Kernels& k, const parameter& p) const {
    if (!p.held || p.matrix.data == p.weight) return;
    if (p.codes.data == nullptr) {
      k.convert(p.matrix, p.weight, p.count);
      return;
    }
    const index scales = p.scales_each(types_.scaling);
    for (index e = 0; e * p.elements_each() < p.count; ++e) {
      const index at = e * p.elements_each();
      k.quantise_weight(p.codes + at, p.scale + e * scales, p.matrix + at, p.weight + at, p.in,
                        p.out(), types_.scaling);
    }
  }

  /// One for each layer, and one for what is in none.
  [[nodiscard]] std::vector<slice> slices() {
    std::vector<slice> result;
    std::string last;
    for (parameter& p : list_) {
      if (!p.held) continue;
      const std::size_t dot = p.name.find('.');
      const std::string of = dot == std::string::npos ? "the rest" : p.name.substr(0, dot);
      if (result.empty() || of != last) {
        result.push_back({"AdamW moments of " + of, p.moments_at, 0, result.size()});
      }
      p.slice = result.back().number;
      result.back().count = p.moments_at + (p.mine_count + 63) / 64 * 64 - result.back().first;
      last = of;
    }
    return result;
  }

  number_types types_;
  moment_shards shards_;
  std::vector<parameter> list_;
  index total_;
  index moment_count_;
  device_array<Device, float> weights_, gradients_;
  std::optional<device_array<Device, char>> copies_;
  std::optional<device_array<Device, e4m3>> codes_;
  std::optional<device_array<Device, float>> scales_;
  std::optional<resident_moments<Device>> moments_;
  std::optional<visiting_moments<Device>> visitors_;
};

}  // namespace moe
