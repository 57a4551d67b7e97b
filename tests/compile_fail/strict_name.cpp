// A strict list refuses a name that it lacks, and shows the nearest one: as a string in g++, as
// letters in clang++.
// expect: tidepool: strict_modules<...> has no module of this name
// expect: did_you_mean<([^<]*fixed_string<11>{+"expert_fc1"|[^>]*'_', 'f', 'c', '1'>)
// expect: detail::name<([^<]*fixed_string<10>{+"expert_fc"|[^>]*'r', 't', '_', 'f', 'c'>)
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using strict_list = tidepool::strict_modules<"core_attn", "expert_fc1">;
#ifdef TIDEPOOL_TEST_CONTROL
constexpr tidepool::fixed_string strict_word = "expert_fc1";
#else
constexpr tidepool::fixed_string strict_word = "expert_fc";
#endif

void strict_step(tidepool::offloader<tidepool::null_device, strict_list>& off,
                 tidepool::buffer<tidepool::null_device>& saved) {
  auto chunk = off.begin();
  chunk.commit<strict_word>(0, {}, saved);
}
