/// How much host memory an offloader may pin.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tidepool/core/system_file.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0 {

namespace detail {

inline std::optional<std::size_t> number_in(const std::string& path) {
  const auto text = text_of(path);
  std::string_view rest = text;
  return number_of(take_word(rest));
}

// The number behind a word, as in the lines of /proc/meminfo and of memory.stat.
inline std::optional<std::size_t> entry_in(const std::string& path, std::string_view key) {
  const auto text = text_of(path);
  std::string_view rest = text;
  for (auto word = take_word(rest); !word.empty(); word = take_word(rest)) {
    if (word == key) return number_of(take_word(rest));
  }
  return std::nullopt;
}

inline std::string own_cgroup(const std::string& path) {
  const auto text = text_of(path);
  for (std::size_t line = 0; line < text.size();) {
    const auto end = std::min(text.find('\n', line), text.size());
    if (text.compare(line, 3, "0::") == 0) return text.substr(line + 3, end - line - 3);
    line = end + 1;
  }
  return {};
}

}  // namespace detail

/// Where the machine says what it has; tests point it at files of their own.
struct host_files {
  std::string meminfo = "/proc/meminfo";       ///< free memory of the machine
  std::string cgroup = "/proc/self/cgroup";    ///< the control group of this process
  std::string cgroup_root = "/sys/fs/cgroup";  ///< where limits of control groups are
};

/// Host memory that this machine or container can still give, in bytes: the least of what the
/// kernel calls available and of every cgroup limit above this process (version 2, then 1). Pages
/// of files that nobody has used lately count as free: a limit makes room for others out of them.
[[nodiscard]] inline std::size_t available_host_memory(const host_files& files = {}) {
  const auto kilobytes = detail::entry_in(files.meminfo, "MemAvailable:");
  auto available = kilobytes ? *kilobytes * 1024 : SIZE_MAX;
  const auto consider = [&](const std::string& limit, const std::string& usage,
                            const std::string& statistics, std::string_view of_files) {
    const auto most = detail::number_in(limit);
    if (!most) return;
    auto used = detail::number_in(usage).value_or(0);
    used -= std::min(used, detail::entry_in(statistics, of_files).value_or(0));
    available = std::min(available, *most > used ? *most - used : 0);
  };
  for (auto group = detail::own_cgroup(files.cgroup);; group.erase(group.rfind('/'))) {
    consider(files.cgroup_root + group + "/memory.max",
             files.cgroup_root + group + "/memory.current",
             files.cgroup_root + group + "/memory.stat", "inactive_file");
    if (group.find('/') == std::string::npos) break;
  }
  consider(files.cgroup_root + "/memory/memory.limit_in_bytes",
           files.cgroup_root + "/memory/memory.usage_in_bytes",
           files.cgroup_root + "/memory/memory.stat", "total_inactive_file");
  return available;
}

/// Processes of this job on this machine, from what torchrun, srun and mpirun set; 1 if none did.
[[nodiscard]] inline int launched_local_ranks() {
  for (const auto* name : {"LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE",
                           "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const auto* text = std::getenv(name);
    if (text == nullptr) continue;
    const std::string_view value(text);
    int ranks = 0;  // srun writes "4(x2)" for two nodes of four each
    std::from_chars(value.data(), value.data() + value.size(), ranks);
    if (ranks > 0) return ranks;
  }
  return 1;
}

/// Bytes of host memory that an offloader may pin: `options::host_budget`, or nine tenths of what
/// is available, shared evenly among the local ranks.
[[nodiscard]] inline std::size_t host_budget(const options& given, const host_files& files = {}) {
  if (given.host_budget) return *given.host_budget;
  const auto ranks = given.local_ranks > 0 ? given.local_ranks : launched_local_ranks();
  // Never 0, which would be no limit at all.
  return std::max<std::size_t>(
      available_host_memory(files) / 10 * 9 / static_cast<std::size_t>(ranks), 1);
}

}  // namespace tidepool
