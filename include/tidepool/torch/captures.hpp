/// Scopes inside a capture by torch: the interface between a pass and the part that knows captures.
#pragma once

#include <memory>

#include "tidepool/chunk.hpp"
#include "tidepool/options.hpp"
#include "tidepool/torch/hooks.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_3_0::detail {

// A pass whose tensors are saved and read inside of captures. Its destructor gives it up.
class torch_captured_pass {
 public:
  torch_captured_pass() = default;
  torch_captured_pass(const torch_captured_pass&) = delete;
  torch_captured_pass& operator=(const torch_captured_pass&) = delete;
  virtual ~torch_captured_pass() = default;
  // Null if no tensor of the module leaves.
  [[nodiscard]] virtual std::unique_ptr<torch_saver> saver(module_id module, int layer) = 0;
  // False once a backward pass has read a tensor.
  [[nodiscard]] virtual bool in_forward() = 0;
  virtual void end_forward() = 0;
  virtual void finish() = 0;
};

// The captures of one offloader. A graph repeats its copies between the same addresses, so they are
// made by an offloader of their own, which no eager call uses.
class torch_captures {
 public:
  torch_captures() = default;
  torch_captures(const torch_captures&) = delete;
  torch_captures& operator=(const torch_captures&) = delete;
  virtual ~torch_captures() = default;
  // True while torch's current stream is being captured.
  [[nodiscard]] virtual bool under_way() const = 0;
  [[nodiscard]] virtual std::unique_ptr<torch_captured_pass> begin(const chunk_info& info) = 0;
  virtual void end_step() = 0;
  // Makes the captured stream wait for all copies of the capture, which must not end before.
  virtual void join() = 0;
  // Adds the bytes that captures moved; a launch counts nothing.
  virtual void add_to(trace::counters& all) const = 0;
};

}  // namespace tidepool::detail
