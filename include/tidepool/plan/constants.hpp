/// Numbers of the planner that were chosen and do not follow from a step, each with its reason.
#pragma once

#include <cstddef>

namespace tidepool::inline v0_3_0::plan {

/// What a byte that leaves and comes back costs the kernels that run beside its copies, which no
/// simulated time shows: it passes the device's memory twice, and takes power. Measured on one
/// H200: 17 ms of a step for 28 GB, as if each pass went at 3.3 TB/s.
inline constexpr double contention_us_per_byte = 17e3 / 28e9;

/// Where no measurement stands beside a number, there is none. Not here: rounding (1e-6, 1e-9);
/// what describes a model or a machine, with its source; how a link is measured
/// (`device/link.hpp`); and the dice of the search (`plan/detail/walk.hpp`).
namespace constants {

// --- how much is as good as nothing

/// Of a step: such plans take as long, and the better by `cost_us` is taken; the engine ran one as
/// planned; what is gained is worth going on. Chosen: a tenth of what predictions miss by.
inline constexpr double as_long = 1.001;
/// Above what the link alone takes: the link limits. Chosen: predictions miss
/// by 1 %, both ways.
inline constexpr double link_limits = 1.02;

// --- the walk, in events that are simulated, about 10 ns each

/// Of a search while one waits: 2.5 ms.
inline constexpr std::size_t work = 250'000;
/// The walk in one share of the budget, for `automatic`: 20 ms.
inline constexpr std::size_t work_of_a_share = 2'000'000;
/// Copies of the largest group that a step may take longer at first. Chosen.
inline constexpr double heat = 0.2;
/// Places at which a list is cut in two, so that all sets together stay linear in the groups.
inline constexpr std::size_t cuts = 16;
/// Reloads ahead to be tried, in groups: few, and as far as memory goes.
inline constexpr std::size_t reloads_ahead[] = {1, 2, 3, 4, 6, 8, 16, 64};

// --- the plans that the engine runs

/// Each share of the budget is so much of the one before it, down to the least.
inline constexpr double next_share = 0.97;
/// See `next_share`.
inline constexpr double least_share = 0.45;
/// Walks from the best plan so far, each judged by the engine; so many steps long at most, in a
/// budget that is smaller by up to this part.
inline constexpr std::size_t short_walks = 160;
/// See `short_walks`.
inline constexpr std::size_t longest_short_walk = 40;
/// So many times fewer walks, each so many times as long, where all copies are hidden.
inline constexpr std::size_t hidden = 5;
/// See `short_walks`.
inline constexpr double most_spared = 0.12;
/// A plan that is worse by this part is gone on from at first.
inline constexpr double most_worse = 0.003;
/// Events of all forecasts, some 1.5 us each: about a second.
inline constexpr std::size_t forecast_events = 1'000'000;

// --- steps that differ

/// Where shapes vary, a part of the budget is left free, and as many of the largest tensors. Chosen
/// for routed experts.
inline constexpr std::size_t varying_part = 10;
/// See `varying_part`.
inline constexpr std::size_t varying_largest = 2;
/// Recorded steps that have a median: the fewest that leave out what happened once, and the
/// latest, since a GPU's clock follows the plans.
inline constexpr std::size_t median_of = 3;
/// So many times as long as in that median step, a pass may take because the GPU's clock is lower.
/// In steps that stood still much an H100 computed a step in 3.6 % less time.
inline constexpr double clock_drift = 1.05;
/// Steps of a forecast at most, if its time does not stand before.
inline constexpr int forecast_steps = 6;

// --- places

/// Lifetimes beyond which places are not looked for: pairs grow with the square.
inline constexpr std::size_t most_lifetimes = 2'500;
/// Shares of the budget in which a step is simulated for its lifetimes, until they fit all of it.
inline constexpr double place_shares[] = {1.0,  0.985, 0.97, 0.955, 0.94, 0.925, 0.91,
                                          0.89, 0.87,  0.85, 0.82,  0.79, 0.76};
/// How early reloads have their memory, as a part of the time by which they can be late.
inline constexpr double reloads_early[] = {1, 0};
/// Pairs compared in one order; several orders gain more than long attempts with one.
inline constexpr std::size_t most_of_a_try = 300'000;

// --- the bound

/// Stretches of a step, beside the ends of passes, for prices that are searched for: finer ones
/// were no tighter on the recorded steps.
inline constexpr std::size_t coarse_stretches = 64;
/// The same for windows: coarse ones look further, fine ones closer.
inline constexpr std::size_t fine_stretches[] = {256, 512, 1024};
/// Groups at the begin of a forward pass, and at the end of a backward pass, that end a stretch.
inline constexpr std::size_t pass_ends = 2;
/// Ends of windows that are looked at on each side of a moment.
inline constexpr std::size_t window_ends = 64;
/// Steps of the search for prices, and how far the first goes, in shares of the link's time.
inline constexpr std::size_t price_steps = 1'000;
/// See `price_steps`.
inline constexpr double price_step = 0.2;
/// Of all of them together, stretches of parcels that are looked at: some 5 ms.
inline constexpr std::size_t price_work = 2'000'000;
/// Sums of sizes to be looked at, for what is away whole.
inline constexpr double whole_sums = 256;

}  // namespace constants

}  // namespace tidepool::plan
