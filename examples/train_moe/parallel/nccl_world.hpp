/// Ranks over NCCL alone, for launchers that MPI knows nothing of.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tidepool/device/cuda.hpp>
#include <tidepool/error.hpp>
#include <utility>

#include "../model/device_array.hpp"
#include "launch.hpp"
#include "nccl_tools.hpp"
#include "ranks.hpp"

namespace moe {

/// The ranks come together at the first `gather`, which throws `tidepool::option_error` on a rank
/// that finds no GPU or no place to meet, and `tidepool::device_error` where NCCL fails. Then the
/// launcher has to end the others, as always when a process is gone: within a machine NCCL need not
/// notice it.
class nccl_world final : public world {
 public:
  explicit nccl_world(launch by) : world(by.rank, by.count), by_(std::move(by)) {}

  [[nodiscard]] int local_rank() const override { return by_.local_rank; }

  void check(const settings&, const std::string& device) const override {
    if (device != "virtual") return;
    throw tidepool::option_error("--device=virtual: " + by_.said + ": " + by_.launcher +
                                 " started that many processes, and virtual devices need MPI to "
                                 "talk; start them with mpirun, or srun --mpi=pmix, or take "
                                 "--device=cuda");
  }

  using world::gather;
  void gather(const void* mine, void* all, std::size_t bytes) override {
    if (!here_) meet();
    const auto* out = static_cast<const char*>(mine);
    auto* in = static_cast<char*>(all);
    char* const outgoing = here_->memory.data();
    char* const incoming = outgoing + piece;
    for (std::size_t at = 0; at < bytes; at += piece) {
      const std::size_t now = std::min(piece, bytes - at);
      std::memcpy(outgoing, out + at, now);
      moe::check(ncclAllGather(outgoing, incoming, piece, ncclChar, here_->everybody.get(),
                               here_->stream.get()),
                 "ncclAllGather");
      here_->device.synchronize(here_->stream.ref());
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(size()); ++rank) {
        std::memcpy(in + rank * bytes + at, incoming + rank * piece, now);
      }
    }
  }

  /// For all ranks; others are split from it.
  [[nodiscard]] const nccl_communicator& everybody() {
    if (!here_) meet();
    return here_->everybody;
  }

 private:
  /// Always as many bytes: memory for more, or another way of NCCL's for that size, would be taken
  /// while kernels wait for other ranks, and wait for those.
  static constexpr std::size_t piece = 1024;

  /// The GPU of this rank, and the way to the others. A kernel of NCCL's reads and writes the
  /// host's memory itself: a copy engine may have megabytes queued that wait for another rank.
  struct end_of_line {
    end_of_line(int ordinal, int rank, int size)
        : device(ordinal),
          stream(device.make_stream()),
          memory(device, static_cast<index>(piece) * (size + 1), "words of other ranks"),
          everybody(id_of_all(), size, rank),
          watch(rank) {
      watch.add(everybody);
    }

    tidepool::cuda_device device;
    tidepool::cuda_device::stream stream;
    device_array<tidepool::cuda_device, char, side::host> memory;
    nccl_communicator everybody;
    nccl_watch watch;  // last: it uses the communicator
  };

  /// With NCCL_COMM_ID the same on all ranks.
  static ncclUniqueId id_of_all() {
    ncclUniqueId id{};
    moe::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return id;
  }

  void meet() {
    std::string place;
    if (size() > 1) {
      place = meeting_point(by_, own_environment);
      setenv("NCCL_COMM_ID", place.c_str(), 0);
    }
    const int there = tidepool::cuda_device::count();
    if (by_.local_rank >= there) {
      throw tidepool::option_error(
          "--device: rank " + std::to_string(rank()) + " takes GPU " +
          std::to_string(by_.local_rank) + " of its machine, counted from 0, and finds " +
          std::to_string(there) +
          "; start fewer ranks on a machine, let each see all its GPUs, or "
          "let mpirun start them for --device=virtual");
    }
    if (const cudaError_t code = cudaSetDevice(by_.local_rank); code != cudaSuccess) {
      throw tidepool::device_error(std::string("cudaSetDevice: ") + cudaGetErrorString(code), code);
    }
    try {
      here_ = std::make_unique<end_of_line>(by_.local_rank, rank(), size());
    } catch (const tidepool::device_error& e) {
      if (place.empty()) throw;
      throw tidepool::device_error(std::string(e.what()) +
                                       "; the ranks meet at NCCL_COMM_ID=" + place +
                                       "; NCCL_DEBUG=WARN tells more, and with "
                                       "NCCL_COMM_ID=HOST:PORT they meet elsewhere",
                                   e.code);
    }
  }

  [[noreturn]] void end(int status) const override { std::_Exit(status); }

  launch by_;
  std::unique_ptr<end_of_line> here_;
};

}  // namespace moe
