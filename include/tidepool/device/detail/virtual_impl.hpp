// The bodies of virtual.hpp.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "tidepool/core/text.hpp"
#include "tidepool/device/detail/simulation.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// Locks mapped memory: the system ends a lock with the process that has it. The file is opened
// again, because all copies of a descriptor count as one owner of locks.
[[nodiscard]] inline int lock_mapped(int descriptor) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  const int lock = ::open(path, O_RDWR | O_CLOEXEC);
  struct flock mapped {};
  mapped.l_type = F_RDLCK;
  mapped.l_len = 1;
  if (lock >= 0) static_cast<void>(::fcntl(lock, F_OFD_SETLK, &mapped));
  return lock;
}

}  // namespace detail

TIDEPOOL_INLINE void virtual_device::stream::retire::operator()(detail::simulation* owner) const {
  owner->retire_stream(ref.index_);
}

TIDEPOOL_INLINE void virtual_device::event::retire::operator()(detail::simulation* owner) const {
  owner->retire_event(index);
}

TIDEPOOL_INLINE void virtual_device::graph::retire::operator()(detail::simulation* owner) const {
  for (std::size_t i = 1; i < lanes.size(); ++i) owner->retire_stream(lanes[i]);
}

TIDEPOOL_INLINE virtual_device::graph::graph(detail::simulation& owner,
                                             std::unique_ptr<detail::captured> content)
    : content_(std::move(content)), owner_(&owner, retire{{0}}) {
  auto& lanes = owner_.get_deleter().lanes;
  while (lanes.size() < content_->streams().size()) lanes.push_back(owner.add_stream());
}

TIDEPOOL_INLINE virtual_device::virtual_device(const machine& model)
    : model_(model), sim_(std::make_unique<detail::simulation>(model)) {
  if (!model_.moves_bytes) model_.poison = false;
}

TIDEPOOL_INLINE virtual_device::~virtual_device() {
  for (const auto& [pointer, each] : imports_) {
    ::munmap(pointer, each.bytes);
    if (each.lock >= 0) ::close(each.lock);
  }
  for (const auto& [id, each] : exports_) ::close(each.file);
  if (!model_.moves_bytes) return;
  for (const auto& [pointer, bytes] : device_blocks_) std::free(pointer);
  for (const auto& [pointer, bytes] : host_blocks_) std::free(pointer);
  for (const auto& [pointer, bytes] : peer_blocks_) std::free(pointer);
  free_late();
}

TIDEPOOL_INLINE auto virtual_device::make_stream() -> stream {
  return {*sim_, stream_ref(sim_->add_stream(), ++keys_)};
}

TIDEPOOL_INLINE auto virtual_device::make_event(bool /*timing*/) -> event {
  return {*sim_, sim_->add_event()};
}

TIDEPOOL_INLINE void virtual_device::record(event& target, stream_ref on) {
  sim_->record(on.index_, target.index());
  ran(on);
}

TIDEPOOL_INLINE void virtual_device::wait(stream_ref waiter, const event& until) {
  sim_->wait(waiter.index_, until.index());
  ran(waiter);
}

TIDEPOOL_INLINE void virtual_device::synchronize(stream_ref which) {
  sim_->run_until_idle(which.index_);
}

TIDEPOOL_INLINE void virtual_device::synchronize() {
  sim_->run_until_idle();
  free_late();
}

TIDEPOOL_INLINE double virtual_device::elapsed_us(const event& from, const event& to) const {
  return (sim_->time_of(to.index()) - sim_->time_of(from.index())) / 1000;
}

TIDEPOOL_INLINE void virtual_device::copy(void* target, const void* source, const copy_shape& shape,
                                          copy_direction direction, stream_ref on) {
  sim_->copy(on.index_, direction, target, source, shape);
  ran(on);
}

TIDEPOOL_INLINE void virtual_device::fill_bytes(void* pointer, unsigned char byte,
                                                std::size_t bytes, stream_ref on) {
  auto run = [=, moves = model_.moves_bytes] {
    if (moves) std::memset(pointer, byte, bytes);
  };
  launch(on, 0, std::move(run), "fill", {{pointer, bytes, true}});
}

TIDEPOOL_INLINE bool virtual_device::passed(const event& which) const {
  return sim_->passed(which.index());
}

TIDEPOOL_INLINE void virtual_device::begin_capture(stream_ref on) {
  if (host_executed(on)) {
    throw device_error(
        "tidepool: virtual device: the host executes this stream (host_executes), and no graph can"
        " hold its work; capture another",
        900);
  }
  sim_->begin_capture(on.index_);
}

TIDEPOOL_INLINE bool virtual_device::capturing(stream_ref which) const {
  return sim_->capturing(which.index_);
}

TIDEPOOL_INLINE auto virtual_device::end_capture(stream_ref /*on*/) -> graph {
  return {*sim_, sim_->end_capture()};
}

TIDEPOOL_INLINE void virtual_device::replay(graph& which, stream_ref on) {
  auto& lanes = which.owner_.get_deleter().lanes;
  lanes[0] = on.index_;
  sim_->replay(*which.content_, lanes);
  ran(on);
}

TIDEPOOL_INLINE auto virtual_device::try_allocate(std::size_t bytes) -> void* {
  if (bytes > device_free()) return nullptr;
  return take(bytes, device_used_, device_blocks_, &device_peak_);
}

TIDEPOOL_INLINE auto virtual_device::try_allocate_host(std::size_t bytes) -> void* {
  if (bytes > model_.host_bytes - host_used_) return nullptr;
  return take(bytes, host_used_, host_blocks_, nullptr);
}

TIDEPOOL_INLINE auto virtual_device::allocate(std::size_t bytes) -> void* {
  if (auto* pointer = try_allocate(bytes)) return pointer;
  throw device_error("tidepool: virtual device: " + detail::text::size_text(bytes) +
                         " do not fit, " +
                         detail::text::size_text(model_.device_bytes - device_used_) +
                         " are free; give machine::device_bytes a larger value",
                     2);
}

TIDEPOOL_INLINE void virtual_device::deallocate(void* pointer) noexcept {
  give(pointer, device_used_, device_blocks_);
}

TIDEPOOL_INLINE void virtual_device::deallocate_host(void* pointer) noexcept {
  give(pointer, host_used_, host_blocks_);
}

TIDEPOOL_INLINE auto virtual_device::why_no_peer(int peer) const -> std::string {
  if (model_.peer_bytes == 0) return "this machine has one device (machine::peer_bytes is 0)";
  if (peer == 1) return {};
  return peer == 0 ? "device 0 is the offloader's own; its neighbour is device 1"
                   : "there is no device " + std::to_string(peer) + "; the neighbour is device 1";
}

TIDEPOOL_INLINE auto virtual_device::try_allocate_peer(int peer, std::size_t bytes) -> void* {
  if (auto why = why_no_peer(peer); !why.empty()) {
    throw device_error("tidepool: virtual device: memory of a neighbour: " + why, 101);
  }
  if (bytes > model_.peer_bytes - peer_used_) return nullptr;
  return take(bytes, peer_used_, peer_blocks_, nullptr);
}

TIDEPOOL_INLINE void virtual_device::deallocate_peer(int /*peer*/, void* pointer) noexcept {
  give(pointer, peer_used_, peer_blocks_);
}

// Memory that was given back, and that no process has mapped any more, is free.
TIDEPOOL_INLINE std::size_t virtual_device::device_free() const {
  std::erase_if(exports_, [&](const auto& entry) {
    const auto& each = entry.second;
    struct flock mapped {};
    mapped.l_type = F_WRLCK;
    mapped.l_len = 1;
    if (!each.dropped ||
        (::fcntl(each.file, F_OFD_GETLK, &mapped) == 0 && mapped.l_type != F_UNLCK)) {
      return false;
    }
    ::close(each.file);
    device_used_ -= each.bytes;
    return true;
  });
  return model_.device_bytes - device_used_;
}

TIDEPOOL_INLINE memory_info virtual_device::memory() const {
  return {device_free(), model_.device_bytes};
}

TIDEPOOL_INLINE auto virtual_device::try_export(std::size_t bytes)
    -> std::optional<exported_memory> {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  exported_memory made{-1, exports_.size() + 1, bytes / page * page};
  if (made.bytes > device_free()) return std::nullopt;
  while (exports_.contains(made.id)) ++made.id;
  made.descriptor = ::memfd_create("tidepool", MFD_CLOEXEC);
  const int file = made.descriptor < 0 ? -1 : ::fcntl(made.descriptor, F_DUPFD_CLOEXEC, 0);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(made.bytes)) != 0) {
    const int code = errno;
    if (file >= 0) ::close(file);
    if (made.descriptor >= 0) ::close(made.descriptor);
    throw device_error(
        "tidepool: virtual device: no file in memory: " + std::system_category().message(code),
        code);
  }
  exports_.emplace(made.id, exported{made.bytes, file, false});
  device_used_ += made.bytes;
  device_peak_ = std::max(device_peak_, device_used_);
  return made;
}

TIDEPOOL_INLINE void virtual_device::drop_export(std::uint64_t id) noexcept {
  const auto found = exports_.find(id);
  if (found != exports_.end()) found->second.dropped = true;
}

TIDEPOOL_INLINE auto virtual_device::import_memory(int descriptor, std::size_t bytes) -> void* {
  imports_.reserve(imports_.size() + 1);
  auto* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int code = errno;
    throw device_error("tidepool: virtual device: memory of another process cannot be mapped: " +
                           std::system_category().message(code),
                       code);
  }
  imports_.emplace(memory, imported{bytes, detail::lock_mapped(descriptor)});
  if (model_.poison) std::memset(memory, poison_byte, bytes);
  return memory;
}

TIDEPOOL_INLINE void virtual_device::drop_import(void* pointer) noexcept {
  const auto found = imports_.find(pointer);
  // Memory that an exception leaves in use stays mapped until the device goes.
  if (found == imports_.end() || (std::uncaught_exceptions() > exceptions_ && !sim_->idle()))
    return;
  ::munmap(found->first, found->second.bytes);
  if (found->second.lock >= 0) ::close(found->second.lock);
  imports_.erase(found);
}

TIDEPOOL_INLINE void virtual_device::launch(stream_ref on, double duration_ns,
                                            std::function<void()> run, const char* /*label*/,
                                            std::vector<kernel_access> touches) {
  if (logs_ && duration_ns > 0) {
    run = [this, stream = on.index_, duration_ns, then = std::move(run)] {
      if (logs_) kernels_.push_back({stream, now_ns() - duration_ns, now_ns()});
      if (then) then();
    };
  }
  sim_->kernel(on.index_, duration_ns, std::move(run), std::move(touches));
  ran(on);
}

TIDEPOOL_INLINE void virtual_device::host_executes(stream_ref which, double ns_per_byte) {
  if (!(ns_per_byte >= 0)) {
    throw misuse_error("host_executes: work of " + std::to_string(ns_per_byte) +
                       " ns a byte cannot be; give 0 or more");
  }
  synchronize(which);
  sim_->host_rate(which.index_) = ns_per_byte;
}

TIDEPOOL_INLINE bool virtual_device::host_executed(stream_ref which) const {
  return sim_->host_rate(which.index_).has_value();
}

TIDEPOOL_INLINE void virtual_device::worked(std::size_t bytes, stream_ref on) {
  const auto ns = static_cast<double>(bytes) * sim_->host_rate(on.index_).value_or(0);
  const auto nothing = [] {};
  if (ns > 0) launch(on, ns, nothing, "host");
}

TIDEPOOL_INLINE void virtual_device::ran(stream_ref on) {
  if (host_executed(on)) sim_->run_until_idle(on.index_);
}

TIDEPOOL_INLINE std::uint64_t virtual_device::issued() const { return sim_->issued(); }

TIDEPOOL_INLINE void virtual_device::drop(stream_ref which, std::uint64_t issued) noexcept {
  sim_->drop(which.index_, issued);
}

TIDEPOOL_INLINE void virtual_device::idle_until(stream_ref on, double ns) {
  sim_->idle_until(on.index_, ns);
  ran(on);
}

TIDEPOOL_INLINE void virtual_device::observe(detail::operation_observer with) {
  sim_->observe(std::move(with));
}

TIDEPOOL_INLINE void virtual_device::log_kernels() {
  kernels_.clear();
  logs_ = true;
}

TIDEPOOL_INLINE auto virtual_device::take_kernels() -> std::vector<kernel_run> {
  logs_ = false;
  return std::exchange(kernels_, {});
}

TIDEPOOL_INLINE double virtual_device::now_ns() const { return sim_->now(); }

TIDEPOOL_INLINE bool virtual_device::poison(void* pointer, std::size_t bytes, stream_ref on) {
  if (!model_.poison) return false;
  launch(on, 0, [=] { std::memset(pointer, poison_byte, bytes); }, "poison",
         {{pointer, bytes, true}});
  return true;
}

TIDEPOOL_INLINE auto virtual_device::take(std::size_t bytes, std::size_t& used, blocks& in,
                                          std::size_t* peak) -> void* {
  const auto whole = (bytes + 255) / 256 * 256;
  auto* pointer = model_.moves_bytes ? std::aligned_alloc(256, whole) : imagined(whole);
  if (pointer == nullptr) return nullptr;
  if (model_.poison) std::memset(pointer, poison_byte, whole);
  // Room for `late_` is made here, because freeing must not need memory.
  const auto most =
      device_blocks_.size() + host_blocks_.size() + peer_blocks_.size() + late_.size() + 1;
  if (late_.capacity() < most) late_.reserve(2 * most);
  in.emplace(pointer, bytes);
  used += bytes;
  if (peak != nullptr) *peak = std::max(*peak, used);
  return pointer;
}

TIDEPOOL_INLINE void virtual_device::give(void* pointer, std::size_t& used, blocks& in) noexcept {
  const auto found = in.find(pointer);
  if (found == in.end()) return;
  used -= found->second;
  const bool unwinding = std::uncaught_exceptions() > exceptions_;
  if (unwinding && !sim_->idle()) {
    late_.push_back(pointer);
  } else {
    try {
      synchronize();
    } catch (...) {  // after a failure no work runs that uses the memory
    }
    if (model_.poison) std::memset(pointer, poison_byte, found->second);
    if (model_.moves_bytes) std::free(pointer);
  }
  in.erase(found);
}

TIDEPOOL_INLINE void virtual_device::free_late() noexcept {
  for (auto* pointer : late_) {
    if (model_.moves_bytes) std::free(pointer);
  }
  late_.clear();
}

// An address without memory behind it, which no other block has.
TIDEPOOL_INLINE auto virtual_device::imagined(std::size_t bytes) -> void* {
  next_address_ += bytes;
  return reinterpret_cast<void*>(next_address_ - bytes);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace tidepool
