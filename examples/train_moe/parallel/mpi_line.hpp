/// What the stages of a pipeline on virtual devices send each other, over MPI.
#pragma once

#include <mpi.h>

#include <list>

#include "mpi_tools.hpp"

namespace moe {

/// Ranks are places in the line.
template <class Device, class Kernels>
class mpi_line {
 public:
  mpi_line(const mpi_communicator& line, Device& dev, Kernels& kernels,
           typename Device::stream_ref stream)
      : line_(line),
        dev_(dev),
        kernels_(kernels),
        stream_(stream),
        incoming_(dev, "received activations") {}

  /// Takes the buffer; returns when its bytes are on the host.
  template <class Buffer>
  void send(Buffer what, int rank, int tag) {
    const auto count = static_cast<index>(what.size() / sizeof(float));
    outgoing& out = free_staging(count);
    kernels_.publish(out.memory.data(), what.template as<float>(), count);
    what.reset(stream_);
    dev_.synchronize(stream_);
    MPI_Isend(out.memory.data(), static_cast<int>(count), MPI_FLOAT, rank, tag, line_.get(),
              &out.request);
  }

  /// Fills the buffer; blocks the host until the bytes are there.
  template <class Buffer>
  void receive(Buffer& what, int rank, int tag) {
    const auto count = static_cast<index>(what.size() / sizeof(float));
    dev_.synchronize(stream_);  // what was received before has been copied out of the staging
    float* const in = incoming_.of(count);
    MPI_Recv(in, static_cast<int>(count), MPI_FLOAT, rank, tag, line_.get(), MPI_STATUS_IGNORE);
    // A kernel copies, since a copy engine may have megabytes of reloads queued before it.
    kernels_.publish(what.template as<float>(), in, count);
  }

  void finish() {
    for (outgoing& out : outgoing_) MPI_Wait(&out.request, MPI_STATUS_IGNORE);
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

  const mpi_communicator& line_;
  Device& dev_;
  Kernels& kernels_;
  typename Device::stream_ref stream_;
  std::list<outgoing> outgoing_;
  staging<Device, float> incoming_;
};

}  // namespace moe
