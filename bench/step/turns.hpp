/// Cases in turns: one that does not fit is told so and left out, and nothing is lost by it.
#pragma once

#include <cstddef>
#include <memory>
#include <tidepool/error.hpp>
#include <vector>

#include "results.hpp"

namespace bench {

/// `cudaErrorMemoryAllocation`; after it a device goes on as before.
inline constexpr int out_of_memory = 2;

/// False where `work` has no room on the device or the host, or is refused; `into` then says why.
/// Throws what else the device says, since nothing can be measured on it any more.
template <class Work>
[[nodiscard]] bool attempt(case_result& into, const Work& work) {
  try {
    work();
    return true;
  } catch (const tidepool::device_error& problem) {
    if (problem.code != out_of_memory) throw;
    into.failure = problem.what();
    into.full = true;
  } catch (const tidepool::out_of_budget& problem) {
    into.failure = problem.what();
    into.full = true;
  } catch (const tidepool::error& problem) {
    into.failure = problem.what();
  }
  return false;
}

/// `work` with each entry that runs, from the last to the first where `backwards`; `give_up` with
/// one for which that failed. After each, `into` has the results of all so far, and `keep` is
/// called.
template <class Entry, class Work, class Give, class Keep>
void take_turns(const std::vector<std::unique_ptr<Entry>>& entries, bool backwards, results& into,
                const Work& work, const Give& give_up, const Keep& keep) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& each = *entries[backwards ? entries.size() - 1 - i : i];
    if (!each.result.failure.empty()) continue;
    if (!attempt(each.result, [&] { work(each); })) give_up(each);
    into.cases.clear();
    for (const auto& other : entries) into.cases.push_back(other->result);
    keep();
  }
}

}  // namespace bench
