/// The core of an offloader over torch. The offloader and all tensors that were saved through it
/// share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/memory/stream_memory.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/torch/captures.hpp"
#include "tidepool/torch/exclusions.hpp"
#include "tidepool/torch/lock.hpp"
#include "tidepool/torch/saved.hpp"
#include "tidepool/torch/streams.hpp"

namespace tidepool::inline v0_3_0::detail {

template <device Device>
class torch_core;

// Null for a device whose captures are refused. torch/cuda_captures.hpp has those of CUDA.
template <device Device>
[[nodiscard]] std::unique_ptr<torch_captures> torch_captures_of(Device& /*dev*/,
                                                                torch_core<Device>& /*of*/) {
  return nullptr;
}

// The part of a pass that is called when its offloader ends.
class torch_pass_end {
 public:
  virtual void offloader_ends() noexcept = 0;

 protected:
  ~torch_pass_end() = default;
};

// Holds the lock of a core for one call, and what else its streams need meanwhile.
template <device Device>
class torch_call {
 public:
  explicit torch_call(torch_core<Device>& of) : guard_(of.lock), thread_(of.streams) {}
  torch_call(const torch_call&) = delete;
  torch_call& operator=(const torch_call&) = delete;
  ~torch_call() = default;

 private:
  std::lock_guard<torch_lock> guard_;
  [[no_unique_address]] typename torch_streams<Device>::call thread_;
};

// Graphs may outlive the offloader: their saved tensors keep the core alive, but `off` is then
// empty.
template <device Device>
class torch_core final : public memory_lender {
 public:
  using stream_ref = typename Device::stream_ref;

  torch_core(Device& dev, const options& opts, parts with,
             std::shared_ptr<torch_exclusions> kept = std::make_shared<torch_exclusions>())
      : streams(dev), exclusions(std::move(kept)), dev_(&dev) {
    if (opts.memory == memory_kind::pool) with.memory = torch_memory();
    off.emplace(dev, opts, std::move(with));
    for (const auto& each : off->counters().modules) names_.push_back(each.name);
    streams.expect_growth();
    join();
  }
  ~torch_core() { leave(); }

  // Ends the offloader. Graphs that still hold saved tensors can no longer load them.
  void end() noexcept {
    captures.reset();
    leave();
    const std::lock_guard guard(lock);
    for (auto* each : passes) each->offloader_ends();
    passes.clear();
    off.reset();
    streams.release();
  }

  bool give_back_waiting() noexcept override {
    const std::unique_lock guard(lock, std::try_to_lock);
    if (!guard.owns_lock() || !off) return false;
    try {
      if (!streams.is_current() || streams.capturing(streams.current())) return false;
      const auto before = off->counters().borrowed_waiting;
      off->release_borrowed();
      return off->counters().borrowed_waiting < before;
    } catch (...) {  // the allocator grows instead
      return false;
    }
  }

  // Adopts the saved part of a storage. The storage is held and watched until `stream` has joined
  // every use of it; torch then gets the memory back. The buffer has elements of the smallest size
  // that was saved, because the least size of a tensor that leaves is counted in elements.
  [[nodiscard]] buffer<Device> adopt(torch_saved<Device>& from, stream_ref stream) {
    auto* const data = bytes_of(from.storage) + from.first;
    auto held = std::make_shared<torch_watch>(from.storage);
    if (!from.views.gathered()) from.watch = held;
    const auto as = [&]<class Element>(Element) {
      auto made = off->template adopt<Element>(reinterpret_cast<Element*>(data),
                                               from.bytes() / sizeof(Element), stream,
                                               [this, watch = std::move(held), stream]() mutable {
                                                 streams.settle(stream);
                                                 streams.used_on(watch->storage(), stream);
                                                 watch->end();
                                                 watch.reset();
                                               });
      if (from.bfloat16) made.holds_bfloat16();
      return made;
    };
    switch (from.width) {
      case 1:
        return as(std::uint8_t());
      case 2:
        return as(std::uint16_t());
      case 4:
        return as(std::uint32_t());
      default:
        return as(std::uint64_t());
    }
  }

  // Tells a device that checks orders if others may by now write memory that a copy still reads.
  void look_after(torch_saved<Device>& saved, module_id module, int layer, int microbatch) {
    if (!saved.watch || saved.views.gathered() || saved.watch->taken() == saved.told) return;
    saved.told = true;
    if constexpr (order_checking_device<Device>) {
      const auto about = dev_->at(name_of(module), layer, microbatch);
      dev_->writes(saved.watch->data() + saved.first, saved.bytes(), streams.current(),
                   "memory that was taken from under a storage");
    }
  }

  [[nodiscard]] const std::string& name_of(module_id module) const {
    return names_[static_cast<std::size_t>(module)];
  }

  torch_lock lock;
  torch_streams<Device> streams;
  std::shared_ptr<torch_exclusions> exclusions;
  torch_exclusions& excluded = *exclusions;
  std::unique_ptr<torch_captures> captures;  // null if the device has none
  std::vector<torch_pass_end*> passes;
  std::optional<offloader<Device>> off;

 private:
  Device* dev_;
  std::vector<std::string> names_;  // names of modules, for messages after the end

  std::unique_ptr<block_source> torch_memory() {
    auto source = memory_on<Device>(
        streams.home(),
        [this](std::size_t bytes) {
          return lock.allocate([&] { return streams.allocate(bytes); });
        },
        [this](void* data) {
          streams.settle(streams.home());
          streams.deallocate(data);
        });
    if constexpr (requires { streams.attached(std::move(source)); }) {
      return streams.attached(std::move(source));
    } else {
      return source;
    }
  }
};

}  // namespace tidepool::detail
