// explore: runs generated training programs on the virtual device under the orders that streams and
// events allow, looks for races and wrong data, and makes what it finds short.
//
//   explore --schedules N [--programs P] [--seed S] [--threads T]   search
//   explore --drop-joins                                           leave out each join in turn
//   explore --program SEED [--keep 0,3,…] [--without JOIN]         run one program and show it
//   explore --stress …                                             the same with stress programs,
//                                                                  in one order each
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "stress.hpp"
#include "training.hpp"

namespace {

using namespace explore;

/// Leaves out each join in turn until some program goes wrong.
int drop_joins(const settings& run) {
  constexpr const char* words[]{"an offload waits for the kernel that wrote its source",
                                "compute waits until the last user of a device block has ended",
                                "a reload waits until the last user of a device block has ended",
                                "an offload waits until the reload out of its host block has ended",
                                "a reload waits for the offload of the same storage",
                                "compute waits for the reload of what it reads",
                                "compute waits because too many offloads are in flight",
                                "a graph waits for what all streams were given before it",
                                "eager work waits for the graphs before it",
                                "both copy streams enter a capture",
                                "both copy streams are joined before a capture ends",
                                "eager work after a capture waits for eager work before it",
                                "a stream that is new after a capture waits for what came before"};
  static_assert(std::size(words) == static_cast<std::size_t>(tp::join_site::count));
  const auto limit = run.programs > 0 ? run.programs : 20000;
  int missed = 0;
  std::printf("%-14s %-66s %9s  %s\n", "join", "in words", "programs", "violated");
  for (std::size_t s = 0; s < std::size(words); ++s) {
    const auto site = static_cast<tp::join_site>(s);
    std::string violated = "NEVER CAUGHT";
    std::size_t tried = 0;
    while (tried < limit) {
      const auto what = training::make(run.seed + tried++);
      if (const auto result = training::examine(what, site, 20); result.problem) {
        violated = result.problem.kind;
        break;
      }
    }
    missed += violated == "NEVER CAUGHT" ? 1 : 0;
    std::printf("%-14.*s %-66s %9zu  %s\n", static_cast<int>(name_of(site).size()),
                name_of(site).data(), words[s], tried, violated.c_str());
    std::fflush(stdout);
  }
  std::printf("%zu joins, %d never caught\n", std::size(words), missed);
  return missed == 0 ? 0 : 1;
}

std::optional<tp::join_site> site_of(const std::string& name) {
  for (std::size_t s = 0; s < static_cast<std::size_t>(tp::join_site::count); ++s) {
    if (name_of(static_cast<tp::join_site>(s)) == name) return static_cast<tp::join_site>(s);
  }
  return {};
}

int usage(const char* problem) {
  std::fprintf(stderr,
               "explore: %s\n"
               "explore [--schedules N] [--programs P] [--seed S] [--threads T] [--without JOIN]\n"
               "explore --drop-joins [--programs P] [--seed S]\n"
               "explore --program SEED [--keep 0,3,...] [--without JOIN]\n"
               "explore --stress [--programs P] [--seed S] [--threads T] [--without JOIN]\n"
               "explore --stress --program SEED [--keep 0,3,...] [--without JOIN]\n",
               problem);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  settings run;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--drop-joins") {
      run.drop_joins = true;
      continue;
    }
    if (word == "--stress") {
      run.stress = true;
      continue;
    }
    if (i + 1 == argc) return usage(("no value for " + word).c_str());
    const std::string value = argv[++i];
    const auto number = std::strtoull(value.c_str(), nullptr, 10);
    if (word == "--schedules") {
      run.schedules = number;
    } else if (word == "--programs") {
      run.programs = number;
    } else if (word == "--seed") {
      run.seed = number;
    } else if (word == "--threads") {
      run.threads = static_cast<unsigned>(std::max(1ULL, number));
    } else if (word == "--program") {
      run.only = number;
    } else if (word == "--without") {
      run.without = site_of(value);
      if (!run.without) return usage(("no join is called " + value).c_str());
    } else if (word == "--keep") {
      run.keep.emplace();
      std::stringstream list(value);
      for (std::string item; std::getline(list, item, ',');) {
        run.keep->push_back(std::strtoull(item.c_str(), nullptr, 10));
      }
    } else {
      return usage(("unknown option " + word).c_str());
    }
  }
  if (run.drop_joins) return drop_joins(run);
  if (run.stress) {
    if (run.only) return again<stress::stressing>(run);
    return search<stress::stressing>(run, run.programs > 0 ? run.programs : 1000, 1);
  }
  if (run.only) return again<training>(run);
  const auto programs = run.programs > 0 ? run.programs : (run.schedules + 199) / 200;
  return search<training>(run, programs, std::max<std::size_t>(1, run.schedules / programs));
}
