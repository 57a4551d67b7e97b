// The interface to the part that writes summaries and traces of an offloader's steps.
#pragma once

#include <functional>
#include <string_view>

#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

class engine;

struct step_output {
  virtual ~step_output() = default;

  // Throws `option_error` for what cannot be written.
  virtual void check(const options& opts) = 0;
  // Called before the first step.
  virtual void begin(engine& of) noexcept = 0;
  // Sends `report` a line for each file. Throws the errors of the device.
  virtual void after_step(engine& of, const std::function<void(std::string_view)>& report) = 0;
  // Called before the offloader is destroyed.
  virtual void close(engine& of) noexcept = 0;
};

}  // namespace tidepool::detail
