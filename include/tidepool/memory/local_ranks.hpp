/// How many processes of a job share this machine, as their launcher tells each of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tidepool/core/system_file.hpp"
#include "tidepool/core/text.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

inline std::optional<int> count_in(std::string_view word) {
  const auto value = number_of<int>(word);
  return value && *value > 0 ? value : std::nullopt;
}

// Tasks on each node as Slurm writes them: `8`, `4(x2)`, `2(x3),1`. Of the node that is asked for,
// or the most of any node where there is no such one. Nothing where the text has another form.
inline std::optional<int> slurm_tasks(std::string_view text, std::optional<std::size_t> node) {
  std::optional<int> most, here;
  std::size_t first = 0;  // node of the item
  for (;;) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    const auto times = item.find("(x");
    const auto tasks = count_in(item.substr(0, times));
    std::optional<int> nodes = 1;
    if (times != std::string_view::npos) {
      if (!item.ends_with(')')) return std::nullopt;
      nodes = count_in(item.substr(times + 2, item.size() - times - 3));
    }
    if (!tasks || !nodes) return std::nullopt;
    if (tasks > most) most = tasks;
    const auto count = static_cast<std::size_t>(*nodes);
    if (node && *node >= first && *node - first < count) here = tasks;
    first += count;
    if (comma == std::string_view::npos) return here ? here : most;
    text.remove_prefix(comma + 1);
  }
}

struct launched {
  int ranks = 1;
  std::string by;  // `SLURM_TASKS_PER_NODE=4(x2)`; empty where no variable says it
};

// Where several variables differ, the largest count: too small a share of the host's memory costs
// time, too large a one costs the job.
inline launched find_launcher() {
  constexpr std::array plain{"LOCAL_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "MV2_COMM_WORLD_LOCAL_SIZE",
                             "MPI_LOCALNRANKS",
                             "PALS_LOCAL_SIZE",
                             "PMI_LOCAL_SIZE",
                             "LOCAL_SIZE"};
  constexpr std::array slurm{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
                             "SLURM_NTASKS_PER_NODE"};
  launched most;
  const auto consider = [&](const char* name, std::string_view text, std::optional<int> ranks) {
    if (!ranks || (*ranks <= most.ranks && !most.by.empty())) return;
    most = {*ranks, name + ("=" + text::printable(text))};
  };
  for (const auto* name : plain) {
    if (const auto* text = std::getenv(name)) consider(name, text, count_in(text));
  }
  const auto* const own = std::getenv("SLURM_NODEID");
  const auto node = own == nullptr ? std::nullopt : number_of(own);
  for (const auto* name : slurm) {
    if (const auto* text = std::getenv(name)) consider(name, text, slurm_tasks(text, node));
  }
  return most;
}

}  // namespace detail

/// Processes of this job on this machine, from what torchrun, srun and the launchers of MPI set:
/// the largest count where they differ; 1 if none did. docs/options.md lists the variables.
[[nodiscard]] inline int launched_local_ranks() { return detail::find_launcher().ranks; }

}  // namespace tidepool
