// Stress programs, each in one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "search.hpp"
#include "stress_runner.hpp"

namespace explore::stress {

/// What the programs came to.
struct tally {
  std::size_t schedules = 0;
  std::size_t copies = 0;
  std::size_t launches = 0;
  std::size_t failed = 0;
  std::size_t refused = 0;

  void add(const tally& more) {
    schedules += more.schedules;
    copies += more.copies;
    launches += more.launches;
    failed += more.failed;
    refused += more.refused;
  }
  void print(std::size_t programs, double seconds, unsigned threads) const {
    std::printf(
        "%zu stress programs (%zu copies, %zu launches of graphs, %zu calls that failed, %zu that"
        " met a budget), %.0f programs a second on %u threads",
        programs, copies, launches, failed, refused, static_cast<double>(programs) / seconds,
        threads);
  }
};

/// The vector clocks judge every order at once; the content is that of one.
struct stressing {
  using program = stress::program;
  using runner = stress::runner;
  using tally = stress::tally;
  static constexpr const char* word = "--stress ";

  [[nodiscard]] static program make(std::uint64_t seed) { return generator(seed).make(); }

  [[nodiscard]] static outcome<tally> examine(const program& what,
                                              std::optional<tp::join_site> without,
                                              std::size_t /*schedules*/) {
    runner trainer(what, without);
    trainer.run();
    return {trainer.problem(),
            {1, trainer.copies(), trainer.launches(), trainer.failed(), trainer.refused()}};
  }
};

}  // namespace explore::stress
