/// The trainer's command line: its own flags, and Tidepool's, which Tidepool's parser reads.
#pragma once

#include <algorithm>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/validate.hpp>
#include <vector>

#include "../model/config.hpp"
#include "../parallel/layout.hpp"
#include "../training/plan_files.hpp"
#include "option_checks.hpp"
#include "precision_options.hpp"
#include "rank_options.hpp"
#include "rings.hpp"
#include "trainer_options.hpp"

namespace moe {

namespace detail {

/// Fills in what follows from other options, and checks the whole.
template <class Given>
void settle(settings& run, const Given& given) {
  // Of the two that must fit each other, the one that was given decides.
  if (!given("--microbatches")) run.microbatches = std::max(run.microbatches, run.in_flight);
  if (!given("--in-flight")) run.in_flight = std::min(run.in_flight, run.microbatches);
  if (run.expert_parallel) {
    validate_expert_parallel(run, given("--in-flight"));
    run.in_flight = std::min(run.in_flight, run.own_microbatches());
  }
  if (given("--dense-ffn") && run.model.dense_layers == 0) {
    throw tidepool::option_error("--dense-ffn=" + std::to_string(run.model.dense_ffn) +
                                 ": no layer is dense; add --dense-layers, or leave it out");
  }
  if (!given("--dense-ffn") && run.model.dense_layers > 0) {
    run.model.dense_ffn = run.model.top_k * run.model.ffn;
  }
  validate(run);
  if (run.pipeline) {
    validate_layout(run);
    run.in_flight = deepest(steps_of(run));
  }
}

}  // namespace detail

/// Reads the arguments. Later sources win: the preset, `TIDEPOOL_…` in the environment, flags.
/// Throws `tools::answer`, or `tidepool::option_error` naming option, value and remedy.
inline command_line read_command_line(int argc, const char* const* argv, const process& me = {}) {
  const tidepool::known_options known = tidepool::parse_known_options(argc, argv);
  command_line line;
  tidepool::options defaults;
  tools::command_line app(
      {"train_moe", "Trains a byte-level mixture-of-experts transformer with Tidepool."});
  const preset base = detail::preset_of(known.rest);
  line.run = settings_of(base);
  defaults.min_tensor_elements = base.min_tensor_elements;
  defaults.device_step = base.device_step;
  defaults.host_step = base.host_step;
  detail::add_trainer_options(app, line);
  app.read(known.rest);
  const auto given = [&](const char* option) { return app.count(option) > 0; };
  settings& run = line.run;
  detail::read_grid(run, me, line.pipeline, line.experts);
  run.progress = me.rank == 0;
  if (run.pipeline || run.expert_parallel) detail::check_ranks(line);
  if (!run.pipeline) {
    detail::check_no_pipeline(line, me, given("--virtual-stages"), given("--layers-per-rank"));
  }
  detail::read_schedule(run, given("--in-flight"));
  read_precision_options(run, {line.precision, line.scaling, line.fp8_gemm, line.codec}, given);
  detail::settle(run, given);
  detail::check_files(line, given);
  detail::check_files_apart(line);
  detail::check_words(line);
  run.moments_on_host = line.optimizer_state == "host";

  tidepool::options offload =
      tidepool::parse_known_options(argc, argv, tidepool::from_environment(defaults)).value;
  if (offload.pipeline_rank == 0 && run.pipeline) offload.pipeline_rank = run.stage();
  if (line.compare && offload.offload_modules.empty()) offload.offload_modules = {"all"};
  detail::check_moments_on_host(run, offload);
  detail::check_lending(line, offload);
  detail::check_expert_options(line, offload, given("--expert-capacity"));
  if (offload.memory == tidepool::memory_kind::slots && offload.slots.empty()) {
    offload.slots = rings_for(run, offload);
  }
  tidepool::validate(offload, saving_modules::names, saving_modules::open);
  detail::check_recomputed(offload);
  validate_plan(run, offload);
  if (line.compare) line.variants.push_back(defaults);
  line.variants.push_back(offload);
  return line;
}

}  // namespace moe
