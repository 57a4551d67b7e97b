// Where tensors come from and how they go, and which calls may fail.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner.hpp"
#include "stress_program.hpp"
#include "stress_trainer.hpp"

namespace explore::stress {

/// Memory of the trainer's own, at addresses that do not change.
class fixed_memory {
 public:
  static constexpr std::size_t bytes = 256;

  explicit fixed_memory(device& dev) : dev_(&dev) {
    for (auto& each : placement_) {
      each.data = dev.base_device::allocate(bytes);
      each.source = std::make_unique<tp::fixed_block>(each.data, bytes);
    }
  }
  fixed_memory(const fixed_memory&) = delete;
  fixed_memory& operator=(const fixed_memory&) = delete;
  ~fixed_memory() {
    for (const auto& each : placement_) dev_->base_device::deallocate(each.data);
  }

  /// One that nobody has; null when there is none.
  [[nodiscard]] tp::fixed_block* free() const {
    for (const auto& each : placement_) {
      if (!each.source->taken()) return each.source.get();
    }
    return nullptr;
  }

 private:
  struct place {
    void* data = nullptr;
    std::unique_ptr<tp::fixed_block> source;
  };
  device* dev_;
  std::array<place, 2> placement_;
};

/// A trainer with its offloader, and the choices of one action after the other.
class supplies {
 public:
  explicit supplies(const program& what)
      : desk_(what.order_seed), fixed_(desk_.dev()), options_(what.options) {
    for (std::size_t i = 0; i < what.streams; ++i) desk_.add_stream();
  }

  [[nodiscard]] trainer& desk() { return desk_; }
  [[nodiscard]] const trainer& desk() const { return desk_; }
  [[nodiscard]] offloader& off() { return *off_; }
  void open() {
    off_.emplace(desk_.dev(), options_);
    off_->on_report([](std::string_view) {});
  }
  /// Steps until memory is where it stays.
  [[nodiscard]] int warm_up_steps() const {
    return options_.policy == tp::policy_kind::automatic ? options_.timed_step.value_or(2) : 1;
  }
  /// Handles may outlive it.
  void close() { off_.reset(); }

  // ---- choices ----

  void choose(std::uint32_t draw) { draw_.seed(draw); }
  [[nodiscard]] std::size_t any(std::size_t count) { return draw_() % count; }
  [[nodiscard]] bool once_in(std::size_t count) { return any(count) == 0; }
  [[nodiscard]] std::size_t any_stream() { return any(desk_.stream_count()); }
  template <class T>
  [[nodiscard]] T take_any(std::vector<T>& from) {
    const auto at = from.begin() + static_cast<std::ptrdiff_t>(any(from.size()));
    auto taken = std::move(*at);
    from.erase(at);
    return taken;
  }

  // ---- calls ----

  static constexpr std::string_view never_refused{};

  /// Whether it went well. A call may meet a budget, and may fail where the device was made to; it
  /// may be refused only with the words `allowed`.
  template <class Call>
  bool attempt(const Call& call, std::string_view allowed = never_refused) {
    try {
      call();
      return true;
    } catch (const tp::out_of_budget&) {
      ++refused_;
    } catch (const tp::device_error& caught) {
      ++failed_;
      if (caught.code != device::code) blame("error", caught.what());
    } catch (const tp::error& caught) {
      const std::string_view words = caught.what();
      if (allowed == never_refused || words.find(allowed) == words.npos) {
        blame("error", caught.what());
      }
    }
    return false;
  }
  void blame(const std::string& kind, const std::string& words) {
    if (!problem_) problem_ = {kind, words};
  }
  [[nodiscard]] const violation& problem() const { return problem_; }
  [[nodiscard]] std::size_t refused() const { return refused_; }
  [[nodiscard]] std::size_t failed() const { return failed_; }

  // ---- tensors; what throws, throws what the offloader does ----

  [[nodiscard]] tensor allocate(std::size_t stream, std::size_t words) {
    tensor made;
    made.words = words;
    auto* const fixed = once_in(8) ? fixed_.free() : nullptr;
    if (fixed != nullptr) {
      made.words = std::min(words, fixed_memory::bytes / 4);
      made.whole = off_->allocate_from(*fixed, made.words * 4, desk_.on(stream));
    } else {
      made.whole = off_->allocate(words * 4, desk_.on(stream));
    }
    if (packs()) made.whole.holds_bfloat16();
    desk_.handed(made, stream);
    return made;
  }
  [[nodiscard]] tensor allocate(std::size_t stream) { return allocate(stream, any_words()); }
  [[nodiscard]] std::size_t any_words() { return (16 + any(9) * 24) * (packs() ? 2 : 1); }
  [[nodiscard]] bool packs() const { return !options_.pack.empty(); }

  /// Writes what nobody has written before.
  void fill(tensor& into, std::size_t stream, bool in_graph = false) {
    tag(into);
    into.in_graph = in_graph;
    desk_.write(into, stream);
  }
  /// Somebody will write it.
  void tag(tensor& into) { into.tag = ++tags_; }
  [[nodiscard]] tensor make(bool in_graph = false) {
    const auto stream = any_stream();
    auto made = allocate(stream);
    fill(made, once_in(3) ? any_stream() : stream, in_graph);
    return made;
  }

  /// Another handle to a buffer, or a view of it.
  [[nodiscard]] tensor share(const tensor& from) {
    tensor made;
    made.tag = from.tag;
    made.in_graph = from.in_graph;
    made.words = from.words;
    made.home = from.home;
    made.past = from.past;
    made.past->shared = true;
    if (once_in(2) || from.words < 24) {
      made.whole = from.whole.share();
      return made;
    }
    made.first = any(4);
    made.step = 6;
    made.part = from.whole.view({.offset = made.first * 4,
                                 .width = 12,
                                 .rows = (from.words - made.first - 3) / made.step,
                                 .pitch = made.step * 4,
                                 .whole_storage = once_in(3)});
    return made;
  }

  /// Ends a handle in one of the ways that a trainer may, which need not touch the memory and so
  /// need not wait until the stream that it was handed to may. False where a call failed and
  /// nobody was told: the memory may then stay taken, as if the handle were still there.
  bool give_back(tensor& done) {
    if (!done.held()) return true;
    if (once_in(2)) {
      const auto stream = any_stream();
      desk_.await_kernels(stream, done);
      if (attempt([&] { done.held().reset(desk_.on(stream)); })) return true;
    }
    desk_.await_kernels(done.home, done);
    const bool before = desk_.dev().tripped();
    done.give_up();
    if (before || !desk_.dev().tripped()) return true;
    done.past->shared = true;
    return false;
  }
  bool give_back(tensor&& done) { return give_back(done); }
  void give_back(std::vector<tensor>&& done) {
    for (auto& each : done) give_back(each);
    done.clear();
  }

 private:
  trainer desk_;
  fixed_memory fixed_;
  tp::options options_;
  std::optional<offloader> off_;
  std::minstd_rand draw_;
  std::uint32_t tags_ = 0;
  violation problem_;
  std::size_t refused_ = 0;
  std::size_t failed_ = 0;
};

}  // namespace explore::stress
