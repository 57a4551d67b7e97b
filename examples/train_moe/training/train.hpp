/// The training loop: steps under 1F1B, evaluation, and what a run reports.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <tidepool/graph.hpp>
#include <tidepool/offloader.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/places/file.hpp>
#include <tidepool/plan.hpp>
#include <tidepool/trace/output.hpp>
#include <utility>
#include <vector>

#include "../../tools/progress.hpp"
#include "../model/model.hpp"
#include "../model/tied_embedding.hpp"
#include "../parallel/gradient_sum.hpp"
#include "../parallel/layout.hpp"
#include "../parallel/lending.hpp"
#include "../parallel/rank_report.hpp"
#include "../parallel/schedule.hpp"
#include "checkpoint_copy.hpp"
#include "data.hpp"
#include "learning_rate.hpp"
#include "loss_scaler.hpp"
#include "plan_files.hpp"
#include "run_result.hpp"

namespace moe {

/// Time as the device sees it: the virtual clock if it has one.
template <class Device>
double milliseconds(const Device& dev) {
  if constexpr (requires { dev.now_ns(); }) {
    return dev.now_ns() * 1e-6;
  } else {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
  }
}

/// Rank 0 writes. The last step is recorded if no other is asked for, because results tell its
/// stalls.
[[nodiscard]] inline tidepool::options written_by_rank(const settings& run, tidepool::options opt) {
  if (opt.trace_step.empty()) opt.trace_step = {run.end_step() - run.first_step};
  if (run.rank > 0) {
    opt.summary = false;
    opt.trace_to.clear();
  }
  return opt;
}

/// One run: a model, its weights and its offloader, from the first step to the last.
///
/// `Link` connects it with the other ranks, where there are any.
template <class Device, class Kernels, template <class, class> class Link>
class trainer {
 public:
  /// `free_before` is the device's free memory at the start of the process.
  trainer(Device& dev, std::size_t free_before, const settings& run, const tidepool::options& opt,
          const corpus& text, typename Link<Device, Kernels>::team& team)
      : dev_(dev),
        free_before_(free_before),
        knobs_(to_text(opt)),
        run_(run),
        text_(text),
        stream_(dev.make_stream()),
        kernels_(dev, stream_.ref(), run),
        link_(team, run.grid, dev, kernels_, stream_.ref()),
        shape_(shape_of(run)),
        schedule_(steps_of(run)),
        scaler_(dev, run),
        weights_(dev, run.model, ranges_of_rank(run, run.rank), !run.moments_on_host,
                 experts_of_rank(run, run.rank), types_of(run), shards()),
        offloader_(
            dev, written_by_rank(run, options_of_rank(run, opt)),
            {.planner = tidepool::planner(),
             .file = tidepool::file_place(),
             .output = tidepool::trace_output([this](const auto& step) { traced_ = step; })}),
        model_(dev, offloader_, kernels_, stream_.ref(), weights_, run,
               ranges_of_rank(run, run.rank), exchange()),
        bytes_(dev, run.own_microbatches() * bytes_each(), "text"),
        host_bytes_(dev, bytes_.size(), "text"),
        losses_(dev, run.own_microbatches() * losses_each(), "losses"),
        host_losses_(dev, losses_.size(), "losses") {
    weights_.initialise(kernels_, run.seed);
    // Layers without experts never write theirs, and all are published.
    kernels_.fill(losses_.data(), losses_.size(), 0);
    if (run.moments_on_host) weights_.keep_moments_on_host(offloader_, kernels_, stream_.ref());
    offloader_.on_report(report_of_rank(run_, opt));
    // Ranks of one host share its memory; a barrier of all ranks is one of each host's.
    offloader_.on_measure([this] { link_.barrier(); });
    offloader_.on_ready([this](bool ready) { return link_.sum(ready ? 0 : 1) == 0; });
    if (run.lend > 0 && !opt.offload_modules.empty()) {
      lent_ = share_memory(run, dev, offloader_, link_);
    }
    if (!run.plan.empty()) follow_plan(offloader_, run);
    if (!run.resume.empty()) {
      resume_from(dev, kernels_, stream_.ref(), run, weights_);
      weights_.refresh_copies(kernels_);
    }
  }

  run_result run() {
    run_result result;
    link_.guarded([&] { run(result); });
    return result;
  }

 private:
  using buffer = tidepool::buffer<Device>;

  void run(run_result& result) {
    result.device = Device::name;
    result.options = knobs_;
    int unplanned = 0;  // steps
    for (int step = run_.first_step; step < run_.end_step(); ++step) {
      const double start = milliseconds(dev_);
      result.losses.push_back(train_step(step));
      if (run_.model.mtp > 0) {
        result.mtp_losses.push_back(mean_of_losses(mtp_loss(run_.model, 1), run_.model.mtp));
      }
      result.step_ms.push_back(milliseconds(dev_) - start);
      if (!offloader_.current_plan()) ++unplanned;
      report(step, result);
      if (run_.eval_every > 0 && (step + 1) % run_.eval_every == 0) {
        result.evaluations.emplace_back(step, evaluate());
        if (run_.progress) std::printf("  held-out loss %.4f\n", result.evaluations.back().second);
      }
    }
    result.loss_scale = scaler_.state();
    if (!run_.save.empty()) {
      run_.loss_scale = scaler_.state();
      save_to(dev_, kernels_, stream_.ref(), link_, run_, text_, weights_);
    }
    if (!run_.save_plan.empty()) save_plan(offloader_, run_);
    result.trace = std::move(traced_);
    result.driver_peak = driver_peak_;
    result.counters = offloader_.counters();
    if (const auto& plan = offloader_.current_plan()) {
      if (plan->expected.runs) result.forecast_ms = plan->expected.step_us / 1e3;
      result.plan = plan->expected;
      result.warm_up_steps = std::max(result.warm_up_steps, unplanned + 1);
    }
    std::uint64_t offloaded = 0;
    for (const auto& each : result.counters.modules) offloaded += each.bytes_offloaded;
    link_.line().finish();
    result.limited = run_.model.capacity_factor > 0;
    result.choices = {link_.sum(model_.choices().all), link_.sum(model_.choices().dropped)};
    result.ranks = link_.gather(
        rank_totals{driver_peak_, result.counters.device_peak, offloaded, stall_ms(result)});
  }

  float train_step(int step) {
    upload(static_cast<std::uint64_t>(step) + 1, false);
    model_.scale_loss(scaler_.scale());
    for (std::size_t i = 0; i < schedule_.size(); ++i) {
      const pipeline_step& each = schedule_[i];
      if (each.what == pipeline_step::pass::forward) {
        forward(each.microbatch, each.chunk, false);
      } else if (each.beside_next) {
        backward_beside_forward(each, schedule_[++i]);
      } else {
        backward(each.microbatch, each.chunk);
      }
      watch_memory();
    }
    if (run_.model.mtp > 0) {
      sum_embedding_gradients(weights_, kernels_, offloader_, link_.line(), run_, stream_.ref());
    }
    sum_gradients();
    const float scale = scaler_.scale();
    if (scaler_.accepts(weights_, dev_, stream_.ref(), kernels_, link_)) {
      const auto span = offloader_.trace_span("AdamW", stream_.ref());
      weights_.update(kernels_, step - scaler_.state().skipped, learning_rate(run_, step), scale);
    }
    const auto ask = [&] { return mean_loss(); };
    constexpr std::uint32_t kind = 5;  // behind those of the experts' transfers
    const float loss = run_.grid.stages > 1   ? offloader_.wait_for_others(stream_.ref(), ask)
                       : run_.expert_parallel ? offloader_.wait_for_peers(stream_.ref(), ask, kind)
                                              : ask();
    end_step();
    return loss;
  }

  // While a plan may be made in line nothing else is printed.
  void end_step() {
    std::optional<tools::progress> shown;
    const bool plans = offloader_.settings().policy == tidepool::policy_kind::automatic;
    if (plans && run_.progress && !offloader_.current_plan()) {
      shown.emplace("train_moe: planning");
    }
    offloader_.end_step();
  }

  void sum_gradients() {
    if (exchange() == nullptr) return;
    const auto span = offloader_.trace_span("sum of gradients", stream_.ref());
    gradient_sum<Device, Kernels, tidepool::offloader<Device, saving_modules>>(
        *exchange(), run_.member(), kernels_, offloader_, stream_.ref())
        .run(weights_);
  }

  void forward(int microbatch, int chunk, bool evaluates) {
    buffer x = input(microbatch, chunk);
    auto& part = model_.chunk(chunk);
    x = evaluates ? part.evaluate(io(microbatch), std::move(x))
                  : part.forward(microbatch, io(microbatch), std::move(x));
    pass_on(std::move(x), microbatch, chunk);
  }

  void backward(int microbatch, int chunk) {
    buffer gradient = gradient_of_output(microbatch, chunk);
    gradient = model_.chunk(chunk).backward(microbatch, io(microbatch), std::move(gradient));
    pass_back(std::move(gradient), microbatch, chunk);
  }

  void backward_beside_forward(const pipeline_step& behind, const pipeline_step& ahead) {
    typename model<Device, Kernels>::part back{behind.microbatch, io(behind.microbatch),
                                               gradient_of_output(behind.microbatch, behind.chunk)};
    typename model<Device, Kernels>::part forth{ahead.microbatch, io(ahead.microbatch),
                                                input(ahead.microbatch, ahead.chunk)};
    model_.chunk(behind.chunk).backward_beside_forward(back, model_.chunk(ahead.chunk), forth);
    pass_on(std::move(forth.border), ahead.microbatch, ahead.chunk);
    pass_back(std::move(back.border), behind.microbatch, behind.chunk);
  }

  // What passes from stage to stage; empty at the ends of the model.
  buffer input(int microbatch, int chunk) {
    const int stage = shape_.stage(run_.stage(), chunk);
    return stage > 0 ? received(stage - 1, tag(microbatch, stage, 0)) : buffer();
  }
  buffer gradient_of_output(int microbatch, int chunk) {
    const int stage = shape_.stage(run_.stage(), chunk);
    return stage + 1 < shape_.stages() ? received(stage + 1, tag(microbatch, stage, 1)) : buffer();
  }
  void pass_on(buffer x, int microbatch, int chunk) {
    const int next = shape_.stage(run_.stage(), chunk) + 1;
    if (next == shape_.stages()) return;
    link_.line().send(std::move(x), shape_.rank_of(next), tag(microbatch, next, 0));
  }
  void pass_back(buffer gradient, int microbatch, int chunk) {
    const int before = shape_.stage(run_.stage(), chunk) - 1;
    if (before < 0) return;
    link_.line().send(std::move(gradient), shape_.rank_of(before), tag(microbatch, before, 1));
  }

  buffer received(int from_stage, int tag) {
    const auto count = static_cast<std::size_t>(run_.model.tokens() * run_.model.hidden);
    buffer what = offloader_.template allocate<float>(count, stream_.ref());
    offloader_.wait_for_others(
        stream_.ref(), [&] { link_.line().receive(what, shape_.rank_of(from_stage), tag); });
    return what;
  }

  /// Tells messages between the same two ranks apart, by the stage that receives.
  [[nodiscard]] int tag(int microbatch, int stage, int backward) const {
    return 2 * (microbatch * shape_.stages() + stage) + backward;
  }

  /// Loss on the same held-out text at each call. Trains nothing and moves no byte.
  float evaluate() {
    upload(0, true);
    for (int microbatch = 0; microbatch < run_.own_microbatches(); ++microbatch) {
      for (int chunk = 0; chunk < shape_.chunks; ++chunk) forward(microbatch, chunk, true);
    }
    return mean_loss();
  }

  /// Fetches the text of one step.
  void upload(std::uint64_t number, bool held_out) {
    for (int microbatch = 0; microbatch < run_.own_microbatches(); ++microbatch) {
      std::int32_t* const token = host_bytes_.data() + microbatch * bytes_each();
      const auto seed = mix(mix(run_.seed) + number) +
                        static_cast<std::uint64_t>(run_.microbatch_of_step(microbatch));
      text_.sample(seed, held_out, run_.model, token);
    }
    if constexpr (requires { dev_.host_writes(host_bytes_.data(), 1, ""); }) {
      dev_.host_writes(host_bytes_.data(),
                       static_cast<std::size_t>(host_bytes_.size()) * sizeof(std::int32_t), "text");
    }
    dev_.copy(bytes_.data(), host_bytes_.data(),
              {.width = static_cast<std::size_t>(bytes_.size()) * sizeof(std::int32_t)},
              tidepool::copy_direction::host_to_device, stream_.ref());
  }

  /// Waits for the device.
  float mean_loss() {
    kernels_.publish(host_losses_.data(), losses_.data(), losses_.size());
    dev_.synchronize(stream_.ref());
    return mean_of_losses(0, 1);
  }
  /// Those that the group of the last stage knows, as one process has them.
  [[nodiscard]] std::vector<float> in_order_of_microbatches(const std::vector<float>& by_rank,
                                                            index count) const {
    std::vector<float> result;
    const auto each = static_cast<std::size_t>(run_.own_microbatches() * count);
    const int knows = shape_.rank_of(shape_.stages() - 1);
    const auto first = static_cast<std::size_t>(run_.grid.rank_of(knows, 0)) * each;
    const auto end = static_cast<std::size_t>(run_.grid.rank_of(knows + 1, 0)) * each;
    for (std::size_t m = 0; m < each; m += static_cast<std::size_t>(count)) {
      for (std::size_t at = first + m; at < end; at += each) {
        result.insert(result.end(), by_rank.begin() + static_cast<std::ptrdiff_t>(at),
                      by_rank.begin() + static_cast<std::ptrdiff_t>(at) + count);
      }
    }
    return result;
  }

  /// Over the microbatches and `count` of their losses, which the ranks tell each other.
  float mean_of_losses(index first, index count) {
    if constexpr (requires { dev_.host_reads(host_losses_.data(), 1, ""); }) {
      dev_.host_reads(host_losses_.data(),
                      static_cast<std::size_t>(host_losses_.size()) * sizeof(float), "losses");
    }
    std::vector<float> losses;
    for (int m = 0; m < run_.own_microbatches(); ++m) {
      const float* const of_microbatch = host_losses_.data() + m * losses_each() + first;
      losses.insert(losses.end(), of_microbatch, of_microbatch + count);
    }
    float sum = 0;
    for (const float loss : in_order_of_microbatches(link_.gather_losses(losses), count)) {
      sum += loss;
    }
    return sum / static_cast<float>(run_.microbatches * count);
  }

  void watch_memory() {
    const std::size_t free_now = dev_.memory().free;
    driver_peak_ = std::max(driver_peak_, free_before_ - std::min(free_before_, free_now));
  }

  void report(int step, const run_result& result) const {
    if (!run_.progress) return;
    const int every = std::max(1, run_.steps / 15);
    if (step % every != 0 && step + 1 != run_.end_step()) return;
    std::printf("  step %4d/%d  loss %.4f  %8.3f ms  %.1f MiB on the device\n", step + 1,
                run_.steps, result.losses.back(), result.step_ms.back(),
                static_cast<double>(driver_peak_) * 0x1p-20);
    std::fflush(stdout);
  }

  [[nodiscard]] expert_exchange* exchange() {
    return run_.expert_parallel ? link_.group() : nullptr;
  }
  [[nodiscard]] moment_shards shards() {
    if (!run_.shard_optimizer) return {};
    return {run_.member(), run_.grid.experts, exchange()};
  }
  [[nodiscard]] index bytes_each() const { return token_count(run_.model); }
  [[nodiscard]] index losses_each() const { return loss_count(run_.model); }
  [[nodiscard]] microbatch_io io(int microbatch) const {
    return {bytes_.data() + microbatch * bytes_each(), losses_.data() + microbatch * losses_each()};
  }

  Device& dev_;
  std::size_t free_before_;
  std::size_t driver_peak_ = 0;
  std::string knobs_;
  settings run_;
  const corpus& text_;
  typename Device::stream stream_;
  Kernels kernels_;
  Link<Device, Kernels> link_;
  pipeline_shape shape_;
  std::vector<pipeline_step> schedule_;
  loss_scaler<Device> scaler_;
  parameters<Device> weights_;
  tidepool::trace::record traced_;
  tidepool::offloader<Device, saving_modules> offloader_;
  model<Device, Kernels> model_;
  device_array<Device, std::int32_t> bytes_;
  device_array<Device, std::int32_t, side::host> host_bytes_;
  device_array<Device, float> losses_;
  device_array<Device, float, side::host> host_losses_;
  std::optional<tidepool::lent_memory<Device>> lent_;  // to another rank
};

}  // namespace moe
