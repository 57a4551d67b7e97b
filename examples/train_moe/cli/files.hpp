/// Files that a run leaves behind: what they hold as JSON, and the files.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <tidepool/trace/report.hpp>
#include <vector>

#include "../../tools/json_file.hpp"
#include "../../tools/output_file.hpp"
#include "../model/precision.hpp"
#include "report.hpp"

namespace moe {

/// Everything about one run; what is not said for each rank is of rank 0.
inline nlohmann::ordered_json to_json(const settings& with, const run_result& run) {
  nlohmann::ordered_json json;
  json["device"] = run.device;
  json["options"] = run.options;
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    char bits[16];
    std::snprintf(bits, sizeof bits, "0x%08x", std::bit_cast<std::uint32_t>(run.losses[i]));
    json["steps"].push_back({{"loss", run.losses[i]}, {"bits", bits}, {"ms", run.step_ms[i]}});
  }
  for (std::size_t i = 0; i < run.mtp_losses.size(); ++i) {
    json["steps"][i]["mtp_loss"] = run.mtp_losses[i];
  }
  for (const auto& [step, loss] : run.evaluations) {
    json["evaluations"].push_back({{"step", step}, {"loss", loss}});
  }
  if (with.precision == precision_kind::fp16) {
    json["loss_scale"] = run.loss_scale.scale;
    json["skipped_steps"] = run.loss_scale.skipped;
  }
  json["final_loss"] = final_loss(run);
  json["step_ms"] = median_ms(run);
  json["stall_ms"] = stall_ms(run);
  json["driver_peak_bytes"] = run.driver_peak;
  if (run.forecast_ms > 0) json["forecast_ms"] = run.forecast_ms;
  const auto& c = run.counters;
  json["device_peak_bytes"] = c.device_peak;
  json["live_peak_bytes"] = c.live_peak;
  json["live_peak_bytes_without"] = c.live_peak_without;
  json["saved_bytes"] = c.saved();
  json["host_reserved_bytes"] = c.host_reserved;
  json["evictions"] = c.evictions;
  json["placed_elsewhere"] = c.placed_elsewhere;
  json["arena_waits"] = c.arena_waits;
  json["device_allocations"] = c.device_allocations;
  json["host_allocations"] = c.host_allocations;
  for (const auto& m : c.modules) {
    if (!m.enabled) continue;
    json["modules"][m.name] = {{"groups", m.groups},
                               {"groups_offloaded", m.groups_offloaded},
                               {"groups_resident", m.groups_resident},
                               {"tensors_shared", m.tensors_shared},
                               {"tensors_small", m.tensors_small},
                               {"bytes_offloaded", m.bytes_offloaded},
                               {"bytes_reloaded", m.bytes_reloaded},
                               {"step_bytes", m.step_bytes},
                               {"cap_joins", m.cap_joins}};
  }
  if (run.limited) {
    json["choices"] = {{"all", run.choices.all}, {"over_capacity", run.choices.dropped}};
  }
  const bool on_ranks = with.pipeline || with.expert_parallel;
  for (int rank = 0; on_ranks && rank < with.grid.ranks(); ++rank) {
    const rank_totals& bytes = run.ranks[static_cast<std::size_t>(rank)];
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (const layer_range& range : ranges_of_rank(with, rank)) {
      for (index l = range.first; l < range.end; ++l) layers.push_back(l);
    }
    const expert_range experts = experts_of_rank(with, rank);
    json["ranks"].push_back({{"rank", rank},
                             {"layers", layers},
                             {"experts", {experts.first, experts.first + experts.count - 1}},
                             {"driver_peak_bytes", bytes.driver_peak},
                             {"device_peak_bytes", bytes.device_peak},
                             {"bytes_offloaded", bytes.offloaded},
                             {"stall_ms", bytes.stall_ms}});
  }
  return json;
}

/// Everything about all runs; with two of them, the first is the one without offload.
inline nlohmann::ordered_json to_json(const settings& run, const std::vector<run_result>& results,
                                      const corpus& text) {
  const model_sizes& m = run.model;
  nlohmann::ordered_json json;
  json["model"] = {{"layers", m.layers},
                   {"hidden", m.hidden},
                   {"heads", m.heads},
                   {"experts", m.experts},
                   {"top_k", m.top_k},
                   {"ffn", m.ffn},
                   {"seq", m.seq},
                   {"batch", m.batch},
                   {"dense_layers", m.dense_layers},
                   {"dense_ffn", m.dense_ffn},
                   {"shared_experts", m.shared_experts},
                   {"mtp", m.mtp}};
  json["precision"] = name_of(run.precision);
  if (run.precision == precision_kind::fp8) {
    json["fp8_scaling"] = name_of(run.scaling);
    json["fp8_gemm"] = name_of(run.fp8_gemm);
  }
  if (run.precision == precision_kind::bf16) json["codec"] = name_of(run.codec);
  json["microbatches"] = run.microbatches;
  json["in_flight"] = run.in_flight;
  if (run.pipeline) {
    json["pipeline"] = {{"ranks", run.grid.stages}, {"virtual_stages", run.virtual_stages}};
  }
  if (run.expert_parallel) json["expert_parallel"] = {{"ranks", run.grid.experts}};
  if (run.model.capacity_factor > 0) json["expert_capacity"] = run.model.capacity_factor;
  json["seed"] = run.seed;
  json["first_step"] = run.first_step;
  json["traced"] = results.back().trace.title;
  json["text"] = text.name();
  json["text_bytes"] = text.size();
  json["unigram_entropy"] = text.unigram_entropy();
  json["run"] = to_json(run, results.back());
  if (results.size() > 1) {
    json["without_offload"] = to_json(run, results.front());
    json["equal_steps"] = equal_steps(results.front(), results.back());
  }
  return json;
}

/// The page of a run's traced step.
inline tidepool::trace::report to_report(const run_result& run) {
  using unit = tidepool::trace::planned_figure::unit;
  tidepool::trace::report page{
      run.trace, run.counters, {}, run.options, "train_moe, device " + run.device};
  if (run.forecast_ms > 0) {
    const auto bytes = [](std::size_t number) { return static_cast<double>(number); };
    page.planned = {
        {"step", run.plan.step_us, median_ms(run) * 1e3},
        {"stalls of the traced step", run.plan.stall_us, stall_ms(run) * 1e3},
        {"peak needed", bytes(run.plan.peak), bytes(run.counters.live_peak), unit::bytes},
        {"offloaded a step", bytes(run.plan.moved), bytes(step_bytes(run)), unit::bytes}};
  }
  return page;
}

using tools::json_file;
using tools::output_file;

}  // namespace moe
