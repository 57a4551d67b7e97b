/// The options of `--precision`, read and checked.
#pragma once

#include <string>
#include <tidepool/error.hpp>

#include "precision.hpp"

namespace moe {

/// Fills in `run`; `given` says which options the command line has. Throws
/// `tidepool::option_error`.
template <class Given>
void read_precision_options(settings& run, const std::string& precision, const std::string& scaling,
                            Given given) {
  run.precision = read_precision(precision);
  run.scaling = read_scaling(scaling);
  const auto needs = [&](const char* option, precision_kind wanted) {
    if (given(option) && run.precision != wanted) {
      throw tidepool::option_error(std::string(option) +
                                   ": has no effect with --precision=" + precision +
                                   "; add --precision=" + name_of(wanted) + ", or leave it out");
    }
  };
  needs("--fp8-scaling", precision_kind::fp8);
  needs("--initial-loss-scale", precision_kind::fp16);
  needs("--loss-scale-window", precision_kind::fp16);
  if (given("--initial-loss-scale") && !run.resume.empty()) {
    throw tidepool::option_error(
        "--initial-loss-scale: --resume goes on with the scale of the file; leave it out");
  }
  if (run.expert_parallel && run.precision == precision_kind::fp8 &&
      run.scaling == fp8_scaling::tensor) {
    throw tidepool::option_error(
        "--fp8-scaling=tensor: with --expert-parallel the losses would depend on the number of "
        "ranks, of which each has a tensor of its own; take block");
  }
  validate(run.loss_scale);
}

}  // namespace moe
