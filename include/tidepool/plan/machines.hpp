/// Machines to plan for before one has them: what they compute, what their memory and links give.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/detail/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::plan {

/// One GPU and its way to the host. Rates are those that programs reach, not those of data sheets.
struct machine_description {
  std::string name;
  std::size_t device_bytes = 0;  ///< device memory
  double gemm_tflops = 0;        ///< dense bf16 GEMMs
  double gemm_share = 0;         ///< that share of the data sheet's; for the eye
  double attention_tflops = 0;   ///< fused attention, causal, bf16
  double memory_rate = 0;        ///< GB/s of memory-bound kernels
  double peer_rate = 0;          ///< GB/s to other GPUs of the host, one way
  link_rates link;               ///< to host memory
  std::string source;            ///< of each figure; says what is an estimate

  friend bool operator==(const machine_description&, const machine_description&) = default;
};

namespace detail {

/// The entry called `name`. Throws `option_error` with the known names and the nearest.
template <class Entry>
[[nodiscard]] const Entry& find_named(std::span<const Entry> known, std::string_view name,
                                      std::string_view option) {
  std::vector<std::string_view> names;
  for (const auto& each : known) {
    if (tidepool::detail::text::equal_ignoring_case(each.name, name)) return each;
    names.push_back(each.name);
  }
  const auto near = tidepool::detail::text::nearest(name, names);
  const auto quoted = tidepool::detail::text::in_quotes(name);
  throw option_error("tidepool: " + std::string(option) + ": " + quoted + " is not known; take " +
                     tidepool::detail::text::join(names, ", ") +
                     (near.empty() ? std::string() : "; did you mean " + std::string(near) + "?"));
}

}  // namespace detail

/// The machines that are known. "Estimate" in `source` means: nobody measured it for this table.
[[nodiscard]] inline const std::array<machine_description, 5>& known_machines() {
  constexpr auto gib = std::size_t{1} << 30;
  static const std::array<machine_description, 5> all{{
      {"h100",
       80 * gib,
       700,
       0.71,
       400,
       2800,
       397,
       {55.1, 55.2, 101.5, 2},
       "link and GEMMs as measured on an H200, which has the same chip and PCIe 5; memory: 84 % of "
       "the data sheet's 3350 GB/s, estimate; attention: between the 740 TFLOP/s that "
       "FlashAttention-3 reports at best and the 370 of FlashAttention-2, estimate"},
      {"h200",
       141'000'000'000,
       700,
       0.71,
       400,
       4000,
       397,
       {55.1, 55.2, 101.5, 2},
       "link measured; GEMMs: 785 TFLOP/s measured for 8192^3 alone, 700 in a step, of 989; peers: "
       "397 GB/s measured; memory: 84 % of the data sheet's 4800 GB/s, estimate; attention as for "
       "h100, estimate"},
      {"gh200",
       96 * gib,
       700,
       0.71,
       400,
       3350,
       397,
       {170, 411, 450, 2},
       "link out and in as published; both ways: estimate; GEMMs and attention as for h200, "
       "memory: "
       "84 % of 4000 GB/s, estimates"},
      {"gb200",
       186'000'000'000,
       1650,
       0.66,
       900,
       6700,
       794,
       {185, 202, 320, 2},
       "link out: 185 GB/s as poolside measured; in: in the ratio of GB300, both ways: estimates; "
       "GEMMs: 66 % of 2500 TFLOP/s, attention, memory (84 % of 8000 GB/s) and peers (twice those "
       "of NVLink 4): estimates"},
      {"gb300",
       288'000'000'000,
       1650,
       0.66,
       900,
       6700,
       794,
       {193, 211, 335, 2},
       "link out and in as published; both ways: estimate; the rest as for gb200, estimates"},
  }};
  return all;
}

/// The machine of that name. Throws `option_error`.
[[nodiscard]] inline const machine_description& machine_named(std::string_view name) {
  return detail::find_named<machine_description>(known_machines(), name, "machine");
}

}  // namespace tidepool::plan
