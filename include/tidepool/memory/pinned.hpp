/// The host memory that an offloader may pin.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tidepool/core/system_file.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/memory/local_ranks.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

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

// The path of this process's group in the hierarchy of `controller`, as a line
// `number:controllers:path` has it; the line of version 2 has the number 0 and no controller.
inline std::optional<std::string> own_cgroup(std::string_view text, std::string_view controller) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos) continue;
    const auto names = text::split(line.substr(first + 1, second - first - 1), ',');
    const bool named = std::ranges::find(names, controller) != names.end();
    if (named && (!controller.empty() || line.starts_with("0:"))) {
      return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

// The group as a path below `root`. A container without a namespace of its own reads a path from
// the host's root, and sees its own group as the root: a path that is not there loses its first
// names. A path up to its last `/..` is above the root of the namespace, so that nothing of that
// part can be seen.
inline std::string visible_group(const std::string& root, std::string group) {
  if (const auto above = (group + '/').rfind("/../"); above != std::string::npos) {
    group.erase(0, above + 3);
  }
  if (!group.starts_with('/')) group.insert(0, "/");
  while (!group.empty() && ::access((root + group).c_str(), F_OK) != 0) {
    group.erase(0, std::min(group.find('/', 1), group.size()));
  }
  return group == "/" ? std::string() : group;
}

}  // namespace detail

/// The files in which the machine says what it has; tests use files of their own.
struct host_files {
  std::string meminfo = "/proc/meminfo";       ///< free memory of the machine
  std::string cgroup = "/proc/self/cgroup";    ///< the control group of this process
  std::string cgroup_root = "/sys/fs/cgroup";  ///< where limits of control groups are
};

/// Host memory that this machine or container can still give, in bytes. This is the least of what
/// the kernel calls available and of the rest under every limit of the control groups that this
/// process is in, its own and those above: `memory.max` and `memory.high` of version 2, and the
/// limits of version 1, beside version 2 or alone. Pages of files that nobody has used lately count
/// as free, because a limit makes room for others out of them.
[[nodiscard]] inline std::size_t available_host_memory(const host_files& files = {}) {
  const auto kilobytes = detail::entry_in(files.meminfo, "MemAvailable:");
  auto available = kilobytes && *kilobytes <= SIZE_MAX / 1024 ? *kilobytes * 1024 : SIZE_MAX;
  const auto consider = [&](std::optional<std::size_t> most, const std::string& usage,
                            const std::string& statistics, std::string_view of_files) {
    if (!most) return;
    auto used = detail::number_in(usage).value_or(0);
    used -= std::min(used, detail::entry_in(statistics, of_files).value_or(0));
    available = std::min(available, *most > used ? *most - used : 0);
  };
  const auto each_group = [&](const std::string& root, std::string_view controller,
                              const auto& look) {
    const auto own = detail::own_cgroup(detail::text_of(files.cgroup), controller);
    for (auto group = detail::visible_group(root, own.value_or("")); !group.empty();
         group.erase(std::min(group.rfind('/'), group.size()))) {
      look(root + group);
    }
    look(root);
  };
  const auto second = [&](const std::string& group) {
    for (const auto* limit : {"/memory.max", "/memory.high"}) {
      consider(detail::number_in(group + limit), group + "/memory.current", group + "/memory.stat",
               "inactive_file");
    }
  };
  each_group(files.cgroup_root, "", second);
  each_group(files.cgroup_root + "/unified", "", second);
  each_group(files.cgroup_root + "/memory", "memory", [&](const std::string& group) {
    const auto statistics = group + "/memory.stat";
    // The second limit is the least of the groups above, which a container may not see.
    for (const auto most : {detail::number_in(group + "/memory.limit_in_bytes"),
                            detail::entry_in(statistics, "hierarchical_memory_limit")}) {
      consider(most, group + "/memory.usage_in_bytes", statistics, "total_inactive_file");
    }
  });
  return available;
}

/// Bytes of host memory that an offloader may pin: `options::host_budget`, or nine tenths of what
/// is available, shared evenly among the local ranks.
[[nodiscard]] inline std::size_t host_budget(const options& given, const host_files& files = {}) {
  if (given.host_budget) return *given.host_budget;
  const auto ranks = given.local_ranks > 0 ? given.local_ranks : launched_local_ranks();
  // At least 1, because 0 would be no limit at all.
  return std::max<std::size_t>(
      available_host_memory(files) / 10 * 9 / static_cast<std::size_t>(ranks), 1);
}

namespace detail {

// The number of ranks that share the host, and who says so, for reports. Empty where nobody does.
[[nodiscard]] inline std::string host_share_text(const options& given) {
  if (given.host_budget) return {};
  const auto found = find_launcher();
  const auto ranks = given.local_ranks > 0 ? given.local_ranks : found.ranks;
  const auto by = given.local_ranks > 0 ? "--local-ranks" : found.by;
  if (by.empty()) return {};
  return "shared by " + std::to_string(ranks) + (ranks == 1 ? " local rank" : " local ranks") +
         " (" + by + ")";
}

}  // namespace detail

}  // namespace tidepool
