/// Which rank of a pipeline lends memory to which, and how the two come together.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <tidepool/offloader.hpp>
#include <tidepool/options.hpp>
#include <tidepool/places/lending.hpp>

#include "layout.hpp"
#include "schedule.hpp"

namespace moe {

/// The rank of its line that `rank` borrows from, if it holds more microbatches at once than that
/// one. The first borrows from the last, the second from the last but one.
[[nodiscard]] inline std::optional<int> lender_of(const settings& run, int rank) {
  const pipeline_shape shape = shape_of(run);
  const int stage = run.grid.stage_of(rank), other = run.grid.stages - 1 - stage;
  const auto held = [&](int of) { return deepest(steps_of_rank(shape, of)); };
  if (held(other) >= held(stage)) return std::nullopt;
  return run.grid.rank_of(other, run.grid.member_of(rank));
}

/// Whether this rank is the one that another borrows from.
[[nodiscard]] inline bool lends(const settings& run) {
  const int other = run.grid.stages - 1 - run.stage();
  return lender_of(run, run.grid.rank_of(other, run.member())) == run.rank;
}

/// The options of this rank's offloader. A rank that lends has memory to spare, so it offloads
/// nothing: the others would wait for its copies to the host. Under a device budget it may have to.
/// What it lends comes out of that budget, so that both together keep to it.
[[nodiscard]] inline tidepool::options options_of_rank(const settings& run, tidepool::options opt) {
  if (run.lend == 0 || opt.offload_modules.empty() || !lends(run)) return opt;
  if (opt.device_budget) {
    *opt.device_budget -= run.lend;
  } else {
    opt.offload_modules.clear();
    opt.module_max_inflight.clear();
  }
  return opt;
}

/// Lends and borrows what `--lend` says; returns what this rank lends. All ranks must call. A
/// lender that goes ends the run: the ranks of a pipeline cannot train without it.
template <class Device, class Offloader, class Link>
[[nodiscard]] std::optional<tidepool::lent_memory<Device>> share_memory(const settings& run,
                                                                        Device& dev, Offloader& off,
                                                                        Link& link) {
  std::optional<tidepool::lent_memory<Device>> lent;
  if (lends(run)) {
    lent = tidepool::lend(dev, run.lend, "rank " + std::to_string(run.rank));
  }
  const auto handles = link.gather(lent ? lent->handle() : tidepool::loan_handle());
  if (const auto lender = lender_of(run, run.rank)) {
    off.borrow(handles[static_cast<std::size_t>(*lender)]);
  }
  return lent;
}

}  // namespace moe
