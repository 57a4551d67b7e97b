/// What ranks with GPUs send each other: over NCCL, from device to device.
#pragma once

#include <optional>
#include <tidepool/device/cuda.hpp>

#include "grid.hpp"
#include "nccl_exchange.hpp"
#include "nccl_line.hpp"
#include "nccl_tools.hpp"
#include "ranks.hpp"

namespace moe {

/// All ranks, and their communicator: others are split from it, since with NCCL_COMM_ID all that
/// are made anew would have one identity.
struct nccl_team {
  world& all;
  const nccl_communicator& everybody;
};

/// The line and the group of this rank, each with its communicator: neither knows of the other.
template <class Device, class Kernels>
class nccl_link final : public host_link {
 public:
  using team = nccl_team;

  /// All ranks must call: the communicators are made here. Lines and groups split their own later,
  /// each as it comes to its first message.
  nccl_link(team& ranks, const rank_grid& grid, Device& dev, Kernels& kernels,
            typename Device::stream_ref stream)
      : host_link(ranks.all),
        watch_(ranks.all.rank()),
        of_line_(row(ranks, grid.stages, grid.member_of(ranks.all.rank()),
                     grid.stage_of(ranks.all.rank()))),
        of_group_(row(ranks, grid.experts, grid.stage_of(ranks.all.rank()),
                      grid.member_of(ranks.all.rank()))),
        line_(of_line_ ? *of_line_ : ranks.everybody, watch_, dev, kernels, stream),
        group_(of_group_ ? *of_group_ : ranks.everybody, watch_, dev, kernels, stream) {}
  ~nccl_link() { watch_.stop(); }

  [[nodiscard]] nccl_line<Device, Kernels>& line() { return line_; }
  [[nodiscard]] expert_exchange* group() { return &group_; }

 private:
  /// None where all ranks are in the row, since a communicator takes memory of the GPU.
  static std::optional<nccl_communicator> row(const team& ranks, int size, int number, int place) {
    if (size == ranks.all.size()) return std::nullopt;
    return ranks.everybody.split(place, number);
  }

  nccl_watch watch_;
  std::optional<nccl_communicator> of_line_, of_group_;
  nccl_line<Device, Kernels> line_;
  nccl_exchange<Device, Kernels> group_;
};

}  // namespace moe
