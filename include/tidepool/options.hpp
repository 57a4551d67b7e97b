/// Every option of an offloader, with its default; `parse.hpp` reads them from text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::inline v0_3_0 {

/// The source of the device memory for saved tensors.
enum class memory_kind : std::uint8_t {
  pool,   ///< grows with demand, reuses a block only where its fence is already joined
  arena,  ///< one fixed allocation: a byte budget with back-pressure
  slots   ///< rings of fixed slots, for trainers whose shapes never change
};

/// A ring of equal slots.
struct slot_ring {
  std::size_t bytes = 0;  ///< bytes of one slot
  std::size_t count = 0;  ///< slots of the ring

  friend bool operator==(const slot_ring&, const slot_ring&) = default;
};

/// How an offloader chooses the groups that leave.
enum class policy_kind : std::uint8_t {
  megatron,  ///< margin, fraction and delta, as Megatron has them
  automatic  ///< a plan for the device budget, by the offloader's planner; see
             ///< `offloader::end_step`
};

/// The kind of memory for host copies. The constructor of the offloader throws `option_error`, with
/// the reason, if the machine does not have the kind.
enum class host_kind : std::uint8_t {
  automatic,       ///< huge pages registered with the driver, else pinned by it
  huge_pages,      ///< huge pages registered with the driver, with no fallback
  pinned,          ///< `cudaHostAlloc`
  write_combined,  ///< pinned, but outside the host's caches; slow for the host to read
  system,          ///< plain pages, where GPU and host share page tables (Grace-class machines)
  managed          ///< `cudaMallocManaged`, kept on the host
};

/// A place to which tensors leave the device.
enum class place_kind : std::uint8_t {
  host,  ///< pinned host memory
  peer,  ///< memory of another device of the host, over the link between the two
  file   ///< a file, by way of a ring of pinned host memory
};

/// How many kinds of places there are.
inline constexpr std::size_t place_kinds = 3;

/// The name of a kind of place, as in the options.
[[nodiscard]] constexpr std::string_view name_of(place_kind which) {
  constexpr std::string_view names[place_kinds]{"host", "peer", "file"};
  return names[static_cast<std::size_t>(which)];
}

/// How host memory is made.
struct host_memory {
  host_kind kind = host_kind::automatic;  ///< kind of memory of the copies
  bool bind = true;  ///< huge pages and system pages are on the NUMA node next to the device

  friend bool operator==(const host_memory&, const host_memory&) = default;
};

/// How much may be reloaded ahead of its use; the limit that is met first holds.
struct reload_limits {
  std::size_t groups = 2;              ///< groups under way, or on the device and not restored yet
  std::optional<std::size_t> bytes{};  ///< bytes of those groups; empty: no limit in bytes

  friend bool operator==(const reload_limits&, const reload_limits&) = default;
};

/// Every option of one offloader. A default-constructed object offloads nothing.
///
/// Units are bytes unless the name says otherwise. `validate` (in `validate.hpp`) checks the whole;
/// an offloader calls it in its constructor.
struct options {
  /// Modules whose saved tensors leave the device. `{"all"}` stands for every known module.
  std::vector<std::string> offload_modules{};
  /// The user's own module names, beside the standard ones.
  std::vector<std::string> own_modules{};
  /// If not empty, only groups of these layers leave.
  std::vector<int> offload_layers{};
  /// Names of tensors that are discarded in forward and computed again in backward if the trainer
  /// offers them (`chunk::commit_or_discard`), under any plan. A name may be in `offload_modules`,
  /// too: the tensors of plain commits then leave. Offloading a module inside a region that is
  /// recomputed whole is refused.
  std::vector<std::string> recompute_modules{};

  /// The most offloads of one module that no compute stream has waited for yet. Empty: compute
  /// streams never wait. 0: they wait at each commit. Megatron's
  /// `fine_grained_offloading_max_inflight_offloads`, but counted per module over all chunks.
  std::optional<std::size_t> max_inflight{};
  /// Like `max_inflight`, in bytes. Prefer it where groups differ in size.
  std::optional<std::size_t> max_inflight_bytes{};
  /// `max_inflight` of single modules; it overrides the general one.
  std::map<std::string, std::size_t> module_max_inflight{};

  /// Tensors with fewer elements stay on the device. Megatron's `min_offloaded_tensor_size`.
  std::size_t min_tensor_elements = 1024 * 1024;
  /// Share of the eligible groups of each chunk that leave, counted from the start of forward.
  /// Megatron's `activation_offload_fraction`.
  double fraction = 1.0;
  /// Bytes kept on the device, times the pipeline rank.
  /// Megatron's `delta_offload_bytes_across_pp_ranks`.
  std::size_t delta_bytes_per_rank = 0;
  int pipeline_rank = 0;  ///< rank of this process in the pipeline, from 0
  /// Keeps the last group of each module on the device if the chunk's own backward pass is the next
  /// pass with that module, because its reload could not be hidden. Megatron always does so.
  bool margin = true;

  /// How the groups that leave are chosen. `automatic` ignores `fraction`, `delta_bytes_per_rank`
  /// and `margin`, and chooses `reload_ahead`, too.
  policy_kind policy = policy_kind::megatron;
  /// Allows plans to discard tensors and compute them again in backward, where the trainer offers
  /// it (`chunk::commit_or_discard`).
  bool recompute_by_plan = true;
  /// The step that an automatic plan is made of, 2 or later. Empty: the step by which computing has
  /// settled, because a GPU lowers its clock in the first seconds under load. This step is between
  /// the 12th and the 40th; it is the 16th if ranks wait for each other, and the 2nd on a device
  /// that simulates time. Until then the offloader follows plans of steps 1, 2 and 4. With a
  /// number, it follows plans of steps 1, 2, 4, 8, …, or of all steps if ranks wait for each other.
  /// Work that took longer in this step alone is not counted as that long. From the 3rd step on, a
  /// timed step can tell computing from waits of the host for the whole device.
  std::optional<int> timed_step{};
  /// Steps from the timed step to the step at whose end its automatic plan is adopted. A thread
  /// makes the plan meanwhile, and no step between is recorded. 0: `end_step` makes the plan in
  /// line. Other numbers: the plan is adopted exactly then, so that runs repeat and ranks agree;
  /// `end_step` waits if the plan is late. Empty: the plan is adopted as soon as it is made; it is
  /// made in line on a device that simulates time, and if ranks wait for each other without
  /// `offloader::on_ready`.
  std::optional<std::size_t> adopt_after{};
  /// The most steps that each search for an automatic plan may simulate. At most a tenth as many
  /// are forecast by the engine, which is slower. Empty: as many as pay off in one training.
  std::optional<std::size_t> plan_effort{};

  /// Groups whose reload may be under way ahead of their use.
  std::size_t reload_ahead = 2;
  /// Like `reload_ahead`, in bytes; the limit that is met first holds. Prefer it where groups
  /// differ in size.
  std::optional<std::size_t> reload_ahead_bytes{};

  /// How device memory for saved tensors is handed out.
  memory_kind memory = memory_kind::pool;
  /// Bytes of device memory for saved tensors. The arena needs it; the pool grows up to it.
  std::optional<std::size_t> device_budget{};
  /// Rings for `memory_kind::slots`.
  std::vector<slot_ring> slots{};
  /// Bytes by which the device pool grows.
  std::size_t device_step = std::size_t{32} << 20;

  /// Bytes of borrowed memory (`offloader::adopt`, `memory_on`) that may wait for their copies.
  /// Above it, a compute stream waits for the oldest copy, so that its memory goes back to its
  /// owner. Empty: up to the device budget; without a budget, a few of the largest groups, or as
  /// the caps allow.
  std::optional<std::size_t> borrowed_slack{};

  /// Modules whose BF16 tensors are packed on the device before they go to the host, and unpacked
  /// when they come back, bit for bit. `{"all"}` stands for every module that is offloaded. Needs a
  /// device that packs (`packing_device`). `{"auto"}` leaves it to the plan of the automatic
  /// policy: all modules are packed where that makes steps faster, or none.
  std::vector<std::string> pack{};

  /// Larger copies are split into pieces of this size, so that other copies do not wait long. 0: no
  /// splitting.
  std::size_t copy_piece = std::size_t{32} << 20;

  /// Places for groups that leave, the nearest first. A group goes to the first place that has room
  /// for all of it.
  std::vector<place_kind> places{place_kind::host};
  /// The number of the neighbour's device for `place_kind::peer`.
  int peer_device = 1;
  /// Bytes of the neighbour's memory that this offloader may take; `place_kind::peer` needs it.
  std::optional<std::size_t> peer_budget{};

  /// The file of `place_kind::file`: a new file, or a directory for a file without a name.
  std::string file_path{};
  /// Bytes that the file may have; `place_kind::file` needs it.
  std::optional<std::size_t> file_budget{};
  /// Bytes of pinned host memory that copies to and from the file pass through.
  std::size_t file_ring = std::size_t{256} << 20;
  /// Bytes of host memory of this offloader. Empty: the memory of the machine (or of its cgroup),
  /// less a reserve, divided by the local ranks.
  std::optional<std::size_t> host_budget{};
  /// Bytes by which pinned host memory grows, and by which room in a file is taken. A neighbour's
  /// memory is taken at once, up to `peer_budget`, if the neighbour has it.
  std::size_t host_step = std::size_t{256} << 20;
  /// The kind of memory for host copies.
  host_kind host_memory = host_kind::automatic;
  /// Puts huge pages and system pages on the NUMA node next to the device.
  bool host_bind = true;
  /// For tests: fills device memory with 0xFF bytes on its stream when it is handed out and when it
  /// is given back. Results then show a kernel that reads a tensor that left, or unwritten memory.
  bool poison = false;
  /// Processes on this machine that share its memory; 0 takes it from the launcher's environment.
  int local_ranks = 0;

  /// Prints the totals by module when the offloader is destroyed. This option and the next two need
  /// `parts::output`, and are refused without it.
  bool summary = false;
  /// Steps to record for pictures, counted from 1. Each blocks the host at its begin and its end.
  std::vector<int> trace_step{};
  /// Beginning of the names of the files that a recorded step is written to.
  std::string trace_to{};

  friend bool operator==(const options&, const options&) = default;
};

}  // namespace tidepool
