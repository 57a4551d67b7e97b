/// Megatron's rules of which groups stay on the device, applied to the profile of a warm-up step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan {

/// True for groups that stay: by chunk of the step, in forward order, and by group.
using residency = std::vector<std::vector<bool>>;

namespace detail {

// Chunks in the order of their backward passes.
inline std::vector<std::size_t> backward_order(const profile& step) {
  std::vector<std::size_t> order;
  for (const auto& pass : step.passes) {
    if (pass.backward) order.push_back(pass.chunk);
  }
  return order;
}

inline bool offloads(const chunk_profile& chunk, module_id module) {
  return std::any_of(chunk.groups.begin(), chunk.groups.end(), [&](const group_profile& each) {
    return each.module == module && each.bytes > 0;
  });
}

// For each chunk, the number of backward passes that began before its forward pass.
inline std::vector<std::size_t> backward_before(const profile& step) {
  std::vector<std::size_t> before(step.chunks.size(), 0);
  std::size_t begun = 0;
  for (const auto& pass : step.passes) {
    if (pass.backward) {
      ++begun;
    } else {
      before[pass.chunk] = begun;
    }
  }
  return before;
}

// Marks the last group of each module of `chunk` if, at the time of its forward pass, no other
// chunk's backward pass needs that module before.
inline void keep_margin(const profile& step, std::size_t chunk, std::size_t begun,
                        std::vector<bool>& stays) {
  const auto order = backward_order(step);
  const auto& groups = step.chunks[chunk].groups;
  std::array<bool, max_modules> seen{};
  for (auto i = groups.size(); i-- > 0;) {
    const auto module = groups[i].module;
    auto& known = seen[static_cast<std::size_t>(module)];
    if (known || groups[i].bytes == 0) continue;
    known = true;
    const auto from = order.begin() + static_cast<std::ptrdiff_t>(std::min(begun, order.size()));
    const auto next = std::find_if(from, order.end(),
                                   [&](std::size_t c) { return offloads(step.chunks[c], module); });
    stays[i] = next != order.end() && *next == chunk;
  }
}

}  // namespace detail

/// True where Megatron's rules let groups of any step stay.
[[nodiscard]] inline bool may_keep(const options& opts) {
  return opts.margin || opts.fraction < 1 ||
         (opts.pipeline_rank > 0 && opts.delta_bytes_per_rank > 0);
}

/// Applies Megatron's rules, in Megatron's order (Megatron-Core
/// `PipelineOffloadManager.post_warmup_callback` and `ChunkOffloadHandler.should_bulk_offload`):
/// 1. margin: the last group of each module stays where the chunk's own backward pass is the next
///    that has the module, since its reload could not be hidden;
/// 2. delta: in backward order of chunks and forward order of groups, groups stay until
///    `pipeline_rank * delta_bytes_per_rank` bytes stay;
/// 3. fraction: of the n groups of a chunk that would still leave, the last `int(n * (1 - f))` in
///    forward order stay.
[[nodiscard]] inline residency megatron_policy(const profile& step, const options& opts) {
  residency stays;
  for (const auto& chunk : step.chunks) stays.emplace_back(chunk.groups.size(), false);

  if (opts.margin) {
    const auto before = detail::backward_before(step);
    for (std::size_t c = 0; c < stays.size(); ++c) {
      detail::keep_margin(step, c, before[c], stays[c]);
    }
  }

  auto left = static_cast<std::size_t>(opts.pipeline_rank) * opts.delta_bytes_per_rank;
  for (const auto c : detail::backward_order(step)) {
    const auto& groups = step.chunks[c].groups;
    for (std::size_t i = 0; i < groups.size() && left > 0; ++i) {
      if (stays[c][i] || groups[i].bytes == 0) continue;
      stays[c][i] = true;
      left -= std::min(left, groups[i].bytes);
    }
  }

  for (std::size_t c = 0; c < stays.size(); ++c) {
    std::vector<std::size_t> leaving;
    for (std::size_t i = 0; i < stays[c].size(); ++i) {
      if (!stays[c][i] && step.chunks[c].groups[i].bytes > 0) leaving.push_back(i);
    }
    auto drop = static_cast<std::size_t>(static_cast<double>(leaving.size()) * (1 - opts.fraction));
    for (; drop > 0; --drop, leaving.pop_back()) stays[c][leaving.back()] = true;
  }
  return stays;
}

}  // namespace tidepool::plan

namespace tidepool::inline v0_3_0::detail {

/// Modules of which the margin keeps every group of `step` that would leave without the margin.
[[nodiscard]] inline std::vector<module_id> kept_by_margin(const plan::profile& step,
                                                           options opts) {
  const auto leaving = [&] {
    std::array<bool, max_modules> leaves{};
    const auto stays = plan::megatron_policy(step, opts);
    for (std::size_t c = 0; c < stays.size(); ++c) {
      for (std::size_t i = 0; i < stays[c].size(); ++i) {
        const auto& group = step.chunks[c].groups[i];
        if (!stays[c][i] && group.bytes > 0) leaves[static_cast<std::size_t>(group.module)] = true;
      }
    }
    return leaves;
  };
  const auto with = leaving();
  opts.margin = false;
  const auto without = leaving();
  std::vector<module_id> kept;
  for (std::size_t m = 0; m < max_modules; ++m) {
    if (without[m] && !with[m]) kept.push_back(static_cast<module_id>(m));
  }
  return kept;
}

}  // namespace tidepool::detail
