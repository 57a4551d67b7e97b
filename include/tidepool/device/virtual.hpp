/// A deterministic device on the CPU: real bytes, a virtual clock, a link with rates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/device/detail/operation.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/device/machine.hpp"

namespace tidepool::inline v0_3_0::detail {
class captured;
class simulation;
}  // namespace tidepool::detail

namespace tidepool::inline v0_3_0 {

/// A kernel that ran on the virtual device: its stream and its times.
struct kernel_run {
  std::size_t stream = 0;  ///< `stream_ref::index` of its stream
  double start_ns = 0;     ///< start on the virtual clock
  double end_ns = 0;       ///< end on the virtual clock
};

/// A device whose streams are queues, whose copies move real bytes at the rates of a `machine`, and
/// whose kernels are host functions with a duration.
///
/// Operations run on the caller's thread, when a call synchronizes or frees memory. Until then
/// pointers and captured objects must stay valid. Each run of a program has equal results and equal
/// times.
///
/// While an exception unwinds, freeing memory runs no work. An offloader that the exception
/// destroys drops the work that was queued since it was made on the streams that it served, because
/// kernels may point into frames that are gone.
///
/// Two virtual devices share only memory that one exports and the other imports. Thread safety:
/// none; use an object in one thread. The device must outlive its streams, events and offloaders.
class virtual_device {
 public:
  static constexpr std::string_view name = "virtual";  ///< for messages and pictures
  static constexpr bool simulates_time = true;         ///< work takes the same time in every step

  /// A copyable name of a stream.
  class stream_ref {
   public:
    // `stream` holds one before this class's default values are known.
    constexpr stream_ref() : stream_ref(0, 0) {}
    /// Tells streams apart, among all virtual devices of the process.
    [[nodiscard]] constexpr std::uint64_t key() const { return key_; }
    /// The index that observers see.
    [[nodiscard]] constexpr std::size_t index() const { return index_; }

   private:
    friend class virtual_device;
    constexpr stream_ref(std::size_t index, std::uint64_t key) : index_(index), key_(key) {}
    std::size_t index_;
    std::uint64_t key_;
  };

  /// Owns a stream. Work queued on the stream still runs after the end of its owner.
  class stream {
   public:
    /// The stream's name, for an offloader.
    [[nodiscard]] stream_ref ref() const { return owner_.get_deleter().ref; }

   private:
    friend class virtual_device;
    struct retire {
      void operator()(detail::simulation* owner) const;
      stream_ref ref;
    };
    stream(detail::simulation& owner, stream_ref ref) : owner_(&owner, retire{ref}) {}
    std::unique_ptr<detail::simulation, retire> owner_;
  };

  /// Owns an event.
  class event {
    friend class virtual_device;
    struct retire {
      void operator()(detail::simulation* owner) const;
      std::size_t index;
    };
    event(detail::simulation& owner, std::size_t index) : owner_(&owner, retire{index}) {}
    [[nodiscard]] std::size_t index() const { return owner_.get_deleter().index; }
    std::unique_ptr<detail::simulation, retire> owner_;
  };

  /// Owns the work of a capture.
  class graph {
    friend class virtual_device;
    struct retire {
      void operator()(detail::simulation* owner) const;
      std::vector<std::size_t> lanes;  // streams to run on; the first is the launch's
    };
    graph(detail::simulation& owner, std::unique_ptr<detail::captured> content);
    std::shared_ptr<detail::captured> content_;
    std::unique_ptr<detail::simulation, retire> owner_;
  };

  /// A device with the memory, link and kernel order of `model`.
  explicit virtual_device(const machine& model = {});
  virtual_device(const virtual_device&) = delete;
  virtual_device& operator=(const virtual_device&) = delete;
  ~virtual_device();

  // ---- streams, events, copies: see the concept `device` ----

  [[nodiscard]] stream make_stream();  ///< A stream that runs beside the others.
  /// An event; every event here can be timed.
  [[nodiscard]] event make_event(bool /*timing*/ = false);
  /// Makes the event stand for all work that `on` was given so far. Does not run anything.
  void record(event& target, stream_ref on);
  /// Makes `waiter` wait for the event's latest record. Does not run anything.
  void wait(stream_ref waiter, const event& until);
  void synchronize(stream_ref which);  ///< Runs queued work until the stream is idle.
  void synchronize();                  ///< Runs all queued work.
  /// Microseconds on the virtual clock between two events that have passed.
  [[nodiscard]] double elapsed_us(const event& from, const event& to) const;
  /// True if all work before the event's latest record has run. Does not run anything.
  [[nodiscard]] bool passed(const event& which) const;
  /// Queues a copy that takes the link of the machine; `shape` has rows and pitches in bytes.
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on);

  /// Queues a fill, which takes no virtual time.
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, stream_ref on);

  /// The machine's: false if memory is only counted.
  [[nodiscard]] bool moves_bytes() const { return model_.moves_bytes; }

  // ---- packing: see `packing_device` ----

  /// The machine's `packs_from`.
  [[nodiscard]] std::size_t packs_from() const { return model_.packs_from; }
  [[nodiscard]] std::size_t pack_piece() const { return model_.pack_piece; }  ///< The machine's.
  [[nodiscard]] double pack_rate() const { return model_.pack_rate; }         ///< The machine's.
  [[nodiscard]] double unpack_rate() const { return model_.unpack_rate; }     ///< The machine's.
  /// Queues the packing of a tensor, at the machine's `pack_rate`.
  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            stream_ref on);
  /// Queues the unpacking of a tensor, at the machine's `unpack_rate`; if `packed` lies beside
  /// `spill` on the host, the link carries it meanwhile, at `reload_rate`.
  void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill, std::size_t bytes,
              stream_ref on);

  // ---- graphs, under the rules of CUDA's stream capture ----

  /// Keeps work that the stream is given from now on, and does not run it.
  void begin_capture(stream_ref on);
  /// True while the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref which) const;
  /// Ends the capture and returns its work; throws `device_error` if a rule was broken.
  [[nodiscard]] graph end_capture(stream_ref /*on*/);
  /// Queues a graph's work on a stream, and on streams of the graph's own.
  void replay(graph& which, stream_ref on);

  // ---- memory ----

  /// Takes host memory that counts as device memory; it holds poison, not zeros.
  [[nodiscard]] void* try_allocate(std::size_t bytes);
  /// Takes host memory that the copies reach; null when the machine has no more.
  [[nodiscard]] void* try_allocate_host(std::size_t bytes);
  /// Like `try_allocate`, for a trainer's own memory; throws `device_error` when there is none.
  [[nodiscard]] void* allocate(std::size_t bytes);
  /// Gives device memory back; runs all queued work before.
  void deallocate(void* pointer) noexcept;
  /// Gives host memory back; runs all queued work before.
  void deallocate_host(void* pointer) noexcept;
  /// The reason why the memory of a neighbour cannot be had; empty for device 1, if the machine has
  /// a neighbour.
  [[nodiscard]] std::string why_no_peer(int peer) const;
  /// Takes memory of a neighbour; null when it has no more.
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t bytes);
  /// Gives a neighbour's memory back; runs all queued work before.
  void deallocate_peer(int peer, void* pointer) noexcept;
  /// Takes device memory that another process may map: a file in memory.
  [[nodiscard]] std::optional<exported_memory> try_export(std::size_t bytes);
  /// Gives exported memory back. The memory is free once the last process that mapped it has gone.
  void drop_export(std::uint64_t id) noexcept;
  /// Maps memory that another device, of this process or another, has exported.
  [[nodiscard]] void* import_memory(int descriptor, std::size_t bytes);
  /// Unmaps imported memory, once no queued work uses it.
  void drop_import(void* pointer) noexcept;
  /// Bytes of device memory, free and in all.
  [[nodiscard]] memory_info memory() const;
  /// The most device bytes that were allocated at once so far.
  [[nodiscard]] std::size_t peak() const { return device_peak_; }

  // ---- what only this device has ----

  /// Queues a kernel: `run` is called when the clock says that it ends. `touches` lists the memory
  /// that it reads and writes, for observers.
  void launch(stream_ref on, double duration_ns, std::function<void()> run,
              const char* /*label*/ = "", std::vector<kernel_access> touches = {});
  /// Lets the host itself do the work of this stream from now on, function by function, for
  /// trainers that compute on the CPU. A call that gives the stream work, also an offloader's,
  /// returns when the work is over. So an address from an offloader may be used at once, and an
  /// owner that it calls (`offloader::adopt`, `memory_on`) may free the memory.
  ///
  /// The work needs no kernels. On the virtual clock it takes time for the bytes that a group
  /// saves: `ns_per_byte` before its commit, and again after its restore. Other streams run in this
  /// time, or while the stream waits, but no further, also while an exception unwinds. Runs the
  /// work that the stream has been given so far. Such a stream cannot be captured (`device_error`).
  /// Throws `misuse_error` for a negative time.
  void host_executes(stream_ref which, double ns_per_byte = 0.02);
  /// True if the host does the work of this stream.
  [[nodiscard]] bool host_executed(stream_ref which) const;
  /// For offloaders: adds the time of work on `bytes` bytes to the stream. Does nothing unless the
  /// host does the stream's work.
  void worked(std::size_t bytes, stream_ref on);
  /// The number of operations that were queued so far, on all streams; for `drop`.
  [[nodiscard]] std::uint64_t issued() const;
  /// Forgets work of a stream that has not run, and work that waits for it, except the first
  /// `issued` operations. A later wait for an event of dropped work throws `device_error`.
  void drop(stream_ref which, std::uint64_t issued = 0) noexcept;
  /// Queues a wait for an outside event, which comes when the clock reads `ns`.
  void idle_until(stream_ref on, double ns);
  /// Shows `with` every operation as it is issued.
  void observe(detail::operation_observer with);
  /// The machine that the device was made with.
  [[nodiscard]] const machine& model() const { return model_; }
  /// Notes each kernel that is launched from now on, once it has run, until `take_kernels`.
  void log_kernels();
  /// Returns the noted kernels, in order of their ends.
  [[nodiscard]] std::vector<kernel_run> take_kernels();
  /// The virtual clock, in nanoseconds.
  [[nodiscard]] double now_ns() const;

  /// Fills memory with poison on a stream. Offloaders call it for every block that they hand out.
  /// Returns false if the machine does not poison.
  bool poison(void* pointer, std::size_t bytes, stream_ref on);

  /// Leaves out every join of one kind from now on, so that tests can show that each join is
  /// needed.
  void leave_out(join_site site) { left_out_ |= 1U << static_cast<unsigned>(site); }
  /// True if joins of that kind are left out.
  [[nodiscard]] bool leaves_out(join_site site) const {
    return (left_out_ >> static_cast<unsigned>(site) & 1U) != 0;
  }

 private:
  using blocks = std::unordered_map<void*, std::size_t>;

  static constexpr int poison_byte = 0xFF;  // floats full of it are not numbers

  void ran(stream_ref on);  // finishes the work at once if the host does it

  void* take(std::size_t bytes, std::size_t& used, blocks& in, std::size_t* peak);

  void give(void* pointer, std::size_t& used, blocks& in) noexcept;
  [[nodiscard]] std::size_t device_free() const;
  void free_late() noexcept;

  // An address of its own, without memory behind it.
  void* imagined(std::size_t bytes);

  machine model_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 32;
  std::unique_ptr<detail::simulation> sim_;
  blocks device_blocks_;
  blocks host_blocks_;
  blocks peer_blocks_;
  struct imported {
    std::size_t bytes;
    int lock;  // an open file that says that the memory is mapped
  };
  struct exported {
    std::size_t bytes;
    int file;
    bool dropped;
  };
  std::unordered_map<void*, imported> imports_;
  mutable std::unordered_map<std::uint64_t, exported> exports_;  // by id
  std::vector<void*> late_;  // given back while an exception unwound, perhaps still in use
  int exceptions_ = std::uncaught_exceptions();
  mutable std::size_t device_used_ = 0;
  std::size_t host_used_ = 0;
  std::size_t peer_used_ = 0;
  std::size_t device_peak_ = 0;
  std::uint64_t keys_ = 0;
  bool logs_ = false;
  std::vector<kernel_run> kernels_;
  unsigned left_out_ = 0;
};

static_assert(capturing_device<virtual_device> && filling_device<virtual_device> &&
              peer_device<virtual_device> && lending_device<virtual_device> &&
              host_executing_device<virtual_device> && packing_device<virtual_device>);

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/device/detail/virtual_impl.hpp"
#include "tidepool/device/detail/virtual_packing.hpp"
#endif
