/// Steps that nobody has run: of described models, and written by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tidepool/plan/profile.hpp>
#include <utility>
#include <vector>

#include "../../examples/plan/model.hpp"
#include "../plan/plans.hpp"

namespace golden {

namespace plan = tidepool::plan;

/// Computing times as kernels have them, each off by up to `share`; with fixed numbers.
inline void vary_times(plan::profile& step, double share) {
  std::mt19937_64 random(24);
  const auto factor = [&] {
    const auto unit = static_cast<double>(random() >> 11U) * 0x1p-53;
    return 1 + share * (2 * unit - 1);
  };
  for (auto& each : step.events) each.compute_us *= factor();
  step.rest_us *= factor();
}

/// Leaves out what no group saves: a trainer keeps it in memory of its own.
inline void drop_staying(plan::profile& step) {
  using plan::event_kind;
  std::vector<std::uint32_t> number(step.storages.size(), plan::none);
  std::vector<plan::storage_profile> left;
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (step.storages[i].group == plan::none) continue;
    number[i] = static_cast<std::uint32_t>(left.size());
    left.push_back(step.storages[i]);
  }
  std::vector<plan::event> calls;
  double pending_us = 0;
  for (auto each : step.events) {
    each.compute_us += std::exchange(pending_us, 0.0);
    if (each.kind == event_kind::allocate || each.kind == event_kind::release) {
      if (number[each.index] == plan::none) {
        pending_us = each.compute_us;
        continue;
      }
      each.index = number[each.index];
    }
    calls.push_back(each);
  }
  step.rest_us += pending_us;
  step.storages = std::move(left);
  step.events = std::move(calls);
}

/// Without offers to compute anything again.
inline void drop_offers(plan::profile& step) {
  for (auto& chunk : step.chunks) {
    for (auto& group : chunk.groups) group.recompute_us = 0;
  }
}

/// As `bench_step` has it: three modules of eight layers, twice the depth and four microbatches.
[[nodiscard]] inline plan::profile bench_step(std::size_t depth, bool offers) {
  auto model = planning::model_named("deepseek-v3-proxy");
  model.modules = {"core_attn", "expert_fc1", "moe_act"};
  model.in_flight = depth;
  model.microbatches = 2 * depth + 4;
  auto step = planning::profile_of(model, planning::machine_named("h200"));
  drop_staying(step);
  if (!offers) drop_offers(step);
  vary_times(step, 0.02);
  return step;
}

/// Layers that are alike to the bit, one microbatch after the other.
[[nodiscard]] inline plan::profile dense_stack() {
  planning::model_description model;
  model.name = "dense-24";
  model.layers = model.dense_layers = 24;
  model.hidden = 4096;
  model.dense_ffn = 11008;
  model.microbatches = 2;
  model.in_flight = 1;
  auto step = planning::profile_of(model, planning::machine_named("h100"));
  drop_staying(step);
  drop_offers(step);
  return step;
}

/// Both stages of a pipeline of two, with the bubbles of 1F1B: the first waits for its first
/// backward pass while the second does that, the second for its first forward pass, and for the
/// first to end. Other transfers take no longer than `transfer_us`.
[[nodiscard]] inline plan::profile pipeline_of_two(std::size_t rank) {
  auto model = planning::model_named("deepseek-v3-proxy");
  model.pipeline_parallel = 2;
  model.pipeline_rank = rank;
  model.in_flight = 2 - rank;
  model.microbatches = 6;
  auto step = planning::profile_of(model, planning::machine_named("h200"), 2);
  drop_staying(step);
  drop_offers(step);
  vary_times(step, 0.02);
  constexpr double transfer_us = 40;
  const auto once_us = plan::compute_us(step) / static_cast<double>(model.microbatches);
  const auto forward_us = once_us / 3;
  const auto backward_us = once_us - forward_us;
  bool first_backward = true;
  for (std::size_t i = 0; i < step.events.size(); ++i) {
    auto& each = step.events[i];
    const bool to_backward = i > 0 && each.kind == plan::event_kind::restore &&
                             step.events[i - 1].kind == plan::event_kind::end_forward;
    if (i > 0 && !to_backward) continue;
    each.wait_us = transfer_us;
    if (rank == 1 && i == 0) each.wait_us += forward_us;
    if (rank == 0 && to_backward && std::exchange(first_backward, false)) {
      each.wait_us += backward_us;
    }
    each.compute_us += each.wait_us;
  }
  if (rank == 1) step.rest_us += step.rest_wait_us = backward_us;
  return step;
}

/// The second of four stages of a narrow DeepSeek-V3: latent attention, ranks of experts, and a
/// link shared by four GPUs.
[[nodiscard]] inline plan::profile latent_stage() {
  auto model = planning::model_named("deepseek-v3");
  model.layers = 12;
  model.pipeline_rank = 1;
  model.in_flight = 3;
  model.microbatches = 6;
  auto step = planning::profile_of(model, planning::machine_named("h200"), 4);
  drop_staying(step);
  vary_times(step, 0.05);
  return step;
}

/// Layer by layer a forward pass beside the backward pass of the microbatch before it. Some handles
/// go a little after the commit.
[[nodiscard]] inline plan::profile overlapped() {
  constexpr std::uint32_t chunks = 4;
  constexpr std::uint32_t groups = 12;
  using enum plan::event_kind;
  tidepool::test::script write;
  auto& step = write.result;
  step.modules = {"core_attn", "expert_fc1", "moe_act"};
  const auto number = [](std::uint32_t c, std::uint32_t g) { return c * groups + g; };
  for (std::uint32_t c = 0; c < chunks; ++c) {
    auto& chunk = step.chunks.emplace_back();
    chunk.microbatch = static_cast<int>(c);
    for (std::uint32_t g = 0; g < groups; ++g) {
      const auto bytes = (std::size_t{40} + 25 * (g % 3)) << 20U;
      chunk.groups.push_back(
          {static_cast<tidepool::module_id>(g % 3), static_cast<int>(g / 3), bytes, 0});
      step.storages.push_back({bytes, c, g});
    }
  }
  const auto forward = [&](std::uint32_t c, std::uint32_t g) {
    write.call(allocate, number(c, g));
    write.compute(700 + 90 * (g % 5));
    write.call(commit, g, c);
    if (g % 4 != 1) return;
    write.compute(10);
    write.call(drop, number(c, g));  // long before its copy ends
  };
  for (std::uint32_t c = 0; c <= chunks; ++c) {
    if (c < chunks) step.passes.push_back({c, false});
    if (c > 0) step.passes.push_back({c - 1, true});
    for (std::uint32_t i = 0; i < groups; ++i) {
      if (c < chunks) forward(c, i);
      if (c == 0) continue;
      const auto g = groups - 1 - i;
      write.call(restore, g, c - 1);
      write.compute(1100 + 130 * (g % 4));
      write.call(release, number(c - 1, g));
    }
    if (c < chunks) write.call(end_forward, 0, c);
  }
  return write.finish();
}

/// Each second microbatch's forward pass inside that of the one before, which goes back first.
[[nodiscard]] inline plan::profile nested() {
  constexpr std::uint32_t pairs = 3;
  constexpr std::uint32_t groups = 8;
  using enum plan::event_kind;
  tidepool::test::script write;
  auto& step = write.result;
  step.modules = {"core_attn", "expert_fc1"};
  const auto number = [](std::uint32_t c, std::uint32_t g) { return c * groups + g; };
  for (std::uint32_t c = 0; c < 2 * pairs; ++c) {
    auto& chunk = step.chunks.emplace_back();
    chunk.microbatch = static_cast<int>(c);
    for (std::uint32_t g = 0; g < groups; ++g) {
      const auto bytes = (std::size_t{32} + 24 * (g % 3)) << 20U;
      chunk.groups.push_back(
          {static_cast<tidepool::module_id>(g % 2), static_cast<int>(g / 2), bytes, 0});
      step.storages.push_back({bytes, c, g});
    }
  }
  const auto forward = [&](std::uint32_t c, std::uint32_t from, std::uint32_t to) {
    if (from == 0) step.passes.push_back({c, false});
    for (auto g = from; g < to; ++g) {
      write.call(allocate, number(c, g));
      write.compute(600 + 70 * (g % 5));
      write.call(commit, g, c);
    }
    if (to == groups) write.call(end_forward, 0, c);
  };
  for (std::uint32_t c = 0; c < 2 * pairs; c += 2) {
    forward(c, 0, groups / 2);
    forward(c + 1, 0, groups);
    forward(c, groups / 2, groups);
    for (const auto back : {c, c + 1}) {
      step.passes.push_back({back, true});
      for (auto g = groups; g-- > 0;) {
        write.call(restore, g, back);
        write.compute(1000 + 110 * (g % 4));
        write.call(release, number(back, g));
      }
    }
  }
  return write.finish();
}

/// Unequal sizes, waits, handles that outlive a commit, recomputation.
[[nodiscard]] inline plan::profile crooked(std::uint64_t number) {
  std::mt19937_64 random(number);
  tidepool::test::random_step about;
  about.depth = 1 + random() % 4;
  about.groups = 24 + random() % 40;
  about.chunks = about.depth + random() % 4;
  about.recompute = about.waits = about.outliving = true;
  return tidepool::test::random_profile(random, about);
}

}  // namespace golden
