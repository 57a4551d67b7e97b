// A case of bench_step that runs out of memory is a row that says so, and what was measured before
// is in the file, whatever comes after.
#include "../../bench/step/turns.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../bench/step/report.cpp"

namespace {

constexpr int illegal_address = 700;

[[noreturn]] void fail(int code) { throw tidepool::device_error("cudaMalloc: it fails", code); }

// A contest without a device: a case takes 100 ms a turn, unless `turn` of it throws.
struct contest {
  struct entry {
    bench::case_result result;
    std::function<void()> turn = [] {};
    bool built = true;
  };
  std::vector<std::unique_ptr<entry>> entries;
  bench::results all;
  std::vector<nlohmann::json> files;  // as they were after each turn

  contest() {
    all.run.json = (std::filesystem::temp_directory_path() /
                    ("tidepool_turns_" + std::to_string(getpid()) + ".json"))
                       .string();
    add("none", bench::case_kind::none);
  }
  contest(const contest&) = delete;
  contest& operator=(const contest&) = delete;
  ~contest() { std::filesystem::remove(all.run.json); }

  entry& add(const char* name, bench::case_kind kind = bench::case_kind::offload) {
    auto& made = *entries.emplace_back(std::make_unique<entry>());
    made.result.plan.name = name;
    made.result.plan.kind = kind;
    return made;
  }
  void round(bool backwards = false) {
    bench::take_turns(
        entries, backwards, all,
        [](entry& each) {
          each.turn();
          each.result.steps.push_back({.whole = 100});
        },
        [](entry& each) { each.built = false; },
        [&] {
          REQUIRE(bench::write_files(all));
          files.push_back(file());
        });
  }
  [[nodiscard]] nlohmann::json file() const {
    return nlohmann::json::parse(std::ifstream(all.run.json))["cases"];
  }
};

std::size_t samples(const nlohmann::json& of) {
  return of.contains("samples") ? of["samples"].size() : 0;
}

}  // namespace

TEST_CASE("bench_step: a case that runs out of memory is a row, and the others are measured") {
  contest run;
  auto& full = run.add("arena 75%");
  full.turn = [] { fail(bench::out_of_memory); };
  auto& over_budget = run.add("arena 50%");
  over_budget.turn = [] { throw tidepool::out_of_budget("it is too small", 1, 1); };
  auto& refused = run.add("pool");
  refused.turn = [] { throw tidepool::misuse_error("it is refused"); };
  run.add("arena 100%");
  run.round();
  run.round(true);
  CHECK_FALSE(full.built);
  CHECK(run.entries.front()->built);
  const auto rows = bench::time_rows(run.all);
  REQUIRE(rows.size() == 6);
  for (const auto& row : rows) CHECK(row.size() == rows.front().size());
  CHECK(rows[1][1] == "100.00");
  CHECK(rows[2][0] == "arena 75%");
  CHECK(rows[2][1] == "out of memory");
  CHECK(rows[3][1] == "out of memory");
  CHECK(rows[4][1] == "does not run");
  CHECK(rows[5][1] == "100.00");
  const auto cases = run.file();
  CHECK(samples(cases[0]) == 2);
  CHECK(cases[1]["does_not_run"] == "cudaMalloc: it fails");
  CHECK(cases[1]["out_of_memory"] == true);
  CHECK(cases[3]["out_of_memory"] == false);
  CHECK(samples(cases[1]) == 0);
  CHECK(samples(cases[4]) == 2);
}

TEST_CASE("bench_step: what was measured is in the file after each turn, and when a device fails") {
  contest run;
  run.add("arena 75%");
  auto& broken = run.add("arena 50%");
  broken.turn = [&run] {
    if (run.files.size() == 5) fail(illegal_address);
  };
  run.round();
  REQUIRE(run.files.size() == 3);
  CHECK(samples(run.files[0][0]) == 1);
  CHECK_FALSE(run.files[0][1].contains("does_not_run"));  // its turn is to come
  CHECK(samples(run.files[0][1]) == 0);
  CHECK(samples(run.files[1][1]) == 1);
  CHECK_THROWS_AS(run.round(), tidepool::device_error);
  CHECK(samples(run.file()[1]) == 2);
  CHECK(samples(run.file()[2]) == 1);
}

TEST_CASE("bench_step: a case that runs out of memory later keeps what it has") {
  contest run;
  auto& later = run.add("arena 75%");
  run.round();
  later.turn = [] { fail(bench::out_of_memory); };
  run.round();
  run.round();
  CHECK(bench::time_rows(run.all)[2][1] == "100.00");
  CHECK(samples(run.file()[1]) == 1);
  CHECK(run.file()[1]["out_of_memory"] == true);
  CHECK(samples(run.file()[0]) == 3);
}

TEST_CASE("bench_step: without a case that nothing leaves in, nothing is compared with it") {
  contest run;
  run.entries.front()->turn = [] { fail(bench::out_of_memory); };
  run.add("arena 75%");
  run.round();
  CHECK(bench::time_rows(run.all)[2][3] == "-");
  CHECK_FALSE(run.file()[1].contains("overhead_percent_over_none"));
}
