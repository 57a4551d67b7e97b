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

struct row {
  tp::join_site site;
  const char* words;
};

constexpr row rows[]{
    {tp::join_site::producer, "an offload waits for the kernel that wrote its source"},
    {tp::join_site::device_reuse, "compute waits until the last user of a device block has ended"},
    {tp::join_site::reload_reuse, "a reload waits until the last user of a device block has ended"},
    {tp::join_site::host_reuse,
     "an offload waits until the reload out of its host block has ended"},
    {tp::join_site::own_offload, "a reload waits for the offload of the same storage"},
    {tp::join_site::unpack, "a kernel that unpacks waits for the copy of what it reads"},
    {tp::join_site::consumer, "compute waits for the reload of what it reads"},
    {tp::join_site::cap, "compute waits because too many offloads are in flight"},
    {tp::join_site::launch, "a graph waits for what all streams were given before it"},
    {tp::join_site::after_launch, "eager work waits for the graphs before it"},
    {tp::join_site::fork, "all copy streams enter a capture"},
    {tp::join_site::join_back, "all copy streams are joined before a capture ends"},
    {tp::join_site::after_capture, "eager work after a capture waits for eager work before it"},
    {tp::join_site::new_stream, "a stream that is new after a capture waits for what came before"},
    {tp::join_site::borrow, "who gets memory of a trainer's allocator waits for its stream"},
    {tp::join_site::give_back, "an owner's stream waits for the last use of its memory"},
    {tp::join_site::peer_reuse,
     "an offload waits until the reload out of its neighbour's block has ended"},
    {tp::join_site::row_count, "the host waits for the copies of counts before it reads them"}};

/// Waits of the host, which runs nothing again in another order: unit.engine sees the wrong words,
/// unit.checked names the pair.
constexpr tp::join_site of_the_host[]{tp::join_site::file_write, tp::join_site::file_reuse};

/// Whether a checked device has named the join, where there is one. The cap orders no accesses. Of
/// some joins the pair is found, and the report names what would order such a pair elsewhere: with
/// no capture between the two, or where an owner did not use its memory in between.
bool has_named([[maybe_unused]] const violation& what, [[maybe_unused]] tp::join_site site) {
#if defined(TIDEPOOL_EXPLORE_CHECKED)
  if (site == tp::join_site::cap) return true;
  if (site == tp::join_site::after_capture || site == tp::join_site::new_stream ||
      site == tp::join_site::borrow) {
    return what.named != 0;
  }
  return (what.named >> static_cast<unsigned>(site) & 1U) != 0;
#else
  return true;
#endif
}

/// Leaves out each join that there is in turn until some program goes wrong. One without a row is
/// one that nobody has thought of here.
int drop_joins(const settings& run) {
  constexpr auto count = static_cast<std::size_t>(tp::join_site::count);
  const auto limit = run.programs > 0 ? run.programs : 20000;
  int missed = 0;
  std::size_t left = 0;
  std::printf("%-14s %-66s %9s  %s\n", "join", "in words", "programs", "violated");
  for (std::size_t s = 0; s < count; ++s) {
    const auto site = static_cast<tp::join_site>(s);
    if (std::ranges::find(of_the_host, site) != std::end(of_the_host)) continue;
    ++left;
    const auto* const found = std::ranges::find(rows, site, &row::site);
    const bool known = found != std::end(rows);
    std::string violated = known ? "NEVER CAUGHT" : "NO ROW";
    ++missed;
    std::size_t tried = 0;
    while (known && tried < limit) {
      const auto what = training::make(run.seed + tried++);
      const auto result = training::examine(what, site, 20);
      if (result.problem && has_named(result.problem, site)) {
        violated = result.problem.kind;
        --missed;
        break;
      }
    }
    std::printf("%-14.*s %-66s %9zu  %s\n", static_cast<int>(name_of(site).size()),
                name_of(site).data(), known ? found->words : "", tried, violated.c_str());
    std::fflush(stdout);
  }
  std::printf("%zu joins, %d never caught or without a row\n", left, missed);
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
