/// Saved tensors by key, for frameworks that have no place to hold handles.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tidepool/keyed/pass.hpp"
#include "tidepool/keyed/state.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::inline v0_3_0 {

/// Passes that know their tensors by keys, over an offloader that must outlive them. No call blocks
/// the host. Thread safety: that of the offloader. After the first steps nothing is allocated.
///
///     tp::keyed keys(off);
///     auto pass = keys.begin({.microbatch = 0});
///     pass.run(off.module("fc1"), layer, stream, [&] {
///       …
///       pass.save(key, data, bytes, stream, owner);  // in place of keeping it
///     });
///     pass.end_forward();
///     fc1_backward(pass.load(key, stream));
///     pass.drop(key, stream);
///     pass.finish();
template <device Device, class Modules = all_modules>
class keyed {
 public:
  using pass = keyed_pass<Device, Modules>;  ///< One pass, as `begin` returns it.

  /// Makes passes over `off`, which must outlive this object.
  explicit keyed(offloader<Device, Modules>& off) : off_(&off) {}
  keyed(const keyed&) = delete;
  keyed& operator=(const keyed&) = delete;

  /// Keeps tensors where they are if `question` is true of them when they are saved, such as
  /// weights among the inputs of a node. An excluded tensor leaves with no scope: `load` gives the
  /// address that was saved, and the last `drop` gives the owner its memory back. `question` must
  /// not save.
  ///
  ///     keys.exclude_if([&](const tp::keyed_tensor& each) { return is_weight(each.data); });
  void exclude_if(std::function<bool(const keyed_tensor&)> question) {
    questions_.push_back(std::move(question));
  }

  /// Opens one forward pass and its backward pass, with keys of its own; `info` as for
  /// `offloader::begin`, whose errors it throws. This object must outlive the pass.
  [[nodiscard]] pass begin(const chunk_info& info = {}) { return pass(*this, info); }

 private:
  friend pass;

  using state = detail::keyed_state<Device, Modules>;

  [[nodiscard]] state& take() {
    if (spare_.empty()) {
      spare_.reserve(states_.size() + 1);
      spare_.push_back(&*states_.emplace_back(std::make_unique<state>()));
    }
    auto& fresh = *spare_.back();
    spare_.pop_back();
    return fresh;
  }
  void give(state& done) noexcept {
    done.end([](auto& handle) { handle.lose(); });
    spare_.push_back(&done);  // there is room, because `done` was taken from here
  }

  [[nodiscard]] bool excludes(const keyed_tensor& saved) const {
    return std::ranges::any_of(questions_, [&](const auto& ask) { return ask(saved); });
  }

  offloader<Device, Modules>* off_;
  std::vector<std::function<bool(const keyed_tensor&)>> questions_;
  std::vector<std::unique_ptr<state>> states_;
  std::vector<state*> spare_;
  detail::reread_places rereads_;
};

/// Deduces the types from the offloader.
template <device Device, class Modules>
keyed(offloader<Device, Modules>&) -> keyed<Device, Modules>;

}  // namespace tidepool
