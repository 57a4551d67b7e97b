// A trainer's streams and tensors, whose streams are told of each other no more than they must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base_device.hpp"
#include "faulty_device.hpp"
#include "planning.hpp"
#include "recording.hpp"
#include "tidepool/tidepool.hpp"

namespace explore::stress {

namespace tp = tidepool;

/// A virtual device that has it recorded when the host waits. Memory is really given back.
class watched_device : public base_device {
 public:
  using base_device::base_device;

  void tell(recording& seen) { seen_ = &seen; }

  void synchronize(stream_ref which) {
    base_device::synchronize(which);
    seen_->host_waited(which.index());
  }
  void synchronize() {
    base_device::synchronize();
    seen_->host_waited();
  }
  // The device is idle then, so that other memory at the same address comes after this.
  void deallocate(void* pointer) noexcept {
    base_device::deallocate(pointer);
    if (pointer != nullptr) seen_->host_waited();
  }
  void deallocate_host(void* pointer) noexcept {
    base_device::deallocate_host(pointer);
    if (pointer != nullptr) seen_->host_waited();
  }
  void deallocate_peer(int peer, void* pointer) noexcept {
    base_device::deallocate_peer(peer, pointer);
    if (pointer != nullptr) seen_->host_waited();
  }

 private:
  recording* seen_ = nullptr;
};

using device = tp::test::faulty_device<watched_device>;
using offloader =
    tp::test::planning<tp::offloader<device, tp::modules<"core_attn", "expert_fc1", "moe_act">>>;
using stream_ref = device::stream_ref;

/// A position on one of the trainer's streams. Its events are no calls that fail.
struct mark {
  std::size_t stream = 0;
  std::shared_ptr<base_device::event> event;
};

/// What the trainer has to wait for before it touches some memory.
struct history {
  bool shared = false;                  // by another handle, now or before
  std::optional<mark> handed;           // where the offloader was asked for it
  std::map<std::size_t, mark> touched;  // by stream, its last kernel
};

/// A handle, and what lies behind it.
struct tensor {
  offloader::buffer whole;
  offloader::view part;
  std::uint32_t tag = 0;  // of its contents; 0: none
  bool in_graph = false;  // contents change from launch to launch
  std::size_t words = 0;
  std::size_t first = 0;  // of a view, words into what was written
  std::size_t step = 0;
  std::size_t home = 0;  // the stream in whose order the handle goes without a word
  std::shared_ptr<history> past = std::make_shared<history>();  // of all handles to the memory

  [[nodiscard]] bool is_view() const { return step != 0; }
  [[nodiscard]] tp::handle<device>& held() {
    if (is_view()) return part;
    return whole;
  }
  // Without a word.
  void give_up() {
    if (is_view()) {
      part = {};
    } else {
      whole = {};
    }
  }
};

/// The device, the trainer's streams on it and the kernels it runs there.
class trainer {
 public:
  // Poison would be a kernel of a stream that others, which never touch the memory, know nothing
  // of.
  explicit trainer(std::uint64_t order_seed)
      : dev_(tp::machine{.poison = false, .order_seed = order_seed, .packs_from = 1}) {
    dev_.tell(seen_);
    dev_.observe([this](const sim_position& at, const operation& op) {
      copies_ += op.kind == operation_kind::copy ? 1 : 0;
      seen_.add(at, op, by_);
    });
  }

  [[nodiscard]] device& dev() { return dev_; }
  [[nodiscard]] const recording& seen() const { return seen_; }
  [[nodiscard]] std::size_t wrong() const { return wrong_; }
  [[nodiscard]] std::size_t copies() const { return copies_; }
  /// What is issued from now on is recorded as this action's.
  void now(std::string by) { by_ = std::move(by); }

  // ---- streams ----

  std::size_t add_stream() {
    streams_.push_back(dev_.base_device::make_stream());
    return streams_.size() - 1;
  }
  [[nodiscard]] std::size_t stream_count() const { return streams_.size(); }

  /// In a capture a stream takes part from its first use on.
  [[nodiscard]] stream_ref on(std::size_t stream) {
    const auto which = streams_[stream].ref();
    if (origin_ && !dev_.base_device::capturing(which)) wait(stream, mark_on(*origin_));
    return which;
  }
  /// From now on a capture is under way, or, with none, is not any more.
  void captured_on(std::optional<std::size_t> origin) { origin_ = origin; }
  /// The streams that take part in the capture come back to the first.
  void join_capture() {
    for (std::size_t each = 0; each < streams_.size(); ++each) {
      if (each != *origin_ && dev_.base_device::capturing(streams_[each].ref())) {
        wait(*origin_, mark_on(each));
      }
    }
  }

  [[nodiscard]] mark mark_on(std::size_t stream) {
    mark result{stream, std::make_shared<base_device::event>(dev_.base_device::make_event())};
    dev_.base_device::record(*result.event, on(stream));
    return result;
  }
  void wait(std::size_t stream, const mark& until) {
    if (stream != until.stream) {
      dev_.base_device::wait(streams_[stream].ref(), *until.event);
    }
  }

  // ---- memory ----

  /// The offloader has just been given `stream` for it.
  void handed(tensor& to, std::size_t stream) {
    to.home = stream;
    to.past->handed = mark_on(stream);
  }
  /// `stream` comes behind all kernels on it: enough to give it back.
  void await_kernels(std::size_t stream, const tensor& of) {
    for (const auto& [where, last] : of.past->touched) wait(stream, last);
  }
  /// `stream` may touch it.
  void await(std::size_t stream, const tensor& of) {
    if (of.past->handed) wait(stream, *of.past->handed);
    await_kernels(stream, of);
  }

  void write(tensor& to, std::size_t stream) {
    auto* const data = to.whole.as<std::uint32_t>();
    await(stream, to);
    dev_.launch(on(stream), 100,
                [this, data, count = to.words, tag = to.tag, in_graph = to.in_graph] {
                  for (std::size_t i = 0; i < count; ++i) data[i] = word(tag, i, in_graph);
                },
                "write", {{data, to.words * 4, true}});
    to.past->touched[stream] = mark_on(stream);
  }

  /// A kernel that leaves every bit as it is.
  void touch(tensor& which, std::size_t stream, bool writes) {
    await(stream, which);
    dev_.launch(on(stream), 100, [] {}, "touch", {{which.whole.data(), which.words * 4, writes}});
    which.past->touched[stream] = mark_on(stream);
  }

  /// Counts the words that are wrong.
  void check(tensor& from, std::size_t stream) {
    if (!from.held()) {
      ++wrong_;
      return;
    }
    if (from.is_view()) {
      const auto& part = from.part;
      check_rows(from, stream, part.width() / 4, part.rows(), part.pitch() / 4);
    } else {
      check_rows(from, stream, from.words, 1, 0);
    }
  }

  /// What a graph writes when it is launched next differs from what it wrote before.
  void next_round(std::size_t stream) {
    dev_.launch(on(stream), 10, [this] { ++round_; });
  }

 private:
  [[nodiscard]] std::uint32_t word(std::uint32_t tag, std::size_t i, bool in_graph) const {
    return tag * 2654435761U + static_cast<std::uint32_t>(i) * 7U +
           (in_graph ? round_ * 40503U : 0U);
  }

  void check_rows(tensor& from, std::size_t stream, std::size_t width, std::size_t rows,
                  std::size_t pitch) {
    const auto* const data = static_cast<const std::uint32_t*>(from.held().data());
    std::vector<tp::kernel_access> touches;
    for (std::size_t row = 0; row < rows; ++row) {
      touches.push_back({data + row * pitch, width * 4, false});
    }
    await(stream, from);
    dev_.launch(
        on(stream), 100,
        [=, this, tag = from.tag, in_graph = from.in_graph, first = from.first, step = from.step] {
          for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t i = 0; i < width; ++i) {
              const auto right = word(tag, first + row * step + i, in_graph);
              wrong_ += data[row * pitch + i] != right ? 1 : 0;
            }
          }
        },
        "check", std::move(touches));
    from.past->touched[stream] = mark_on(stream);
  }

  recording seen_;
  std::string by_;
  device dev_;
  std::vector<base_device::stream> streams_;
  std::optional<std::size_t> origin_;
  std::uint32_t round_ = 0;
  std::size_t wrong_ = 0;
  std::size_t copies_ = 0;
};

}  // namespace explore::stress
