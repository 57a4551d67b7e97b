// What a call that is recorded tells of the host.
#pragma once

#include <cstdint>

namespace tidepool::inline v0_2_0::detail {

// Whether the host had waited for the whole device when a call came.
struct drain {
  enum class what : std::uint8_t {
    no,       // something was still to be done
    unknown,  // nothing was, but that may be so without a wait
    yes       // copies and all else that there was at the call before are over
  };
  what seen = what::no;
  double after_us = 0;  // from the end of the last copy to the call

  friend bool operator==(const drain&, const drain&) = default;
};

}  // namespace tidepool::detail
