/// Trains a model on one device, with an offloader or without, and says what it took.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "autocast.hpp"
#include "command_line.hpp"
#include "model.hpp"
#include "text.hpp"
#include "tidepool/torch.hpp"

namespace gpt {

struct run_result {
  std::vector<std::uint32_t> losses;  // bits
  std::uint64_t parameters = 14695981039346656037U;
  double step_ms = 0;  // the shortest
  std::size_t bytes_out = 0;
  std::size_t bytes_in = 0;

  friend bool same_bits(const run_result& one, const run_result& other) {
    return one.losses == other.losses && one.parameters == other.parameters;
  }
};

inline float to_float(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Device>
class trainer {
 public:
  using offloader = tidepool::torch_offloader<Device>;

  /// `off` may be null.
  trainer(const command_line& line, const text_sampler& text, c10::Device where, offloader* off)
      : line_(line), text_(text), where_(where), off_(off), model_(seeded(line)) {
    model_.to(where);
    if (off_ != nullptr) off_->exclude(model_.parameters());
  }

  run_result run() {
    torch::optim::AdamW optimizer(model_.parameters(), torch::optim::AdamWOptions(1e-3));
    run_result result;
    for (int step = 0; step < line_.steps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      optimizer.zero_grad();
      microbatches(step, result);
      optimizer.step();
      if (off_ != nullptr) off_->end_step();
      finish_device_work();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      result.step_ms = step == 0 ? took.count() : std::min(result.step_ms, took.count());
    }
    for (const auto& each : model_.parameters()) add_bits(result.parameters, each);
    if (off_ != nullptr) {
      for (const auto& each : off_->counters().modules) {
        result.bytes_out += each.bytes_offloaded;
        result.bytes_in += each.bytes_reloaded;
      }
    }
    return result;
  }

 private:
  struct open_microbatch {
    typename offloader::pass pass;
    at::Tensor loss;
  };

  static sizes seeded(const command_line& line) {
    torch::manual_seed(1234);
    return line.model;
  }

  void microbatches(int step, run_result& result) {
    std::deque<open_microbatch> open;
    for (int m = 0; m < line_.microbatches; ++m) {
      open.push_back(forward(step, m));
      if (static_cast<int>(open.size()) == line_.in_flight) backward(open, result);
    }
    while (!open.empty()) backward(open, result);
  }

  open_microbatch forward(int step, int number) {
    open_microbatch now;
    const auto at = static_cast<std::uint64_t>(step * line_.microbatches + number);
    auto [tokens, next] = text_.sample(at, line_.model.batch);
    tokens = tokens.to(where_);
    next = next.to(where_);
    if (off_ == nullptr) {
      auto plain = [](const char*, int, auto&& body) { return body(); };
      now.loss = loss(tokens, next, plain);
      return now;
    }
    now.pass = off_->begin({.microbatch = number});
    auto scoped = [&](const char* name, int layer, auto&& body) {
      return now.pass.module(name, layer, body);
    };
    now.loss = loss(tokens, next, scoped);
    now.pass.end_forward();
    return now;
  }
  template <class Run>
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& next, Run& run) {
    if (!line_.autocast) return model_.loss(tokens, next, run);
    const autocast narrow(where_.is_cuda());
    return model_.loss(tokens, next, run);
  }

  void backward(std::deque<open_microbatch>& open, run_result& result) {
    auto now = std::move(open.front());
    open.pop_front();
    now.loss.backward();
    if (off_ != nullptr) now.pass.finish();
    const auto value = now.loss.template item<float>();
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    result.losses.push_back(bits);
  }

  void finish_device_work() const {
    if (where_.is_cuda()) torch::cuda::synchronize();
  }
  static void add_bits(std::uint64_t& hash, const at::Tensor& tensor) {
    const auto dense = tensor.detach().cpu().contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(dense.data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  }

  const command_line& line_;
  const text_sampler& text_;
  c10::Device where_;
  offloader* off_;
  model model_;
};

}  // namespace gpt
