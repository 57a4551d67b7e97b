/// MPI's communicators as objects, and the pinned host memory that messages pass through.
#pragma once

#include <mpi.h>

#include <utility>
#include <vector>

#include "../model/device_array.hpp"

namespace moe {

/// Some of all ranks, with places of their own. All ranks must make theirs at the same time.
class mpi_communicator {
 public:
  /// With those that give the same `row`, ordered by `place`.
  mpi_communicator(int row, int place) { MPI_Comm_split(MPI_COMM_WORLD, row, place, &handle_); }
  mpi_communicator(const mpi_communicator&) = delete;
  mpi_communicator& operator=(const mpi_communicator&) = delete;
  ~mpi_communicator() { MPI_Comm_free(&handle_); }

  [[nodiscard]] MPI_Comm get() const { return handle_; }
  [[nodiscard]] int place() const {
    int mine = 0;
    MPI_Comm_rank(handle_, &mine);
    return mine;
  }
  [[nodiscard]] int size() const {
    int all = 0;
    MPI_Comm_size(handle_, &all);
    return all;
  }

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
};

/// Host memory that grows.
template <class Device, class T>
class staging {
 public:
  staging(Device& dev, const char* what) : dev_(dev), what_(what) {}

  /// Nothing may be reading or writing what was there.
  T* of(index count) {
    if (memory_.empty() || memory_.front().size() < count) {
      memory_.clear();
      memory_.emplace_back(dev_, count, what_);
    }
    return data();
  }
  [[nodiscard]] T* data() const { return memory_.front().data(); }
  [[nodiscard]] bool fits(index count) const {
    return !memory_.empty() && memory_.front().size() >= count;
  }

 private:
  Device& dev_;
  const char* what_;
  std::vector<device_array<Device, T, side::host>> memory_;
};

}  // namespace moe
