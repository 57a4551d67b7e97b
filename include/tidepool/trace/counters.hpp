/// The counters of an offloader: plain numbers that can be read at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::inline v0_3_0::trace {

/// Totals of one module since the offloader was made. A storage counts once for bytes.
struct module_counters {
  std::string name;          ///< name of the module
  bool enabled = false;      ///< true if the module may leave
  std::uint64_t groups = 0;  ///< groups committed while enabled, without forward-only passes
  std::uint64_t groups_offloaded = 0;   ///< groups of which at least one byte left
  std::uint64_t groups_resident = 0;    ///< groups kept by policy (margin, fraction, delta, layers)
  std::uint64_t groups_recomputed = 0;  ///< groups that a plan discarded to recompute them
  /// Groups that a plan wanted to discard but that were offloaded, because another handle or group
  /// held their memory, or the trainer offered no recomputation.
  std::uint64_t groups_held = 0;
  std::uint64_t tensors_offloaded = 0;  ///< tensors whose copy was begun
  std::uint64_t tensors_shared = 0;     ///< tensors saved again: no second copy was needed
  std::uint64_t tensors_small = 0;      ///< tensors below `min_tensor_elements`, which stayed
  std::uint64_t tensors_elsewhere = 0;  ///< tensors on other devices than the offloader's: stayed
  std::uint64_t tensors_excluded = 0;  ///< tensors that an adapter was told to leave where they are
  std::uint64_t bytes_offloaded = 0;   ///< bytes copied to the host
  std::uint64_t bytes_reloaded = 0;    ///< bytes copied back
  std::uint64_t bytes_packed = 0;      ///< bytes of `bytes_offloaded` that were packed
  std::uint64_t bytes_on_link = 0;     ///< bytes that copied these packed tensors out
  std::uint64_t records_seen = 0;      ///< records of packed tensors that the host looked at
  std::uint64_t records_raw = 0;       ///< records of these that did not fit the packed form
  std::uint64_t bytes_recomputed = 0;  ///< bytes of the groups that a plan discarded
  std::uint64_t cap_joins = 0;         ///< times the compute stream joined an offload for the cap
  std::uint64_t step_bytes = 0;        ///< offloaded bytes of the last whole step
  std::uint64_t most_rows = 0;         ///< the largest row count that `rows_overflowed` has read
  bool by_all = false;                 ///< enabled by `all`, not by its name

  friend bool operator==(const module_counters&, const module_counters&) = default;
};

/// Totals of one name in `recompute_modules`.
struct recompute_counters {
  std::string name;           ///< the name in `recompute_modules`
  std::uint64_t tensors = 0;  ///< tensors discarded in forward
  std::uint64_t bytes = 0;    ///< bytes of these tensors

  friend bool operator==(const recompute_counters&, const recompute_counters&) = default;
};

/// Totals of one place that groups are offloaded to.
struct place_counters {
  std::string name;                   ///< `host`, or `peer` with its number or its lender
  std::uint64_t bytes_offloaded = 0;  ///< bytes of groups copied to the place
  std::uint64_t bytes_reloaded = 0;   ///< bytes of groups copied back
  std::size_t budget = 0;             ///< most bytes that may be taken there
  std::size_t reserved = 0;           ///< bytes taken there now
  std::size_t peak = 0;               ///< most bytes in use at once
  std::uint64_t allocations = 0;      ///< calls to the place's allocator

  friend bool operator==(const place_counters&, const place_counters&) = default;
};

/// Totals of one offloader.
struct counters {
  std::vector<module_counters> modules;        ///< in order of `module_id`
  std::vector<recompute_counters> recomputed;  ///< in order of `recompute_modules`
  std::vector<place_counters> places;          ///< in order of `options::places`
  std::uint64_t steps = 0;                     ///< steps ended by `end_step`
  std::uint64_t passes = 0;                    ///< chunks begun for training
  std::uint64_t passes_forward_only = 0;       ///< chunks begun `forward_only`
  std::uint64_t evictions = 0;  ///< reloads undone: forward needed their memory, or a capture began
  std::uint64_t arena_waits = 0;         ///< device blocks handed out with a join (back-pressure)
  std::uint64_t placed_elsewhere = 0;    ///< times that a block's planned place was not free
  std::uint64_t device_allocations = 0;  ///< calls to the device's allocator
  std::uint64_t host_allocations = 0;    ///< calls to the device's host allocator
  std::size_t device_reserved = 0;       ///< bytes taken from the device now
  std::size_t device_peak = 0;  ///< `peak taken`: the most bytes ever taken from the device
  /// `peak needed`: the most bytes of saved tensors on the device at once, in the order of calls.
  std::size_t live_peak = 0;
  std::size_t live_peak_without = 0;  ///< `live_peak` if nothing had been offloaded
  std::size_t away_at_peak = 0;       ///< bytes of `live_peak_without` that were not on the device
  /// Bytes of other allocators that are held now, including those that wait for copies.
  std::size_t borrowed = 0;
  std::size_t borrowed_peak = 0;     ///< `peak borrowed`: the highest value of `borrowed`
  bool takes_borrowed = false;       ///< true: `device_peak` is borrowed as well (`memory_on`)
  std::size_t borrowed_waiting = 0;  ///< bytes that go back to their owners once copies end
  std::uint64_t borrowed_joins = 0;  ///< times an owner's stream had to wait to have memory back
  /// Times that borrowed memory exceeded the budget, which is soft for such memory.
  std::uint64_t budget_exceeded = 0;
  std::size_t host_reserved = 0;    ///< pinned bytes taken from the device
  std::size_t host_peak = 0;        ///< most pinned bytes in use at once
  std::uint64_t state_fetched = 0;  ///< bytes of host_state copied to the device
  std::uint64_t state_written = 0;  ///< bytes of host_state copied back
  std::string host_memory;  ///< kind and NUMA node of the memory that holds the pinned bytes
  std::string host_budget;  ///< limit of the pinned bytes, and the processes that share the host

  /// Device bytes that offloading saved: the bytes needed without it, less the bytes taken from the
  /// device, less the bytes of other allocators that were held. Their peaks are added, although
  /// they may come at different times.
  [[nodiscard]] std::size_t saved() const {
    const auto held = (takes_borrowed ? 0 : device_peak) + borrowed_peak;
    return live_peak_without > held ? live_peak_without - held : 0;
  }

  friend bool operator==(const counters&, const counters&) = default;
};

}  // namespace tidepool::trace
