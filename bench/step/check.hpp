/// Gradients with and without offloading, compared bit by bit.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "measure.hpp"

namespace bench {

/// Checksums of every gradient of the model, step after step.
struct gradient_sums {
  std::vector<std::string> names;
  std::vector<unsigned long long> sums;
  unsigned long long broken = 0;  ///< numbers that are not finite
};

class gradient_check {
 public:
  gradient_check(cuda_device& dev, stream_ref stream, const settings& run)
      : dev_(&dev),
        stream_(dev, stream.get()),
        run_(run),
        model_(dev, stream.get(), run.sizes, run.depth) {}

  /// How many cases differ from `none`, or do not run for a reason other than their budget.
  int failures() {
    const auto plans = plan_cases(run_);
    const auto expected = train(plans.front(), false);
    if (expected.broken != 0) {
      std::printf("depth %d, none: %llu numbers are not finite\n", run_.depth, expected.broken);
      return 1;
    }
    int failed = 0;
    // `none` itself comes first: were it not the same twice, no other result would mean anything.
    for (const auto& plan : plans) {
      failed += differs(plan, expected, false) ? 1 : 0;
      if (run_.graph && plan.kind == case_kind::offload) {
        failed += differs(plan, expected, true) ? 1 : 0;
      }
    }
    return failed;
  }

 private:
  static constexpr int steps = 3;

  bool differs(const planned_case& given, const gradient_sums& expected, bool graph) {
    auto plan = given;
    if (graph) plan.name += " (graph)";
    gradient_sums found;
    try {
      found = train(plan, graph);
    } catch (const tidepool::out_of_budget& problem) {
      std::printf("depth %d, %-24s does not fit: %s\n", run_.depth, plan.name.c_str(),
                  problem.what());
      return false;
    } catch (const tidepool::misuse_error& problem) {
      std::printf("depth %d, %-24s FAILS: %s\n", run_.depth, plan.name.c_str(), problem.what());
      return true;
    }
    for (std::size_t i = 0; i < expected.sums.size(); ++i) {
      if (found.sums[i] == expected.sums[i]) continue;
      std::printf("depth %d, %-24s DIFFERS, first in %s: %016llx instead of %016llx\n", run_.depth,
                  plan.name.c_str(), expected.names[i].c_str(), found.sums[i], expected.sums[i]);
      return true;
    }
    std::printf("depth %d, %-24s same bits (%zu gradients of %d steps; moved %.1f MiB)\n",
                run_.depth, plan.name.c_str(), expected.sums.size(), steps, moved_ / 1048576);
    return false;
  }

  // As a graph, each step after the first is captured and launched twice: the same work twice.
  gradient_sums train(const planned_case& plan, bool graph) {
    // Whatever happens, the model lets go of the session's memory before the session goes.
    const auto off =
        std::make_unique<session>(*dev_, plan.options, plan.kind == case_kind::recompute);
    const auto drop =
        std::unique_ptr<model, void (*)(model*)>(&model_, [](model* m) { m->abandon(); });
    gradient_sums found;
    model_.restart();
    for (int step = 0; step < steps; ++step) {
      const auto work = [&] { run_step(model_, *off, run_, stream_); };
      if (graph && step > 0) {
        auto captured = off->off().capture(stream_, work);
        captured.launch(stream_);
        captured.launch(stream_);
        dev_->synchronize(stream_);
      } else {
        work();
      }
      add_sums(found, step);
    }
    moved_ = 0;
    for (const auto& module : off->off().counters().modules) {
      moved_ += static_cast<double>(module.bytes_offloaded);
    }
    return found;
  }

  void add_sums(gradient_sums& to, int step) {
    const auto number = std::to_string(step);
    add_sum(to, model_.input_gradient(), "step " + number + ", the input");
    for (std::size_t l = 0; l < model_.weights().size(); ++l) {
      const auto& w = model_.weights()[l];
      const auto of = "step " + number + ", layer " + std::to_string(l) + ", ";
      add_sum(to, w.fc1.gradient, of + "fc1");
      add_sum(to, w.fc2.gradient, of + "fc2");
      if (!run_.sizes.attention) continue;
      add_sum(to, w.qkv.gradient, of + "qkv");
      add_sum(to, w.proj.gradient, of + "proj");
    }
  }

  void add_sum(gradient_sums& to, const device_array<bf16>& of, std::string name) {
    dev_->fill_bytes(sums_.data(), 0, sums_.bytes(), stream_);
    add_checksum(sums_.data(), of.data(), of.count(), stream_);
    unsigned long long found[2] = {};
    dev_->copy(found, sums_.data(), {sizeof found, 1, sizeof found, sizeof found},
               tidepool::copy_direction::device_to_host, stream_);
    dev_->synchronize(stream_);
    to.names.push_back(std::move(name));
    to.sums.push_back(found[0]);
    to.broken += found[1];
  }

  cuda_device* dev_;
  declared_stream stream_;
  settings run_;
  model model_;
  device_array<unsigned long long> sums_{*dev_, 2};
  double moved_ = 0;
};

/// At several depths; how many cases failed.
inline int check_gradients(cuda_device& dev, stream_ref stream, const settings& given) {
  int failures = 0;
  for (const int depth : {1, 2, 4}) {
    auto run = given;
    run.depth = depth;
    run.microbatches = depth + 3;
    failures += gradient_check(dev, stream, run).failures();
  }
  std::printf(failures == 0 ? "all gradients have the same bits\n" : "%d cases FAIL\n", failures);
  return failures;
}

}  // namespace bench
