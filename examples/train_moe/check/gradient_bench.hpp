/// A model with one fixed microbatch, whose weights, gradients and loss `gradient_check` reads and
/// writes, on any device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tidepool/offloader.hpp>
#include <vector>

#include "../model/model.hpp"
#include "../model/tied_embedding.hpp"
#include "../parallel/alone.hpp"
#include "../training/data.hpp"

namespace moe {

/// Copies between vectors and the memory of a device. The host waits for them.
template <class Device>
class transfer {
 public:
  transfer(Device& dev, typename Device::stream_ref stream) : dev_(dev), stream_(stream) {}

  template <class T>
  [[nodiscard]] std::vector<T> read(const T* from, index count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    copy(values.data(), from, values.size() * sizeof(T), tidepool::copy_direction::device_to_host);
    return values;
  }
  template <class T>
  void write(T* to, const std::vector<T>& values) const {
    copy(to, values.data(), values.size() * sizeof(T), tidepool::copy_direction::host_to_device);
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes,
            tidepool::copy_direction direction) const {
    dev_.copy(to, from, {.width = bytes}, direction, stream_);
    dev_.synchronize(stream_);
  }

  Device& dev_;
  typename Device::stream_ref stream_;
};

template <class Device, class Kernels>
class gradient_bench {
 public:
  gradient_bench(Device& dev, const settings& run)
      : run_(run),
        dev_(dev),
        stream_(dev.make_stream()),
        kernels_(dev, stream_.ref(), run),
        weights_(dev, run.model, {whole_of(run.model)}, true, {}, types_of(run)),
        off_(dev, everything()),
        model_(dev, off_, kernels_, stream_.ref(), weights_, run),
        text_(dev, token_count(run.model), "text"),
        losses_(dev, loss_count(run.model), "losses"),
        transfer_(dev, stream_.ref()) {
    off_.on_report([](std::string_view) {});  // of all modules, some are not in every model
    weights_.initialise(kernels_, 7);
    std::vector<std::int32_t> text;
    for (index i = 0; i < text_.size(); ++i) {
      text.push_back(static_cast<std::int32_t>(mix(static_cast<std::uint64_t>(i)) % 23));
    }
    transfer_.write(text_.data(), text);
  }

  /// What the gradient is the gradient of: cross-entropies and the weighted load balance.
  double loss() {
    model_.evaluate(io());
    const std::vector<float> losses = transfer_.read(losses_.data(), losses_.size());
    const auto at = [&](index i) { return losses[static_cast<std::size_t>(i)]; };
    double sum = at(0);
    const model_sizes& m = run_.model;
    for (index l = m.dense_layers; l < m.layers + m.mtp; ++l) {
      sum += balance_weight / static_cast<double>(m.routed_layers()) * at(1 + l);
    }
    for (index depth = 1; depth <= m.mtp; ++depth) {
      const double weight = mtp_weight / static_cast<double>(m.mtp);
      sum += weight * at(mtp_loss(m, depth));
    }
    return sum;
  }

  void differentiate() {
    model_.forward(0, io());
    model_.backward(0, io());
    off_.end_step();
    dev_.synchronize();
  }

  /// One step of AdamW.
  void update(float learning_rate) { weights_.update(kernels_, 0, learning_rate); }

  /// The embedding and its copy get one gradient.
  void tie_embedding() {
    typename alone<Device, Kernels>::one_stage line;
    sum_embedding_gradients(weights_, kernels_, off_, line, run_, stream_.ref());
    dev_.synchronize();
  }

  /// The loss with other weights in `tied`, which start alike; they get their own back.
  double loss_with(const std::vector<const parameter*>& tied, const std::vector<float>& weights) {
    const std::vector<float> start = weight(*tied.front());
    for (const parameter* p : tied) transfer_.write(p->weight, weights);
    const double found = loss();
    for (const parameter* p : tied) transfer_.write(p->weight, start);
    return found;
  }

  [[nodiscard]] const std::vector<parameter>& tensors() const { return weights_.all(); }
  [[nodiscard]] std::vector<const parameter*> embedding_and_copy() const {
    return {&weights_.embedding(), &weights_.mtp_embedding()};
  }
  [[nodiscard]] std::vector<float> weight(const parameter& p) const {
    return transfer_.read(p.weight, p.count);
  }
  [[nodiscard]] std::vector<float> gradient(const parameter& p) const {
    return transfer_.read(p.gradient, p.count);
  }
  [[nodiscard]] const transfer<Device>& memory() const { return transfer_; }

 private:
  static tidepool::options everything() {
    tidepool::options opt;
    opt.offload_modules = {"all"};
    opt.min_tensor_elements = 1;
    return opt;
  }
  microbatch_io io() const { return {text_.data(), losses_.data()}; }

  settings run_;
  Device& dev_;
  typename Device::stream stream_;
  Kernels kernels_;
  parameters<Device> weights_;
  tidepool::offloader<Device, saving_modules> off_;
  model<Device, Kernels> model_;
  device_array<Device, std::int32_t> text_;
  device_array<Device, float> losses_;
  transfer<Device> transfer_;
};

}  // namespace moe
