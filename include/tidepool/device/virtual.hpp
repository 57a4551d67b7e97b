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
#include <utility>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/device/detail/operation.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/device/machine.hpp"

namespace tidepool::inline v0_2_0::detail {
class captured;
class simulation;
}  // namespace tidepool::detail

namespace tidepool::inline v0_2_0 {

/// One kernel that ran on the virtual device: on which stream (`stream_ref::index`), and when.
struct kernel_run {
  std::size_t stream = 0;  ///< `stream_ref::index` of its stream
  double start_ns = 0;     ///< when it began
  double end_ns = 0;       ///< when it ended
};

/// Streams are queues, copies move real bytes at the rates of a `machine`, kernels are host
/// functions with a duration. Operations run, on the caller's thread, when somebody synchronizes or
/// frees memory; until then pointers and captured objects must stay valid. Same program, same
/// result, same times.
///
/// While an exception unwinds, freeing memory runs nothing, and an offloader that it destroys drops
/// what was queued since it was made on the streams that it served: kernels may point into frames
/// that are gone.
///
/// Two virtual devices know nothing of each other, but for memory that one exports and the other
/// imports. Thread safety: none, one per thread. It must
/// outlive its streams, events and offloaders.
class virtual_device {
 public:
  static constexpr std::string_view name = "virtual";  ///< for messages and pictures

  /// A copyable name of a stream.
  class stream_ref {
   public:
    constexpr stream_ref() = default;
    /// Tells streams apart, of all virtual devices of the process.
    [[nodiscard]] constexpr std::uint64_t key() const { return key_; }
    /// As an observer sees it.
    [[nodiscard]] constexpr std::size_t index() const { return index_; }

   private:
    friend class virtual_device;
    constexpr stream_ref(std::size_t index, std::uint64_t key) : index_(index), key_(key) {}
    std::size_t index_ = 0;
    std::uint64_t key_ = 0;
  };

  /// Owns a stream. Work queued on it still runs after its end.
  class stream {
   public:
    /// The other owns nothing afterwards.
    stream(stream&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), ref_(other.ref_) {}
    /// The other gets what this one had.
    stream& operator=(stream&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(ref_, other.ref_);
      return *this;
    }
    ~stream();
    /// Its name, to be handed to an offloader.
    [[nodiscard]] stream_ref ref() const { return ref_; }

   private:
    friend class virtual_device;
    stream(detail::simulation& owner, stream_ref ref) : owner_(&owner), ref_(ref) {}
    detail::simulation* owner_;
    stream_ref ref_;
  };

  /// Owns an event.
  class event {
   public:
    /// The other owns nothing afterwards.
    event(event&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), index_(other.index_) {}
    /// The other gets what this one had.
    event& operator=(event&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(index_, other.index_);
      return *this;
    }
    ~event();

   private:
    friend class virtual_device;
    event(detail::simulation& owner, std::size_t index) : owner_(&owner), index_(index) {}
    detail::simulation* owner_;
    std::size_t index_;
  };

  /// Owns what a capture kept.
  class graph {
   public:
    graph(graph&& other) noexcept;             ///< The other owns nothing afterwards.
    graph& operator=(graph&& other) noexcept;  ///< The other gets what this one had.
    ~graph();

   private:
    friend class virtual_device;
    graph(detail::simulation& owner, std::unique_ptr<detail::captured> content);
    detail::simulation* owner_;
    std::unique_ptr<detail::captured> content_;
    std::vector<std::size_t> lanes_;  // to run on; the first is that of the launch
  };

  /// A device with the memory, link and kernel order of `model`.
  explicit virtual_device(const machine& model = {});
  virtual_device(const virtual_device&) = delete;
  virtual_device& operator=(const virtual_device&) = delete;
  ~virtual_device();

  // ---- streams, events, copies: see the concept `device` ----

  [[nodiscard]] stream make_stream();  ///< A new stream; its work runs beside that of others.
  /// An event; every event here can be timed.
  [[nodiscard]] event make_event(bool /*timing*/ = false);
  /// The event stands for all that `on` was given so far. Does not run anything.
  void record(event& target, stream_ref on);
  /// `waiter` waits for what the event stands for. Does not run anything.
  void wait(stream_ref waiter, const event& until);
  void synchronize(stream_ref which);  ///< Runs what is queued until the stream is idle.
  void synchronize();                  ///< Runs all that is queued.
  /// Microseconds on the virtual clock between two events that have passed.
  [[nodiscard]] double elapsed_us(const event& from, const event& to) const;
  /// Whether all before the event's latest record has run. Does not run anything.
  [[nodiscard]] bool passed(const event& which) const;
  /// Queues a copy that takes the link of the machine; `shape` has rows and pitches in bytes.
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on);

  /// Takes no virtual time.
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, stream_ref on);

  // ---- graphs, under the rules of CUDA's stream capture ----

  /// Keeps what the stream is given from now on, and does not run it.
  void begin_capture(stream_ref on);
  /// Whether the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref which) const;
  /// Ends the capture and returns what it kept; throws `device_error` where a rule was broken.
  [[nodiscard]] graph end_capture(stream_ref /*on*/);
  /// Queues what a graph kept on a stream, and on streams of the graph's own.
  void replay(graph& which, stream_ref on);

  // ---- memory ----

  /// Host memory that counts as device memory; its content is poison, not zeros.
  [[nodiscard]] void* try_allocate(std::size_t bytes);
  /// Host memory that the copies reach; null when the machine has no more.
  [[nodiscard]] void* try_allocate_host(std::size_t bytes);
  /// Like `try_allocate`, for a trainer's own memory; throws `device_error` when there is none.
  [[nodiscard]] void* allocate(std::size_t bytes);
  /// Gives device memory back; runs what is queued before.
  void deallocate(void* pointer) noexcept;
  /// Gives host memory back; runs what is queued before.
  void deallocate_host(void* pointer) noexcept;
  /// Why memory of that neighbour cannot be had; empty for device 1, where the machine has it.
  [[nodiscard]] std::string why_no_peer(int peer) const;
  /// Memory of a neighbour; null when it has no more.
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t bytes);
  /// Gives a neighbour's memory back; runs what is queued before.
  void deallocate_peer(int peer, void* pointer) noexcept;
  /// Device memory that another process may map: a file in memory.
  [[nodiscard]] std::optional<exported_memory> try_export(std::size_t bytes);
  /// Gives it back. Whoever has mapped it keeps it, and it is free once the last of them has gone.
  void drop_export(std::uint64_t id) noexcept;
  /// Maps what another device, of this process or another, has exported.
  [[nodiscard]] void* import_memory(int descriptor, std::size_t bytes);
  /// Ends that, once nothing that is queued uses it.
  void drop_import(void* pointer) noexcept;
  /// Bytes of device memory, free and in all.
  [[nodiscard]] memory_info memory() const;
  /// Most device bytes allocated at once so far.
  [[nodiscard]] std::size_t peak() const { return device_peak_; }

  // ---- what only this device has ----

  /// Queues a kernel: `run` is called when the clock says that it ends. `touches` is what it says
  /// that it reads and writes; only an observer asks.
  void launch(stream_ref on, double duration_ns, std::function<void()> run,
              const char* /*label*/ = "", std::vector<kernel_access> touches = {});
  /// From now on the host itself does what counts as work of this stream, function by function, as
  /// trainers do that compute on the CPU. A call that gives the stream anything, an offloader's
  /// too, returns when that is over: so an address that an offloader gave for it may be used at
  /// once, and an owner that it calls (`offloader::adopt`, `memory_on`) may free the memory.
  ///
  /// The work takes no kernels. It takes time on the virtual clock by the bytes that a group saves:
  /// `ns_per_byte` before its commit, and again behind its restore. Other streams go on meanwhile,
  /// while an exception unwinds as well; they run as far as that time goes or the stream waits, and
  /// no further. Runs what the stream has been given so far. A stream that is captured is none of
  /// these (`device_error`). Throws `misuse_error` for a negative time.
  void host_executes(stream_ref which, double ns_per_byte = 0.02);
  /// Whether it does.
  [[nodiscard]] bool host_executed(stream_ref which) const;
  /// An offloader says it: work on so many bytes is part of the stream's. Nothing where the host
  /// does not execute it.
  void worked(std::size_t bytes, stream_ref on);
  /// How many operations were queued so far, on all streams; for `drop`.
  [[nodiscard]] std::uint64_t issued() const;
  /// Forgets what is queued on a stream and has not run, and what waits for it; of the first
  /// `issued` operations nothing. A later wait for an event of it throws `device_error`.
  void drop(stream_ref which, std::uint64_t issued = 0) noexcept;
  /// Queues a wait for something outside that comes when the clock reads `ns`.
  void idle_until(stream_ref on, double ns);
  /// Has every operation seen as it is issued.
  void observe(detail::operation_observer with);
  /// What it was made with.
  [[nodiscard]] const machine& model() const { return model_; }
  /// Notes each kernel that is launched from now on, once it has run; `take_kernels` ends that.
  void log_kernels();
  /// What was noted, in order of their ends.
  [[nodiscard]] std::vector<kernel_run> take_kernels();
  /// The virtual clock, in nanoseconds.
  [[nodiscard]] double now_ns() const;

  /// Fills memory on a stream; offloaders do it with every block they hand out. False where the
  /// machine does not.
  bool poison(void* pointer, std::size_t bytes, stream_ref on);

  /// Leaves out every join of one kind from now on: how tests show that each is needed.
  void leave_out(join_site site) { left_out_ |= 1U << static_cast<unsigned>(site); }
  /// Whether joins of that kind are left out.
  [[nodiscard]] bool leaves_out(join_site site) const {
    return (left_out_ >> static_cast<unsigned>(site) & 1U) != 0;
  }

 private:
  using blocks = std::unordered_map<void*, std::size_t>;

  static constexpr int poison_byte = 0xFF;  // floats full of it are not numbers

  void ran(stream_ref on);  // to be over at once where the host executes it

  void* take(std::size_t bytes, std::size_t& used, blocks& in, std::size_t* peak);

  void give(void* pointer, std::size_t& used, blocks& in) noexcept;
  [[nodiscard]] std::size_t device_free() const;
  void free_late() noexcept;

  // An address of its own that nobody may follow.
  void* imagined(std::size_t bytes);

  machine model_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 32;
  std::unique_ptr<detail::simulation> sim_;
  blocks device_blocks_;
  blocks host_blocks_;
  blocks peer_blocks_;
  struct imported {
    std::size_t bytes;
    int lock;  // says that it is mapped, while it is open
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
              host_executing_device<virtual_device>);

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/device/detail/virtual_impl.hpp"
#endif
