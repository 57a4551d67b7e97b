/// Who started this process, as the environment says: torchrun, srun, or the mpirun of an MPI.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>
#include <utility>

namespace moe {

/// The value of a variable, or null.
using environment = std::function<const char*(const char*)>;

inline const char* own_environment(const char* variable) { return std::getenv(variable); }

/// One of the processes that a launcher started; the only one where there was none.
struct launch {
  std::string launcher;     ///< empty: none
  std::string said;         ///< the number of processes as the launcher said it
  bool of_mpi = false;      ///< the launcher is MPI's, or has told MPI of the ranks
  int rank = 0, count = 1;  ///< in all
  int local_rank = 0;       ///< on this machine
};

namespace detail {

struct launcher_variables {
  const char* mark;  ///< set by this launcher
  const char* launcher;
  const char *count, *rank, *local_rank;
};

/// The innermost comes first: torchrun may have been started by the others, and mpirun by srun.
inline constexpr std::array<launcher_variables, 6> known_launchers{{
    {"TORCHELASTIC_RUN_ID", "torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_SIZE", "mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MPI_LOCALRANKID", "mpirun", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
    {"WORLD_SIZE", "torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK"},
    {"SLURM_STEP_NUM_TASKS", "srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"},
    {"PMI_SIZE", "mpirun", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
}};

inline int number_in(const environment& get, const char* variable, const char* launcher, int most) {
  const char* const text = get(variable);
  const std::string name(variable);
  if (text == nullptr) {
    throw tidepool::option_error(name + " is not set, though " + launcher +
                                 " sets it; set all that it sets, or none of it");
  }
  const std::string_view value(text);
  int number = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < 0 || number > most) {
    throw tidepool::option_error(name + "=" + text + ": must be a number from 0 to " +
                                 std::to_string(most) + ", as " + launcher + " sets it");
  }
  return number;
}

}  // namespace detail

/// Throws `tidepool::option_error` where a launcher's variables make no sense.
[[nodiscard]] inline launch launch_of(const environment& get) {
  const auto is_set = [&](const char* variable) { return get(variable) != nullptr; };
  launch found;
  found.of_mpi = !is_set("TORCHELASTIC_RUN_ID") &&
                 (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMI_SIZE") || is_set("PMIX_RANK"));
  for (const auto& each : detail::known_launchers) {
    if (!is_set(each.mark)) continue;
    constexpr int most = 1 << 20;
    found.launcher = each.launcher;
    found.said = std::string(each.count) + "=" + (is_set(each.count) ? get(each.count) : "");
    found.count = std::max(1, detail::number_in(get, each.count, each.launcher, most));
    for (const auto& [variable, number] :
         {std::pair{each.rank, &found.rank}, {each.local_rank, &found.local_rank}}) {
      if (found.count == 1 || (found.of_mpi && !is_set(variable))) continue;  // or MPI knows
      *number = detail::number_in(get, variable, each.launcher, found.count - 1);
    }
    break;
  }
  return found;
}

/// Whether a program needs ranks: its arguments ask for them, or a launcher started several.
[[nodiscard]] inline bool wants_ranks(const launch& by, int argc, const char* const* argv) {
  return by.count > 1 || std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
           const std::string_view name = argument.substr(0, argument.find('='));
           return name == "--pipeline" || name == "--expert-parallel";
         });
}

/// Where NCCL's ranks meet, as NCCL_COMM_ID has it: that variable's own value, or the machine of
/// MASTER_ADDR and the port after MASTER_PORT, where torchrun itself listens. Throws
/// `tidepool::option_error` where these are missing.
[[nodiscard]] inline std::string meeting_point(const launch& by, const environment& get) {
  if (const char* const given = get("NCCL_COMM_ID"); given != nullptr) return given;
  const char* const address = get("MASTER_ADDR");
  if (address == nullptr || *address == '\0' || get("MASTER_PORT") == nullptr) {
    throw tidepool::option_error(
        by.said + ": " + by.launcher +
        " started that many processes, and nothing says where they meet; export MASTER_ADDR, the "
        "machine of the first one, and MASTER_PORT, before a free port, or NCCL_COMM_ID");
  }
  const int port = detail::number_in(get, "MASTER_PORT", by.launcher.c_str(), 65534) + 1;
  const std::string host(address);
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return (is_ipv6 ? '[' + host + ']' : host) + ':' + std::to_string(port);
}

}  // namespace moe
