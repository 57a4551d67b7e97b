/// Activations that backward reads: blocks of memory, at fixed offsets in the memory of a layer.
#pragma once

#include <array>
#include <cstddef>

#include "../train_moe/kernels/kernels.hpp"
#include "../train_moe/model/device_array.hpp"

namespace gpt {

using moe::const_operand, moe::index, moe::operand, moe::settings, moe::vocabulary;

/// Modules by the names of Megatron-LM. Each has one block of memory in every layer.
enum module : std::size_t {
  attn_norm,   ///< x, 1 / rms of each row
  qkv_linear,  ///< its input
  core_attn,   ///< queries, keys and values; output; logarithms of the sums of its softmax
  mlp_norm,    ///< as attn_norm
  mlp_fc1,     ///< its input
  mlp_act,     ///< its input: gates and values
  mlp_fc2,     ///< its input
  module_count
};

inline moe::number_type operand_type(const settings& run) {
  return run.precision == moe::precision_kind::bf16 ? moe::number_type::bf16
                                                    : moe::number_type::fp32;
}

/// Bytes of each module's block, and where it lies in the memory of a layer.
struct layer_layout {
  explicit layer_layout(const settings& run) {
    const auto& m = run.model;
    const index wide = m.tokens() * m.hidden, ffn = m.tokens() * m.dense_ffn;
    const index each = moe::bytes_of(operand_type(run));
    const index norm = 4 * (wide + m.tokens());
    const index sizes[]{norm,      each * wide, each * 4 * wide + 4 * m.tokens() * m.heads,
                        norm,      each * wide, each * 2 * ffn,
                        each * ffn};
    for (std::size_t i = 0; i < module_count; ++i) {
      bytes[i] = (static_cast<std::size_t>(sizes[i]) + 255) / 256 * 256;
      offset[i] = layer;
      layer += bytes[i];
    }
  }
  std::array<std::size_t, module_count> bytes{}, offset{};
  std::size_t layer = 0;  ///< bytes of a whole layer
};

/// The activations of all layers in one allocation, as llm.c has them.
template <class Device>
class plain_layers {
 public:
  plain_layers(Device& dev, const settings& run, typename Device::stream_ref /*of all*/)
      : at_(run), memory_(dev, run.model.layers * static_cast<index>(at_.layer), "activations") {}

  std::byte* fresh(module m, int l) { return block(m, l); }
  void done(module /*m*/, int /*l*/) {}
  std::byte* back(module m, int l) { return block(m, l); }
  void release(module /*m*/, int /*l*/) {}
  void begin() {}
  void end_forward() {}
  void finish() {}

 private:
  std::byte* block(module m, int l) {
    return memory_.data() + static_cast<std::size_t>(l) * at_.layer + at_.offset[m];
  }
  layer_layout at_;
  moe::device_array<Device, std::byte> memory_;
};

}  // namespace gpt
