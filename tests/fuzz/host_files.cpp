// What the machine says of its memory: the files of /proc and of the cgroup with any content, parts
// of the input between "%%", and the launchers' variables.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "fuzz.hpp"
#include "tidepool/memory/pinned.hpp"

namespace {

using namespace tidepool;

// Files in memory, where there is such a place: millions of inputs should not reach a disk.
class folder {
 public:
  folder() {
    const std::filesystem::path shared = "/dev/shm";
    std::error_code none;
    const auto base = std::filesystem::is_directory(shared, none)
                          ? shared
                          : std::filesystem::temp_directory_path();
    path_ = base / ("tidepool-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(path_ / "memory/job");
    std::filesystem::create_directories(path_ / "job/step");
  }
  ~folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  [[nodiscard]] std::string path(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const folder files;
  auto rest = fuzz::text_of(data, size);
  for (const char* const name :
       {"meminfo", "cgroup", "job/step/memory.max", "job/step/memory.current",
        "job/step/memory.stat", "job/memory.max", "job/memory.high", "memory/memory.limit_in_bytes",
        "memory/memory.stat", "memory/job/memory.limit_in_bytes"}) {
    const auto end = rest.find("%%");
    files.write(name, rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
  }
  const std::string ranks(rest.substr(0, rest.find('\0')));
  for (const char* const name : {"LOCAL_WORLD_SIZE", "SLURM_TASKS_PER_NODE", "SLURM_NODEID"}) {
    setenv(name, ranks.c_str(), 1);
  }

  static_cast<void>(fuzz::accepted([&] {
    const host_files where{files.path("meminfo"), files.path("cgroup"), files.path(".")};
    const auto available = available_host_memory(where);
    fuzz::expect(launched_local_ranks() >= 1, "no rank at all");
    const auto most = std::max<std::size_t>(available, 1);  // 0 would be no limit
    fuzz::expect(host_budget({}, where) <= most, "the budget is above what there is");
  }));
  return 0;
}
