/// What ranks with virtual devices send each other: over MPI, through pinned host memory.
#pragma once

#include "grid.hpp"
#include "mpi_exchange.hpp"
#include "mpi_line.hpp"
#include "mpi_tools.hpp"
#include "ranks.hpp"

namespace moe {

/// The line and the group of this rank, each with its communicator: neither knows of the other.
template <class Device, class Kernels>
class mpi_link final : public host_link {
 public:
  mpi_link(world& all, const rank_grid& grid, Device& dev, Kernels& kernels,
           typename Device::stream_ref stream)
      : host_link(all),
        of_line_(grid.member_of(all.rank()), grid.stage_of(all.rank())),
        of_group_(grid.stage_of(all.rank()), grid.member_of(all.rank())),
        line_(of_line_, dev, kernels, stream),
        group_(of_group_, dev, kernels, stream) {}

  [[nodiscard]] mpi_line<Device, Kernels>& line() { return line_; }
  [[nodiscard]] expert_exchange* group() { return &group_; }

 private:
  mpi_communicator of_line_, of_group_;
  mpi_line<Device, Kernels> line_;
  mpi_exchange<Device, Kernels> group_;
};

}  // namespace moe
