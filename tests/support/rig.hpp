/// A virtual device with a compute stream, and kernels that write patterns and check them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "counting_device.hpp"
#include "sanitizers.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/host_state.hpp"
#include "tidepool/observe/tracing.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::test {

/// Options for tests: nothing is too small to leave, nothing stays, memory grows in small steps.
[[nodiscard]] inline options small_options(std::vector<std::string> modules = {"all"}) {
  options opts;
  opts.offload_modules = std::move(modules);
  opts.min_tensor_elements = 1;
  opts.margin = false;
  opts.device_step = 16 * 1024;
  opts.host_step = 16 * 1024;
  opts.host_budget = std::size_t{16} << 20;
  return opts;
}

/// `small_options` over an arena of `budget` bytes. Under a sanitizer planners search briefly,
/// because later tries access memory as the first ones do.
[[nodiscard]] inline options arena_options(std::size_t budget,
                                           std::vector<std::string> modules = {"all"}) {
  auto opts = small_options(std::move(modules));
  opts.memory = memory_kind::arena;
  opts.device_budget = budget;
  if (thinned_if_short > 1) opts.plan_effort = 200;
  return opts;
}

/// Declare it before the offloader, since kernels that are still queued refer to it.
class rig {
 public:
  using device_type = counting_device<virtual_device>;
  using stream_ref = device_type::stream_ref;
  using handle = tidepool::handle<device_type>;
  using buffer = tidepool::buffer<device_type>;
  using view = tidepool::view<device_type>;
  template <class Modules = all_modules>
  using offloader = tidepool::offloader<device_type, Modules>;

  explicit rig(const machine& model = {}) : dev(model), compute(dev.make_stream()) {}

  device_type dev;
  device_type::stream compute;

  [[nodiscard]] stream_ref stream() const { return compute.ref(); }

  /// Word `i` of what `write` writes.
  [[nodiscard]] static std::uint32_t word(std::uint32_t tag, std::size_t i) {
    return tag * 2654435761U + static_cast<std::uint32_t>(i);
  }

  void write(const buffer& to, std::uint32_t tag, double nanoseconds = 1000) {
    write_bytes(to.data(), to.size(), tag, stream(), nanoseconds);
  }
  void write_bytes(void* to, std::size_t bytes, std::uint32_t tag, stream_ref on,
                   double nanoseconds = 1000) {
    dev.launch(on, nanoseconds, [=] {
      auto* const at = static_cast<std::byte*>(to);
      for (std::size_t i = 0; i < bytes / sizeof(std::uint32_t); ++i) {
        const auto value = word(tag, i);
        std::memcpy(at + i * sizeof value, &value, sizeof value);
      }
    });
  }

  /// Counts the words that are not as `write` left them.
  void check(const buffer& from, std::uint32_t tag) {
    check_rows(from.data(), {from.size(), 1, from.size(), 0}, tag, 0, stream());
  }
  /// `first` is the word of the written buffer with which a row begins, `step` the distance from
  /// row to row there, both in words; `shape.source_pitch` is the pitch as it is now, in bytes.
  void check_rows(const void* from, const copy_shape& shape, std::uint32_t tag, std::size_t first,
                  stream_ref on, std::size_t step = 0) {
    if (from == nullptr) {
      ++wrong_;  // a handle that should be full and is not
      return;
    }
    dev.launch(on, 1000, [=, this] {
      for (std::size_t row = 0; row < shape.rows; ++row) {
        const auto* const at = static_cast<const std::byte*>(from) + row * shape.source_pitch;
        for (std::size_t i = 0; i < shape.width / sizeof(std::uint32_t); ++i) {
          std::uint32_t value = 0;
          std::memcpy(&value, at + i * sizeof value, sizeof value);
          if (value != word(tag, first + row * step + i)) ++wrong_;
        }
      }
    });
  }
  /// Checks a view, of which `offset` and `pitch` are where it lay in the buffer that was written.
  void check(const view& from, std::uint32_t tag, std::size_t offset, std::size_t pitch) {
    check_rows(from.data(), {from.width(), from.rows(), from.pitch(), 0}, tag,
               offset / sizeof(std::uint32_t), stream(), pitch / sizeof(std::uint32_t));
  }

  /// Runs everything and says how many words were wrong so far.
  [[nodiscard]] std::size_t wrong() {
    dev.synchronize();
    return wrong_;
  }

 private:
  std::size_t wrong_ = 0;
};

}  // namespace tidepool::test
