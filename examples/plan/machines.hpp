/// Machines to plan for before one has them: what they compute, what their memory and links give.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tidepool/core/text.hpp>
#include <tidepool/error.hpp>
#include <tidepool/plan/profile.hpp>
#include <utility>
#include <vector>

namespace planning {

namespace plan = tidepool::plan;

/// What each of `gpus` GPUs of one host gets while all of them copy: they share its memory.
struct shared_link {
  std::size_t gpus = 2;   ///< that copy at once
  plan::link_rates each;  ///< what each of them gets

  friend bool operator==(const shared_link&, const shared_link&) = default;
};

/// One GPU and its way to the host. Rates are those that programs reach, not those of data sheets.
struct machine_description {
  std::string name;              ///< by which `machine_named` finds it
  std::size_t device_bytes = 0;  ///< device memory
  double gemm_tflops = 0;        ///< dense bf16 GEMMs
  double gemm_share = 0;         ///< that share of the data sheet's; for the eye
  double attention_tflops = 0;   ///< fused attention, causal, bf16
  double memory_rate = 0;        ///< GB/s of memory-bound kernels
  double peer_rate = 0;          ///< GB/s to other GPUs of the host, one way
  plan::link_rates link;         ///< to host memory, alone
  /// The same beside other GPUs, as measured, fewer GPUs first. Empty: nobody measured it.
  std::vector<shared_link> shared;
  std::string source;  ///< of each figure; says what is an estimate
  /// To memory of another GPU of the host. None: as `peer_rate` says, both ways at once.
  std::optional<plan::link_rates> peer_link{};

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
  throw tidepool::option_error(
      "tidepool: " + std::string(option) + ": " + quoted + " is not known; take " +
      tidepool::detail::text::join(names, ", ") +
      (near.empty() ? std::string() : "; did you mean " + std::string(near) + "?"));
}

// Figures in the order of `machine_description`; those of several GPUs come last.
[[nodiscard]] inline machine_description machine_of(std::string_view name, std::size_t bytes,
                                                    double gemm_tflops, double gemm_share,
                                                    double attention_tflops, double memory_rate,
                                                    double peer_rate, const plan::link_rates& link,
                                                    std::string_view source,
                                                    std::vector<shared_link> shared = {}) {
  return {std::string(name), bytes,     gemm_tflops, gemm_share,        attention_tflops,
          memory_rate,       peer_rate, link,        std::move(shared), std::string(source)};
}

}  // namespace detail

/// The machines that are known. "Estimate" in `source` means: nobody measured it for this table.
[[nodiscard]] inline const std::array<machine_description, 6>& known_machines() {
  constexpr auto gib = std::size_t{1} << 30;
  constexpr auto gb = std::size_t{1'000'000'000};
  constexpr plan::link_rates pcie_5{55.1, 55.2, 101.5, 2};
  using detail::machine_of;
  static const std::array<machine_description, 6> all{
      machine_of("h100", 80 * gib, 700, 0.71, 400, 2800, 397, pcie_5,
                 "link and GEMMs as measured on an H200, which has the same chip and PCIe 5; "
                 "memory: 84 % of the data sheet's 3350 GB/s, estimate; attention: between the 740 "
                 "TFLOP/s that FlashAttention-3 reports at best and the 370 of FlashAttention-2, "
                 "estimate"),
      // Of several GPUs: what bench_link has in total, over the GPUs.
      machine_of("h200", 141 * gb, 700, 0.71, 400, 4000, 397, pcie_5,
                 "link measured; of several GPUs: raw copies of bench_link (bench/results), of two "
                 "the medians of three runs (2026-11-22-h200x2; another host had 7 % more both "
                 "ways), of four one run (2026-11-22-h200x4); GEMMs: 785 TFLOP/s measured for "
                 "8192^3 alone, 700 in a step, of 989; peers: 397 GB/s measured; memory: 84 % of "
                 "the data sheet's 4800 GB/s, estimate; attention as for h100, estimate",
                 {{2, {107.48 / 2, 103.43 / 2, 134.69 / 2, 2}},
                  {4, {142.61 / 4, 167.41 / 4, 170.21 / 4, 2}}}),
      machine_of("gh200", 96 * gib, 700, 0.71, 400, 3350, 397, {170, 411, 450, 2},
                 "link out and in as published; 346 GB/s in were seen elsewhere "
                 "(NVIDIA/nvbandwidth issue 23), both ways: estimate; GEMMs and attention as for "
                 "h200, memory: 84 % of 4000 GB/s, estimates"),
      machine_of("b200", 180 * gb, 1650, 0.73, 900, 6450, 794, pcie_5,
                 "link: PCIe 5 x16 as measured on an H200, estimate; GEMMs: 1650 of 2250 TFLOP/s, "
                 "attention and peers as for gb200, estimates; memory: 84 % of the 7670 GB/s that "
                 "its driver reports (pytorch/ao pull request 4002, which has 178 GB as well)"),
      machine_of("gb200", 186 * gb, 1650, 0.66, 900, 6700, 794, {185, 202, 320, 2},
                 "link out: 185 GB/s as poolside measured, to memory of the other NUMA node 115 to "
                 "120; in: in the ratio of GB300, both ways: estimates; GEMMs: 66 % of 2500 "
                 "TFLOP/s, attention, memory (84 % of 8000 GB/s) and peers (twice those of NVLink "
                 "4): estimates"),
      machine_of(
          "gb300", 288 * gb, 1650, 0.66, 900, 6700, 794, {193, 211, 335, 2},
          "link out and in as published, of four GPUs at once 182 and 169 to 175; both ways: "
          "estimates; the rest as for gb200, estimates",
          {{4, {182, 172, 273, 2}}})};
  return all;
}

/// The machine of that name. Throws `option_error`.
[[nodiscard]] inline const machine_description& machine_named(std::string_view name) {
  return detail::find_named<machine_description>(known_machines(), name, "machine");
}

/// The link to memory of another GPU of the host; none where nothing is known of it.
[[nodiscard]] inline std::optional<plan::link_rates> peer_link_of(const machine_description& on) {
  if (on.peer_link || !(on.peer_rate > 0)) return on.peer_link;
  return plan::link_rates{on.peer_rate, on.peer_rate, 2 * on.peer_rate, on.link.latency_us};
}

/// Rates to plan with where several GPUs of a host copy, and what they rest on.
struct link_share {
  std::size_t gpus = 1;      ///< that copy at once
  plan::link_rates each;     ///< what each of them gets
  std::size_t measured = 1;  ///< GPUs of the measurement behind it; 0: nobody measured several

  friend bool operator==(const link_share&, const link_share&) = default;
};

/// What each of `gpus` GPUs of a host gets while all of them copy; 0 counts as 1.
///
/// As measured, where somebody measured so many. Between two measurements the rates are those of
/// the one with more GPUs, which is not more than fewer get; beyond the last one its total is
/// divided, as if more GPUs got no more out of the host. Where nobody measured several, they are
/// the rates of one alone: too much, unless each GPU has host memory of its own.
[[nodiscard]] inline link_share link_at_once(const machine_description& on, std::size_t gpus) {
  if (gpus <= 1) return {1, on.link, 1};
  if (on.shared.empty()) return {gpus, on.link, 0};
  const auto found = std::ranges::lower_bound(on.shared, gpus, {}, &shared_link::gpus);
  if (found != on.shared.end()) return {gpus, found->each, found->gpus};
  const auto& last = on.shared.back();
  const auto part = static_cast<double>(last.gpus) / static_cast<double>(gpus);
  const auto& of = last.each;
  return {gpus, {of.out * part, of.in * part, of.both * part, of.latency_us}, last.gpus};
}

/// Enters what each of `gpus` GPUs was measured to get, in place of what was known of so many.
inline void set_link(machine_description& of, std::size_t gpus, const plan::link_rates& each) {
  if (gpus <= 1) {
    of.link = each;
    return;
  }
  const auto at = std::ranges::lower_bound(of.shared, gpus, {}, &shared_link::gpus);
  if (at == of.shared.end() || at->gpus != gpus) {
    of.shared.insert(at, {gpus, each});
  } else {
    at->each = each;
  }
}

}  // namespace planning
