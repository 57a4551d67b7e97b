// The virtual device, watched: every stream, event, copy and kernel goes to the race checker as
// well, and one call of the library may be made to fail.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tidepool/device/virtual.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
#if defined(TIDEPOOL_STRANGER_CHECKED)
#include <tidepool/device/checked.hpp>
#endif

#include "clocks.hpp"

namespace stranger {

namespace tp = tidepool;

inline constexpr int injected_code = 777;

// With the checked device between the two (stranger_checked), what that reports of a program is a
// finding as well: of right programs it has nothing to say.
#if defined(TIDEPOOL_STRANGER_CHECKED)
using judged_device = tp::checked_device<tp::virtual_device>;
#else
using judged_device = tp::virtual_device;
#endif
inline constexpr bool judged = !std::is_same_v<judged_device, tp::virtual_device>;

class device : public judged_device {
  using base = judged_device;

 public:
  static constexpr std::string_view name = "watched";

  class event {
   public:
    event(event&& other) noexcept
        : inner_(std::move(other.inner_)),
          number_(other.number_),
          alive_(std::exchange(other.alive_, nullptr)) {}
    event& operator=(event&& other) noexcept {
      std::swap(inner_, other.inner_);
      std::swap(number_, other.number_);
      std::swap(alive_, other.alive_);
      return *this;
    }
    ~event() {
      if (alive_ != nullptr) --*alive_;
    }

   private:
    friend class device;
    event(base::event&& inner, std::size_t number, long& alive)
        : inner_(std::move(inner)), number_(number), alive_(&alive) {
      ++alive;
    }
    base::event inner_;
    std::size_t number_;
    long* alive_;
  };

  class graph {
   public:
    graph(graph&&) noexcept = default;
    graph& operator=(graph&&) noexcept = default;

   private:
    friend class device;
    graph(base::graph&& inner, std::vector<clocks::item>&& items, std::vector<std::size_t>&& lanes)
        : inner_(std::move(inner)), items_(std::move(items)), lanes_(std::move(lanes)) {}
    base::graph inner_;
    std::vector<clocks::item> items_;
    std::vector<std::size_t> lanes_;
  };

  explicit device(const tp::machine& model) : base(model) {}

  // ---- the concept ----

  [[nodiscard]] stream make_stream() {
    count("make_stream");
    auto made = base::make_stream();
    static_cast<void>(lane_of(made.ref()));
    return made;
  }
  [[nodiscard]] event make_event(bool timing = false) {
    count("make_event");
    return {base::make_event(timing), order_.add_event(), events_alive_};
  }
  void record(event& target, stream_ref on) {
    count("record");
    base::record(target.inner_, on);
    give(on, {clocks::item::sort::record, 0, {}, {}, target.number_});
  }
  void wait(stream_ref waiter, const event& until) {
    count("wait");
    base::wait(waiter, until.inner_);
    give(waiter, {clocks::item::sort::wait, 0, {}, {}, until.number_});
  }
  void synchronize(stream_ref which) {
    base::synchronize(which);
    order_.synchronize(lane_of(which));
    count("synchronize");
  }
  void synchronize() {
    base::synchronize();
    order_.synchronize();
    count("synchronize");
  }
  [[nodiscard]] double elapsed_us(const event& from, const event& to) const {
    return base::elapsed_us(from.inner_, to.inner_);
  }
  void copy(void* target, const void* source, const tp::copy_shape& shape,
            tp::copy_direction direction, stream_ref on) {
    count("copy");
    base::copy(target, source, shape, direction, on);
    const bool out = is_offload(direction);
    (out ? bytes_out_ : bytes_in_) += shape.bytes();
    std::vector<clocks::touch> touches;
    rows(touches, source, shape, shape.source_pitch, false);
    rows(touches, target, shape, shape.target_pitch, true);
    if (out) copied_.push_back(source);
    give(on, {clocks::item::sort::access, 0, std::move(touches), out ? "copy out" : "copy in", 0});
    if (!out || capturing(on)) return;
    last_out_ = lane_of(on);
    last_out_position_ = order_.position(last_out_);
  }

  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            stream_ref on) {
    count("pack");
    base::pack(packed, spill, tensor, bytes, on);
    packed_.push_back({tensor, bytes});
    give_packed(on, packed, spill, tensor, bytes, true);
  }
  void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill, std::size_t bytes,
              stream_ref on) {
    count("unpack");
    base::unpack(tensor, packed, spill, bytes, on);
    give_packed(on, packed, spill, tensor, bytes, false);
  }

  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    if (fails("try_allocate")) return nullptr;
    auto* const made = base::try_allocate(bytes);
    if (made != nullptr && quiet_ == 0) {
      device_now_ += bytes;
      device_most_ = std::max(device_most_, device_now_);
    }
    return remember(made, bytes, device_alive_);
  }
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) {
    if (fails("try_allocate_host")) return nullptr;
    auto* const made = base::try_allocate_host(bytes);
    return remember(made, bytes, host_alive_);
  }
  // One kind of call with the host's: memory that tensors are offloaded to.
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t bytes) {
    if (fails("try_allocate_host")) return nullptr;
    return remember(base::try_allocate_peer(peer, bytes), bytes, peer_alive_);
  }
  [[nodiscard]] void* import_memory(int descriptor, std::size_t bytes) {
    return remember(base::import_memory(descriptor, bytes), bytes, imports_);
  }
  // That waits for nothing.
  void drop_import(void* pointer) noexcept {
    if (const auto found = imports_.find(pointer); found != imports_.end()) {
      order_.leave(reinterpret_cast<std::uintptr_t>(pointer), found->second);
      imports_.erase(found);
    }
    base::drop_import(pointer);
  }
  void deallocate(void* pointer) noexcept {
    const auto found = device_alive_.find(pointer);
    if (quiet_ == 0 && found != device_alive_.end()) device_now_ -= found->second;
    forget(pointer, device_alive_);
    base::deallocate(pointer);
  }
  void deallocate_host(void* pointer) noexcept {
    forget(pointer, host_alive_);
    base::deallocate_host(pointer);
  }
  void deallocate_peer(int peer, void* pointer) noexcept {
    forget(pointer, peer_alive_);
    base::deallocate_peer(peer, pointer);
  }

  void begin_capture(stream_ref on) {
    count("begin_capture");
    base::begin_capture(on);
    captured_.clear();
    inside_.assign(1, lane_of(on));
  }
  [[nodiscard]] graph end_capture(stream_ref on) {
    bool refuse = fails("end_capture");
    auto content = base::end_capture(on);
    if (refuse) refuse_call("end_capture");
    std::vector<std::size_t> lanes{0};
    while (lanes.size() < inside_.size()) lanes.push_back(order_.add_lane());
    return {std::move(content), std::move(captured_), std::move(lanes)};
  }
  void replay(graph& which, stream_ref on) {
    count("replay");
    base::replay(which.inner_, on);
    which.lanes_[0] = lane_of(on);
    last_replayed_ = which.items_;
    order_.replay(which.items_, which.lanes_);
  }

  bool poison(void* pointer, std::size_t bytes, stream_ref on) {
    const bool filled = base::poison(pointer, bytes, on);
    if (filled) {
      give(on, {clocks::item::sort::access, 0, {touch_of(pointer, bytes, true)}, "poison", 0});
    }
    return filled;
  }
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, stream_ref on) {
    count("fill_bytes");
    base::fill_bytes(pointer, byte, bytes, on);
    give(on, {clocks::item::sort::access,
              0,
              {touch_of(pointer, bytes, true)},
              byte == 0 ? "zeros" : "poison",
              0});
  }
  [[nodiscard]] bool passed(const event& which) const {
    // The checked device notes that, which is why its call is not const.
    if (!answers_ || !const_cast<device*>(this)->base::passed(which.inner_)) return false;
    order_.passed(which.number_);
    return true;
  }
  void answer(bool on) { answers_ = on; }

  // ---- the trainer's side, which never fails ----

  void run(stream_ref on, double ns, std::function<void()> body, std::vector<clocks::touch> touches,
           std::string label) {
    base::launch(on, ns, std::move(body), label.c_str(), declared(touches));
    give(on, {clocks::item::sort::access, 0, std::move(touches), std::move(label), 0});
  }
  // A function of the host's that counts as work of `on`, which the host executes.
  void run_now(stream_ref on, const std::function<void()>& body, std::vector<clocks::touch> touches,
               std::string label) {
    body();
    if constexpr (judged)
      base::launch(
          on, 0, [] {}, label.c_str(), declared(touches));
    give(on, {clocks::item::sort::access, 0, std::move(touches), std::move(label), 0});
  }
  // All that this stream is given is over when the call returns. (Devices of before have no such
  // streams; what the host does is too early there.)
  void execute(stream_ref which) {
    const auto say = [&](auto& dev) {
      if constexpr (requires { dev.host_executes(which); }) {
        dev.host_executes(which);
        eager_.push_back(lane_of(which));
      }
    };
    say(*this);
  }
  [[nodiscard]] static clocks::touch touch_of(const void* pointer, std::size_t bytes, bool writes) {
    return {reinterpret_cast<std::uintptr_t>(pointer), bytes, writes};
  }

  // Within its life calls are the trainer's: they are not counted and do not fail.
  class mine {
   public:
    explicit mine(device& of) : of_(of) { ++of_.quiet_; }
    mine(const mine&) = delete;
    mine& operator=(const mine&) = delete;
    ~mine() { --of_.quiet_; }

   private:
    device& of_;
  };

  // What the checked device has to say, and has not said before.
  [[nodiscard]] std::string said() {
    std::string text;
#if defined(TIDEPOOL_STRANGER_CHECKED)
    for (const auto& each : base::findings()) text += to_text(each);
    base::forget_findings();
#endif
    return text;
  }

  // The call of this kind that fails, once, counted from 1.
  void fail_at(const char* kind, int call) {
    fail_call_ = kind;
    fail_at_ = call;
  }
  [[nodiscard]] bool failed() const { return !failed_.empty(); }
  [[nodiscard]] const std::string& failure() const { return failed_; }
  [[nodiscard]] int calls() const { return calls_; }

  [[nodiscard]] clocks& order() { return order_; }
  [[nodiscard]] std::size_t lane_of(stream_ref which) {
    for (const auto& [key, lane] : lanes_) {
      if (key == which.key()) return lane;
    }
    lanes_.emplace_back(which.key(), order_.add_lane());
    return lanes_.back().second;
  }
  // Tensors that were packed, and where copies out began, since the last `forget_moves`.
  struct packing {
    const void* tensor;
    std::size_t bytes;
  };
  [[nodiscard]] const std::vector<packing>& packed() const { return packed_; }
  [[nodiscard]] const std::vector<const void*>& copied() const { return copied_; }
  void forget_moves() {
    packed_.clear();
    copied_.clear();
  }
  // The most device memory that the library had at once.
  [[nodiscard]] std::size_t device_most() const { return device_most_; }
  [[nodiscard]] std::size_t bytes_out() const { return bytes_out_; }
  [[nodiscard]] std::size_t bytes_in() const { return bytes_in_; }
  // The stream of the last copy out that was not captured.
  [[nodiscard]] std::size_t last_out() const { return last_out_; }
  [[nodiscard]] std::uint32_t last_out_position() const { return last_out_position_; }
  [[nodiscard]] const std::vector<clocks::item>& last_replayed() const { return last_replayed_; }
  [[nodiscard]] std::size_t device_blocks() const { return device_alive_.size(); }
  [[nodiscard]] std::size_t host_blocks() const { return host_alive_.size(); }
  [[nodiscard]] std::size_t peer_blocks() const { return peer_alive_.size(); }
  [[nodiscard]] std::size_t imports() const { return imports_.size(); }
  [[nodiscard]] long events_alive() const { return events_alive_; }

 private:
  using blocks = std::unordered_map<void*, std::size_t>;

  // What the checked device is told of a kernel.
  static std::vector<tp::kernel_access> declared(const std::vector<clocks::touch>& touches) {
    std::vector<tp::kernel_access> all;
    if constexpr (judged) {
      for (const auto& each : touches) {
        all.push_back({reinterpret_cast<const void*>(each.first), each.bytes, each.writes});
      }
    }
    return all;
  }

  bool fails(const char* call) {
    if (quiet_ > 0) return false;
    ++calls_;
    if (fail_at_ == 0 || std::strcmp(call, fail_call_) != 0 || ++of_kind_ != fail_at_) return false;
    failed_ = call;
    return true;
  }
  [[noreturn]] static void refuse_call(const char* call) {
    throw tp::device_error(std::string("tidepool: watched device: ") + call + " was made to fail",
                           injected_code);
  }
  void count(const char* call) {
    if (fails(call)) refuse_call(call);
  }

  void give(stream_ref on, clocks::item what) {
    const auto lane = lane_of(on);
    if (capturing(on)) {
      auto at = std::find(inside_.begin(), inside_.end(), lane);
      if (at == inside_.end()) at = inside_.insert(inside_.end(), lane);
      what.lane = static_cast<std::size_t>(at - inside_.begin());
      captured_.push_back(std::move(what));
      return;
    }
    switch (what.what) {
      case clocks::item::sort::access:
        order_.access(lane, what.touches, what.label);
        break;
      case clocks::item::sort::record:
        order_.record(lane, what.event);
        break;
      case clocks::item::sort::wait:
        order_.wait(lane, what.event);
        break;
    }
    if (std::find(eager_.begin(), eager_.end(), lane) != eager_.end()) order_.synchronize(lane);
  }

  void give_packed(stream_ref on, const std::byte* packed, const std::byte* spill,
                   const std::byte* tensor, std::size_t bytes, bool packs) {
    std::vector<clocks::touch> touches{touch_of(tensor, bytes, !packs),
                                       touch_of(packed, tp::pack_form::packed_bytes(bytes), packs),
                                       touch_of(spill, tp::pack_form::spill_bytes(bytes), packs)};
    give(on, {clocks::item::sort::access, 0, std::move(touches), packs ? "pack" : "unpack", 0});
  }

  static void rows(std::vector<clocks::touch>& into, const void* first, const tp::copy_shape& shape,
                   std::size_t pitch, bool writes) {
    const auto step = pitch == 0 ? shape.width : pitch;
    for (std::size_t r = 0; r < shape.rows; ++r) {
      into.push_back(
          touch_of(static_cast<const std::byte*>(first) + r * step, shape.width, writes));
    }
  }

  void* remember(void* made, std::size_t bytes, blocks& in) {
    if (made == nullptr) return nullptr;
    in.emplace(made, bytes);
    order_.forget(reinterpret_cast<std::uintptr_t>(made), bytes);
    return made;
  }
  void forget(void* pointer, blocks& in) noexcept {
    const auto found = in.find(pointer);
    if (found == in.end()) return;
    order_.synchronize();
    order_.forget(reinterpret_cast<std::uintptr_t>(pointer), found->second);
    in.erase(found);
  }

  mutable clocks order_;
  bool answers_ = true;
  std::vector<std::pair<std::uint64_t, std::size_t>> lanes_;
  std::vector<clocks::item> captured_, last_replayed_;
  std::vector<std::size_t> inside_;  // lanes of the capture under way
  std::vector<std::size_t> eager_;   // lanes that the host executes
  blocks device_alive_, host_alive_, peer_alive_, imports_;
  long events_alive_ = 0;
  std::size_t bytes_out_ = 0, bytes_in_ = 0, last_out_ = 0;
  std::vector<packing> packed_;
  std::vector<const void*> copied_;
  std::size_t device_now_ = 0, device_most_ = 0;
  std::uint32_t last_out_position_ = 0;
  int quiet_ = 0, calls_ = 0, of_kind_ = 0, fail_at_ = 0;
  const char* fail_call_ = "";
  std::string failed_;
};

}  // namespace stranger
