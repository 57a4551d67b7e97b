/// The model, or what a rank of a pipeline holds of it: blocks over one workspace.
#pragma once

#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "block.hpp"

namespace moe {

template <class Device, class Kernels>
class model {
 public:
  using offloader = tidepool::offloader<Device, saving_modules>;
  using buffer = tidepool::buffer<Device>;
  using part = typename block<Device, Kernels>::part;

  /// `ranges` has a block for each; several of them must be given their microbatches by chunk. With
  /// an `exchange` the experts are spread over its ranks.
  model(Device& dev, offloader& off, Kernels& kernels, typename Device::stream_ref stream,
        parameters<Device>& weights, const settings& run, const std::vector<layer_range>& ranges,
        expert_exchange* exchange = nullptr)
      : on_{dev,
            off,
            kernels,
            stream,
            run.model,
            run.microbatches,
            types_of(run),
            {dev, run.model, types_of(run)},
            {dev, run.model.experts, "routing counts"},
            {dev, run.model.tokens(), "ones"},
            exchange,
            {}} {
    kernels.fill(on_.ones.data(), on_.ones.size(), 1);
    for (const layer_range& range : ranges) {
      blocks_.emplace_back(on_, weights, range, static_cast<int>(blocks_.size()), run.in_flight);
    }
  }
  /// All of the model in one block.
  model(Device& dev, offloader& off, Kernels& kernels, typename Device::stream_ref stream,
        parameters<Device>& weights, const settings& run)
      : model(dev, off, kernels, stream, weights, run, {whole_of(run.model)}) {}

  [[nodiscard]] block<Device, Kernels>& chunk(int number) {
    return blocks_[static_cast<std::size_t>(number)];
  }

  /// Of the microbatches to come.
  void scale_loss(float factor) { on_.loss_scale = factor; }

  void forward(int microbatch, const microbatch_io& io) { chunk(0).forward(microbatch, io, {}); }
  void backward(int microbatch, const microbatch_io& io) { chunk(0).backward(microbatch, io, {}); }
  void evaluate(const microbatch_io& io) { chunk(0).evaluate(io, {}); }

  [[nodiscard]] const choice_counts& choices() const { return on_.choices; }

 private:
  context<Device, Kernels> on_;
  std::vector<block<Device, Kernels>> blocks_;
};

}  // namespace moe
