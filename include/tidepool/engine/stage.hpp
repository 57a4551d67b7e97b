// What the end of a step was the end of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tidepool/rules/growth.hpp"

namespace tidepool::inline v0_2_0::detail {

// The first step under a plan from elsewhere counts as a warm-up. With `policy_kind::automatic` the
// first step and some later ones are recorded, and the caller settles what stays: before the timed
// one so that it is timed in much the state that the steps after it will be in, since a GPU that
// stands still at times is faster. Of the first alone it is not known whether shapes vary.
enum class stage : std::uint8_t {
  step,
  warm_up,
  first,
  recorded,
  timed,
  given_up,    // nothing is learnt of it, since a chunk was given up
  short_step,  // nor of one that falls short of those before it
  starved,     // it did not fit under the plan; the warm-up begins anew
  outgrown,    // it was larger than the plan; likewise
};

// What is known of a step once it is over.
struct ended_step {
  std::size_t chunks = 0;
  bool given_up = false;  // a chunk of it was
  bool starved = false;   // it did not fit under its plan
  bool proves = false;    // a plan from elsewhere
  growth::verdict size;
};

}  // namespace tidepool::detail
