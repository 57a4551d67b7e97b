// Searches generated programs of one kind for one that goes wrong, and makes what it finds short.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner.hpp"

namespace explore {

struct settings {
  std::size_t schedules = 20000;
  std::size_t programs = 0;  // 0: what suits the kind
  std::uint64_t seed = 1;
  unsigned threads = 1;
  bool drop_joins = false;
  bool stress = false;
  std::optional<std::uint64_t> only;
  std::optional<std::vector<std::size_t>> keep;
  std::optional<tp::join_site> without;
};

// A kind of programs has
//   program                          with `seed`, `options` and `actions`
//   runner                           runs one and keeps what it issued
//   tally                            `add`s what `examine` says of each, and `print`s it
//   word                             how it is asked for
//   make(seed)
//   examine(program, left-out join, schedules) → outcome

/// What became of one program.
template <class Tally>
struct outcome {
  violation problem;
  Tally counts;
};

/// Indices of the shortest list of actions that still goes wrong in the same way.
template <class Kind>
std::vector<std::size_t> shrunk(const typename Kind::program& what,
                                std::optional<tp::join_site> without, const std::string& kind) {
  std::vector<std::size_t> kept(what.actions.size());
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  const auto fails = [&](const std::vector<std::size_t>& some) {
    auto shorter = what;
    shorter.actions.clear();
    for (const auto i : some) shorter.actions.push_back(what.actions[i]);
    return Kind::examine(shorter, without, 40).problem.kind == kind;
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

template <class Program>
Program with_only(Program what, const std::vector<std::size_t>& keep) {
  const auto all = std::move(what.actions);
  what.actions.clear();
  for (const auto i : keep) {
    if (i < all.size()) what.actions.push_back(all[i]);
  }
  return what;
}

template <class Kind>
void show(const typename Kind::program& what, std::optional<tp::join_site> without,
          bool all_operations) {
  std::printf("program %llu: %s\n", static_cast<unsigned long long>(what.seed),
              tp::to_text(what.options).c_str());
  for (const auto& each : what.actions) std::printf("  %s\n", describe(each).c_str());
  typename Kind::runner trainer(what, without);
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

template <class Kind>
void report(const typename Kind::program& what, std::optional<tp::join_site> without,
            const violation& problem) {
  const auto kept = shrunk<Kind>(what, without, problem.kind);
  std::printf("\n%s in program %llu: %s\nshortest form, %zu of %zu actions:\n",
              problem.kind.c_str(), static_cast<unsigned long long>(what.seed),
              problem.words.c_str(), kept.size(), what.actions.size());
  show<Kind>(with_only(what, kept), without, false);
  std::printf("again: explore %s--program %llu --keep ", Kind::word,
              static_cast<unsigned long long>(what.seed));
  for (std::size_t i = 0; i < kept.size(); ++i) std::printf(i > 0 ? ",%zu" : "%zu", kept[i]);
  if (without)
    std::printf(" --without %.*s", static_cast<int>(name_of(*without).size()),
                name_of(*without).data());
  std::printf("\n");
}

/// Stops at the fifth program that goes wrong.
template <class Kind>
int search(const settings& run, std::size_t programs, std::size_t schedules) {
  std::atomic<std::size_t> next = 0;
  std::atomic<int> violations = 0;
  std::mutex printing;
  typename Kind::tally total;
  const auto begin = std::chrono::steady_clock::now();
  const auto work = [&] {
    for (std::size_t i = next++; i < programs && violations < 5; i = next++) {
      const auto what = Kind::make(run.seed + i);
      const auto result = Kind::examine(what, run.without, schedules);
      const std::lock_guard hold(printing);
      total.add(result.counts);
      if (!result.problem) continue;
      ++violations;
      report<Kind>(what, run.without, result.problem);
    }
  };
  std::vector<std::thread> crew;
  for (unsigned t = 1; t < run.threads; ++t) crew.emplace_back(work);
  work();
  for (auto& each : crew) each.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  total.print(programs, took.count(), run.threads);
  std::printf(": %d violations\n", violations.load());
  return violations == 0 ? 0 : 1;
}

/// Runs one program and shows it.
template <class Kind>
int again(const settings& run) {
  auto what = Kind::make(*run.only);
  if (run.keep) what = with_only(std::move(what), *run.keep);
  show<Kind>(what, run.without, true);
  const auto result = Kind::examine(what, run.without, run.schedules);
  if (!result.problem) std::printf("%zu schedules, nothing wrong\n", result.counts.schedules);
  if (result.problem) {
    std::printf("%s: %s\n", result.problem.kind.c_str(), result.problem.words.c_str());
  }
  return result.problem ? 1 : 0;
}

}  // namespace explore
