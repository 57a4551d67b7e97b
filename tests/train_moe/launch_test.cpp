/// Which launcher started the trainer, and where its ranks meet, from the environment alone.
#include "../../examples/train_moe/parallel/launch.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "refusal.hpp"

namespace {

using tidepool::test::check_says;
using tidepool::test::refusal;
using variables = std::map<std::string, std::string>;

moe::environment with(const variables& set) {
  return [&set](const char* name) -> const char* {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  };
}

moe::launch launch_of(const variables& set) { return moe::launch_of(with(set)); }

variables operator+(variables some, const variables& more) {
  for (const auto& [name, value] : more) some[name] = value;
  return some;
}

const variables torchrun{{"TORCHELASTIC_RUN_ID", "none"},
                         {"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29500"}};
const variables by_hand{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}};
const variables srun{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}};
const variables open_mpi{{"OMPI_COMM_WORLD_SIZE", "6"},
                         {"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
const variables hydra{{"PMI_SIZE", "3"}, {"PMI_RANK", "2"}, {"MPI_LOCALRANKID", "2"}};
const variables pmix{{"PMIX_RANK", "3"}};

void check_launch(const variables& set, const std::string& launcher, bool of_mpi, int rank,
                  int count, int local_rank) {
  const moe::launch found = launch_of(set);
  CHECK(found.launcher == launcher);
  CHECK(found.of_mpi == of_mpi);
  CHECK(found.rank == rank);
  CHECK(found.count == count);
  CHECK(found.local_rank == local_rank);
}

}  // namespace

TEST_CASE("each launcher is known by its variables") {
  check_launch({}, "", false, 0, 1, 0);
  check_launch(torchrun, "torchrun", false, 5, 8, 1);
  check_launch(by_hand, "torchrun", false, 0, 2, 0);
  check_launch(srun, "srun", false, 3, 4, 1);
  check_launch(open_mpi, "mpirun", true, 2, 6, 0);
  check_launch(hydra, "mpirun", true, 2, 3, 2);
}

TEST_CASE("of several launchers the innermost counts") {
  check_launch(torchrun + srun, "torchrun", false, 5, 8, 1);
  check_launch(torchrun + srun + pmix, "torchrun", false, 5, 8, 1);
  check_launch(torchrun + open_mpi, "torchrun", false, 5, 8, 1);
  check_launch(open_mpi + srun + pmix, "mpirun", true, 2, 6, 0);
  check_launch(hydra + srun, "mpirun", true, 2, 3, 2);
  // Scripts export torch's variables for mpirun to hand on.
  check_launch(by_hand + open_mpi, "mpirun", true, 2, 6, 0);
}

TEST_CASE("srun with a plugin for MPI starts ranks of MPI") {
  check_launch(srun + pmix, "srun", true, 3, 4, 1);
  check_launch(srun + variables{{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}, "srun", true, 3, 4, 1);
}

TEST_CASE("what MPI knows itself, or one process, need not be in the environment") {
  check_launch({{"PMI_SIZE", "4"}}, "mpirun", true, 0, 4, 0);
  check_launch({{"OMPI_COMM_WORLD_SIZE", "2"}}, "mpirun", true, 0, 2, 0);
  check_launch({{"WORLD_SIZE", "1"}}, "torchrun", false, 0, 1, 0);
}

TEST_CASE("variables that make no sense are refused by name") {
  const auto refused = [](const variables& set) { return refusal([&] { launch_of(set); }); };
  check_says(refused({{"WORLD_SIZE", "2"}}), {"RANK is not set", "torchrun"});
  check_says(refused({{"WORLD_SIZE", "2"}, {"RANK", "1"}}), {"LOCAL_RANK is not set", "torchrun"});
  check_says(refused({{"SLURM_STEP_NUM_TASKS", "2"}}), {"SLURM_PROCID is not set", "srun"});
  check_says(refused({{"TORCHELASTIC_RUN_ID", "none"}}), {"WORLD_SIZE is not set"});
  check_says(refused(by_hand + variables{{"RANK", "2"}}), {"RANK=2: must be a number from 0 to 1"});
  check_says(refused(by_hand + variables{{"RANK", "-1"}}), {"RANK=-1: must"});
  check_says(refused(by_hand + variables{{"LOCAL_RANK", "1x"}}), {"LOCAL_RANK=1x: must"});
  check_says(refused(by_hand + variables{{"WORLD_SIZE", ""}}), {"WORLD_SIZE=: must be a number"});
  check_says(refused(by_hand + variables{{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE=9999"});
}

TEST_CASE("NCCL's ranks meet behind the port where torchrun listens") {
  const auto meeting_point = [](const variables& set) {
    return moe::meeting_point(launch_of(set), with(set));
  };
  const auto at = [](const char* address, const char* port) {
    return variables{{"MASTER_ADDR", address}, {"MASTER_PORT", port}};
  };
  CHECK(meeting_point(torchrun) == "node7:29501");
  CHECK(meeting_point(srun + at("10.1.2.3", "1")) == "10.1.2.3:2");
  CHECK(meeting_point(torchrun + at("fe80::1", "29500")) == "[fe80::1]:29501");
  CHECK(meeting_point(torchrun + at("[fe80::1]", "65534")) == "[fe80::1]:65535");
  CHECK(meeting_point(torchrun + variables{{"NCCL_COMM_ID", "here:1"}}) == "here:1");
  CHECK(meeting_point(srun + variables{{"NCCL_COMM_ID", "here:1"}}) == "here:1");

  const auto refused = [&](const variables& set) { return refusal([&] { meeting_point(set); }); };
  check_says(refused(srun), {"SLURM_STEP_NUM_TASKS=4: srun started", "MASTER_ADDR", "MASTER_PORT",
                             "NCCL_COMM_ID"});
  check_says(refused(srun + variables{{"MASTER_ADDR", "node7"}}), {"nothing says where"});
  check_says(refused(srun + at("", "29500")), {"nothing says where"});
  check_says(refused(srun + at("node7", "65535")), {"MASTER_PORT=65535: must", "65534"});
  check_says(refused(srun + at("node7", "port")), {"MASTER_PORT=port: must"});
}

TEST_CASE("ranks are wanted where they are asked for or were started") {
  const auto wants = [](const variables& set, const char* argument) {
    const char* const argv[] = {"train_moe", argument};
    return moe::wants_ranks(launch_of(set), argument == nullptr ? 1 : 2, argv);
  };
  CHECK_FALSE(wants({}, nullptr));
  CHECK_FALSE(wants({}, "--pipelines"));
  CHECK_FALSE(wants(
      srun +
          variables{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}},
      "--steps=3"));
  CHECK(wants({}, "--pipeline"));
  CHECK(wants({}, "--expert-parallel=true"));
  CHECK(wants(srun, nullptr));
  CHECK(wants(torchrun, "--steps=3"));
  CHECK(wants({{"PMI_SIZE", "4"}}, nullptr));
}
