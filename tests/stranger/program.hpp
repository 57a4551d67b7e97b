// A random program as data: what an offloader is made with, and a list of operations. Any part of
// the list is a program too, which is how one that fails is made shorter.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stranger {

inline constexpr int slot_count = 40;
inline constexpr int chunk_count = 8;
inline constexpr int state_count = 3;
inline constexpr int graph_count = 4;
inline constexpr int source_count = 3;
inline constexpr int source_bytes = 2048;
inline constexpr int key_pass_count = 3;
inline constexpr int key_count = 12;
inline constexpr int layer_set_count = 2;
inline constexpr int layer_count = 4;
inline constexpr int array_count = 3;
// From here on the shape of a view stands for one of no bytes.
inline constexpr int empty_shape = 1 << 20;
// So much that these programs never use it up.
inline constexpr std::size_t roomy_device = std::size_t{1} << 20;
inline constexpr std::size_t roomy_host = std::size_t{2} << 20;

inline constexpr std::array<const char*, 5> module_names{"core_attn", "expert_fc1", "moe_act",
                                                         "mine", "mine_again"};
// What `discard` may name: a region that is standard, and a module that never leaves.
inline constexpr std::array<const char*, 2> discard_names{"layernorm", "mine_again"};

inline constexpr std::array<const char*, 14> device_calls{
    "record",      "wait",          "copy",        "try_allocate", "try_allocate_host",
    "synchronize", "begin_capture", "end_capture", "replay",       "make_event",
    "make_stream", "fill_bytes",    "pack",        "unpack"};

enum class kind : std::uint8_t {
  // tensors: a is the slot
  allocate,     // b bytes, c stream, d source (0: the offloader's), e offloader, f number_type
  write,        // b stream
  read,         // b stream
  share,        // b target slot
  view,         // b target slot, c shape, d whole storage
  keep,         //
  bfloat16,     // holds_bfloat16()
  reset,        // b stream
  destroy,      //
  move_handle,  // b target slot
  // passes: a is the chunk
  begin,   // b offloader, c microbatch, d model chunk, e 1: forward only, 2: not where one is open,
           // 3: forward only, and commits give memory back
  commit,  // b module, c layer, d stream, e way (commit_way), slots
  end_forward,   //
  start_reload,  // b group counted from the last
  restore,       // b group counted from the last, c stream, d fault of the trainer, e throws
  discard,       // b name, c layer, d stream, slots
  recompute,     // b which counted from the last, c stream, e throws
  finish,        //
  abandon,       //
  move_chunk,    // b target chunk
  // steps: a is the offloader
  end_step,
  save_plan,
  follow,
  probe,  // gives everything up and runs a plain step
  drop_offloader,
  check_counters,
  check_growth,   // b 1: the first part is over
  trace,          // starts or finishes
  span,           // b stream
  wait_for,       // b stream, c peers, e throws
  throw_reports,  // the next report throws
  // state on the host: a is the state
  make_state,    // b bytes, c offloader
  create_state,  // b slot, c stream
  prefetch_state,
  fetch_state,  // b slot, c stream
  write_state,  // c stream
  drop_state,
  // graphs: a is the graph
  capture_begin,  // b stream, c offloader, d all streams take part, e the body throws at its end
  capture_end,
  launch,  // b stream
  drop_graph,
  // borrowed memory
  // a slot, b bytes, c stream, d owner (owner_kind), e offloader, slots: shares theirs, f
  // number_type and, times 8, bytes beside a multiple of 16
  adopt,
  release_borrowed,  // a offloader
  check_idle,        // a offloader: where nothing is alive, all memory can be had
  wait_handle,       // a slot, b stream
  forget,            // a chunk, b group counted from the last, c stream, d 1: what stayed is kept
  // tensors by key: a is the pass
  key_begin,  // b offloader, c microbatch, e 1: forward only, 3: and gives memory back
  key_enter,  // b module, c layer, e the body throws at its end
  // b key, c stream, d bytes, e owner; with 4 the trainer keeps it as well, with 8 it lies where
  // another key's does, with 16 it is a weight, which is excluded, with 32 that question throws
  key_save,
  key_leave,  // b stream
  key_end_forward,
  key_load,  // b key, c stream
  key_read,  // b key, c stream: at the address that it has
  key_drop,  // b key, c stream
  key_finish,
  key_abandon,
  key_misuse,  // b which, c stream
  // arrays of layers: a is the set
  layers_make,   // b offloader, c module, d arrays
  layers_begin,  // c microbatch, e 1: forward only, 3: and gives memory back
  layer_fresh,   // b layer, c stream, d elements, e zeros, slots: array
  layer_write,   // b layer, c stream, slots: array
  layer_read,    // b layer, c stream, slots: array
  layer_done,    // b layer, c stream
  layers_end_forward,
  layer_back,     // b layer, c stream, slots: array
  layer_release,  // b layer, c stream, d 0: all, else of this array
  layers_finish,
  layers_abandon,
  layers_reset,   // c stream
  layers_drop,    // c stream
  layers_misuse,  // b layer, c stream, d which
  // memory that another device lends: a is the offloader
  borrow_memory,  // b bytes, c 1: moves on
  return_memory,
  lender_goes,  // b 1: it ends, 0: it asks for its memory
  // the trainer's own
  join,  // stream b waits for stream a
  synchronize,
  misuse,  // a which, b, c, d as it needs
  count
};

[[nodiscard]] inline std::string_view name_of(kind what) {
  static constexpr std::string_view names[]{"allocate",
                                            "write",
                                            "read",
                                            "share",
                                            "view",
                                            "keep",
                                            "bfloat16",
                                            "reset",
                                            "destroy",
                                            "move_handle",
                                            "begin",
                                            "commit",
                                            "end_forward",
                                            "start_reload",
                                            "restore",
                                            "discard",
                                            "recompute",
                                            "finish",
                                            "abandon",
                                            "move_chunk",
                                            "end_step",
                                            "save_plan",
                                            "follow",
                                            "probe",
                                            "drop_offloader",
                                            "check_counters",
                                            "check_growth",
                                            "trace",
                                            "span",
                                            "wait_for",
                                            "throw_reports",
                                            "make_state",
                                            "create_state",
                                            "prefetch_state",
                                            "fetch_state",
                                            "write_state",
                                            "drop_state",
                                            "capture_begin",
                                            "capture_end",
                                            "launch",
                                            "drop_graph",
                                            "adopt",
                                            "release_borrowed",
                                            "check_idle",
                                            "wait_handle",
                                            "forget",
                                            "key_begin",
                                            "key_enter",
                                            "key_save",
                                            "key_leave",
                                            "key_end_forward",
                                            "key_load",
                                            "key_read",
                                            "key_drop",
                                            "key_finish",
                                            "key_abandon",
                                            "key_misuse",
                                            "layers_make",
                                            "layers_begin",
                                            "layer_fresh",
                                            "layer_write",
                                            "layer_read",
                                            "layer_done",
                                            "layers_end_forward",
                                            "layer_back",
                                            "layer_release",
                                            "layers_finish",
                                            "layers_abandon",
                                            "layers_reset",
                                            "layers_drop",
                                            "layers_misuse",
                                            "borrow_memory",
                                            "return_memory",
                                            "lender_goes",
                                            "join",
                                            "synchronize",
                                            "misuse"};
  static_assert(std::size(names) == static_cast<std::size_t>(kind::count));
  return names[static_cast<std::size_t>(what)];
}

enum commit_way : int { plain, by_hand, or_discard, listed };

// A callable, a reference count, or a callable that calls the offloader.
enum owner_kind : int { callable, counted, calls_back };

// The type that a tensor is allocated or adopted as: bytes, a type of ours that is BF16, or CUDA's.
enum number_type : int { as_bytes, own_number, cudas_number };

// Memory that a trainer gives its offloader: none, a block_source of its own, or memory_on with a
// deallocate of one argument or of two.
enum own_memory : int { none, blocks, on_stream, on_stream_sized };

struct operation {
  kind what{};
  int a = 0, b = 0, c = 0, d = 0, e = 0;
  std::vector<int> slots{};
  int f = 0;
};

// Beside the bits of modules; and the module that is packed at compile time.
inline constexpr unsigned pack_all = 1U << 8;
inline constexpr int packed_module = 3;

// What one offloader is made with. Budgets of 0 mean: so much that it never runs out.
struct side {
  int memory = 0;  // pool, arena, slots
  std::size_t budget = 0;
  std::size_t step = 8192;
  std::vector<std::pair<std::size_t, std::size_t>> rings{};
  std::size_t host_budget = 0;
  std::size_t host_step = 16384;
  std::size_t peer_budget = 0;  // of a neighbour's memory, which comes first; 0: none
  unsigned modules = 0b1111;
  unsigned recompute = 0;  // of discard_names
  bool margin = true;
  double fraction = 1;
  std::size_t delta = 0;
  int cap = -1;
  long cap_bytes = -1;
  int ahead = 2;
  long ahead_bytes = -1;
  std::size_t min_elements = 1;
  std::size_t piece = 32 << 20;
  bool automatic = false;
  bool recompute_by_plan = true;
  int timed_step = 2;
  unsigned layers = 0;        // the only ones that leave; 0: all
  long slack = -1;            // of borrowed memory
  int own = none;             // own_memory
  std::size_t own_bytes = 0;  // of memory_on; 0: as much as it likes
  unsigned pack = 0;          // modules of --pack; pack_all: `all`

  [[nodiscard]] bool tight() const {
    if (own != none) return own == blocks || own_bytes != 0;  // a budget is soft then
    return budget != 0 || memory == 2;
  }
  // Some groups, whatever leaves beside them.
  [[nodiscard]] bool keeps() const {
    return margin || fraction != 1 || delta != 0 || automatic || layers != 0;
  }
  [[nodiscard]] bool tight_host() const { return host_budget != 0; }
};

struct program {
  std::uint64_t seed = 0;
  int streams = 1;
  std::vector<side> sides{side{}};
  std::size_t packs_from = std::size_t{64} << 10;  // as the virtual device has it
  std::size_t memory = std::size_t{8} << 20;       // of the device, and of the host
  std::size_t grain = 16;                          // bytes that the race checker takes for one
  // The call of the library to the device that fails, once: of this kind, counted from 1; 0: none.
  int fault_call = 0;
  int fault_at = 0;
  bool offloader_first = false;
  bool poison = false;  // by option; the device's own is off then
  bool asks = true;     // the device says which events have passed
  bool eager = false;   // the trainer computes on the host, and owners free at once
  std::vector<operation> operations{};
};

// splitmix64
class dice {
 public:
  explicit dice(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 0x1234567U) {}
  std::uint64_t next() {
    auto z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  int below(int n) { return n <= 1 ? 0 : static_cast<int>(next() % static_cast<unsigned>(n)); }
  int from(int low, int high) { return low + below(high - low + 1); }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  std::uint64_t state_;
};

struct finding {
  std::string key;   // what is the same for the same defect, more or less
  std::string text;  // all that is known
  int at = -1;       // the operation
};

struct played {
  std::vector<finding> found;    // races, which end nothing, and at last what ended it
  std::string code;              // the stand-alone program, where it was asked for
  std::size_t device_calls = 0;  // made by the library
  std::size_t checks = 0;
};

// Runs a program on a device whose operations run in the order that `order` draws.
[[nodiscard]] played play(const program& what, std::uint64_t order, bool write_code);

// Whether questions that the documentation leaves open count as findings (--strict).
[[nodiscard]] bool& strict();

// Findings whose key has one of these in it are passed over, and the program goes on.
[[nodiscard]] std::vector<std::string>& passed_over();

// How often things came about, to see what programs reach (--reached).
[[nodiscard]] std::map<std::string, long>& reached();

// Whether all programs are long ones (--long).
[[nodiscard]] bool& long_only();

// Draws the program of a seed.
[[nodiscard]] program draw(std::uint64_t seed);

[[nodiscard]] std::string to_text(const program& what);

}  // namespace stranger
