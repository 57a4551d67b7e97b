/// What a training program stands on: a device that may fail, streams, and kernels that never do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "caching_allocator.hpp"
#include "faults/word_rows.hpp"
#include "faulty_device.hpp"
#include "rig.hpp"
#include "tidepool/device/virtual.hpp"

namespace tidepool::test {

/// The virtual device. It outlives every offloader of a program.
class faulty_desk {
 public:
  using device_type = faulty_device<virtual_device>;
  using stream_ref = device_type::stream_ref;

  explicit faulty_desk(machine model = {})
      : dev((model.packs_from = 1, model.pack_piece = std::size_t{16} << 10, model)) {}

  device_type dev;

  [[nodiscard]] stream_ref main() const { return compute_.ref(); }
  [[nodiscard]] stream_ref second() const { return second_.ref(); }

  // The calls of a trainer itself do not fail.
  void synchronize() { base().synchronize(); }
  [[nodiscard]] bool capturing() { return base().capturing(main()); }
  void order(stream_ref from, stream_ref to) {
    auto mark = base().make_event();
    base().record(mark, from);
    base().wait(to, mark);
  }

  /// What is written differs from round to round, and so from replay to replay.
  void next_round(stream_ref on) {
    dev.launch(on, 100, [this] { ++round_; });
  }
  [[nodiscard]] std::uint32_t round() const { return round_; }

  void write(stream_ref on, std::uint32_t* to, std::size_t words, std::uint32_t tag) {
    dev.launch(on, 1000, [this, to, words, tag] {
      for (std::size_t i = 0; i < words; ++i) to[i] = word(tag, i);
    });
  }
  /// Counts the words that are not as `write` left them.
  void check(stream_ref on, const std::uint32_t* from, const word_rows& in, std::uint32_t tag) {
    dev.launch(on, 1000, [this, from, in, tag] {
      for (std::size_t r = 0; r < in.rows; ++r) {
        for (std::size_t i = 0; i < in.width; ++i) {
          wrong_ += from[r * in.pitch + i] != word(tag, in.first + r * in.step + i) ? 1 : 0;
        }
      }
    });
  }
  void note_wrong() { ++wrong_; }

  /// A trainer's own allocator, in the order of `main`; it never fails.
  [[nodiscard]] void* take(std::size_t bytes) { return own_.take(bytes); }
  void give(void* data) { own_.give(data); }
  [[nodiscard]] std::size_t taken() const { return own_.in_use(); }

  /// Wrong words since the last call; everything must have run.
  [[nodiscard]] std::size_t take_wrong() { return std::exchange(wrong_, 0); }

 private:
  [[nodiscard]] virtual_device& base() { return dev; }
  [[nodiscard]] std::uint32_t word(std::uint32_t tag, std::size_t i) const {
    return rig::word(round_ * 10'000 + tag, i);
  }

  virtual_device::stream compute_ = dev.virtual_device::make_stream();
  virtual_device::stream second_ = dev.virtual_device::make_stream();
  caching_allocator<virtual_device> own_{dev, compute_.ref()};
  std::uint32_t round_ = 0;
  std::size_t wrong_ = 0;
};

}  // namespace tidepool::test
