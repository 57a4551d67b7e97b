/// What the trainer prints at the end: one run, or two side by side.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <tidepool/trace/record.hpp>
#include <vector>

#include "../model/config.hpp"
#include "../training/data.hpp"
#include "../training/run_result.hpp"

namespace moe {

/// The middle step time after so many steps, where there are more.
inline double median_ms(const run_result& run, int warm_up_steps) {
  std::vector<double> times = run.step_ms;
  if (std::ssize(times) > warm_up_steps) {
    times.erase(times.begin(), times.begin() + warm_up_steps);
  }
  std::sort(times.begin(), times.end());
  return times.empty() ? 0 : times[times.size() / 2];
}

inline double median_ms(const run_result& run) { return median_ms(run, run.warm_up_steps); }

/// Mean of the last ten steps.
inline double final_loss(const run_result& run) {
  const std::size_t count = std::min<std::size_t>(10, run.losses.size());
  double sum = 0;
  for (std::size_t i = run.losses.size() - count; i < run.losses.size(); ++i) sum += run.losses[i];
  return sum / static_cast<double>(count);
}

/// Bytes that one step offloads.
inline std::uint64_t step_bytes(const run_result& run) {
  std::uint64_t sum = 0;
  for (const auto& module : run.counters.modules) sum += module.step_bytes;
  return sum;
}

/// Steps whose losses are the same bits in both runs.
inline std::size_t equal_steps(const run_result& a, const run_result& b) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    const auto same = [i](const std::vector<float>& x, const std::vector<float>& y) {
      return std::bit_cast<std::uint32_t>(x[i]) == std::bit_cast<std::uint32_t>(y[i]);
    };
    equal += same(a.losses, b.losses) && (a.mtp_losses.empty() || same(a.mtp_losses, b.mtp_losses));
  }
  return equal;
}

inline double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) * 0x1p-20; }

/// The end of a run in a few lines.
inline void print_result(const run_result& run, const corpus& text) {
  const double entropy = text.unigram_entropy();
  std::printf("final loss %.4f nats (mean of the last 10 steps), first %.4f\n", final_loss(run),
              static_cast<double>(run.losses.front()));
  if (!run.mtp_losses.empty()) {
    std::printf("loss of multi-token prediction %.4f in the last step, first %.4f\n",
                static_cast<double>(run.mtp_losses.back()),
                static_cast<double>(run.mtp_losses.front()));
  }
  std::printf("unigram entropy of %s: %.4f nats, the loss is %.4f %s it\n", text.name().c_str(),
              entropy, std::abs(entropy - final_loss(run)),
              final_loss(run) < entropy ? "below" : "ABOVE");
  std::printf(
      "step %.3f ms, %.1f MiB on the device of which saved tensors %.1f MiB, %.1f MiB offloaded "
      "a step\n",
      median_ms(run), mebibytes(run.driver_peak), mebibytes(run.counters.device_peak),
      mebibytes(step_bytes(run)));
  if (run.limited) {
    std::printf(
        "over the experts' capacity: %llu of %llu choices (%.2f %%)\n",
        static_cast<unsigned long long>(run.choices.dropped),
        static_cast<unsigned long long>(run.choices.all),
        100 * static_cast<double>(run.choices.dropped) / static_cast<double>(run.choices.all));
  }
}

/// Whether a plan held what it promised.
inline void print_forecast(const run_result& run) {
  if (run.forecast_ms > 0) {
    std::printf("the plan predicted %.3f ms a step: measured %+.2f %%\n", run.forecast_ms,
                100 * (median_ms(run) / run.forecast_ms - 1));
  }
}

/// What became of the scale of the loss under fp16.
inline void print_loss_scale(const loss_scaling& scaling) {
  std::printf("loss scale %.0f, %d %s skipped because a gradient overflowed\n",
              static_cast<double>(scaling.scale), scaling.skipped,
              scaling.skipped == 1 ? "step" : "steps");
}

/// Where the layers of a pipeline and the experts lie, and the bytes of each rank.
inline void print_ranks(const settings& run, const run_result& result) {
  for (int rank = 0; rank < run.grid.ranks(); ++rank) {
    std::string held;
    const auto add = [&](const char* before, index first, index count) {
      held += before + std::to_string(first);
      if (count > 1) held += "-" + std::to_string(first + count - 1);
    };
    const char* before = " layers ";
    for (const layer_range& range : ranges_of_rank(run, rank)) {
      if (run.pipeline) add(before, range.first, range.count());
      before = ", ";
    }
    const expert_range experts = experts_of_rank(run, rank);
    if (run.expert_parallel) {
      add(held.empty() ? " experts " : ", experts ", experts.first, experts.count);
    }
    const rank_totals& bytes = result.ranks[static_cast<std::size_t>(rank)];
    std::printf(
        "rank %d:%s, %.1f MiB on the device of which saved tensors %.1f MiB, "
        "%.1f MiB offloaded, %.3f ms of stalls\n",
        rank, held.c_str(), mebibytes(bytes.driver_peak), mebibytes(bytes.device_peak),
        mebibytes(bytes.offloaded), bytes.stall_ms);
  }
}

/// Two runs side by side; returns whether their losses are equal to the bit.
inline bool print_comparison(const run_result& without, const run_result& with) {
  std::printf("\n%-32s %14s %14s\n", "", "no offload", "offload");
  const auto line = [](const char* name, double a, double b, int digits) {
    std::printf("%-32s %14.*f %14.*f\n", name, digits, a, digits, b);
  };
  line("final loss, nats", final_loss(without), final_loss(with), 6);
  line("step time, ms", median_ms(without, with.warm_up_steps), median_ms(with), 3);
  line("stall in the traced step, ms", stall_ms(without), stall_ms(with), 3);
  line("device peak, MiB", mebibytes(without.driver_peak), mebibytes(with.driver_peak), 2);
  line("  taken for saved tensors, MiB", mebibytes(without.counters.device_peak),
       mebibytes(with.counters.device_peak), 2);
  line("  needed by their calls, MiB", mebibytes(without.counters.live_peak),
       mebibytes(with.counters.live_peak), 2);
  line("pinned host memory, MiB", mebibytes(without.counters.host_reserved),
       mebibytes(with.counters.host_reserved), 2);
  line("offloaded a step, MiB", mebibytes(step_bytes(without)), mebibytes(step_bytes(with)), 2);
  for (const auto& module : with.counters.modules) {
    if (!module.enabled || module.step_bytes == 0) continue;
    line(("  " + module.name).c_str(), 0, mebibytes(module.step_bytes), 2);
  }
  const std::size_t equal = equal_steps(without, with);
  // In tenths, so that what is next to nothing has no sign.
  const auto change = [](double a, double b) {
    return a > 0 ? std::round(1000 * (b / a - 1)) / 10 + 0.0 : 0.0;
  };
  std::printf("\noffload: %+.1f %% device memory for %+.1f %% step time\n",
              change(mebibytes(without.driver_peak), mebibytes(with.driver_peak)),
              change(median_ms(without, with.warm_up_steps), median_ms(with)));
  std::printf("losses equal to the bit: %zu of %zu steps%s\n", equal, without.losses.size(),
              equal == without.losses.size() ? "" : " - THEY DIFFER");
  return equal == without.losses.size();
}

}  // namespace moe
