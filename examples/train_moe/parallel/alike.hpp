/// What all ranks of a run must have alike. Where they differ, messages miss each other, and the
/// ranks wait for ever or train something that nobody asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/options.hpp>
#include <utility>
#include <vector>

#include "../cli/trainer_options.hpp"
#include "../training/checkpoint.hpp"
#include "ranks.hpp"

namespace moe {

/// An option, its value as text, and a number that is another one for another value.
struct shared_value {
  std::string option, value;
  std::uint64_t hash;
};

/// Always as many, in the same order. What one rank may have for itself (memory, budgets, modules)
/// is no part of it.
inline std::vector<shared_value> shared_by_ranks(const command_line& line, const corpus& text) {
  using detail::digits_of;
  std::vector<shared_value> all;
  const auto add = [&](std::string option, std::string value) {
    std::uint64_t hash = 0;
    for (const char c : value) hash = mix(hash ^ static_cast<unsigned char>(c));
    all.push_back({std::move(option), std::move(value), hash});
  };
  const auto number = [&](const char* option, auto value) { add(option, digits_of(value)); };
  const auto flag = [&](const char* option, bool given) { add(option, given ? "true" : "false"); };
  const settings& run = line.run;
  const model_sizes& m = run.model;
  const auto spread = [&](const char* option, bool given, int ranks) {
    add(option, given ? detail::digits_of(ranks) : "false");
  };
  spread("--pipeline", run.pipeline, run.grid.stages);
  spread("--expert-parallel", run.expert_parallel, run.grid.experts);
  flag("--shard-optimizer", run.shard_optimizer);
  number("--layers", m.layers);
  number("--hidden", m.hidden);
  number("--heads", m.heads);
  number("--experts", m.experts);
  number("--top-k", m.top_k);
  number("--ffn", m.ffn);
  number("--dense-layers", m.dense_layers);
  number("--dense-ffn", m.dense_ffn);
  number("--shared-experts", m.shared_experts);
  number("--mtp", m.mtp);
  number("--expert-capacity", m.capacity_factor);
  number("--seq", m.seq);
  number("--batch", m.batch);
  number("--steps", run.steps);
  number("--microbatches", run.microbatches);
  // In a pipeline each rank has a depth of its own.
  number("--in-flight", !run.pipeline ? run.in_flight : run.pairs ? 2 : 1);
  number("--virtual-stages", run.virtual_stages);
  std::string layers;
  for (const index each : run.layers_per_rank) {
    layers += (layers.empty() ? "" : ",") + std::to_string(each);
  }
  number("--lend", run.lend);
  add("--layers-per-rank", layers.empty() ? "none" : layers);
  add("--precision", name_of(run.precision));
  add("--fp8-scaling", name_of(run.scaling));
  add("--fp8-gemm", name_of(run.fp8_gemm));
  add("--codec", name_of(run.codec));
  number("--initial-loss-scale", run.loss_scale.scale);
  number("--loss-scale-window", run.loss_scale.window);
  number("--lr", run.learning_rate);
  number("--seed", run.seed);
  number("--eval-every", run.eval_every);
  number("--save-step", run.save_step);
  add("--save", run.save.empty() ? "none" : "a file");
  add("--resume", run.resume.empty() ? "none" : "a file of step " + digits_of(run.first_step));
  flag("--compare", line.compare);
  // The policy measures the link on all ranks at once, and a plan that is given needs no measuring.
  add("--plan", run.plan.empty() ? "none" : "a file");
  const bool plans = line.variants.back().policy == tidepool::policy_kind::automatic;
  add("--policy", plans ? "automatic" : "megatron");
  all.push_back({"--data", text.name(), text.fingerprint()});
  return all;
}

/// Throws `tidepool::option_error` on the ranks that differ from the first one. All ranks must
/// call.
inline void check_alike(world& ranks, const std::vector<shared_value>& mine) {
  std::vector<std::uint64_t> own, all(mine.size() * static_cast<std::size_t>(ranks.size()));
  for (const shared_value& each : mine) own.push_back(each.hash);
  ranks.gather(own.data(), all.data(), own.size() * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] == all[i]) continue;
    throw tidepool::option_error(mine[i].option + "=" + mine[i].value + ": on rank " +
                                 std::to_string(ranks.rank()) +
                                 ", and rank 0 has another; give all ranks the same");
  }
}

}  // namespace moe
