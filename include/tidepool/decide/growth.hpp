// Tells whether steps outgrow the step that a plan was made of.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tidepool::inline v0_3_0::detail {

class growth {
 public:
  // Notes the end of a chunk that trains; `planned` says that each of its groups has a place in the
  // plan.
  void chunk_ended(std::size_t groups, bool planned) {
    ++now_.chunks;
    now_.groups += groups;
    unplanned_ = unplanned_ || !planned;
  }

  // Forgets chunks that ended so far, because they were of no step.
  void forget_step() noexcept {
    now_ = {};
    unplanned_ = false;
  }

  struct verdict {
    bool outgrown = false;     // larger than every step before it, and partly not planned for
    bool falls_short = false;  // smaller than the largest step so far
    bool varies = false;       // its chunks differ, not only their number
  };
  // Steps in which a chunk was given up tell nothing. Each size counts once, because every step may
  // have another one.
  verdict step_ended(bool given_up) {
    const auto had = now_;
    const bool unplanned = unplanned_;
    forget_step();
    if (given_up) return {};
    const bool larger = had.chunks > most_.chunks || had.groups > most_.groups;
    const bool smaller = had.chunks < most_.chunks || had.groups < most_.groups;
    const bool varies = had.chunks == most_.chunks && had.groups != most_.groups;
    most_ = {std::max(had.chunks, most_.chunks), std::max(had.groups, most_.groups)};
    return {larger && unplanned, smaller, varies};
  }

  // Times that a warm-up waits for a step as large as one before it. Then it plans for smaller
  // steps as well, because batches may have become smaller for good.
  static constexpr int patience = 8;
  [[nodiscard]] bool waits() { return waited_ < patience && ++waited_ > 0; }
  void warm_up_begins() noexcept { waited_ = 0; }

 private:
  struct size {
    std::size_t chunks = 0;
    std::size_t groups = 0;
  };
  size now_;
  size most_;
  bool unplanned_ = false;
  int waited_ = 0;
};

}  // namespace tidepool::detail
