// What the options --summary, --trace-step and --trace-to ask for: files, their contents, refusals.
#include "tidepool/trace/output.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "refusal.hpp"
#include "rig.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/parse.hpp"

namespace tidepool {
namespace {

using test::check_says;
using test::refusal;
using test::rig;
using test::small_options;

constexpr std::size_t size = 4096;

// A folder of its own, and no launcher's variables, whoever runs the tests.
class folder {
 public:
  folder() {
    std::filesystem::create_directory(path_);
    for (const auto* each : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                             "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}) {
      unsetenv(each);
    }
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() {
    unsetenv("RANK");
    std::filesystem::remove_all(path_);
  }

  [[nodiscard]] std::string in(const std::string& name) const { return path_ / name; }
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator(path_)) {
      names.insert(each.path().filename());
    }
    return names;
  }
  [[nodiscard]] std::string text(const std::string& name) const {
    std::ifstream file(in(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("tidepool_output_test." + std::to_string(getpid()));
};

struct outcome {
  std::string printed;
  std::vector<std::string> reports;
  std::vector<trace::record> seen;
};

using offloader_type = rig::offloader<modules<"core_attn">>;

// A step with two saved tensors.
void train_step(rig& desk, offloader_type& off) {
  auto pass = off.begin();
  rig::buffer saved[2];
  for (int layer = 0; layer < 2; ++layer) {
    saved[layer] = off.allocate(size, desk.stream());
    desk.write(saved[layer], 7, 5000);
    pass.commit<"core_attn">(layer, desk.stream(), saved[layer]);
  }
  pass.end_forward();
  for (int layer = 1; layer >= 0; --layer) {
    pass.restore<"core_attn">(layer, desk.stream(), saved[layer]);
    desk.check(saved[layer], 7);
    saved[layer].reset(desk.stream());
  }
  pass.finish();
  off.end_step();
}

// Trains so many steps.
outcome train(const options& opts, int steps, bool watches = false) {
  outcome result;
  std::ostringstream out;
  rig desk;
  {
    auto look = [&](const trace::record& step) { result.seen.push_back(step); };
    offloader_type off(desk.dev, opts,
                       {.output = watches ? trace_output(out, look) : trace_output(out)});
    off.on_report([&](std::string_view line) { result.reports.emplace_back(line); });
    for (int step = 0; step < steps; ++step) train_step(desk, off);
  }
  result.printed = out.str();
  return result;
}

options asked(const std::string& text) { return parse_options(text, small_options({"core_attn"})); }

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_CASE("three chosen steps become files, and no other step does") {
  const folder here;
  const auto told = train(asked("--trace-step=1,3,4 --trace-to=" + here.in("run")), 5);
  CHECK(here.files() == std::set<std::string>{"run-1.json", "run-1.html", "run-3.json",
                                              "run-3.html", "run-4.json", "run-4.html"});
  REQUIRE(told.reports.size() == 6);
  CHECK(told.reports.front() == "tidepool: wrote " + here.in("run-1.json"));
  CHECK(told.printed.empty());
  for (const std::string step : {"1", "3", "4"}) {
    CAPTURE(step);
    const auto json = here.text("run-" + step + ".json");
    CHECK(count(json, "\"step " + step + "\"") > 0);
    const auto page = here.text("run-" + step + ".html");
    CHECK(count(page, "step " + step) > 0);
    CHECK(count(page, "--trace-step=1,3-4") > 0);  // the options, as in `to_text`
  }
}

TEST_CASE("a recorded step has the work of this step alone") {
  const folder here;
  const auto told = train(asked("--trace-step=2-3"), 4, true);
  REQUIRE(told.seen.size() == 2);
  CHECK(told.seen[0].title == "step 2");
  CHECK(told.seen[1].title == "step 3");
  for (const auto& step : told.seen) {
    std::size_t offloads = 0, reloads = 0;
    for (const auto& span : step.spans) {
      offloads += span.kind == trace::span_kind::offload ? 1 : 0;
      reloads += span.kind == trace::span_kind::reload ? 1 : 0;
    }
    CHECK(offloads == 2);
    CHECK(reloads == 2);
    CHECK(step.passes.size() == 2);
  }
  CHECK(here.files().empty());  // no name for files was given
}

TEST_CASE("the summary stands at the end, with the stalls of the last recorded step") {
  const folder here;
  const auto plain = train(asked("--summary"), 2).printed;
  CHECK(plain.starts_with("Tidepool, 2 steps\n"));
  CHECK(count(plain, "core_attn") == 1);
  const auto both = train(asked("--summary --trace-step=2 --trace-to=" + here.in("a")), 2).printed;
  CHECK(count(both, "stall") > count(plain, "stall"));
  CHECK(train(asked(""), 2).printed.empty());
}

TEST_CASE("a step that the training did not reach is named") {
  const folder here;
  const auto told = train(asked("--trace-step=2,12 --trace-to=" + here.in("a")), 3);
  CHECK(told.printed ==
        "tidepool: --trace-step: step 12 was not recorded, because the training ended after 3"
        " steps\n");
  CHECK(here.files().size() == 2);
}

TEST_CASE("a step that begins inside a capture is not recorded, and the capture holds") {
  const folder here;
  rig desk;
  std::ostringstream out;
  std::vector<std::string> reports;
  offloader_type off(desk.dev, asked("--trace-step=3 --trace-to=" + here.in("a")),
                     {.output = trace_output(out)});
  off.on_report([&](std::string_view line) { reports.emplace_back(line); });
  train_step(desk, off);
  auto graph = off.capture(desk.stream(), [&] { train_step(desk, off); });
  for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
  desk.dev.synchronize();
  CHECK(desk.wrong() == 0);
  REQUIRE(reports.size() == 1);
  check_says(reports[0], {"step 3 is not recorded, because it begins inside a capture"});
  const auto traced = [&] { off.start_trace("step", desk.stream()); };
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), traced)), misuse_error);
}

TEST_CASE("ranks write files of their own") {
  const folder here;
  setenv("RANK", "3", 1);
  const auto told = train(asked("--summary --trace-step=1 --trace-to=" + here.in("run")), 1);
  CHECK(here.files() == std::set<std::string>{"run-rank3-1.json", "run-rank3-1.html"});
  CHECK(told.printed.starts_with("Tidepool, rank 3, 1 step\n"));
}

TEST_CASE("offloaders that live at the same time write files of their own") {
  const folder here;
  const auto opts = asked("--trace-step=1 --trace-to=" + here.in("run"));
  const std::set<std::string> of_second{"run-offloader2-1.html", "run-offloader2-1.json"};
  auto all = of_second;
  {
    std::ostringstream out;
    rig desk;
    rig::offloader<modules<"core_attn">> first(desk.dev, opts, {.output = trace_output(out)});
    train(opts, 1);
    all.insert("run.lock");
    CHECK(here.files() == all);
    first.end_step();
  }
  all.erase("run.lock");
  all.insert({"run-1.html", "run-1.json"});
  CHECK(here.files() == all);
  train(opts, 1);  // the names are free again
  CHECK(here.files() == all);
}

TEST_CASE("the environment asks, too") {
  const folder here;
  const auto prefix = here.in("env");
  const auto lookup = [&](const char* name) -> const char* {
    if (std::string_view(name) == "TIDEPOOL_SUMMARY") return "1";
    if (std::string_view(name) == "TIDEPOOL_TRACE_STEP") return "2";
    if (std::string_view(name) == "TIDEPOOL_TRACE_TO") return prefix.c_str();
    return nullptr;
  };
  const auto told = train(from_environment(small_options({"core_attn"}), lookup), 2);
  CHECK(here.files() == std::set<std::string>{"env-2.json", "env-2.html"});
  CHECK(told.printed.starts_with("Tidepool, 2 steps\n"));
}

TEST_CASE("what cannot be written is refused before any work, with the remedy") {
  const folder here;
  check_says(refusal([] { train(asked("--trace-step=2"), 1); }),
             {"--trace-step=2", "no name", "add --trace-to=PREFIX"});
  check_says(refusal([] { train(asked("--trace-to=a"), 1); }),
             {"--trace-to=a", "no step", "add --trace-step=12"});
  check_says(refusal([&] { train(asked("--trace-step=2 --trace-to=" + here.in("none/a")), 1); }),
             {"--trace-to=", "none/a", "cannot be written", "a folder that exists"});
  check_says(refusal([] { asked("--trace-step=0 --trace-to=a"); }),
             {"'0'", "steps begin at 1", "give steps from 1 on"});
  check_says(refusal([] { asked("--trace-step=twelve --trace-to=a"); }),
             {"'twelve'", "whole number", "give steps from 1 on"});
  check_says(refusal([] { asked("--trace-step=9-3 --trace-to=a"); }), {"runs backwards"});
  check_says(refusal([] {
               options opts = small_options({"core_attn"});
               opts.trace_to = "a b";
               static_cast<void>(parse_options(std::vector<std::string>{"--trace-to=a b"}, opts));
             }),
             {"'a b'", "blank", "without blanks"});
  check_says(refusal([] {
               options opts = small_options({"core_attn"});
               opts.trace_step = {0};
               opts.trace_to = "a";
               train(opts, 1);
             }),
             {"--trace-step=0", "from 1"});
  CHECK(here.files().empty());
}

TEST_CASE("a trainer that writes nothing refuses the options") {
  rig desk;
  for (const std::string text : {"--summary", "--trace-step=2 --trace-to=a", "--trace-to=a"}) {
    CAPTURE(text);
    check_says(refusal([&] { rig::offloader<> off(desk.dev, asked(text)); }),
               {"--summary, --trace-step, --trace-to", "tidepool/trace/output.hpp",
                "tidepool::trace_output()", "take the options out"});
  }
}

TEST_CASE("a file that cannot be written is reported, and the training goes on") {
  const folder here;
  std::filesystem::create_directory(here.in("run-2.json"));  // no file can take this name
  const auto told = train(asked("--trace-step=2 --trace-to=" + here.in("run")), 4);
  CHECK(here.files() == std::set<std::string>{"run-2.json", "run-2.html"});
  REQUIRE(told.reports.size() == 2);
  check_says(told.reports[0], {"run-2.json could not be written"});
  check_says(told.reports[1], {"wrote", "run-2.html"});
}

}  // namespace
}  // namespace tidepool
