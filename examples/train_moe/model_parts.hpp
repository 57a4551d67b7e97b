/// What the layers of the model share: temporaries, and what every layer works with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tidepool/offloader.hpp>

#include "device_array.hpp"
#include "exchange.hpp"
#include "kernels.hpp"
#include "modules.hpp"

namespace moe {

/// Weight of the load-balancing loss.
inline constexpr float balance_weight = 0.01F;
/// Weight of the mean loss of multi-token prediction: that of DeepSeek-V3 for its first ten
/// trillion tokens (technical report, arXiv:2412.19437, section 4.2).
inline constexpr float mtp_weight = 0.3F;

[[nodiscard]] constexpr index padded(index rows) {
  return (rows + row_padding - 1) / row_padding * row_padding;
}

/// Temporaries that live within one layer's forward or backward; used by one stream only.
template <class Device>
class workspace {
 public:
  workspace(Device& dev, const model_sizes& m) : memory_(dev, lay_out(m, nullptr), "workspace") {
    lay_out(m, memory_.data());
  }

  float* projected = nullptr;    ///< [tokens][hidden]
  float* logits = nullptr;       ///< [tokens][experts]
  float* expert_rows = nullptr;  ///< [rows][hidden]
  float* da = nullptr;           ///< [rows][2 ffn], of the widest MLP
  float* db = nullptr;           ///< [rows][ffn], likewise
  float* dweight = nullptr;      ///< [rows]
  float* dx = nullptr;           ///< [tokens][hidden], the residual stream's gradient
  float* dh = nullptr;           ///< [tokens][hidden]
  float* dqkv = nullptr;         ///< [tokens][3 hidden]

 private:
  /// Puts the pieces one after the other, each at a multiple of 256 bytes; returns their floats.
  index lay_out(const model_sizes& m, float* base) {
    const index tokens = m.tokens(), rows = m.max_rows();
    const index wide = std::max(m.dense_ffn, m.shared_ffn());  // of an MLP for every token
    const index inner = std::max(rows * m.ffn, tokens * wide);
    index end = 0;
    const auto take = [&](float*& piece, index count) {
      piece = base == nullptr ? nullptr : base + end;
      end += (count + 63) / 64 * 64;
    };
    take(projected, tokens * m.hidden);
    take(logits, tokens * m.experts);
    take(expert_rows, rows * m.hidden);
    take(da, 2 * inner);
    take(db, inner);
    take(dweight, rows);
    take(dx, tokens * m.hidden);
    take(dh, tokens * m.hidden);
    take(dqkv, tokens * 3 * m.hidden);
    return end;
  }

  device_array<Device, float> memory_;
};

/// Experts that tokens chose, in all steps of training.
struct choice_counts {
  std::uint64_t all = 0;
  std::uint64_t dropped = 0;  ///< over an expert's capacity
};

/// What every layer works with.
template <class Device, class Kernels>
struct context {
  using buffer = tidepool::buffer<Device>;

  Device& device;
  tidepool::offloader<Device, saving_modules>& offloader;
  Kernels& kernels;
  typename Device::stream_ref stream;
  model_sizes sizes;
  int microbatches;
  workspace<Device> work;
  device_array<Device, std::int32_t, side::host> host_counts;
  device_array<Device, float> ones;     ///< weights of tokens that all go through the same MLP
  expert_exchange* exchange = nullptr;  ///< with the ranks that hold the other experts, if any do
  choice_counts choices;

  /// Memory for something that is saved: the offloader's, so that it can leave.
  template <class T>
  buffer allocate(index count) {
    return offloader.template allocate<T>(static_cast<std::size_t>(count), stream);
  }
  /// Gives saved memory back, after what the stream has been given so far.
  template <class... Buffers>
  void release(Buffers&... used) {
    (used.reset(stream), ...);
  }
};

}  // namespace moe
