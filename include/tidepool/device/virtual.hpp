/// A deterministic device on the CPU: real bytes, a virtual clock, a link with rates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tidepool/detail/simulation.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/device/machine.hpp"
#include "tidepool/error.hpp"

namespace tidepool {

/// Streams are queues, copies move real bytes at the rates of a `machine`, kernels are host
/// functions with a duration. Operations run, on the caller's thread, when somebody synchronizes or
/// frees memory; until then pointers and captured objects must stay valid. Same program, same
/// result, same times.
///
/// While an exception unwinds, freeing memory runs nothing, and an offloader that it destroys drops
/// what is queued on the streams that it served: kernels may point into frames that are gone.
///
/// Two virtual devices know nothing of each other. Thread safety: none, one per thread. It must
/// outlive its streams, events and offloaders.
class virtual_device {
 public:
  static constexpr std::string_view name = "virtual";

  class stream_ref {
   public:
    constexpr stream_ref() = default;
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
    stream(stream&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), ref_(other.ref_) {}
    stream& operator=(stream&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(ref_, other.ref_);
      return *this;
    }
    ~stream() {
      if (owner_ != nullptr) owner_->retire_stream(ref_.index_);
    }
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
    event(event&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), index_(other.index_) {}
    event& operator=(event&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(index_, other.index_);
      return *this;
    }
    ~event() {
      if (owner_ != nullptr) owner_->retire_event(index_);
    }

   private:
    friend class virtual_device;
    event(detail::simulation& owner, std::size_t index) : owner_(&owner), index_(index) {}
    detail::simulation* owner_;
    std::size_t index_;
  };

  /// Owns what a capture kept.
  class graph {
   public:
    graph(graph&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          content_(std::move(other.content_)),
          lanes_(std::move(other.lanes_)) {}
    graph& operator=(graph&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(content_, other.content_);
      std::swap(lanes_, other.lanes_);
      return *this;
    }
    ~graph() {
      for (std::size_t i = 1; i < lanes_.size(); ++i) owner_->retire_stream(lanes_[i]);
    }

   private:
    friend class virtual_device;
    graph(detail::simulation& owner, std::unique_ptr<detail::captured> content)
        : owner_(&owner), content_(std::move(content)), lanes_(content_->streams().size()) {
      for (std::size_t i = 1; i < lanes_.size(); ++i) lanes_[i] = owner.add_stream();
    }
    detail::simulation* owner_;
    std::unique_ptr<detail::captured> content_;
    std::vector<std::size_t> lanes_;  // to run on; the first is that of the launch
  };

  explicit virtual_device(const machine& model = {})
      : model_(model), sim_(std::make_unique<detail::simulation>(model)) {
    if (!model_.moves_bytes) model_.poison = false;
  }
  virtual_device(const virtual_device&) = delete;
  virtual_device& operator=(const virtual_device&) = delete;
  ~virtual_device() {
    if (!model_.moves_bytes) return;
    for (const auto& [pointer, bytes] : device_blocks_) std::free(pointer);
    for (const auto& [pointer, bytes] : host_blocks_) std::free(pointer);
    free_late();
  }

  // ---- streams, events, copies: see the concept `device` ----

  [[nodiscard]] stream make_stream() { return {*sim_, stream_ref(sim_->add_stream(), ++keys_)}; }
  [[nodiscard]] event make_event(bool /*timing*/ = false) { return {*sim_, sim_->add_event()}; }
  void record(event& target, stream_ref on) { sim_->record(on.index_, target.index_); }
  void wait(stream_ref waiter, const event& until) { sim_->wait(waiter.index_, until.index_); }
  void synchronize(stream_ref which) { sim_->run_until_idle(which.index_); }
  void synchronize() {
    sim_->run_until_idle();
    free_late();
  }
  [[nodiscard]] double elapsed_us(const event& from, const event& to) const {
    return (sim_->time_of(to.index_) - sim_->time_of(from.index_)) / 1000;
  }
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on) {
    sim_->copy(on.index_, direction, target, source, shape);
  }

  /// Takes no virtual time.
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, stream_ref on) {
    auto run = [=, moves = model_.moves_bytes] {
      if (moves) std::memset(pointer, byte, bytes);
    };
    launch(on, 0, std::move(run), "fill", {{pointer, bytes, true}});
  }

  // ---- graphs, under the rules of CUDA's stream capture ----

  void begin_capture(stream_ref on) { sim_->begin_capture(on.index_); }
  [[nodiscard]] bool capturing(stream_ref which) const { return sim_->capturing(which.index_); }
  [[nodiscard]] graph end_capture(stream_ref /*on*/) { return {*sim_, sim_->end_capture()}; }
  void replay(graph& which, stream_ref on) {
    which.lanes_[0] = on.index_;
    sim_->replay(*which.content_, which.lanes_);
  }

  // ---- memory ----

  /// Host memory that counts as device memory; its content is poison, not zeros.
  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    if (bytes > model_.device_bytes - device_used_) return nullptr;
    return take(bytes, device_used_, device_blocks_, &device_peak_);
  }
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) {
    if (bytes > model_.host_bytes - host_used_) return nullptr;
    return take(bytes, host_used_, host_blocks_, nullptr);
  }
  /// Like `try_allocate`, for a trainer's own memory; throws `device_error` when there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) {
    if (auto* pointer = try_allocate(bytes)) return pointer;
    throw device_error("tidepool: virtual device: " + std::to_string(bytes) +
                           " bytes do not fit, " +
                           std::to_string(model_.device_bytes - device_used_) +
                           " are free; give machine::device_bytes a larger value",
                       2);
  }
  void deallocate(void* pointer) noexcept { give(pointer, device_used_, device_blocks_); }
  void deallocate_host(void* pointer) noexcept { give(pointer, host_used_, host_blocks_); }
  [[nodiscard]] memory_info memory() const {
    return {model_.device_bytes - device_used_, model_.device_bytes};
  }
  /// Most device bytes allocated at once so far.
  [[nodiscard]] std::size_t peak() const { return device_peak_; }

  // ---- what only this device has ----

  /// Queues a kernel: `run` is called when the clock says that it ends. `touches` is what it says
  /// that it reads and writes; only an observer asks.
  void launch(stream_ref on, double duration_ns, std::function<void()> run,
              const char* /*label*/ = "", std::vector<kernel_access> touches = {}) {
    sim_->kernel(on.index_, duration_ns, std::move(run), std::move(touches));
  }
  /// Forgets what is queued on a stream and has not run, and what waits for it. A later wait for an
  /// event of it throws `device_error`.
  void drop(stream_ref which) noexcept { sim_->drop(which.index_); }
  /// Queues a wait for something outside that comes when the clock reads `ns`.
  void idle_until(stream_ref on, double ns) { sim_->idle_until(on.index_, ns); }
  /// Has every operation seen as it is issued.
  void observe(detail::simulation::observer with) { sim_->observe(std::move(with)); }
  /// What it was made with.
  [[nodiscard]] const machine& model() const { return model_; }
  /// The virtual clock, in nanoseconds.
  [[nodiscard]] double now_ns() const { return sim_->now(); }

  /// Fills memory on a stream; offloaders do it with every block they hand out. False where the
  /// machine does not.
  bool poison(void* pointer, std::size_t bytes, stream_ref on) {
    if (!model_.poison) return false;
    launch(on, 0, [=] { std::memset(pointer, poison_byte, bytes); }, "poison",
           {{pointer, bytes, true}});
    return true;
  }

  /// Leaves out every join of one kind from now on: how tests show that each is needed.
  void leave_out(join_site site) { left_out_ |= 1U << static_cast<unsigned>(site); }
  [[nodiscard]] bool leaves_out(join_site site) const {
    return (left_out_ >> static_cast<unsigned>(site) & 1U) != 0;
  }

 private:
  using blocks = std::unordered_map<void*, std::size_t>;

  static constexpr int poison_byte = 0xFF;  // floats full of it are not numbers

  void* take(std::size_t bytes, std::size_t& used, blocks& in, std::size_t* peak) {
    const auto whole = (bytes + 255) / 256 * 256;
    auto* pointer = model_.moves_bytes ? std::aligned_alloc(256, whole) : imagined(whole);
    if (pointer == nullptr) return nullptr;
    if (model_.poison) std::memset(pointer, poison_byte, whole);
    // Freeing must not need memory.
    const auto most = device_blocks_.size() + host_blocks_.size() + late_.size() + 1;
    if (late_.capacity() < most) late_.reserve(2 * most);
    in.emplace(pointer, bytes);
    used += bytes;
    if (peak != nullptr) *peak = std::max(*peak, used);
    return pointer;
  }

  void give(void* pointer, std::size_t& used, blocks& in) noexcept {
    const auto found = in.find(pointer);
    if (found == in.end()) return;
    used -= found->second;
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    if (unwinding && !sim_->idle()) {
      late_.push_back(pointer);
    } else {
      try {
        synchronize();
      } catch (...) {  // a program that cannot go on does not use the memory either
      }
      if (model_.poison) std::memset(pointer, poison_byte, found->second);
      if (model_.moves_bytes) std::free(pointer);
    }
    in.erase(found);
  }
  void free_late() noexcept {
    for (auto* pointer : late_) {
      if (model_.moves_bytes) std::free(pointer);
    }
    late_.clear();
  }

  // An address of its own that nobody may follow.
  void* imagined(std::size_t bytes) {
    next_address_ += bytes;
    return reinterpret_cast<void*>(next_address_ - bytes);  // NOLINT(performance-no-int-to-ptr)
  }

  machine model_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 32;
  std::unique_ptr<detail::simulation> sim_;
  blocks device_blocks_;
  blocks host_blocks_;
  std::vector<void*> late_;  // given back while an exception unwound, perhaps still in use
  int exceptions_ = std::uncaught_exceptions();
  std::size_t device_used_ = 0;
  std::size_t host_used_ = 0;
  std::size_t device_peak_ = 0;
  std::uint64_t keys_ = 0;
  unsigned left_out_ = 0;
};

static_assert(capturing_device<virtual_device> && filling_device<virtual_device>);

}  // namespace tidepool
