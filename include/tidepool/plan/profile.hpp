/// What a warm-up step recorded: which groups there were, in which order, how large and when. Plain
/// data.
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

/// One run of one module.
struct group_profile {
  module_id module{};       ///< index into `profile::modules`
  int layer = -1;           ///< -1 where it has none
  std::size_t bytes = 0;    ///< that would leave the device; 0 when all its tensors stay anyway
  double recompute_us = 0;  ///< of making them again in backward; 0: they cannot be

  friend bool operator==(const group_profile&, const group_profile&) = default;
};

/// One forward pass of one model chunk for one microbatch; groups in forward order.
struct chunk_profile {
  int model_chunk = 0;                ///< of an interleaved pipeline
  std::vector<group_profile> groups;  ///< in forward order
  int microbatch = 0;                 ///< of the step

  friend bool operator==(const chunk_profile&, const chunk_profile&) = default;
};

/// One pass over one chunk, in the order in which passes began.
struct pass {
  std::size_t chunk = 0;  ///< index into `profile::chunks`
  bool backward = false;  ///< or forward

  friend bool operator==(const pass&, const pass&) = default;
};

/// One allocation of saved tensors.
struct storage_profile {
  std::size_t bytes = 0;       ///< of the allocation
  std::uint32_t chunk = none;  ///< of the group that saves it; none: nobody does, so it stays
  std::uint32_t group = none;  ///< the group of `chunk` that saves it
  std::uint32_t place = 0;     ///< in the order of the group's tensors

  friend bool operator==(const storage_profile&, const storage_profile&) = default;
};

/// One more group that saves a storage, after the one that `storage_profile` names.
struct shared_save {
  std::uint32_t storage = 0;  ///< index into `profile::storages`
  std::uint32_t chunk = 0;    ///< index into `profile::chunks`
  std::uint32_t group = 0;    ///< of that chunk
  std::uint32_t place = 0;    ///< in the order of that group's tensors

  friend bool operator==(const shared_save&, const shared_save&) = default;
};

/// What a compute stream asks of an offloader.
enum class event_kind : std::uint8_t {
  allocate,     ///< memory for a storage
  commit,       ///< a group
  end_forward,  ///< of a chunk
  restore,      ///< a group
  release,      ///< a storage: its last handle goes
  drop,         ///< a storage: the last handle goes while a group still saves it
  synchronise   ///< nothing: the host waits for all of the device, so compute waits for all copies
};

/// One call, and the computing before it.
struct event {
  event_kind kind = event_kind::allocate;  ///< which call it is
  std::uint32_t index = 0;                 ///< a storage; a group of `chunk`; 0 for others
  std::uint32_t chunk = 0;                 ///< 0 for storages
  double compute_us = 0;  ///< of the compute stream since the event before, without its stalls
  double wait_us = 0;     ///< the first part of it: for other ranks; who comes late waits less

  friend bool operator==(const event&, const event&) = default;
};

/// What the link gives, in GB/s, and what a copy costs before its first byte.
struct link_rates {
  double out = 55.2;      ///< device to host alone
  double in = 55.2;       ///< host to device alone
  double both = 101.7;    ///< both together, in total
  double latency_us = 2;  ///< of each copy, before its first byte

  friend bool operator==(const link_rates&, const link_rates&) = default;
};

/// One step. What the engine always records is `chunks` and `passes`; the rest is there when the
/// step was timed, built from a model's description, or loaded.
struct profile {
  std::vector<chunk_profile> chunks;  ///< in the order in which their forward passes began
  std::vector<pass> passes;           ///< forward and backward, in the order in which they began
  std::vector<std::string> modules;   ///< names by `module_id`
  std::vector<storage_profile> storages;  ///< in the order of their allocation
  std::vector<shared_save> shared;        ///< further groups that save a storage
  std::vector<event> events;              ///< in the order of the compute stream
  double rest_us = 0;                     ///< computing after the last event
  double rest_wait_us = 0;                ///< the first part of it: for other ranks
  /// Memory may be taken otherwise than `events` tell: another step had other sizes, as with routed
  /// experts, or handles held memory from its commit to its restore.
  bool shapes_vary = false;
  /// Device memory is an allocator's that works in the order of the compute stream (`memory_on`): a
  /// reload then waits for all that the stream was given before.
  bool stream_ordered = false;
  link_rates link;  ///< rates of the copies of this step, to the host and back
  /// The same for a neighbour's memory; none: there is no neighbour, or nothing is known of it.
  std::optional<link_rates> peer_link;
  /// Copies to the neighbour go over the link to the host: they share its rates, and `peer_link`
  /// has them.
  bool peer_shares_link = false;

  /// Whether there are events, and so times.
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
