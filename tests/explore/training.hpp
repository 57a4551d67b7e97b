// Training programs, each in many of the orders that streams and events allow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>

#include "orders.hpp"
#include "search.hpp"

namespace explore {

/// Which programs there were.
struct training_tally {
  std::size_t schedules = 0;
  std::size_t operations = 0;
  std::size_t refused = 0;
  std::size_t moved = 0;
  std::size_t recomputed = 0;
  std::size_t to_peer = 0;
  std::size_t packed = 0;
  std::size_t counted = 0;
  std::set<std::string> distinct;

  void add(const training_tally& more) {
    schedules += more.schedules;
    operations += more.operations;
    refused += more.refused;
    moved += more.moved;
    recomputed += more.recomputed;
    to_peer += more.to_peer;
    packed += more.packed;
    counted += more.counted;
    distinct.insert(more.distinct.begin(), more.distinct.end());
  }
  void print(std::size_t programs, double seconds, unsigned threads) const {
    std::printf(
        "%zu schedules of %zu programs (%zu distinct, %zu offloaded, %zu packed, "
        "%zu with too many rows, %zu to a neighbour, %zu"
        " recomputed by plan, %zu met a budget), %.1f operations each, %.0f schedules a second on "
        "%u threads",
        schedules, programs, distinct.size(), moved, packed, counted, to_peer, recomputed, refused,
        static_cast<double>(operations) / static_cast<double>(programs),
        static_cast<double>(schedules) / seconds, threads);
  }
};

struct training {
  using program = explore::program;
  using runner = explore::runner;
  using tally = training_tally;
  static constexpr const char* word = "";

  [[nodiscard]] static program make(std::uint64_t seed) { return generator(seed).make(); }

  /// Runs a program in the order of the clock and in `schedules` others.
  [[nodiscard]] static outcome<tally> examine(const program& what,
                                              std::optional<tp::join_site> without,
                                              std::size_t schedules) {
    outcome<tally> result;
    runner trainer(what, without);
    trainer.run();
    const auto& seen = trainer.seen();
    result.problem = trainer.problem();
    auto& counts = result.counts;
    counts.refused = trainer.refused() > 0 ? 1 : 0;
    counts.moved = trainer.left() ? 1 : 0;
    counts.recomputed = trainer.recomputed() ? 1 : 0;
    counts.to_peer = trainer.to_peer() ? 1 : 0;
    counts.packed = what.packs && trainer.left() ? 1 : 0;
    counts.counted = trainer.overflows() > 0 ? 1 : 0;
    counts.schedules = 1;
    counts.operations = seen.ops().size();
    counts.distinct.insert(in_words(what));
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
      counts.schedules += ran;
    }
    for (; left > 0 && !result.problem; --left) {
      trainer.rewind();
      ++counts.schedules;
      if (!run_random(seen, what.seed * 1000003U + left)) {
        result.problem = {"deadlock", "every stream waits"};
      }
      judge("random");
    }
    return result;
  }

 private:
  static constexpr std::size_t small_program = 70;  // operations; systematic orders pay up to here

  [[nodiscard]] static std::string in_words(const program& what) {
    std::string words = tp::to_text(what.options) + std::to_string(what.peer_bytes) +
                        std::to_string(what.lent_bytes);
    for (const auto& each : what.actions) words += describe(each) + ";";
    return words;
  }
};

}  // namespace explore
