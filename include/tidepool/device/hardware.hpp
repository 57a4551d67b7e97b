// The engine calls its device through this interface: streams are lanes, events are numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0 {

class backing_file;

namespace detail {

// The number of a timing event.
enum class timing_id : std::uint32_t {};

// Abilities that some devices lack. The engine must know them before it calls, because a call that
// a device lacks does nothing and returns a neutral value.
struct abilities {
  bool fills = false;               // `fill_bytes`
  bool captures = false;            // captures streams into graphs
  bool tells_what_is_over = false;  // `passed`
  bool checks_order = false;        // needs reports of released memory and subjects of work
  bool poisons = false;             // fills memory that is handed out in a way of its own
  bool drops_joins = false;         // `leaves_out`, for tests
  bool logs_kernels = false;        // `take_kernels`
  bool simulates_time = false;      // work takes the same time in each step, and the host's none
  bool moves_bytes = true;          // false: host memory may not be touched
  bool host_works = false;          // may do a stream's work on the host, and needs its bytes
  std::size_t packs_from = 0;       // the least bytes of a tensor for `pack`; 0: it cannot pack
  std::size_t pack_piece = 0;       // the most tensor bytes of a call of `unpack`
  double pack_rate = 0;             // tensor bytes that `pack` reads, in GB/s; 0: unknown
  double unpack_rate = 0;           // tensor bytes that `unpack` writes, in GB/s; 0: unknown
};

// A kernel that ran, on the lane's stream.
struct lane_kernel {
  lane_id lane;
  double start_ns;
  double end_ns;
};

// A graph made by a capture.
class captured_graph {
 public:
  captured_graph() = default;
  captured_graph(const captured_graph&) = delete;
  captured_graph& operator=(const captured_graph&) = delete;
  virtual ~captured_graph() = default;
};

// The view that an offloader has of its device; `hardware_of` implements it for each device type.
// Each call keeps the contract of the concept `device`. Thread safety: none.
class hardware {
 public:
  static constexpr std::size_t ring = 1024;  // number of events of each lane

  hardware(const hardware&) = delete;
  hardware& operator=(const hardware&) = delete;
  virtual ~hardware() = default;

  [[nodiscard]] const abilities& can() const { return can_; }
  [[nodiscard]] std::string_view name() const { return name_; }
  // Differs for each type of device.
  [[nodiscard]] const void* device_type() const { return device_type_; }

  // ---- lanes ----

  // Makes a lane with events of its own, for the stream of the device's type that `stream` points
  // to. `in_capture`: an offloader's capture is under way. If it throws, the lane does not exist.
  virtual void open(lane_id lane, const void* stream, bool in_capture) = 0;
  // Like `open`, for a stream that the lane owns.
  virtual void open_own(lane_id lane) = 0;
  // Destroys the lane's events, and the stream if the lane owns it. No work may run on the lane.
  virtual void close(lane_id lane) noexcept = 0;
  // Points to a stream of the device's type.
  [[nodiscard]] virtual const void* stream(lane_id lane) const = 0;

  // `event` is below `ring`.
  virtual void record(lane_id on, std::size_t event) = 0;
  virtual void wait(lane_id waiter, lane_id of, std::size_t event) = 0;
  [[nodiscard]] virtual bool passed(lane_id of, std::size_t event) const = 0;
  virtual void synchronize(lane_id lane) = 0;
  virtual void synchronize() = 0;

  // ---- times, on any stream of the device's type ----

  [[nodiscard]] virtual timing_id make_timing() = 0;
  virtual void free_timing(timing_id gone) noexcept = 0;
  virtual void record(timing_id target, const void* stream) = 0;
  [[nodiscard]] virtual bool passed(timing_id which) const = 0;
  [[nodiscard]] virtual double elapsed_us(timing_id from, timing_id to) const = 0;
  virtual void log_kernels() = 0;
  // Kernels of the first `lanes` lanes.
  [[nodiscard]] virtual std::vector<lane_kernel> take_kernels(std::size_t lanes) = 0;
  [[nodiscard]] virtual double now_ns() const = 0;

  // ---- work on a lane ----

  virtual void copy(void* target, const void* source, const copy_shape& shape,
                    copy_direction direction, lane_id on) = 0;
  // Returns false if the items are to be copied one by one.
  [[nodiscard]] virtual bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                        lane_id on) = 0;
  virtual void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, lane_id on) = 0;
  // Packs a tensor of BF16 numbers, as codec/pack_form.hpp says.
  virtual void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
                    lane_id on) = 0;
  virtual void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill,
                      std::size_t bytes, lane_id on) = 0;
  // Returns false if nothing was filled.
  virtual bool poison(void* pointer, std::size_t bytes, lane_id on) = 0;
  // Reports bytes that the lane's work saved, or reads again, if the host does that work itself.
  virtual void worked(std::size_t bytes, lane_id on) = 0;
  [[nodiscard]] virtual bool leaves_out(join_site site) const = 0;
  // The number of operations that were queued so far. `drop` forgets operations of a lane with a
  // higher number.
  [[nodiscard]] virtual std::uint64_t issued() const = 0;
  virtual void drop(lane_id lane, std::uint64_t issued) noexcept = 0;
  // False if the device cannot drop work, because its work does not run in the process.
  [[nodiscard]] virtual bool drops() const = 0;

  // ---- graphs ----

  virtual void begin_capture(lane_id on) = 0;
  [[nodiscard]] virtual bool capturing(lane_id which) const = 0;
  [[nodiscard]] virtual std::unique_ptr<captured_graph> end_capture(lane_id on) = 0;
  virtual void replay(captured_graph& which, lane_id on) = 0;

  // ---- memory ----

  [[nodiscard]] virtual std::unique_ptr<page_allocator> device_pages() = 0;
  [[nodiscard]] virtual std::unique_ptr<page_allocator> host_pages(const host_memory& how) = 0;
  // Null if the device has no neighbours.
  [[nodiscard]] virtual std::unique_ptr<page_allocator> peer_pages(int peer) = 0;
  // The reason why the device lacks that kind; empty if it has the kind.
  [[nodiscard]] virtual std::string why_not(host_kind kind) const = 0;
  [[nodiscard]] virtual std::string why_no_peer(int peer) const = 0;
  // Leaves `into` empty if the device has no files of its own.
  virtual void open_file(const std::string& path, std::unique_ptr<backing_file>& into) = 0;
  // Throws `misuse_error` if the device cannot use memory of other processes.
  [[nodiscard]] virtual void* import_memory(int descriptor, std::size_t bytes) = 0;
  virtual void drop_import(void* pointer) noexcept = 0;
  [[nodiscard]] virtual memory_info memory() const = 0;
  // The kind of the latest host memory, in words; empty if the device does not know.
  [[nodiscard]] virtual std::string host_memory_text() const = 0;
  [[nodiscard]] virtual bool lost() const noexcept = 0;

  // ---- its links, which link.hpp measures ----

  // The rates to the host, or to a neighbour, of a device that was made with rates.
  [[nodiscard]] virtual std::optional<plan::link_rates> known_link(bool to_peer) const = 0;
  // True if copies to a neighbour share the rates of the host's link.
  [[nodiscard]] virtual bool peer_shares_link() const = 0;

  // ---- reports to a device that checks the order of accesses ----

  virtual void borrows(const void* pointer, std::size_t bytes) = 0;
  virtual void gave_back(const void* pointer, std::size_t bytes, lane_id on) = 0;
  virtual void returned(const void* pointer, std::size_t bytes, lane_id home) = 0;
  virtual void name_copy_streams(lane_id offload, lane_id reload, lane_id unpack,
                                 place_kind to) = 0;
  virtual void writes_file(const void* block, const void* memory, std::size_t bytes) = 0;
  virtual void reads_file(const void* memory, const void* block, std::size_t bytes) = 0;
  // Any device may have `host_reads`.
  virtual void host_reads(const void* memory, std::size_t bytes, std::string_view what) = 0;
  virtual void abandons_capture() noexcept = 0;
  // Until the matching `end_subject` the engine's work is about this module, layer and microbatch.
  virtual void begin_subject(std::string_view module, int layer, int microbatch) = 0;
  virtual void end_subject() noexcept = 0;

 protected:
  hardware(std::string_view name, const abilities& can, const void* device_type)
      : name_(name), can_(can), device_type_(device_type) {}

 private:
  std::string_view name_;
  abilities can_;
  const void* device_type_;
};

// While this object lives, a device that checks orders knows the group or state that the work is
// about.
class told_subject {
 public:
  told_subject(hardware& dev, std::string_view name, int layer = -1, int microbatch = -1)
      : dev_(dev.can().checks_order ? &dev : nullptr) {
    if (dev_ != nullptr) dev_->begin_subject(name, layer, microbatch);
  }
  told_subject(const told_subject&) = delete;
  told_subject& operator=(const told_subject&) = delete;
  ~told_subject() {
    if (dev_ != nullptr) dev_->end_subject();
  }

 private:
  hardware* dev_;
};

// Timing events, numbered in the order of their first use. The destructor frees them.
class timing_events {
 public:
  explicit timing_events(hardware& dev) : dev_(&dev) {}
  timing_events(const timing_events&) = delete;
  timing_events& operator=(const timing_events&) = delete;
  ~timing_events() {
    for (const auto each : events_) dev_->free_timing(each);
  }

  // Records the event `number`, and makes it at its first use; new numbers come in order.
  void record(std::size_t number, const void* stream) {
    if (number == events_.size()) events_.push_back(dev_->make_timing());
    dev_->record(events_[number], stream);
  }
  [[nodiscard]] timing_id operator[](std::size_t number) const { return events_[number]; }
  [[nodiscard]] double elapsed_us(std::size_t from, std::size_t to) const {
    return dev_->elapsed_us(events_[from], events_[to]);
  }

 private:
  hardware* dev_;
  std::vector<timing_id> events_;
};

}  // namespace detail
}  // namespace tidepool
