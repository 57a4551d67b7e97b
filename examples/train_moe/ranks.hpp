/// Ranks over MPI: who there is, how a failure ends all of them, and what they send each other.
///
/// A transport over NCCL would be another link beside `mpi_link`: `send` lets a stream of its own
/// wait for the buffer's, and gives the buffer back on that stream.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <list>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>
#include <utility>
#include <vector>

#include "alone.hpp"
#include "device_array.hpp"
#include "layout.hpp"

namespace moe {

/// All processes of a run. MPI's own errors end the run with MPI's message.
class world {
 public:
  /// Whether a program needs it: its arguments ask for ranks, or a launcher started several.
  static bool wanted(int argc, char** argv) {
    const bool asked = std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
      return argument == "--pipeline" || argument.starts_with("--pipeline=");
    });
    const auto several = [](const char* variable) {
      const char* const value = std::getenv(variable);
      return value != nullptr && std::atoi(value) > 1;
    };
    return asked || several("OMPI_COMM_WORLD_SIZE") || several("PMI_SIZE");
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

/// Throws `tidepool::option_error` when MPI could not count or tell apart what ranks will send.
inline void check_messages(const settings& run) {
  if (run.model.tokens() * run.model.hidden > std::numeric_limits<int>::max()) {
    throw tidepool::option_error("--batch=" + std::to_string(run.model.batch) +
                                 ": with --pipeline, --batch times --seq times --hidden must stay "
                                 "below 2^31");
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

/// What a trainer sends and receives, through pinned host memory.
template <class Device, class Kernels>
class mpi_link {
 public:
  using team = world;

  mpi_link(world& all, Device& dev, Kernels& kernels, typename Device::stream_ref stream)
      : all_(all), dev_(dev), kernels_(kernels), stream_(stream) {}
  mpi_link(const mpi_link&) = delete;
  mpi_link& operator=(const mpi_link&) = delete;

  /// Takes the buffer; returns when its bytes are on the host.
  template <class Buffer>
  void send(Buffer what, int rank, int tag) {
    const auto count = static_cast<index>(what.size() / sizeof(float));
    outgoing& out = free_staging(count);
    kernels_.publish(out.memory.data(), what.template as<float>(), count);
    what.reset(stream_);
    dev_.synchronize(stream_);
    MPI_Isend(out.memory.data(), static_cast<int>(count), MPI_FLOAT, rank, tag, MPI_COMM_WORLD,
              &out.request);
  }

  /// Fills the buffer; blocks the host until the bytes are there.
  template <class Buffer>
  void receive(Buffer& what, int rank, int tag) {
    const auto count = static_cast<index>(what.size() / sizeof(float));
    if (incoming_.empty() || incoming_.front().size() < count) {
      dev_.synchronize(stream_);
      incoming_.clear();
      incoming_.emplace_back(dev_, count, "received activations");
    }
    dev_.synchronize(stream_);  // what was received before has been copied out of the staging
    MPI_Recv(incoming_.front().data(), static_cast<int>(count), MPI_FLOAT, rank, tag,
             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    // A kernel copies, since a copy engine may have megabytes of reloads queued before it.
    kernels_.publish(what.template as<float>(), incoming_.front().data(), count);
  }

  void finish() {
    for (outgoing& out : outgoing_) MPI_Wait(&out.request, MPI_STATUS_IGNORE);
  }

  [[nodiscard]] float from_rank(int rank, float value) {
    MPI_Bcast(&value, 1, MPI_FLOAT, rank, MPI_COMM_WORLD);
    return value;
  }

  [[nodiscard]] std::vector<rank_bytes> gather(const rank_bytes& mine) {
    const std::array<std::uint64_t, 3> out{mine.driver_peak, mine.device_peak, mine.offloaded};
    std::vector<std::uint64_t> in(out.size() * static_cast<std::size_t>(all_.size()));
    MPI_Allgather(out.data(), 3, MPI_UINT64_T, in.data(), 3, MPI_UINT64_T, MPI_COMM_WORLD);
    std::vector<rank_bytes> each;
    for (std::size_t i = 0; i < in.size(); i += 3) each.push_back({in[i], in[i + 1], in[i + 2]});
    return each;
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

 private:
  struct outgoing {
    device_array<Device, float, side::host> memory;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  outgoing& free_staging(index count) {
    for (outgoing& out : outgoing_) {
      int done = 0;
      MPI_Test(&out.request, &done, MPI_STATUS_IGNORE);
      if (done != 0 && out.memory.size() >= count) return out;
    }
    return outgoing_.emplace_back(outgoing{{dev_, count, "sent activations"}});
  }

  world& all_;
  Device& dev_;
  Kernels& kernels_;
  typename Device::stream_ref stream_;
  std::list<outgoing> outgoing_;
  std::vector<device_array<Device, float, side::host>> incoming_;
};

}  // namespace moe
