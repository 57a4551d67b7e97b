/// Where the reports of an offloader go.
#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <tidepool/options.hpp>
#include <vector>

#include "../model/modules.hpp"
#include "layout.hpp"

namespace moe {

/// To `stderr`, with the rank in front where there are several. A module that was asked for on all
/// ranks, or as one of all, and that only others have, rightly moves no byte here.
[[nodiscard]] inline std::function<void(std::string_view)> report_of_rank(
    const settings& run, const tidepool::options& opt) {
  const bool all = opt.offload_modules == std::vector<std::string>{"all"};
  std::vector<std::string> elsewhere;
  const auto note = [&](std::string_view name, bool expected) {
    const bool here = has_module(name, run.model, ranges_of_rank(run, run.rank));
    const bool anywhere = has_module(name, run.model, {whole_of(run.model)});
    if (!here && (anywhere || expected)) elsewhere.push_back("'" + std::string(name) + "'");
  };
  for (const std::string_view name : saving_modules::names) note(name, all);
  for (const std::string_view name : recomputable) note(name, false);
  const std::string rank =
      run.pipeline || run.expert_parallel ? "rank " + std::to_string(run.rank) + ": " : "";
  return [elsewhere, rank](std::string_view line) {
    const auto names = [line](const std::string& name) { return line.find(name) < line.size(); };
    if (std::any_of(elsewhere.begin(), elsewhere.end(), names)) return;
    std::fprintf(stderr, "%s%.*s\n", rank.c_str(), static_cast<int>(line.size()), line.data());
  };
}

}  // namespace moe
