/// What the layers of the model share: temporaries, and what every layer works with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tidepool/offloader.hpp>

#include "../kernels/kernels.hpp"
#include "../parallel/exchange.hpp"
#include "device_array.hpp"
#include "modules.hpp"
#include "precision.hpp"

/// Such tensors are packed (`--pack`).
template <>
inline constexpr bool tidepool::is_bfloat16<moe::bf16> = true;

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
  workspace(Device& dev, const model_sizes& m, const number_types& types)
      : memory_(dev, lay_out(m, types, nullptr), "workspace") {
    lay_out(m, types, memory_.data());
  }

  float* projected = nullptr;    ///< [tokens][hidden]
  float* logits = nullptr;       ///< [tokens][experts]
  float* expert_rows = nullptr;  ///< [rows][hidden]
  float* db = nullptr;           ///< [rows][ffn], of the widest MLP
  float* dweight = nullptr;      ///< [rows]
  float* dx = nullptr;           ///< [tokens][hidden], the residual stream's gradient
  float* dh = nullptr;           ///< [tokens][hidden]
  // What is multiplied next.
  operand da;    ///< [rows][2 ffn], of the widest MLP
  operand dqkv;  ///< [tokens][3 hidden]
  // The same where operands are floats; elsewhere memory of their own.
  operand dout;   ///< [tokens][hidden], or `dh`
  operand drows;  ///< [rows][hidden], or `expert_rows`
  // Only where operands are no floats.
  operand dy;                    ///< [tokens][the widest output], a gradient to be multiplied
  float* head_logits = nullptr;  ///< [tokens][vocabulary]
  // Only where codes are saved.
  operand decoded;  ///< [rows][hidden or ffn], what they stand for

 private:
  /// Puts the pieces one after the other, each at a multiple of 256 bytes; returns their floats.
  index lay_out(const model_sizes& m, const number_types& types, float* base) {
    const index tokens = m.tokens(), rows = m.max_rows();
    const index wide = std::max(m.dense_ffn, m.shared_ffn());  // of an MLP for every token
    const index inner = std::max(rows * m.ffn, tokens * wide);
    index end = 0;
    const auto take = [&](float*& piece, index count) {
      piece = base == nullptr ? nullptr : base + end;
      end += (count + 63) / 64 * 64;
    };
    const auto take_operand = [&](operand& piece, index count) {
      float* memory = nullptr;
      take(memory, (count * bytes_of(types.operands) + 3) / 4);
      piece = {memory, types.operands};
    };
    take(projected, tokens * m.hidden);
    take(logits, tokens * m.experts);
    take(expert_rows, rows * m.hidden);
    take_operand(da, 2 * inner);
    take(db, inner);
    take(dweight, std::max(rows, tokens));
    take(dx, tokens * m.hidden);
    take(dh, tokens * m.hidden);
    take_operand(dqkv, tokens * 3 * m.hidden);
    dout = dh;
    drows = expert_rows;
    if (types.operands != number_type::fp32) {
      take_operand(dout, tokens * m.hidden);
      take_operand(drows, rows * m.hidden);
      take_operand(dy, tokens * std::max(m.hidden, m.experts));
      take(head_logits, tokens * vocabulary);
    }
    if (types.saves_codes()) take_operand(decoded, rows * std::max(m.hidden, m.ffn));
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
  number_types types;
  workspace<Device> work;
  device_array<Device, std::int32_t, side::host> host_counts;
  device_array<Device, float> ones;     ///< weights of tokens that all go through the same MLP
  expert_exchange* exchange = nullptr;  ///< with the ranks that hold the other experts, if any do
  choice_counts choices;
  float loss_scale = 1;  ///< a factor of every gradient until AdamW

  /// Memory for something that is saved: the offloader's, so that it can leave.
  template <class T>
  buffer allocate(index count) {
    return offloader.template allocate<T>(static_cast<std::size_t>(count), stream);
  }
  /// Memory for what is multiplied, in that type.
  buffer allocate_operand(index count) {
    switch (types.operands) {
      case number_type::bf16:
        return allocate<bf16>(count);
      case number_type::fp16:
        return allocate<fp16>(count);
      default:
        return allocate<float>(count);
    }
  }
  [[nodiscard]] operand operand_in(const buffer& b) const {
    return {b.template as<char>(), types.operands};
  }
  /// A gradient as GEMMs read it: itself, or a copy that lasts until the next call.
  [[nodiscard]] const_operand narrowed(const float* gradient, index count) {
    if (types.operands == number_type::fp32) return gradient;
    kernels.convert(work.dy, gradient, count);
    return work.dy;
  }
  /// Gives saved memory back, after what the stream has been given so far.
  template <class... Buffers>
  void release(Buffers&... used) {
    (used.reset(stream), ...);
  }
};

}  // namespace moe
