/// One training: each step eagerly, or as a launch of one graph. And the table of all trainings.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <tidepool/plan.hpp>
#include <vector>

#include "../tools/device_clock.hpp"
#include "../tools/device_line.hpp"
#include "command_line.hpp"
#include "model.hpp"

namespace graph_moe {

struct way {
  const char* name;
  bool graph, offloads;
  rows_known eagerly;  ///< of steps without a graph
};

struct run_result {
  way how;
  std::vector<float> losses;
  std::vector<double> step_ms;
  std::size_t driver_peak = 0;  ///< bytes of the device that the training took at most
  std::uint64_t moved = 0;      ///< bytes that left in the last eager step
  int overflows = 0;            ///< steps that were repeated
  index most = 0;               ///< rows of an expert in any step
};

/// The lines that a trainer needs around its own step.
template <class Model, class Device>
class graph_steps {
 public:
  using offloader = typename Model::offloader;

  graph_steps(Model& net, offloader& off, typename Device::stream_ref stream, bool planned)
      : net_(net), off_(off), stream_(stream), planned_(planned) {}

  [[nodiscard]] bool captured() const { return graph_.has_value(); }

  /// Runs a step. Returns whether an expert had more rows than the step moved or had room for; the
  /// weights are then as before the step.
  [[nodiscard]] bool run() {
    const bool settled = !planned_ || off_.current_plan();  // a graph keeps what a plan decides
    if (graph_) {
      graph_->launch(stream_);
    } else {
      net_.step(off_, rows_known::to_device);  // eagerly, until memory is made
      ++steps_;
    }
    const auto told =
        off_.rows_overflowed();  // waits for the counts; must be asked after each step
    const bool over = net_.most_rows() > net_.limit(rows_known::to_device);
    if (told) {
      std::printf("  %s of layer %d had %llu rows, planned were %llu\n", told->module.c_str(),
                  told->layer, static_cast<unsigned long long>(told->rows),
                  static_cast<unsigned long long>(told->planned));
    }
    if (!graph_ && steps_ >= warm_up && settled) {
      graph_.emplace(off_.capture(stream_, [&] { net_.step(off_, rows_known::to_device); }));
    }
    return over;
  }

 private:
  Model& net_;
  offloader& off_;
  typename Device::stream_ref stream_;
  std::optional<tidepool::graph<Device>> graph_;
  bool planned_;
  int steps_ = 0;  ///< without the graph
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}
/// Without the first steps, in which memory and the graph are made, if there are more.
inline double median_ms(const run_result& run) {
  const auto skipped = static_cast<std::ptrdiff_t>(std::min<std::size_t>(3, run.losses.size() / 2));
  return median({run.step_ms.begin() + skipped, run.step_ms.end()});
}

/// Trains from the start.
template <class Kernels>
run_result train(typename Kernels::device& dev, const command_line& line, const moe::corpus& text,
                 const way& how) {
  using device = typename Kernels::device;
  const std::size_t free_before = dev.memory().free;
  const auto stream = dev.make_stream();
  const row_limits limits = line.limits();
  model<Kernels> net(dev, stream.ref(), line.run, limits,
                     how.offloads ? limits.planned : limits.room);
  const tidepool::options options = how.offloads ? line.offload : tidepool::options{};
  typename model<Kernels>::offloader off(dev, options, {.planner = tidepool::planner()});
  graph_steps<model<Kernels>, device> steps(net, off, stream.ref(),
                                            options.policy == tidepool::policy_kind::automatic);
  run_result result{how, {}, {}, 0, 0, 0, 0};
  for (int step = 1; step <= line.run.steps; ++step) {
    const double start = tools::milliseconds(dev);
    net.read(text, line.run.seed + static_cast<std::uint64_t>(step),
             line.skewed > 0 && step % line.skewed == 0);
    const bool over = how.graph && steps.run();
    result.overflows += over ? 1 : 0;
    if (!how.graph || (over && !line.mistake)) {
      net.step(off, how.eagerly);
      if (off.rows_overflowed()) throw std::logic_error("rows that the host had counted");
    }
    result.losses.push_back(net.loss());
    result.most = std::max(result.most, net.most_rows());
    result.step_ms.push_back(tools::milliseconds(dev) - start);
    const std::size_t free = dev.memory().free;
    result.driver_peak = std::max(result.driver_peak, free_before - std::min(free_before, free));
  }
  if (how.graph && !steps.captured()) {
    throw tidepool::option_error("--policy=automatic: no plan came in " +
                                 std::to_string(line.run.steps) +
                                 " --steps; give more, or --timed-step=2 --adopt-after=0");
  }
  for (const auto& each : off.counters().modules) result.moved += each.step_bytes;
  dev.synchronize();
  std::printf("%s: %.3f ms, %.0f MiB\n", how.name, median_ms(result),
              static_cast<double>(result.driver_peak) * 0x1p-20);
  std::fflush(stdout);
  return result;
}

/// Prints a row for each training. Returns whether all losses have the bits of the first one's, but
/// for products of exact sizes, whose sums have another order.
inline bool print_table(const std::vector<run_result>& runs) {
  std::printf("%-22s %10s %11s %10s %10s %9s  %-21s %s\n", "training", "median ms", "driver MiB",
              "MiB moved", "most rows", "overflows", "last loss", "bits");
  bool all_equal = true;
  for (const run_result& run : runs) {
    const auto bits = std::bit_cast<std::uint32_t, float>;
    const bool same = std::ranges::equal(run.losses, runs.front().losses, {}, bits, bits);
    const bool judged = run.how.eagerly != rows_known::to_host_exactly;
    all_equal = all_equal && (same || !judged);
    std::printf("%-22s %10.3f %11.0f %10.1f %10lld %9d  %.6f 0x%08x   %s\n", run.how.name,
                median_ms(run), static_cast<double>(run.driver_peak) * 0x1p-20,
                static_cast<double>(run.moved) * 0x1p-20, static_cast<long long>(run.most),
                run.overflows, static_cast<double>(run.losses.back()), bits(run.losses.back()),
                same     ? "equal"
                : judged ? "DIFFER"
                         : "other sizes");
  }
  std::printf("%zu losses of each training %s\n", runs.front().losses.size(),
              all_equal ? "are equal to the bit" : "DIFFER");
  return all_equal;
}

}  // namespace graph_moe
