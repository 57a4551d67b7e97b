/// Ranks over MPI.
#pragma once

#include <mpi.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <tidepool/error.hpp>

#include "launch.hpp"
#include "layout.hpp"
#include "ranks.hpp"

namespace moe {

namespace detail {

/// MPI, from its first call to its last.
struct mpi_session {
  mpi_session(int& argc, char**& argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  }
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  ~mpi_session() { MPI_Finalize(); }

  int own_rank = 0;
  int ranks = 1;
};

/// Throws `tidepool::option_error` when MPI could not count or tell apart what ranks will send.
inline void check_messages(const settings& run) {
  const index most_floats = std::numeric_limits<int>::max();
  const auto too_much = [&](const std::string& what) {
    throw tidepool::option_error("--batch=" + std::to_string(run.model.batch) + ": with " + what +
                                 " must stay below 2^31");
  };
  if (run.expert_parallel &&
      run.grid.experts * run.model.max_rows() * run.model.hidden > most_floats) {
    too_much("--expert-parallel, ranks times --batch times --seq times --top-k times --hidden");
  }
  if (!run.pipeline) return;
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

}  // namespace detail

/// MPI's own errors end the run with MPI's message.
class mpi_world final : private detail::mpi_session, public world {
 public:
  mpi_world(int& argc, char**& argv, launch by)
      : mpi_session(argc, argv), world(own_rank, ranks), by_(std::move(by)) {}

  [[nodiscard]] int local_rank() const override {
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &here);
    int local = 0;
    MPI_Comm_rank(here, &local);
    MPI_Comm_free(&here);
    return local;
  }

  void check(const settings& run, const std::string&) const override {
    if (by_.count > 1 && size() == 1) {  // each would take itself for the only one
      throw tidepool::option_error(by_.said + ": " + by_.launcher +
                                   " started that many processes, but MPI sees one; start them "
                                   "with mpirun, or srun --mpi=pmix");
    }
    detail::check_messages(run);
  }

  using world::gather;
  void gather(const void* mine, void* all, std::size_t bytes) override {
    const int count = static_cast<int>(bytes);
    MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD);
  }

 private:
  [[noreturn]] void end(int status) const override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::abort();  // MPI_Abort is not declared to stay away
  }

  launch by_;
};

}  // namespace moe
