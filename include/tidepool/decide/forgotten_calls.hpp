// Notices calls that a trainer forgets without any error: `end_step`, and the reset of its handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tidepool::inline v0_3_0::detail {

// Each forgotten call is reported once, when a pass begins. Only passes count that no trainer
// intends: many passes of one number between two ends of a step, and passes whose tensors backward
// all kept, while no memory was saved.
class forgotten_calls {
 public:
  static constexpr int passes_without_end = 256;
  static constexpr int passes_that_keep = 3;

  // Notes the finish of a pass that trains, of which `groups` groups left. `keeps()` is true if
  // handles still hold all their tensors and no memory was saved so far. It is called only in the
  // first few passes.
  template <class Keeps>
  void pass_finished(int model_chunk, int microbatch, std::size_t groups, const Keeps& keeps) {
    const auto number = std::uint64_t{static_cast<std::uint32_t>(model_chunk)} << 32 |
                        static_cast<std::uint32_t>(microbatch);
    if (same_ == 0) first_ = number;
    if (number == first_ && same_ < passes_without_end) ++same_;
    // If fewer groups left, they may all be last groups, which handles may still hold.
    if (groups < 3 || kept_ < 0 || kept_ == passes_that_keep) return;
    kept_ = keeps() ? kept_ + 1 : -1;
  }
  void step_ended() noexcept { same_ = 0; }

  [[nodiscard]] bool any_untold() const {
    return (same_ == passes_without_end && !told_end_) ||
           (kept_ == passes_that_keep && !told_kept_);
  }
  // The message of one forgotten call; the next call of `tell` has another, if there is one.
  [[nodiscard]] std::string tell() {
    if (same_ == passes_without_end && !told_end_) {
      told_end_ = true;
      return "tidepool: " + std::to_string(passes_without_end) +
             " passes with one microbatch number were finished, and no step has ended since the"
             " first of them: call end_step() once all chunks of a step are finished; the plan,"
             " what stays, and reports wait for it. Where a step has as many passes, number them"
             " (chunk_info::microbatch)";
    }
    told_kept_ = true;
    return "tidepool: offloading saves no memory: all that each pass offloaded is still held at its"
           " finish. Give each tensor up as soon as backward has read it: reset its handles, or"
           " call drop of keys, or release of layers. A handle beside the committed one (share(), a"
           " view, a commit by hand) has to be reset in forward";
  }

 private:
  std::uint64_t first_ = 0;  // the number of the first pass since the last end of a step
  int same_ = 0;             // passes of that number finished since then
  int kept_ = 0;             // passes that kept all tensors; -1: a pass did not
  bool told_end_ = false;
  bool told_kept_ = false;
};

}  // namespace tidepool::detail
