/// Captures by torch on a CUDA device: one offloader for each stream that torch captures.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/torch/captured_cuda.hpp"
#include "tidepool/torch/captures.hpp"
#include "tidepool/torch/core.hpp"
#include "tidepool/torch/tensor_hooks.hpp"

namespace tidepool::inline v0_3_0::detail {

class torch_cuda_pass final : public torch_captured_pass {
 public:
  using state = torch_pass_state<captured_cuda>;

  explicit torch_cuda_pass(std::shared_ptr<state> of) : state_(std::move(of)) {}
  ~torch_cuda_pass() override { state_->give_up(); }
  [[nodiscard]] std::unique_ptr<torch_saver> saver(module_id module, int layer) override {
    return saver_in<captured_cuda>(state_, module, layer);
  }
  [[nodiscard]] bool in_forward() override { return state_->in_forward(); }
  void end_forward() override { state_->end_forward(); }
  void finish() override { state_->finish(); }

 private:
  std::shared_ptr<state> state_;
};

class torch_cuda_captures final : public torch_captures {
 public:
  using core = torch_core<captured_cuda>;

  torch_cuda_captures(cuda_device& dev, torch_core<cuda_device>& of)
      : streams_(&of.streams),
        ordinal_(dev.ordinal()),
        opts_(of.off->settings()),
        kept_(of.exclusions) {
    opts_.policy = policy_kind::megatron;
    opts_.memory = memory_kind::pool;
  }
  ~torch_cuda_captures() override {
    for (const auto& each : all_) each.on->end();
  }

  [[nodiscard]] bool under_way() const override { return streams_->capturing(streams_->current()); }
  [[nodiscard]] std::unique_ptr<torch_captured_pass> begin(const chunk_info& info) override {
    return std::make_unique<torch_cuda_pass>(
        std::make_shared<torch_pass_state<captured_cuda>>(here(), info));
  }
  void end_step() override {
    const auto on = here();
    const torch_call<captured_cuda> call(*on);
    on->off->end_step();
    on->streams.join();
  }
  void join() override {
    const auto on = here();
    const torch_call<captured_cuda> call(*on);
    on->streams.join();
  }
  void add_to(trace::counters& all) const override {
    for (const auto& each : all_) {
      const std::lock_guard guard(each.on->lock);
      const auto more = each.on->off->counters();
      for (std::size_t i = 0; i < all.modules.size() && i < more.modules.size(); ++i) {
        all.modules[i].groups += more.modules[i].groups;
        all.modules[i].groups_offloaded += more.modules[i].groups_offloaded;
        all.modules[i].tensors_offloaded += more.modules[i].tensors_offloaded;
        all.modules[i].bytes_offloaded += more.modules[i].bytes_offloaded;
        all.modules[i].bytes_reloaded += more.modules[i].bytes_reloaded;
        all.modules[i].cap_joins += more.modules[i].cap_joins;
      }
    }
  }

 private:
  struct of_stream {
    cudaStream_t stream;
    std::unique_ptr<captured_cuda> dev;
    std::shared_ptr<core> on;
  };

  // The offloader of the current stream.
  [[nodiscard]] const std::shared_ptr<core>& here() {
    const auto stream = streams_->current().get();
    const auto known = std::find_if(all_.begin(), all_.end(),
                                    [&](const of_stream& each) { return each.stream == stream; });
    if (known != all_.end()) return known->on;
    if (std::ranges::find(opts_.places, place_kind::file) != opts_.places.end()) {
      throw misuse_error(
          "torch: groups may go to a file, which the host reads and writes, and a graph cannot ask"
          " it to; take file:/path out of --places, or the module out of the capture");
    }
    const relaxed_thread thread;
    auto dev = std::make_unique<captured_cuda>(ordinal_);
    auto on = std::make_shared<core>(*dev, opts_, parts{}, kept_);
    on->off->on_report([](std::string_view) {});  // the eager steps have reported
    all_.push_back({stream, std::move(dev), std::move(on)});
    return all_.back().on;
  }

  torch_streams<cuda_device>* streams_;
  int ordinal_;
  options opts_;
  std::shared_ptr<torch_exclusions> kept_;
  std::vector<of_stream> all_;
};

template <>
[[nodiscard]] inline std::unique_ptr<torch_captures> torch_captures_of<cuda_device>(
    cuda_device& dev, torch_core<cuda_device>& of) {
  return std::make_unique<torch_cuda_captures>(dev, of);
}

}  // namespace tidepool::detail
