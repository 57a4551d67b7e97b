// The engine calls its device through this interface: streams are lanes, events are numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0 {

class backing_file;

namespace detail {

// An event that takes the time, by number.
enum class timing_id : std::uint32_t {};

// Abilities that some devices lack, and that the engine must know of before it calls. A call
// that a device does not have does nothing, and returns what stands for that.
struct abilities {
  bool fills = false;               // `fill_bytes`
  bool captures = false;            // streams, into graphs
  bool tells_what_is_over = false;  // `passed`
  bool checks_order = false;  // and is told what memory is given back, and whose work is whose
  bool poisons = false;       // what is handed out, in a way of its own
  bool drops_joins = false;   // `leaves_out`, for tests
  bool logs_kernels = false;  // `take_kernels`
  bool host_works = false;    // may do a stream's work itself, and asks how much that is
};

// One kernel that ran, on the lane's stream.
struct lane_kernel {
  lane_id lane;
  double start_ns;
  double end_ns;
};

// A graph that a capture made.
class captured_graph {
 public:
  captured_graph() = default;
  captured_graph(const captured_graph&) = delete;
  captured_graph& operator=(const captured_graph&) = delete;
  virtual ~captured_graph() = default;
};

// One offloader's view of its device; `hardware_of` is made for the type of one. The contract of
// each call is that of the concept `device`. Thread safety: none.
class hardware {
 public:
  static constexpr std::size_t ring = 1024;  // events of each lane

  hardware(const hardware&) = delete;
  hardware& operator=(const hardware&) = delete;
  virtual ~hardware() = default;

  [[nodiscard]] const abilities& can() const { return can_; }
  [[nodiscard]] std::string_view name() const { return name_; }
  // Another value for each type of device.
  [[nodiscard]] const void* device_type() const { return device_type_; }

  // ---- lanes ----

  // A lane stands for the stream that `stream` points to, of the device's type, and has its events.
  // `in_capture`: an offloader's capture is under way. Where it throws, there is no such lane.
  virtual void open(lane_id lane, const void* stream, bool in_capture) = 0;
  // The same for a stream that the lane owns.
  virtual void open_own(lane_id lane) = 0;
  // Its events go, and its stream if it owns that. Nothing may run there.
  virtual void close(lane_id lane) noexcept = 0;
  // Of the device's type.
  [[nodiscard]] virtual const void* stream(lane_id lane) const = 0;

  // `event` counts up to `ring`.
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
  // Of the first `lanes` lanes.
  [[nodiscard]] virtual std::vector<lane_kernel> take_kernels(std::size_t lanes) = 0;
  [[nodiscard]] virtual double now_ns() const = 0;

  // ---- what is issued on a lane ----

  virtual void copy(void* target, const void* source, const copy_shape& shape,
                    copy_direction direction, lane_id on) = 0;
  // False where they are to be copied one by one.
  [[nodiscard]] virtual bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                        lane_id on) = 0;
  virtual void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, lane_id on) = 0;
  // False where nothing was filled.
  virtual bool poison(void* pointer, std::size_t bytes, lane_id on) = 0;
  // What the lane's work saved, or reads again, where the host does that work itself.
  virtual void worked(std::size_t bytes, lane_id on) = 0;
  [[nodiscard]] virtual bool leaves_out(join_site site) const = 0;
  // Operations that were queued so far, and how to forget those of a lane from the `issued`-th on.
  [[nodiscard]] virtual std::uint64_t issued() const = 0;
  virtual void drop(lane_id lane, std::uint64_t issued) noexcept = 0;
  // False where no work runs in the process.
  [[nodiscard]] virtual bool drops() const = 0;

  // ---- graphs ----

  virtual void begin_capture(lane_id on) = 0;
  [[nodiscard]] virtual bool capturing(lane_id which) const = 0;
  [[nodiscard]] virtual std::unique_ptr<captured_graph> end_capture(lane_id on) = 0;
  virtual void replay(captured_graph& which, lane_id on) = 0;

  // ---- memory ----

  [[nodiscard]] virtual std::unique_ptr<page_allocator> device_pages() = 0;
  [[nodiscard]] virtual std::unique_ptr<page_allocator> host_pages(const host_memory& how) = 0;
  // Null where there are no neighbours.
  [[nodiscard]] virtual std::unique_ptr<page_allocator> peer_pages(int peer) = 0;
  // Why there is none of that kind; empty where there is.
  [[nodiscard]] virtual std::string why_not(host_kind kind) const = 0;
  [[nodiscard]] virtual std::string why_no_peer(int peer) const = 0;
  // Of the system, where the device has none of its own.
  [[nodiscard]] virtual std::unique_ptr<backing_file> open_file(const std::string& path) = 0;
  // Where nothing can be lent, `import_memory` throws `misuse_error`.
  [[nodiscard]] virtual void* import_memory(int descriptor, std::size_t bytes) = 0;
  virtual void drop_import(void* pointer) noexcept = 0;
  [[nodiscard]] virtual memory_info memory() const = 0;
  // Empty where the device does not tell.
  [[nodiscard]] virtual std::string host_memory_text() const = 0;
  [[nodiscard]] virtual bool lost() const noexcept = 0;

  // ---- what its links give, see link.hpp; each blocks the host ----

  [[nodiscard]] virtual plan::link_rates measure_link(const std::function<void()>& meet,
                                                      std::size_t most) = 0;
  // Nothing where it cannot be measured.
  [[nodiscard]] virtual std::optional<plan::link_rates> measure_peer_link(int peer) = 0;
  [[nodiscard]] virtual std::optional<plan::link_rates> measure_lent_link(void* memory,
                                                                          std::size_t bytes) = 0;
  // Whether copies to a neighbour take of what the host's get.
  [[nodiscard]] virtual bool peer_shares_link() const = 0;

  // ---- what a device that checks the order of accesses is told ----

  virtual void borrows(const void* pointer, std::size_t bytes) = 0;
  virtual void gave_back(const void* pointer, std::size_t bytes, lane_id on) = 0;
  virtual void returned(const void* pointer, std::size_t bytes, lane_id home) = 0;
  virtual void name_copy_streams(lane_id offload, lane_id reload, place_kind to) = 0;
  virtual void writes_file(const void* block, const void* memory, std::size_t bytes) = 0;
  virtual void reads_file(const void* memory, const void* block, std::size_t bytes) = 0;
  virtual void abandons_capture() noexcept = 0;
  // The engine's work is about this from here to the `end_subject` that belongs to it.
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

// Which group or state the work is about, as long as it lives; told to a device that checks orders.
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

// Events that take the time, in the order of their first use; they go with it.
class timing_events {
 public:
  explicit timing_events(hardware& dev) : dev_(&dev) {}
  timing_events(const timing_events&) = delete;
  timing_events& operator=(const timing_events&) = delete;
  ~timing_events() {
    for (const auto each : events_) dev_->free_timing(each);
  }

  // The `number`-th, which is made where there is one less.
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
