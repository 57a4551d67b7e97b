/// Ranks: who there is, how a failure ends all of them, and the few values that hosts tell each
/// other. `mpi_world.hpp` and `nccl_world.hpp` carry these; what devices send is the matter of
/// `mpi_link.hpp` and `nccl_link.hpp`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <tidepool/error.hpp>
#include <type_traits>
#include <vector>

#include "../model/config.hpp"
#include "alone.hpp"

namespace moe {

/// All processes of a run. Every rank makes the same calls in the same order.
class world {
 public:
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  virtual ~world() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Among the ranks of one machine.
  [[nodiscard]] virtual int local_rank() const = 0;

  /// Throws `tidepool::option_error` for a run that these ranks cannot have. Asks no other rank.
  virtual void check(const settings& run, const std::string& device) const = 0;

  /// `bytes` of every rank to all of them, ordered by rank. The host waits for the last one.
  virtual void gather(const void* mine, void* all, std::size_t bytes) = 0;

  template <class T>
  [[nodiscard]] std::vector<T> gather(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(size_));
    gather(&mine, all.data(), sizeof(T));
    return all;
  }

  void barrier() { static_cast<void>(gather(char{})); }

  /// Whether a condition holds on all ranks.
  [[nodiscard]] bool every(bool mine) {
    const std::vector<char> all = gather(static_cast<char>(mine ? 1 : 0));
    return std::all_of(all.begin(), all.end(), [](char each) { return each == 1; });
  }

  /// Returns whether no rank has a problem; else the first of those that have prints its own.
  [[nodiscard]] bool agree(const std::string& problem) {
    const std::vector<char> fine = gather(static_cast<char>(problem.empty() ? 1 : 0));
    const auto first = std::find(fine.begin(), fine.end(), 0);
    if (first - fine.begin() == rank_) {
      std::fprintf(stderr, "train_moe: %s\n", problem.c_str());
      std::fflush(stderr);
    }
    // A launcher ends all when one exits with a status, and the message must be out by then.
    barrier();
    return first == fine.end();
  }

  /// Ends all ranks.
  [[noreturn]] void abort(const std::exception& why) const {
    std::fflush(stdout);
    std::fprintf(stderr, "train_moe: rank %d: %s\n", rank_, why.what());
    std::fflush(stderr);
    const bool by_choice = dynamic_cast<const tidepool::option_error*>(&why) != nullptr ||
                           dynamic_cast<const tidepool::out_of_budget*>(&why) != nullptr;
    end(by_choice ? 2 : 1);
    std::abort();  // the compiler does not see that a virtual function stays away
  }

 protected:
  world(int rank, int size) : rank_(rank), size_(size) {}

  /// Ends this process at once, without unwinding, and the others.
  [[noreturn]] virtual void end(int status) const = 0;

 private:
  int rank_;
  int size_;
};

/// What hosts tell each other in a training, and how its failure reaches all; the base of the
/// links.
class host_link {
 public:
  using team = world;

  explicit host_link(world& all) : all_(all) {}
  host_link(const host_link&) = delete;
  host_link& operator=(const host_link&) = delete;

  /// The values of all ranks, which have equally many, ordered by rank.
  [[nodiscard]] std::vector<float> gather_losses(const std::vector<float>& mine) {
    std::vector<float> in(mine.size() * static_cast<std::size_t>(all_.size()));
    all_.gather(mine.data(), in.data(), mine.size() * sizeof(float));
    return in;
  }

  template <class T>
  [[nodiscard]] std::vector<T> gather(const T& mine) {
    return all_.gather(mine);
  }

  [[nodiscard]] std::uint64_t sum(std::uint64_t mine) {
    const std::vector<std::uint64_t> all = all_.gather(mine);
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
  }

  void barrier() { all_.barrier(); }

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

}  // namespace moe
