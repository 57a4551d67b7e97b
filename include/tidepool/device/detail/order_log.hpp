// The log of a device that checks the order of accesses, and the checks of this order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/detail/access_map.hpp"
#include "tidepool/device/detail/finding_list.hpp"
#include "tidepool/device/detail/order_clocks.hpp"
#include "tidepool/device/detail/order_step.hpp"

namespace tidepool::inline v0_3_0::detail {

// Gets all operations in the order of issue, which does not depend on the order in which the device
// runs them. Accesses that every stream has joined are forgotten, so that the log grows only with
// the work under way and the number of ranges in memory.
class order_log {
 public:
  using lane = order_clocks::lane;

  struct graph {
    order_capture content;
    std::vector<lane> lanes;  // the lanes to run on; the first is the launch's
  };

  [[nodiscard]] order_clocks& clocks() { return clocks_; }
  [[nodiscard]] finding_list& findings() { return findings_; }
  [[nodiscard]] const finding_list& findings() const { return findings_; }
  // The number of ranges and accesses that are remembered.
  [[nodiscard]] std::size_t size() const {
    return map_.size() + borrowed_.size() + accesses_.size() - spare_.size();
  }

  // ---- the subject of the next accesses ----

  struct subject {
    std::uint32_t module = 0;
    int layer = -1;
    int microbatch = -1;
  };
  [[nodiscard]] subject at(std::string_view module, int layer, int microbatch) {
    return std::exchange(where_, subject{findings_.number_of(module), layer, microbatch});
  }
  void go_back(const subject& before) { where_ = before; }

  // ---- accesses ----

  void read(lane on, access_kind kind, const void* data, std::size_t bytes, std::string_view name) {
    give(on, step_of(step_kind::read, kind, data, bytes, name));
  }
  void write(lane on, access_kind kind, const void* data, std::size_t bytes,
             std::string_view name) {
    if (kind == access_kind::kernel_write) declares_ = true;
    give(on, step_of(step_kind::write, kind, data, bytes, name));
  }
  void copy(lane on, void* target, const void* source, const copy_shape& shape,
            copy_direction direction) {
    auto kind = access_kind::copy;
    if (clocks_.copies(on)) {
      kind = is_offload(direction) ? access_kind::offload : access_kind::reload;
    }
    auto step = step_of(step_kind::copy, kind, target, 0, {});
    step.source = reinterpret_cast<std::uintptr_t>(source);
    step.shape = shape;
    if (shape.rows == 1) step.shape.source_pitch = step.shape.target_pitch = shape.width;
    give(on, std::move(step));
  }
  // Notes that a tensor becomes a packed part and a spill. Each byte of the tensor stands for one
  // byte of them, so that what was never written is known again once the tensor is unpacked. The
  // spill has further bytes at its end, which count as written.
  void pack(lane on, void* packed, void* spill, const void* tensor, std::size_t bytes) {
    const auto link = pack_form::packed_bytes(bytes);
    const auto* const rest = static_cast<const std::byte*>(tensor) + link;
    move(on, access_kind::offload, packed, tensor, link, "pack");
    move(on, access_kind::offload, spill, rest, bytes - link, "pack");
    if (const auto more = pack_form::spill_bytes(bytes) - (bytes - link); more > 0) {
      write(on, access_kind::offload, static_cast<std::byte*>(spill) + bytes - link, more, "pack");
    }
  }
  void unpack(lane on, void* tensor, const void* packed, const void* spill, std::size_t bytes) {
    const auto link = pack_form::packed_bytes(bytes);
    auto* const rest = static_cast<std::byte*>(tensor) + link;
    if (const auto more = pack_form::spill_bytes(bytes) - (bytes - link); more > 0) {
      const auto* const end = static_cast<const std::byte*>(spill) + bytes - link;
      read(on, access_kind::reload, end, more, "unpack");
    }
    move(on, access_kind::reload, tensor, packed, link, "unpack");
    move(on, access_kind::reload, rest, spill, bytes - link, "unpack");
  }
  // Notes a copy by the host between memory and a file. The file has addresses of its own in the
  // log.
  void copy_by_host(access_kind kind, const void* target, const void* source, std::size_t bytes) {
    move(order_clocks::host, kind, target, source, bytes, "the file");
  }
  void hand_out(lane on, const void* data, std::size_t bytes) {
    give(on, step_of(step_kind::hand_out, access_kind::handed_out, data, bytes, {}));
  }
  void give_back(lane on, const void* data, std::size_t bytes) {
    give(on, step_of(step_kind::give_back, access_kind::given_back, data, bytes, {}));
  }
  // An owner lends these bytes until `give_to_owner`.
  void borrow(const void* data, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    borrowed_.over(begin, begin + bytes, [](borrowed_range&, std::uintptr_t) {});  // may throw
    borrowed_.over(begin, begin + bytes,
                   [](borrowed_range& range, std::uintptr_t /*begin*/) { ++range.times; });
  }
  void give_to_owner(lane home, const void* data, std::size_t bytes) {
    give(home, step_of(step_kind::give_to_owner, access_kind::returned, data, bytes, {}));
  }

  // Notes that memory was taken from the device, where no work is under way.
  void allocate(const void* data, std::size_t bytes, bool on_device) {
    set(data, bytes, on_device ? contents::unwritten : contents::unknown, access_kind::allocated);
  }
  void free(const void* data, std::size_t bytes) {
    set(data, bytes, contents::freed, access_kind::freed);
  }
  // Turns findings of reads of unwritten memory on or off. They count only after a write was
  // declared.
  void judge_unwritten(bool on) { judges_unwritten_ = on; }

  // ---- events and captures ----

  [[nodiscard]] std::uint32_t add_event() {
    if (spare_events_.empty()) {
      events_.emplace_back();
      spare_events_.reserve(events_.size());
      return static_cast<std::uint32_t>(events_.size() - 1);
    }
    const auto number = spare_events_.back();
    spare_events_.pop_back();
    return number;
  }
  void remove_event(std::uint32_t number) noexcept {
    events_[number].known.clear();
    events_[number].capture = 0;
    spare_events_.push_back(number);
  }
  void record(lane on, std::uint32_t event);
  // Checks a wait before the device gets it, because the device refuses a wait across the border of
  // a capture.
  void expect_wait(lane on, std::uint32_t event);
  void wait(lane on, std::uint32_t event);
  // Notes that the host has seen the work before the event's record end.
  void passed(std::uint32_t event) { clocks_.host_waits(events_[event].known); }

  void begin_capture(lane origin) {
    capture_.emplace();
    capture_->number = ++captures_;
    capture_->lanes.push_back(origin);
  }
  void expect_joined();
  void abandon_capture() noexcept { capture_.reset(); }
  [[nodiscard]] graph end_capture();
  void launch(graph& which, lane on);
  void drop(graph& which) noexcept {
    for (std::size_t i = 1; i < which.lanes.size(); ++i) clocks_.give_back_inner(which.lanes[i]);
    which.lanes.clear();
  }

 private:
  struct event_state {
    order_clocks::clock known;
    order_access by;
    std::uint64_t capture = 0;  // the capture that recorded it; 0: none
    std::uint32_t item = 0;     // its index in the items of the capture
  };

  [[nodiscard]] order_step step_of(step_kind what, access_kind kind, const void* data,
                                   std::size_t bytes, std::string_view name) {
    order_step step;
    step.kind = what;
    step.who.kind = kind;
    step.who.name = findings_.number_of(name);
    step.who.module = where_.module;
    step.who.layer = where_.layer;
    step.who.microbatch = where_.microbatch;
    step.target = reinterpret_cast<std::uintptr_t>(data);
    step.shape = {bytes, 1, bytes, bytes};
    return step;
  }

  void move(lane on, access_kind kind, const void* target, const void* source, std::size_t bytes,
            std::string_view name) {
    if (bytes == 0) return;
    auto step = step_of(step_kind::copy, kind, target, 0, name);
    step.source = reinterpret_cast<std::uintptr_t>(source);
    step.shape = {bytes, 1, bytes, bytes};
    give(on, std::move(step));
  }

  // Keeps a step for the capture that its lane takes part in, or judges it now.
  void give(lane on, order_step step) {
    step.who.stream = on;
    if (capture_) {
      if (const auto place = capture_->place_of(on); place < capture_->lanes.size()) {
        step.who.graph = capture_->number;
        step.who.number = ++issued_;
        capture_->items.push_back({place, step});
        return;
      }
    }
    step.who.number = ++issued_;
    run(on, step);
  }

  void run(lane on, const order_step& step);
  void run_copy(std::uint32_t by, const order_step& step);
  void look(std::uint32_t by, std::uintptr_t begin, std::size_t bytes, contents* found);
  void change(std::uint32_t by, std::uintptr_t begin, std::size_t bytes, contents to);
  void return_to_owner(std::uint32_t by, std::uintptr_t begin, std::uintptr_t end);
  void return_reference(std::uint32_t by, std::uintptr_t begin, std::uintptr_t end);
  bool is_gone(const touched_range& range, std::uint32_t by, std::uintptr_t begin, bool writes);
  void expect_order(const touched_range& range, std::uint32_t by, std::uintptr_t begin,
                    bool writes);
  void set(const void* data, std::size_t bytes, contents to, access_kind kind);

  [[nodiscard]] bool before(std::uint32_t earlier, std::uint32_t later) const {
    const auto& first = accesses_[earlier];
    return clocks_.joined(first.lane, first.position, accesses_[later].lane);
  }
  std::uint32_t remember(const order_access& who);
  void tidy();
  void found(finding_kind kind, std::uint32_t first, bool first_writes, std::uint32_t second,
             bool second_writes, std::uintptr_t begin, std::uintptr_t end) {
    findings_.add(kind, accesses_[first], first_writes, accesses_[second], second_writes, begin,
                  end, clocks_);
  }

  order_clocks clocks_;
  range_map<touched_range> map_;
  range_map<borrowed_range> borrowed_;
  finding_list findings_;
  std::vector<order_access> accesses_{order_access{}};  // the first is none
  std::vector<std::uint32_t> spare_;
  std::size_t tidy_at_ = 1024;
  std::vector<event_state> events_;
  std::vector<std::uint32_t> spare_events_;
  std::optional<order_capture> capture_;
  std::uint64_t captures_ = 0;
  std::uint64_t issued_ = 0;
  subject where_;
  bool declares_ = false;  // the trainer has declared a write of a kernel
  bool judges_unwritten_ = true;
  struct piece {
    std::uintptr_t begin, end;
    std::uint32_t cause;
  };
  std::vector<piece> pieces_;                // unwritten pieces of the source of a copy
  std::vector<order_clocks::clock> inside_;  // clocks of the records of a graph that is launched
};

}  // namespace tidepool::detail

#include "tidepool/device/detail/order_log_impl.hpp"
