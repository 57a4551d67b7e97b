/// How `--pipeline` and `--expert-parallel` lay the ranks out. All throw `tidepool::option_error`,
/// naming option, value and remedy.
#pragma once

#include <charconv>
#include <string>
#include <tidepool/error.hpp>
#include <utility>

#include "trainer_options.hpp"

namespace moe::detail {

/// Ranks that one of the two options names. Without a number it takes all that the other leaves.
struct side_of_grid {
  std::string option, word;  ///< "true" and "false" as of a flag, or a number
  int ranks = 0;             ///< 0: as many as are left

  side_of_grid(std::string name, std::string given)
      : option(std::move(name)), word(std::move(given)) {
    if (word.empty() || word == "true" || word == "false") return;
    const char* const end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data(), end, ranks);
    if (error == std::errc{} && rest == end && ranks > 0) return;
    throw tidepool::option_error(option + "=" + word +
                                 ": must be a number of ranks, 1 or more; give that, or the "
                                 "option alone for all of them");
  }

  [[nodiscard]] bool given() const { return !word.empty() && word != "false"; }
  [[nodiscard]] std::string text() const {
    return option + (ranks > 0 ? "=" + std::to_string(ranks) : "");
  }
};

/// Fills in the grid of `me.count` ranks.
inline void read_grid(settings& run, const process& me, const std::string& stages_word,
                      const std::string& experts_word) {
  const side_of_grid stages("--pipeline", stages_word);
  const side_of_grid experts("--expert-parallel", experts_word);
  run.pipeline = stages.given();
  run.expert_parallel = experts.given();
  run.rank = me.rank;
  const int all = me.count;
  const auto side = [all](const side_of_grid& mine, const side_of_grid& other) {
    if (!mine.given()) return 1;
    if (mine.ranks > 0) return mine.ranks;
    return other.given() ? all / (other.ranks > 0 ? other.ranks : all) : all;
  };
  if (stages.given() && experts.given() && stages.ranks + experts.ranks == 0 && all > 1) {
    throw tidepool::option_error(
        "--expert-parallel: with --pipeline one of them must say how many of the " +
        std::to_string(all) + " ranks it takes; give --pipeline=" + std::to_string(all) +
        " or fewer, or leave one of them out");
  }
  run.grid = {side(stages, experts), side(experts, stages)};
  if (!run.pipeline && !run.expert_parallel) return;
  const bool any = run.grid.stages > 0 && run.grid.experts > 0;
  if (any && run.grid.stages <= all / run.grid.experts && run.grid.ranks() == all) return;
  const std::string both = stages.given() && experts.given() ? " with " + experts.text() : "";
  throw tidepool::option_error(
      (stages.given() ? stages : experts).text() + both + ": does not make up the " +
      std::to_string(all) + (all == 1 ? " rank" : " ranks") + " that " +
      (me.launcher.empty() ? "the launcher" : me.launcher) +
      " started; start as many as these numbers multiply to, or change them");
}

/// The schedule of a pipeline. Exchanges of experts hide in pairs of passes, which cost one more
/// microbatch in flight where stages are interleaved, and nearly twice as many where they are not.
inline void read_schedule(settings& run, bool in_flight_given) {
  if (!run.pipeline) return;
  const std::string given = "--in-flight=" + std::to_string(run.in_flight) + ": ";
  if (in_flight_given && !run.expert_parallel) {
    throw tidepool::option_error(given +
                                 "the schedule of --pipeline decides it; leave one of them out");
  }
  if (in_flight_given && run.in_flight != 1 && run.in_flight != 2) {
    throw tidepool::option_error(
        given +
        "the schedule of --pipeline decides it; with --expert-parallel give 2, which runs each "
        "backward beside the next forward, or 1, which does not");
  }
  run.pairs = in_flight_given
                  ? run.in_flight == 2
                  : run.grid.experts > 1 && (run.virtual_stages > 1 || run.grid.stages == 1);
}

}  // namespace moe::detail
