/// Every option of an offloader, with its default; `parse.hpp` reads them from text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::inline v0_2_0 {

/// Where the device memory of saved tensors comes from.
enum class memory_kind : std::uint8_t {
  pool,   ///< grows with demand, reuses a block only where its fence is already joined
  arena,  ///< one fixed allocation: a byte budget with back-pressure
  slots   ///< rings of fixed slots, for trainers whose shapes never change
};

/// One ring of equal slots.
struct slot_ring {
  std::size_t bytes = 0;  ///< of one slot
  std::size_t count = 0;  ///< slots of the ring

  friend bool operator==(const slot_ring&, const slot_ring&) = default;
};

/// Who decides which groups leave.
enum class policy_kind : std::uint8_t {
  megatron,  ///< margin, fraction and delta, as Megatron has them
  automatic  ///< a plan for the device budget, by the offloader's planner; see
             ///< `offloader::end_step`
};

/// What holds the host copies. A device that does not have a kind says why, when the offloader is
/// made.
enum class host_kind : std::uint8_t {
  automatic,       ///< huge pages registered with the driver, else pinned by it
  huge_pages,      ///< the former alone
  pinned,          ///< `cudaHostAlloc`
  write_combined,  ///< the same, out of the host's caches; slow for the host to read
  system,          ///< plain pages, where GPU and host share page tables (Grace-class machines)
  managed          ///< `cudaMallocManaged`, kept on the host
};

/// Where what leaves the device goes.
enum class place_kind : std::uint8_t {
  host,  ///< pinned host memory
  peer,  ///< memory of another device of the host, over the link between the two
  file   ///< a file, by way of a ring of pinned host memory
};

/// How many kinds of places there are.
inline constexpr std::size_t place_kinds = 3;

/// The name of a kind of place, as options have it.
[[nodiscard]] constexpr std::string_view name_of(place_kind which) {
  constexpr std::string_view names[place_kinds]{"host", "peer", "file"};
  return names[static_cast<std::size_t>(which)];
}

/// How host memory is made.
struct host_memory {
  host_kind kind = host_kind::automatic;  ///< what holds the copies
  bool bind = true;  ///< huge pages and system pages are on the NUMA node next to the device

  friend bool operator==(const host_memory&, const host_memory&) = default;
};

/// Every option of one offloader. A default-constructed object offloads nothing.
///
/// Units are bytes unless the name says otherwise. `validate` (in `validate.hpp`) checks the whole;
/// an offloader calls it in its constructor.
struct options {
  /// Modules whose saved tensors leave the device. `{"all"}` stands for every known module.
  std::vector<std::string> offload_modules{};
  /// Names of the user's own beside the standard ones.
  std::vector<std::string> own_modules{};
  /// Layer-level mode: when not empty, only groups of these layers leave.
  std::vector<int> offload_layers{};
  /// What the trainer discards in forward and computes again in backward (`chunk::discard`,
  /// `chunk::recompute`); offloading inside what is recomputed whole is refused.
  std::vector<std::string> recompute_modules{};

  /// Offloads of one module not yet joined, at most. None: no joins. 0: the compute stream waits
  /// at each commit. Megatron's `fine_grained_offloading_max_inflight_offloads`, but counted per
  /// module over all chunks.
  std::optional<std::size_t> max_inflight{};
  /// The same in bytes. Prefer it to `max_inflight` where groups differ in size.
  std::optional<std::size_t> max_inflight_bytes{};
  /// `max_inflight` of single modules, before the general one.
  std::map<std::string, std::size_t> module_max_inflight{};

  /// Tensors with fewer elements stay on the device. Megatron's `min_offloaded_tensor_size`.
  std::size_t min_tensor_elements = 1024 * 1024;
  /// Share of the eligible groups of each chunk that leave, from the first in forward order on.
  /// Megatron's `activation_offload_fraction`.
  double fraction = 1.0;
  /// Bytes kept on the device, times the pipeline rank.
  /// Megatron's `delta_offload_bytes_across_pp_ranks`.
  std::size_t delta_bytes_per_rank = 0;
  int pipeline_rank = 0;  ///< of this process, from 0 on
  /// Keep the last group of each module on the device where the chunk's own backward pass is the
  /// next that has the module: its reload could not be hidden. Megatron always does so.
  bool margin = true;

  /// Who decides which groups leave. `automatic` leaves `fraction`, `delta_bytes_per_rank` and
  /// `margin` aside and chooses `reload_ahead`, too.
  policy_kind policy = policy_kind::megatron;
  /// Plans may have discarded, and computed again in backward, what the trainer offers
  /// (`chunk::commit_or_discard`).
  bool recompute_by_plan = true;
  /// The step that an automatic plan is made of, 2 or later. Until then plans of the steps 1, 2, 4,
  /// … are followed, or of all where others are waited for. A GPU at its power limit computes
  /// faster in steps that stand still much: a later step, with a plan much like the last, predicts
  /// better. What took long in it alone does not count; with 3 or more, waits of the host for
  /// the whole device are told from computing.
  int timed_step = 2;
  /// Steps that each search for an automatic plan may simulate at most; the engine tries a tenth as
  /// many, six at least. None: what is worth while for one training.
  std::optional<std::size_t> plan_effort{};

  /// Groups whose reload may be under way ahead of their use.
  std::size_t reload_ahead = 2;
  /// The same in bytes; whichever limit is met first holds. Prefer it where groups differ in size.
  std::optional<std::size_t> reload_ahead_bytes{};

  /// How device memory for saved tensors is handed out.
  memory_kind memory = memory_kind::pool;
  /// Bytes of device memory for saved tensors. The arena needs it; the pool grows up to it.
  std::optional<std::size_t> device_budget{};
  /// Rings for `memory_kind::slots`.
  std::vector<slot_ring> slots{};
  /// Bytes by which the device pool grows.
  std::size_t device_step = std::size_t{32} << 20;

  /// Bytes of borrowed memory (`offloader::adopt`, `memory_on`) that may wait for their copies
  /// before a compute stream waits for the oldest, so that it goes back to its owner. None: as far
  /// as the device budget goes; without one, as much as a few of the largest groups, or as the caps
  /// allow.
  std::optional<std::size_t> borrowed_slack{};

  /// Larger copies go in pieces of this size, so that others are not kept waiting; 0: whole.
  std::size_t copy_piece = std::size_t{32} << 20;

  /// Where groups go that leave, the nearest first: each to the first that has room for all of it.
  std::vector<place_kind> places{place_kind::host};
  /// The neighbour of `place_kind::peer`, by its number.
  int peer_device = 1;
  /// Bytes of its memory that this offloader may take; `place_kind::peer` needs it.
  std::optional<std::size_t> peer_budget{};

  /// The file of `place_kind::file`: a new one, or a directory for one without a name.
  std::string file_path{};
  /// Bytes that it may have; `place_kind::file` needs it.
  std::optional<std::size_t> file_budget{};
  /// Bytes of pinned host memory that copies to and from the file pass through.
  std::size_t file_ring = std::size_t{256} << 20;
  /// Bytes of host memory of this offloader; by default what the machine (or its cgroup) has,
  /// less a reserve, divided by the local ranks.
  std::optional<std::size_t> host_budget{};
  /// Bytes by which the host arena grows, and by which memory is taken of a neighbour or a file.
  std::size_t host_step = std::size_t{256} << 20;
  /// What holds the host copies, and whether on the device's NUMA node.
  host_kind host_memory = host_kind::automatic;
  /// Huge pages and system pages are on the NUMA node next to the device.
  bool host_bind = true;
  /// For tests: device memory that is handed out, and what is given back, is filled with 0xFF bytes
  /// on its stream, so that kernels which read what has left, or what nobody wrote, show.
  bool poison = false;
  /// Processes on this machine that share its memory; 0 takes it from the launcher's environment.
  int local_ranks = 0;

  friend bool operator==(const options&, const options&) = default;
};

}  // namespace tidepool
