/// The profile of a step: the groups that a warm-up step recorded, in order, with their sizes in
/// bytes, and the calls of the step with the computing time before each in microseconds. Plain
/// data. Planner, simulator and forecast need nothing else about a model, so a profile can also be
/// written by hand or loaded from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tidepool/module.hpp"

namespace tidepool::inline v0_3_0::plan {

inline constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();  ///< No index.

/// A run of one module.
struct group_profile {
  module_id module{};       ///< index into `profile::modules`
  int layer = -1;           ///< -1 if the run has no layer
  std::size_t bytes = 0;    ///< that an offload frees; 0 if all its tensors stay anyway
  double recompute_us = 0;  ///< time to compute the group again in backward; 0: impossible

  friend bool operator==(const group_profile&, const group_profile&) = default;
};

/// A forward pass of one model chunk for one microbatch; groups in forward order.
struct chunk_profile {
  int model_chunk = 0;                ///< number in an interleaved pipeline
  std::vector<group_profile> groups;  ///< in forward order
  int microbatch = 0;                 ///< number in the step

  friend bool operator==(const chunk_profile&, const chunk_profile&) = default;
};

/// A pass over one chunk, in the order in which passes began.
struct pass {
  std::size_t chunk = 0;  ///< index into `profile::chunks`
  bool backward = false;  ///< false: forward

  friend bool operator==(const pass&, const pass&) = default;
};

/// An allocation of saved tensors.
struct storage_profile {
  std::size_t bytes = 0;       ///< size of the allocation
  std::uint32_t chunk = none;  ///< chunk of the group that saves it; none: no group, so it stays
  std::uint32_t group = none;  ///< the group of `chunk` that saves it
  std::uint32_t place = 0;     ///< position among the group's tensors
  bool bfloat16 = false;       ///< true if it holds BF16 numbers, which may be packed
  std::size_t moves = 0;       ///< bytes that its copies move (`counts_rows`); 0: all of them

  friend bool operator==(const storage_profile&, const storage_profile&) = default;
};

/// Another group that saves a storage, after the one that `storage_profile` names.
struct shared_save {
  std::uint32_t storage = 0;  ///< index into `profile::storages`
  std::uint32_t chunk = 0;    ///< index into `profile::chunks`
  std::uint32_t group = 0;    ///< of that chunk
  std::uint32_t place = 0;    ///< position among that group's tensors

  friend bool operator==(const shared_save&, const shared_save&) = default;
};

/// The kinds of calls that a compute stream makes to an offloader.
enum class event_kind : std::uint8_t {
  allocate,     ///< takes memory for a storage
  commit,       ///< commits a group
  end_forward,  ///< ends the forward pass of a chunk
  restore,      ///< restores a group
  release,      ///< frees a storage: its last handle is gone
  drop,         ///< the last handle of a storage is gone while a group still saves it
  synchronise   ///< the host waits for the whole device, so computing waits for all copies
};

/// A call, and the computing time before it.
struct event {
  event_kind kind = event_kind::allocate;  ///< which call it is
  std::uint32_t index = 0;                 ///< a storage, or a group of `chunk`; 0 for other kinds
  std::uint32_t chunk = 0;                 ///< 0 for storages
  double compute_us = 0;                   ///< computing since the event before, without stalls
  double wait_us = 0;  ///< part of `compute_us` that waits for other ranks; a late rank waits less

  friend bool operator==(const event&, const event&) = default;
};

/// The rates of a link in GB/s, and the latency of a copy.
struct link_rates {
  double out = 55.2;      ///< device to host alone
  double in = 55.2;       ///< host to device alone
  double both = 101.7;    ///< both together, in total
  double latency_us = 2;  ///< of each copy, before its first byte

  friend bool operator==(const link_rates&, const link_rates&) = default;
};

/// How BF16 tensors were packed on their way to the host (`options::pack`).
struct packing_profile {
  link_rates link;          ///< rates of the link for packed bytes, as measured
  double pack_rate = 0;     ///< tensor bytes that a compute stream packs, in GB/s; 0: no time
  double unpack_rate = 0;   ///< tensor bytes that a stream unpacks, in GB/s; 0: no time
  std::size_t from = 0;     ///< the least bytes of a tensor that is packed
  std::size_t staging = 0;  ///< device bytes beside the tensors, for packed forms on their way

  friend bool operator==(const packing_profile&, const packing_profile&) = default;
};

/// A recorded step. The engine always records `chunks` and `passes`. The other members are filled
/// if the step was timed, was built from a model's description, or was loaded from a file.
struct profile {
  std::vector<chunk_profile> chunks;  ///< in the order in which their forward passes began
  std::vector<pass> passes;           ///< forward and backward, in the order in which they began
  std::vector<std::string> modules;   ///< names by `module_id`
  std::vector<storage_profile> storages;  ///< in the order of their allocation
  std::vector<shared_save> shared;        ///< further groups that save a storage
  std::vector<event> events;              ///< in the order of the compute stream
  double rest_us = 0;                     ///< computing after the last event
  double rest_wait_us = 0;                ///< part of `rest_us` that waits for other ranks
  /// True if memory may be taken otherwise than `events` say: another step had other sizes, as with
  /// routed experts, or handles held memory between commit and restore.
  bool shapes_vary = false;
  /// True if device memory comes from an allocator that works in the order of the compute stream
  /// (`memory_on`). A reload then waits for all work that this stream was given before.
  bool stream_ordered = false;
  link_rates link;  ///< rates of the copies of this step, to the host and back, in tensor bytes
  /// Empty: no tensor was packed. Otherwise `link` is faster than the link, by what packing saves.
  std::optional<packing_profile> packing;
  /// Rates of copies to and from a neighbour's memory; none: there is no neighbour, or its rates
  /// are unknown.
  std::optional<link_rates> peer_link;
  /// True if copies to the neighbour use the link to the host: they then share its rates, and
  /// `peer_link` has the same values.
  bool peer_shares_link = false;

  /// True if the step has events, and so times.
  [[nodiscard]] bool timed() const { return !events.empty(); }

  void clear() { *this = {}; }  ///< Forgets everything.

  friend bool operator==(const profile&, const profile&) = default;
};

/// Computing of the whole step and its waits for other ranks, in microseconds.
[[nodiscard]] inline double compute_us(const profile& step) {
  double sum = step.rest_us;
  for (const auto& each : step.events) sum += each.compute_us;
  return sum;
}

}  // namespace tidepool::plan
