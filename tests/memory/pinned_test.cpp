#include "tidepool/memory/pinned.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lane_bench.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/memory/pool.hpp"

namespace {

using tidepool::available_host_memory;
using tidepool::host_budget;
using tidepool::launched_local_ranks;

constexpr std::size_t mib = std::size_t{1} << 20;

/// Files like those of the kernel, in a directory of their own.
class fake_machine {
 public:
  fake_machine() {
    std::string name = (std::filesystem::temp_directory_path() / "tidepool-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    files.meminfo = path("meminfo");
    files.cgroup = path("cgroup");
    files.cgroup_root = path("fs");
    std::filesystem::create_directories(files.cgroup_root);
  }
  fake_machine(const fake_machine&) = delete;
  fake_machine& operator=(const fake_machine&) = delete;
  ~fake_machine() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  tidepool::host_files files;

  void available(std::size_t bytes) const {
    write("meminfo", "MemTotal:       99999999 kB\nMemFree:               1 kB\nMemAvailable:   " +
                         std::to_string(bytes / 1024) + " kB\nBuffers:     7 kB\n");
  }
  void group(const std::string& line) const { write("cgroup", line + "\n"); }
  /// Limit and use of a version-2 group; `where` is "" for the root.
  void limit(const std::string& where, const std::string& most, std::size_t used) const {
    write("fs" + where + "/memory.max", most + "\n");
    write("fs" + where + "/memory.current", std::to_string(used) + "\n");
  }
  /// The same of version 1.
  void limit_v1(const std::string& where, const std::string& most, std::size_t used) const {
    write("fs/memory" + where + "/memory.limit_in_bytes", most + "\n");
    write("fs/memory" + where + "/memory.usage_in_bytes", std::to_string(used) + "\n");
  }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path target = path(name);
    std::filesystem::create_directories(target.parent_path());
    std::ofstream(target) << text;
  }

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return root_ + "/" + name; }
  std::string root_;
};

/// The launchers' variables, all unset until the end of the object.
class launcher {
 public:
  launcher() {
    for (const auto* name : names) {
      const auto* const value = std::getenv(name);
      if (value != nullptr) before_.emplace_back(name, value);
      unsetenv(name);
    }
  }
  launcher(const launcher&) = delete;
  launcher& operator=(const launcher&) = delete;
  ~launcher() {
    for (const auto* name : names) unsetenv(name);
    for (const auto& [name, value] : before_) set(name, value.c_str());
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }

 private:
  static constexpr const char* names[]{"LOCAL_WORLD_SIZE",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE",
                                       "MV2_COMM_WORLD_LOCAL_SIZE",
                                       "MPI_LOCALNRANKS",
                                       "PALS_LOCAL_SIZE",
                                       "PMI_LOCAL_SIZE",
                                       "LOCAL_SIZE",
                                       "SLURM_STEP_TASKS_PER_NODE",
                                       "SLURM_TASKS_PER_NODE",
                                       "SLURM_NTASKS_PER_NODE",
                                       "SLURM_NODEID"};
  std::vector<std::pair<const char*, std::string>> before_;
};

}  // namespace

TEST_CASE("pinned: without a cgroup limit, what the kernel calls available") {
  const fake_machine host;
  host.available(300 * mib);
  CHECK(available_host_memory(host.files) == 300 * mib);
  host.group("0::/user.slice");
  CHECK(available_host_memory(host.files) == 300 * mib);
}

TEST_CASE("pinned: a version-2 limit, less what is in use") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/job");
  host.limit("/job", std::to_string(100 * mib), 30 * mib);
  CHECK(available_host_memory(host.files) == 70 * mib);
}

TEST_CASE("pinned: the tightest of the groups above counts") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/slurm/job/step");
  host.limit("/slurm", std::to_string(80 * mib), 20 * mib);
  host.limit("/slurm/job", std::to_string(90 * mib), 10 * mib);
  host.limit("/slurm/job/step", "max", 5 * mib);
  CHECK(available_host_memory(host.files) == 60 * mib);
  host.limit("", std::to_string(50 * mib), 8 * mib);
  CHECK(available_host_memory(host.files) == 42 * mib);
}

TEST_CASE("pinned: \"max\" is no limit, more in use than allowed leaves nothing") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/job");
  host.limit("/job", "max", 30 * mib);
  CHECK(available_host_memory(host.files) == 300 * mib);
  host.limit("/job", std::to_string(10 * mib), 30 * mib);
  CHECK(available_host_memory(host.files) == 0);
}

TEST_CASE("pinned: files that nobody has used lately leave when memory is asked for") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/job");
  host.limit("/job", std::to_string(100 * mib), 90 * mib);
  std::ofstream(host.files.cgroup_root + "/job/memory.stat")
      << "anon 1000\nactive_file 5\ninactive_file " << 60 * mib << '\n';
  CHECK(available_host_memory(host.files) == 70 * mib);
}

TEST_CASE("pinned: the root of a container, where the path is only a slash") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/");
  host.limit("", std::to_string(64 * mib), 4 * mib);
  CHECK(available_host_memory(host.files) == 60 * mib);
}

TEST_CASE("pinned: a version-1 limit") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("4:memory:/docker/abc");
  host.write("fs/memory/memory.limit_in_bytes", std::to_string(120 * mib) + "\n");
  host.write("fs/memory/memory.usage_in_bytes", std::to_string(20 * mib) + "\n");
  CHECK(available_host_memory(host.files) == 100 * mib);
  // "No limit" of version 1 is a huge number.
  host.write("fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(available_host_memory(host.files) == 300 * mib);
}

TEST_CASE("pinned: a file that says nothing sensible is no limit") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/job");
  host.write("fs/job/memory.max", "12abc\n");
  host.write("fs/memory/memory.limit_in_bytes", "");
  CHECK(available_host_memory(host.files) == 300 * mib);
}

TEST_CASE("pinned: the budget is nine tenths of that, shared among the local ranks") {
  const fake_machine host;
  const launcher none;
  host.available(1000 * mib);
  tidepool::options opts;
  CHECK(host_budget(opts, host.files) == 900 * mib);
  opts.local_ranks = 4;
  CHECK(host_budget(opts, host.files) == 225 * mib);
  opts.local_ranks = 0;
  launcher::set("LOCAL_WORLD_SIZE", "8");
  CHECK(host_budget(opts, host.files) == 900 * mib / 8);
  opts.local_ranks = 2;  // said in the options, it comes before the launcher
  CHECK(host_budget(opts, host.files) == 450 * mib);
  opts.host_budget = 123;
  CHECK(host_budget(opts, host.files) == 123);
  opts.host_budget.reset();
  host.available(0);
  CHECK(host_budget(opts, host.files) == 1);  // 0 would be no limit
}

TEST_CASE("pinned: local ranks from torchrun, srun and mpirun; one without any") {
  const launcher none;
  CHECK(launched_local_ranks() == 1);
  launcher::set("MPI_LOCALNRANKS", "2");
  CHECK(launched_local_ranks() == 2);
  launcher::set("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
  CHECK(launched_local_ranks() == 3);
  launcher::set("SLURM_NTASKS_PER_NODE", "4");
  CHECK(launched_local_ranks() == 4);
  launcher::set("SLURM_NTASKS_PER_NODE", "6(x2)");  // on each of two nodes
  CHECK(launched_local_ranks() == 6);
  launcher::set("SLURM_NTASKS_PER_NODE", "4");
  launcher::set("LOCAL_WORLD_SIZE", "99999999999");  // as if it were not set
  CHECK(launched_local_ranks() == 4);
  launcher::set("LOCAL_WORLD_SIZE", "5");
  CHECK(launched_local_ranks() == 5);
  for (const auto* nonsense : {"", "no", "0", "-2"}) {
    launcher::set("LOCAL_WORLD_SIZE", nonsense);
    CHECK(launched_local_ranks() == 4);
  }
}

TEST_CASE("pinned: the pool keeps to its budget and to the device's own limit") {
  using bench = tidepool::test::lane_bench<tidepool::virtual_device>;
  bench on(1, tidepool::machine{.host_bytes = 64 * 1024});
  {
    tidepool::pool all(on.host, on.order, {4096, 40 * 1024, tidepool::rounding::none});
    CHECK(all.acquire(40 * 1024, bench::id(0)));
    CHECK_FALSE(all.acquire(1, bench::id(0)));
    tidepool::pool more(on.host, on.order, {4096, 40 * 1024, tidepool::rounding::none});
    CHECK_FALSE(more.acquire(32 * 1024, bench::id(0)));
    CHECK(more.acquire(24 * 1024, bench::id(0)));
    CHECK(more.reserved() == 24 * 1024);
    CHECK(on.dev.host_held == 2);
  }
  CHECK(on.dev.host_held == 0);
}

TEST_CASE("pinned: this machine has some memory") { CHECK(available_host_memory() > mib); }

TEST_CASE("pinned: the version-2 group is found behind those of version 1") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("4:memory:/\n1:name=systemd:/user\n0::/job");
  host.limit("/job", std::to_string(100 * mib), 30 * mib);
  CHECK(available_host_memory(host.files) == 70 * mib);
}

TEST_CASE("pinned: a limit of which nobody says how much is in use counts whole") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/job");
  host.write("fs/job/memory.max", std::to_string(100 * mib) + "\n");
  CHECK(available_host_memory(host.files) == 100 * mib);
}

TEST_CASE("pinned: a single local rank is a word as good as any other") {
  const fake_machine host;
  const launcher none;
  host.available(1000 * mib);
  launcher::set("SLURM_NTASKS_PER_NODE", "4");
  launcher::set("LOCAL_WORLD_SIZE", "1");
  CHECK(launched_local_ranks() == 4);  // where they differ, the largest
  launcher::set("LOCAL_WORLD_SIZE", "8");
  tidepool::options opts;
  opts.local_ranks = 1;
  CHECK(host_budget(opts, host.files) == 900 * mib);
}

TEST_CASE("pinned: version 1 limits the process's own group and those above it") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("9:cpuset:/slurm/job\n4:cpu,memory:/slurm/job/step\n0::/");
  host.limit_v1("", "9223372036854771712", 0);
  host.limit_v1("/slurm/job/step", std::to_string(100 * mib), 30 * mib);
  CHECK(available_host_memory(host.files) == 70 * mib);
  host.limit_v1("/slurm/job", std::to_string(80 * mib), 20 * mib);
  CHECK(available_host_memory(host.files) == 60 * mib);
  // Beside it version 2, which limits as well.
  host.group("4:memory:/slurm/job/step\n0::/slice");
  host.limit("/unified/slice", std::to_string(50 * mib), 10 * mib);
  CHECK(available_host_memory(host.files) == 40 * mib);
}

TEST_CASE("pinned: version 1 tells a limit above a group that a container cannot see") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("4:memory:/docker/abc");
  host.limit_v1("", "9223372036854771712", 30 * mib);
  host.write("fs/memory/memory.stat", "hierarchical_memory_limit " + std::to_string(100 * mib) +
                                          "\ntotal_inactive_file " + std::to_string(mib) + "\n");
  CHECK(available_host_memory(host.files) == 71 * mib);
}

TEST_CASE("pinned: memory.high limits as memory.max does, in every group above") {
  const fake_machine host;
  host.available(300 * mib);
  host.group("0::/slice/job");
  host.limit("/slice/job", "max", 40 * mib);
  host.write("fs/slice/job/memory.high", std::to_string(100 * mib) + "\n");
  CHECK(available_host_memory(host.files) == 60 * mib);
  host.limit("/slice", "max", 45 * mib);
  host.write("fs/slice/memory.high", std::to_string(95 * mib) + "\n");
  CHECK(available_host_memory(host.files) == 50 * mib);
  host.write("fs/slice/memory.high", "max\n");
  CHECK(available_host_memory(host.files) == 60 * mib);
}

TEST_CASE("pinned: a container reads paths from the host's root, or from above its own") {
  const fake_machine host;
  host.available(300 * mib);
  host.limit("", std::to_string(90 * mib), 0);
  for (const auto* seen : {"0::/system.slice/docker-1234.scope", "0::/../../job", "0::/..", "0::",
                           "0::/../../../../etc", "0::/a/../..", "0::/.../", "0:::", "0::etc"}) {
    CAPTURE(std::string(seen));
    host.group(seen);
    CHECK(available_host_memory(host.files) == 90 * mib);
  }
  // A group that the container made itself.
  host.limit("/inner", std::to_string(50 * mib), 0);
  for (const auto* seen : {"0::/docker/1234/inner", "0::/../inner", "0::/inner/"}) {
    CAPTURE(std::string(seen));
    host.group(seen);
    CHECK(available_host_memory(host.files) == 50 * mib);
  }
  // Nothing beside the folder of limits is read.
  host.write("beside/memory.max", "1\n");
  host.write("fsbeside/memory.max", "1\n");
  for (const auto* seen : {"0::/../beside", "0::beside", "0::/inner/../../beside"}) {
    CAPTURE(std::string(seen));
    host.group(seen);
    CHECK(available_host_memory(host.files) == 90 * mib);
  }
}

TEST_CASE("pinned: every launcher's variable counts, and the largest where they differ") {
  const launcher none;
  int ranks = 1;
  for (const auto* name :
       {"LOCAL_SIZE", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS",
        "MV2_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE",
        "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) {
    CAPTURE(std::string(name));
    launcher::set(name, std::to_string(++ranks).c_str());
    CHECK(launched_local_ranks() == ranks);
    CHECK(tidepool::detail::host_share_text({}) == "shared by " + std::to_string(ranks) +
                                                       " local ranks (" + name + "=" +
                                                       std::to_string(ranks) + ")");
  }
  launcher::set("SLURM_STEP_TASKS_PER_NODE", "1");
  CHECK(launched_local_ranks() == ranks - 1);
}

TEST_CASE("pinned: Slurm writes tasks for each node, and the number of this one") {
  const launcher none;
  struct row {
    const char* text;
    const char* node;
    int ranks;
  };
  for (const row& each : {row{"8", nullptr, 8},
                          {"4(x2)", nullptr, 4},
                          {"2(x3),1", nullptr, 2},
                          {"2(x3),1", "0", 2},
                          {"2(x3),1", "2", 2},
                          {"2(x3),1", "3", 1},
                          {"2(x3),1", "4", 2},  // no such node
                          {"2(x3),1", "none", 2},
                          {"1,16(x2),3", "1", 16},
                          {"1,16(x2),3", "3", 3},
                          {"1,16(x2),3", nullptr, 16},
                          // Nothing that Slurm writes is as if it were not set.
                          {"", nullptr, 1},
                          {"8,", nullptr, 1},
                          {",8", nullptr, 1},
                          {"8(x", nullptr, 1},
                          {"8(x)", nullptr, 1},
                          {"8(x0)", nullptr, 1},
                          {"8(x2", nullptr, 1},
                          {"8(2)", nullptr, 1},
                          {"8x2", nullptr, 1},
                          {"(x2)", nullptr, 1},
                          {"-8", nullptr, 1},
                          {"8 ", nullptr, 1},
                          {"99999999999(x2)", nullptr, 1},
                          {"2(x99999999999)", nullptr, 1},
                          {"2(x2147483647),3(x2147483647)", "4294967293", 3},
                          {"2(x2147483647),3", "18446744073709551615", 3}}) {
    CAPTURE(std::string(each.text));
    const launcher clean;
    launcher::set("SLURM_TASKS_PER_NODE", each.text);
    if (each.node != nullptr) launcher::set("SLURM_NODEID", each.node);
    CHECK(launched_local_ranks() == each.ranks);
  }
}
