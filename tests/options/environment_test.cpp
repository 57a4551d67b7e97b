// Options from the environment, and which source goes before which.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "refusal.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/parse.hpp"

namespace tidepool {
namespace {

using test::check_says;
using test::refusal;
using names = std::vector<std::string>;
using variables = std::map<std::string, std::string>;

options read(const variables& environment, options base = {}) {
  return from_environment(std::move(base), [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string refused(const variables& environment) {
  return refusal([&] { static_cast<void>(read(environment)); });
}

TEST_CASE("an empty environment leaves the base as it is") {
  options base;
  base.max_inflight = 4;
  CHECK(read({}, base) == base);
}

TEST_CASE("variables have the names and the forms of the flags") {
  CHECK(read({{"TIDEPOOL_OFFLOAD_MODULES", "core_attn,moe_act"}}).offload_modules ==
        names{"core_attn", "moe_act"});
  CHECK(read({{"TIDEPOOL_OFFLOAD_MODULES", " core_attn moe_act\n"}}).offload_modules ==
        names{"core_attn", "moe_act"});
  CHECK(read({{"TIDEPOOL_MAX_INFLIGHT", "2,core_attn:1"}}) ==
        parse_options("--max-inflight=2,core_attn:1"));
  CHECK(read({{"TIDEPOOL_MARGIN", "0"}}).margin == false);
  CHECK(read({{"TIDEPOOL_DEVICE_BUDGET", "8GiB"}}) == parse_options("--device-budget=8GiB"));
  CHECK(read({{"TIDEPOOL_OFFLOAD_FRACTION", "0.5"}}).fraction == 0.5);
}

TEST_CASE("every option has its variable") {
  const options other = parse_options(
      "--offload-modules=a --own-modules=b --offload-layers=1 --recompute-modules=c "
      "--max-inflight=1 --max-inflight-bytes=1B --min-tensor-elements=1 --offload-fraction=0.5 "
      "--delta-bytes-per-rank=1 --pipeline-rank=1 --no-margin --reload-ahead=1 "
      "--reload-ahead-bytes=1B --memory=slots --device-budget=1B --slots=1x1 --device-step=1B "
      "--borrowed-slack=1B --copy-piece=1B --pack=all --host-budget=1B --host-step=1B "
      "--host-memory=pinned "
      "--no-host-bind --places=peer,host --peer-device=3 --peer-budget=1B --file-budget=1B "
      "--file-ring=1B "
      "--policy=automatic --timed-step=5 --adopt-after=2 --plan-effort=9 --no-recompute-by-plan "
      "--poison --local-ranks=1 --summary --trace-step=3 --trace-to=x");
  variables environment;
  for (const auto& item : detail::text::option_table) {
    if (item.write == nullptr) continue;
    const std::string text = item.write(other);
    CAPTURE(item.flag);
    CHECK_MESSAGE(text != item.write(options{}), "name this option's other value above");
    environment[detail::text::environment_name(item)] = text;
  }
  CHECK(read(environment) == other);
}

TEST_CASE("a refusal names the variable") {
  check_says(refused({{"TIDEPOOL_MAX_INFLIGHT", "-1"}}),
             {"option TIDEPOOL_MAX_INFLIGHT is '-1'", "negative", "none"});
  check_says(refused({{"TIDEPOOL_OFFLOAD_MODULES", ""}}),
             {"option TIDEPOOL_OFFLOAD_MODULES is ''", "empty", "none", "leave the option out"});
  check_says(refused({{"TIDEPOOL_HOST_BUDGET", "8G"}}), {"TIDEPOOL_HOST_BUDGET is '8G'", "GiB"});
}

TEST_CASE("Megatron's switch") {
  check_says(refused({{"TIDEPOOL_FINE_GRAINED_ACTIVATION_OFFLOADING", "1"}}),
             {"TIDEPOOL_FINE_GRAINED_ACTIVATION_OFFLOADING", "alone it offloads nothing",
              "TIDEPOOL_OFFLOAD_MODULES=core_attn"});
  CHECK(read({{"TIDEPOOL_FINE_GRAINED_ACTIVATION_OFFLOADING", "0"},
              {"TIDEPOOL_OFFLOAD_MODULES", "core_attn"}})
            .offload_modules.empty());
}

TEST_CASE("code, then the environment, then text") {
  options code;
  code.max_inflight = 1;
  code.reload_ahead = 1;
  code.pipeline_rank = 1;
  const options environment =
      read({{"TIDEPOOL_MAX_INFLIGHT", "2"}, {"TIDEPOOL_RELOAD_AHEAD", "2"}}, code);
  const options all = parse_options("--max-inflight=3", environment);
  CHECK(all.max_inflight == 3);
  CHECK(all.reload_ahead == 2);
  CHECK(all.pipeline_rank == 1);
}

TEST_CASE("the process's own environment") {
  REQUIRE(::setenv("TIDEPOOL_PIPELINE_RANK", "5", 1) == 0);
  CHECK(from_environment().pipeline_rank == 5);
  ::unsetenv("TIDEPOOL_PIPELINE_RANK");
  CHECK(from_environment().pipeline_rank == 0);
}

TEST_CASE("a misspelt variable of the process is refused like a misspelt flag") {
  const auto refused_as = [](const char* name) {
    REQUIRE(::setenv(name, "core_attn", 1) == 0);
    const auto text = refusal([] { static_cast<void>(from_environment()); });
    ::unsetenv(name);
    return text;
  };
  check_says(refused_as("TIDEPOOL_OFFLOAD_MODULE"),
             {"tidepool: unknown variable 'TIDEPOOL_OFFLOAD_MODULE'",
              "did you mean TIDEPOOL_OFFLOAD_MODULES?", "unset"});
  // By the names that flags go by, too.
  check_says(refused_as("TIDEPOOL_FRACTION"), {"did you mean TIDEPOOL_OFFLOAD_FRACTION?"});
  check_says(refused_as("TIDEPOOL_MIN_OFFLOADED_TENSOR_SIZ"),
             {"did you mean TIDEPOOL_MIN_TENSOR_ELEMENTS?"});
  CHECK(from_environment() == options{});
}

TEST_CASE("variables of builds, tests and others are no misspelt ones") {
  for (const char* const name :
       {"TIDEPOOL_BUILD_BENCH", "TIDEPOOL_BUILD_EXAMPLES", "TIDEPOOL_BUILD_TESTS",
        "TIDEPOOL_CCACHE",      "TIDEPOOL_CCACHE_PROGRAM", "TIDEPOOL_CCCL_INCLUDE_DIR",
        "TIDEPOOL_CLANG",       "TIDEPOOL_CMAKE_ARGS",     "TIDEPOOL_CUDA",
        "TIDEPOOL_FUZZ_DIR",    "TIDEPOOL_FUZZ_JOBS",      "TIDEPOOL_FUZZ_PLAIN",
        "TIDEPOOL_INSTALL",     "TIDEPOOL_KERNEL_LOG",     "TIDEPOOL_KERNEL_LOG_NAMES",
        "TIDEPOOL_MPI",         "TIDEPOOL_NEEDS_GPU",      "TIDEPOOL_NO_CUDA",
        "TIDEPOOL_REQUIRE_GPU", "TIDEPOOL_SANITIZE",       "TIDEPOOL_SOURCE",
        "TIDEPOOL_SOURCE_DIR",  "TIDEPOOL_TEST_BATCH",     "TIDEPOOL_TEST_CONTROL",
        "TIDEPOOL_TEST_EVERY",  "TIDEPOOL_TEST_LENGTH",    "TIDEPOOL_TEST_SHARD",
        "TIDEPOOL_TORCHRUN",    "TIDEPOOL_TRAIN_MOE",      "TIDEPOOL_WITH_CUDA",
        "TIDEPOOL_WITH_MPI",    "TIDEPOOL_WITH_NCCL",      "TIDEPOOL_SERVICE_HOST",
        "TIDEPOOL_PORT",        "TIDEPOOL_HOME",           "OFFLOAD_MODULE"}) {
    CAPTURE(name);
    CHECK(detail::text::nearest_variable(name).empty());
  }
  for (const auto& item : detail::text::option_table) {
    CAPTURE(item.flag);
    CHECK(detail::text::nearest_variable(detail::text::environment_name(item)).empty());
  }
}

}  // namespace
}  // namespace tidepool
