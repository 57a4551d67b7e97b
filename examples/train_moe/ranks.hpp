/// Ranks over MPI: who there is, how a failure ends all of them, and the few values that hosts tell
/// each other. What devices send is the matter of `mpi_link.hpp` and `nccl_link.hpp`.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>
#include <utility>
#include <vector>

#include "alone.hpp"
#include "layout.hpp"

namespace moe {

/// All processes of a run. MPI's own errors end the run with MPI's message.
class world {
 public:
  /// Whether a program needs it: its arguments ask for ranks, or a launcher started several.
  static bool wanted(int argc, char** argv) {
    const bool asked = std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
      const std::string_view name = argument.substr(0, argument.find('='));
      return name == "--pipeline" || name == "--expert-parallel";
    });
    const auto several = [](const char* variable) {
      const char* const value = std::getenv(variable);
      return value != nullptr && std::atoi(value) > 1;
    };
    return asked || several("OMPI_COMM_WORLD_SIZE") || several("PMI_SIZE") || several("WORLD_SIZE");
  }

  world(int& argc, char**& argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world() { MPI_Finalize(); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Among the ranks of one machine.
  [[nodiscard]] int local_rank() const {
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here);
    int local = 0;
    MPI_Comm_rank(here, &local);
    MPI_Comm_free(&here);
    return local;
  }

  /// Whether a condition holds on all ranks.
  [[nodiscard]] bool every(bool mine) const {
    const int in = mine ? 1 : 0;
    int out = 0;
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return out == 1;
  }

  /// Returns whether no rank has a problem; else the first of those that have prints its own.
  [[nodiscard]] bool agree(const std::string& problem) const {
    const int mine = problem.empty() ? size_ : rank_;
    int first = size_;
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == rank_) {
      std::fprintf(stderr, "train_moe: %s\n", problem.c_str());
      std::fflush(stderr);
    }
    // A launcher ends all when one exits with a status, and the message must be out by then.
    MPI_Barrier(MPI_COMM_WORLD);
    return first == size_;
  }

  /// Ends all ranks.
  [[noreturn]] void abort(const std::exception& why) const {
    std::fflush(stdout);
    std::fprintf(stderr, "train_moe: rank %d: %s\n", rank_, why.what());
    std::fflush(stderr);
    const bool by_choice = dynamic_cast<const tidepool::option_error*>(&why) != nullptr ||
                           dynamic_cast<const tidepool::out_of_budget*>(&why) != nullptr;
    MPI_Abort(MPI_COMM_WORLD, by_choice ? 2 : 1);
    std::abort();  // MPI_Abort is not declared to stay away
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};

/// What hosts tell each other in a training, and how its failure reaches all; the base of the
/// links.
class host_link {
 public:
  using team = world;

  explicit host_link(world& all) : all_(all) {}
  host_link(const host_link&) = delete;
  host_link& operator=(const host_link&) = delete;

  [[nodiscard]] float from_rank(int rank, float value) {
    MPI_Bcast(&value, 1, MPI_FLOAT, rank, MPI_COMM_WORLD);
    return value;
  }

  /// The values of all ranks, which have equally many, ordered by rank.
  [[nodiscard]] std::vector<float> gather_losses(const std::vector<float>& mine) {
    const auto count = static_cast<int>(mine.size());
    std::vector<float> in(mine.size() * static_cast<std::size_t>(all_.size()));
    MPI_Allgather(mine.data(), count, MPI_FLOAT, in.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
    return in;
  }

  [[nodiscard]] std::vector<rank_bytes> gather(const rank_bytes& mine) {
    const std::array<std::uint64_t, 3> out{mine.driver_peak, mine.device_peak, mine.offloaded};
    std::vector<std::uint64_t> in(out.size() * static_cast<std::size_t>(all_.size()));
    MPI_Allgather(out.data(), 3, MPI_UINT64_T, in.data(), 3, MPI_UINT64_T, MPI_COMM_WORLD);
    std::vector<rank_bytes> each;
    for (std::size_t i = 0; i < in.size(); i += 3) each.push_back({in[i], in[i + 1], in[i + 2]});
    return each;
  }

  [[nodiscard]] std::uint64_t sum(std::uint64_t mine) {
    std::uint64_t all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return all;
  }

  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

  /// A failure ends all ranks here, before unwinding frees memory that others may be reading.
  template <class Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const std::exception& e) {
      all_.abort(e);
    }
  }

 protected:
  [[nodiscard]] world& all() const { return all_; }

 private:
  world& all_;
};

/// Throws `tidepool::option_error` when a launcher started several processes that MPI knows nothing
/// of: each would take itself for the only one.
inline void check_launcher(const world& all) {
  for (const auto& [variable, launcher] :
       {std::pair{"WORLD_SIZE", "torchrun"}, {"SLURM_STEP_NUM_TASKS", "srun"}}) {
    const char* const value = std::getenv(variable);
    if (value == nullptr || std::atoi(value) <= 1 || all.size() > 1) continue;
    throw tidepool::option_error(std::string(variable) + "=" + value + ": " + launcher +
                                 " started that many processes, but MPI sees one; start them with "
                                 "mpirun, or srun --mpi=pmix");
  }
}

/// Throws `tidepool::option_error` when MPI could not count or tell apart what ranks will send.
inline void check_messages(const settings& run) {
  const index most_floats = std::numeric_limits<int>::max();
  const auto too_much = [&](const std::string& what) {
    throw tidepool::option_error("--batch=" + std::to_string(run.model.batch) + ": with " + what +
                                 " must stay below 2^31");
  };
  if (run.expert_parallel) {
    if (run.ranks * run.model.max_rows() * run.model.hidden > most_floats) {
      too_much("--expert-parallel, ranks times --batch times --seq times --top-k times --hidden");
    }
    return;
  }
  if (run.model.tokens() * run.model.hidden > most_floats) {
    too_much("--pipeline, --batch times --seq times --hidden");
  }
  void* most = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &known);
  const pipeline_shape shape = shape_of(run);
  const index tags = index{2} * shape.microbatches * shape.stages();
  if (known != 0 && tags > *static_cast<const int*>(most)) {
    throw tidepool::option_error("--microbatches=" + std::to_string(run.microbatches) + ": " +
                                 std::to_string(shape.stages()) +
                                 " stages need more message tags than this MPI has; lower it");
  }
}

}  // namespace moe
