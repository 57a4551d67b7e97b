// explore: runs generated training programs on the virtual device under the orders that streams and
// events allow, looks for races and wrong data, and makes what it finds short.
//
//   explore --schedules N [--programs P] [--seed S] [--threads T]   search
//   explore --drop-joins                                           leave out each join in turn
//   explore --program SEED [--keep 0,3,…] [--without JOIN]         run one program and show it
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "orders.hpp"
#include "runner.hpp"

namespace {

using namespace explore;

struct settings {
  std::size_t schedules = 20000;
  std::size_t programs = 0;  // 0: one for each 200 schedules
  std::uint64_t seed = 1;
  unsigned threads = 1;
  bool drop_joins = false;
  std::optional<std::uint64_t> only;
  std::optional<std::vector<std::size_t>> keep;
  std::optional<tp::join_site> without;
};

struct outcome {
  violation problem;
  std::size_t schedules = 0;
  bool refused = false;
  bool moved = false;
  bool recomputed = false;
  std::size_t operations = 0;
};

constexpr std::size_t small_program = 70;  // operations; systematic orders pay up to here

/// Runs a program in the order of the clock and in `schedules` others.
outcome examine(const program& what, std::optional<tp::join_site> without, std::size_t schedules) {
  outcome result;
  runner trainer(what, without);
  trainer.run();
  result.problem = trainer.problem();
  result.refused = trainer.refused() > 0;
  result.moved = trainer.left();
  result.recomputed = trainer.recomputed();
  result.schedules = 1;
  const auto& seen = trainer.seen();
  result.operations = seen.ops().size();
  if (result.problem || seen.ops().empty()) return result;
  const auto judge = [&](const char* which) {
    if (trainer.wrong() == 0 || result.problem) return;
    result.problem = {
        "content", std::string("wrong words in a ") + which + " order, though no race was found"};
  };
  std::size_t left = schedules > 0 ? schedules - 1 : 0;
  if (seen.ops().size() <= small_program) {
    systematic all(seen, 2, left / 2);
    const auto ran = all.run([&] { trainer.rewind(); }, [&] { judge("systematic"); });
    left -= std::min(left, ran);
    result.schedules += ran;
  }
  for (; left > 0 && !result.problem; --left) {
    trainer.rewind();
    ++result.schedules;
    if (!run_random(seen, what.seed * 1000003U + left)) {
      result.problem = {"deadlock", "every stream waits"};
    }
    judge("random");
  }
  return result;
}

/// The shortest list of actions that still goes wrong in the same way.
std::vector<std::size_t> shrunk(const program& what, std::optional<tp::join_site> without,
                                const std::string& kind) {
  std::vector<std::size_t> kept(what.actions.size());
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  const auto fails = [&](const std::vector<std::size_t>& some) {
    auto shorter = what;
    shorter.actions.clear();
    for (const auto i : some) shorter.actions.push_back(what.actions[i]);
    return examine(shorter, without, 40).problem.kind == kind;
  };
  for (std::size_t part = (kept.size() + 1) / 2; part > 0;) {
    bool any = false;
    for (std::size_t from = 0; from < kept.size();) {
      auto some = kept;
      const auto begin = some.begin() + static_cast<std::ptrdiff_t>(from);
      some.erase(begin, begin + static_cast<std::ptrdiff_t>(std::min(part, kept.size() - from)));
      if (fails(some)) {
        kept = std::move(some);
        any = true;
      } else {
        from += part;
      }
    }
    if (!any || part == 1) {
      if (part == 1 && !any) break;
      part = part == 1 ? 1 : part / 2;
    }
  }
  return kept;
}

program with_only(program what, const std::vector<std::size_t>& keep) {
  const auto all = std::move(what.actions);
  what.actions.clear();
  for (const auto i : keep) {
    if (i < all.size()) what.actions.push_back(all[i]);
  }
  return what;
}

void show(const program& what, std::optional<tp::join_site> without, bool all_operations) {
  std::printf("program %llu: %s\n", static_cast<unsigned long long>(what.seed),
              tp::to_text(what.options).c_str());
  for (std::size_t i = 0; i < what.actions.size(); ++i) {
    std::printf("  %s\n", describe(what.actions[i]).c_str());
  }
  runner trainer(what, without);
  trainer.run();
  const auto& seen = trainer.seen();
  if (all_operations || seen.first_race()) {
    const auto last = seen.first_race() ? seen.first_race()->second + 1 : seen.ops().size();
    std::printf("issued:\n");
    for (std::size_t i = 0; i < last; ++i) {
      const bool of_race =
          seen.first_race() && (i == seen.first_race()->first || i == seen.first_race()->second);
      std::printf("  %s %s\n", of_race ? "!" : " ", describe(seen.ops()[i]).c_str());
    }
  }
}

void report(const program& what, std::optional<tp::join_site> without, const violation& problem) {
  const auto kept = shrunk(what, without, problem.kind);
  std::printf("\n%s in program %llu: %s\nshortest form, %zu of %zu actions:\n",
              problem.kind.c_str(), static_cast<unsigned long long>(what.seed),
              problem.words.c_str(), kept.size(), what.actions.size());
  const auto shortest = with_only(what, kept);
  show(shortest, without, false);
  std::printf("again: explore --program %llu --keep ", static_cast<unsigned long long>(what.seed));
  for (std::size_t i = 0; i < kept.size(); ++i) std::printf(i > 0 ? ",%zu" : "%zu", kept[i]);
  if (without)
    std::printf(" --without %.*s", static_cast<int>(name_of(*without).size()),
                name_of(*without).data());
  std::printf("\n");
}

int search(const settings& run) {
  const auto programs = run.programs > 0 ? run.programs : (run.schedules + 199) / 200;
  const auto each = std::max<std::size_t>(1, run.schedules / programs);
  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> schedules = 0;
  std::atomic<std::size_t> refused = 0;
  std::atomic<std::size_t> moved = 0;
  std::atomic<std::size_t> recomputed = 0;
  std::atomic<std::size_t> operations = 0;
  std::atomic<int> violations = 0;
  std::mutex printing;
  std::set<std::string> distinct;
  const auto begin = std::chrono::steady_clock::now();
  const auto work = [&] {
    for (std::size_t i = next++; i < programs && violations < 5; i = next++) {
      const auto what = generator(run.seed + i).make();
      const auto result = examine(what, run.without, each);
      schedules += result.schedules;
      operations += result.operations;
      refused += result.refused ? 1 : 0;
      moved += result.moved ? 1 : 0;
      recomputed += result.recomputed ? 1 : 0;
      std::string words = tp::to_text(what.options);
      for (const auto& action : what.actions) words += describe(action) + ";";
      const std::lock_guard hold(printing);
      distinct.insert(std::move(words));
      if (!result.problem) continue;
      ++violations;
      report(what, run.without, result.problem);
    }
  };
  std::vector<std::thread> crew;
  for (unsigned t = 1; t < run.threads; ++t) crew.emplace_back(work);
  work();
  for (auto& each_thread : crew) each_thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf(
      "%zu schedules of %zu programs (%zu distinct, %zu offloaded, %zu recomputed by plan, %zu met "
      "a"
      " budget), %.1f operations each, %.0f schedules a second on %u threads: %d violations\n",
      schedules.load(), programs, distinct.size(), moved.load(), recomputed.load(), refused.load(),
      static_cast<double>(operations.load()) / static_cast<double>(programs),
      static_cast<double>(schedules.load()) / took.count(), run.threads, violations.load());
  return violations == 0 ? 0 : 1;
}

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
      const auto what = generator(run.seed + tried++).make();
      if (const auto result = examine(what, site, 20); result.problem) {
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
               "explore --program SEED [--keep 0,3,...] [--without JOIN]\n",
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
  if (!run.only) return search(run);
  auto what = generator(*run.only).make();
  if (run.keep) what = with_only(std::move(what), *run.keep);
  show(what, run.without, true);
  const auto result = examine(what, run.without, run.schedules);
  if (!result.problem) std::printf("%zu schedules, nothing wrong\n", result.schedules);
  if (result.problem) {
    std::printf("%s: %s\n", result.problem.kind.c_str(), result.problem.words.c_str());
  }
  return result.problem ? 1 : 0;
}
