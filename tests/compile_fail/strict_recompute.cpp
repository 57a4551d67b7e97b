// A strict list refuses an offer to recompute by the misspelt name of a module or a region.
// expect: tidepool: strict_modules<...> has no module of this name
// expect: did_you_mean<([^<]*fixed_string<12>{+"moe_permute"|[^>]*'m', 'u', 't', 'e'>)
// expect: did_you_mean<([^<]*fixed_string<8>{+"my_norm"|[^>]*'n', 'o', 'r', 'm'>)
#include "tidepool/device/null.hpp"
#include "tidepool/offloader.hpp"

using recompute_list = tidepool::strict_modules<"core_attn", "my_norm">;
#ifdef TIDEPOOL_TEST_CONTROL
constexpr tidepool::fixed_string recomputed_region = "moe_permute";
constexpr tidepool::fixed_string recomputed_module = "my_norm";
#else
constexpr tidepool::fixed_string recomputed_region = "moe_premute";
constexpr tidepool::fixed_string recomputed_module = "my_nrom";
#endif

void recompute_step(tidepool::offloader<tidepool::null_device, recompute_list>& off,
                    tidepool::buffer<tidepool::null_device>& saved) {
  auto chunk = off.begin();
  chunk.commit_or_discard<recomputed_region>(0, {}, saved);
  chunk.restore_or_recompute<recomputed_module>(
      0, {}, [] {}, saved);
}
