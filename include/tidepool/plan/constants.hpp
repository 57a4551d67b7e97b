/// The planner's tuning constants: numbers that were chosen and do not follow from a step, each
/// with its unit and its reason. The constants are in one file so that a reader can see and change
/// all of them together.
#pragma once

#include <cstddef>

namespace tidepool::inline v0_3_0::plan {

/// The time that the kernels of a step lose for each byte that is offloaded and reloaded, in
/// microseconds. The simulated time of a step leaves this loss out: the copies read and write
/// device memory and draw power beside the kernels. Measured on one H200: 17 ms of a step for 28
/// GB, as if each of the two copies took bandwidth at 3.3 TB/s.
inline constexpr double contention_us_per_byte = 17e3 / 28e9;

/// A constant without a measurement beside it was chosen by judgement. These numbers stand
/// elsewhere: rounding errors (1e-6, 1e-9); models and machines, with their sources; how a link is
/// measured (`device/link.hpp`); and the probabilities of the search (`plan/detail/walk.hpp`).
namespace constants {

// --- which difference is too small to matter

/// Two step times whose ratio is below this count as equal. The chooser then takes the plan with
/// the lower `cost_us`, accepts that the engine ran a plan as planned, and stops the search for a
/// faster one. Chosen: a tenth of the error of predictions.
inline constexpr double as_long = 1.001;
/// Tensors are packed by plan only if a step takes at most this part of its time without packing.
/// Chosen: predictions of both err by 1 %.
inline constexpr double packing_pays = 0.985;
/// A step time up to this many times `link_bound` counts as limited by the link. Chosen:
/// predictions err by 1 % in both directions.
inline constexpr double link_limits = 1.02;

// --- the walk (local search), in simulated events of about 10 ns each

/// Simulated events of a search for which somebody waits: 2.5 ms.
inline constexpr std::size_t work = 250'000;
/// Simulated events of the walk that `automatic` makes in each share of the budget: 20 ms.
inline constexpr std::size_t work_of_a_share = 2'000'000;
/// How much slower than the current plan an accepted plan may be at the begin of a walk, in copies
/// of the largest group. Chosen.
inline constexpr double heat = 0.2;
/// The most positions at which a list of groups is cut in two. The limit keeps the total size of
/// all group sets linear in the number of groups.
inline constexpr std::size_t cuts = 16;
/// Numbers of groups reloaded ahead that the search tries: a few small ones, and 64 for "as many as
/// memory allows".
inline constexpr std::size_t reloads_ahead[] = {1, 2, 3, 4, 6, 8, 16, 64};

// --- plans that the engine judges

/// The planner plans for smaller and smaller shares of the budget: each is this part of the one
/// before, down to `least_share`.
inline constexpr double next_share = 0.97;
/// See `next_share`.
inline constexpr double least_share = 0.45;
/// The number of short walks from the best plan so far. The engine judges the plan of each. A short
/// walk has at most `longest_short_walk` steps and plans for a budget that is smaller by up to the
/// part `most_spared`.
inline constexpr std::size_t short_walks = 160;
/// See `short_walks`.
inline constexpr std::size_t longest_short_walk = 40;
/// If all copies are hidden, the number of short walks is divided by this factor and their length
/// multiplied by it.
inline constexpr std::size_t hidden = 5;
/// See `short_walks`.
inline constexpr double most_spared = 0.12;
/// The part by which a plan may be worse than the current one and still be continued from, at the
/// begin of `refine`. The part shrinks to 0.
inline constexpr double most_worse = 0.003;
/// Events that all forecasts of one search may run, at about 1.5 us each: about a second.
inline constexpr std::size_t forecast_events = 1'000'000;

// --- steps whose shapes differ

/// If shapes vary from step to step, the budget divided by this number is left free, and
/// `varying_largest` times the largest tensor in addition. Chosen for routed experts.
inline constexpr std::size_t varying_part = 10;
/// See `varying_part`.
inline constexpr std::size_t varying_largest = 2;
/// The number of latest steps whose median is used. Three is the fewest that leaves out a single
/// outlier; only the latest steps count, because a GPU's clock depends on the plan that it runs.
inline constexpr std::size_t median_of = 3;
/// The latest recorded pass is used, and not the median one, if it takes at most this many times
/// the median's time. The margin allows for a GPU's clock that is lower now than before: in steps
/// that stalled much, an H100 computed a step in 3.6 % less time.
inline constexpr double clock_drift = 1.05;
/// The most steps of one forecast. A forecast ends earlier when the time of a step repeats.
inline constexpr int forecast_steps = 6;

// --- placement

/// Above this number of lifetimes no placement is searched for, because the number of pairs to
/// compare grows with the square.
inline constexpr std::size_t most_lifetimes = 2'500;
/// Shares of the budget in which a step is simulated for its lifetimes, until these fit into the
/// whole budget.
inline constexpr double place_shares[] = {1.0,  0.985, 0.97, 0.955, 0.94, 0.925, 0.91,
                                          0.89, 0.87,  0.85, 0.82,  0.79, 0.76};
/// How early a reload gets its memory. 1: at its begin in the simulator; 0: at its latest possible
/// begin.
inline constexpr double reloads_early[] = {1, 0};
/// The most pairs compared for one order of lifetimes. Trying several orders gains more than trying
/// one for long.
inline constexpr std::size_t most_of_a_try = 300'000;

// --- the bound

/// Stretches of a step for `price_search`, beside those that end where passes begin or end. Finer
/// stretches gave no tighter bound on the recorded steps.
inline constexpr std::size_t coarse_stretches = 64;
/// Stretches of a step for `window_search`. Coarse stretches let a window span more of the step,
/// fine ones place its ends more exactly.
inline constexpr std::size_t fine_stretches[] = {256, 512, 1024};
/// The first groups of a forward pass, and the last groups of a backward pass, that end a stretch.
inline constexpr std::size_t pass_ends = 2;
/// Ends of windows that are tried on each side of a peak.
inline constexpr std::size_t window_ends = 64;
/// The most steps of `price_search`, and the length of its first step (`price_step`) as a share of
/// the link's time.
inline constexpr std::size_t price_steps = 1'000;
/// See `price_steps`.
inline constexpr double price_step = 0.2;
/// The work of all steps of `price_search` together, in visits of a parcel's stretch: about 5 ms.
inline constexpr std::size_t price_work = 2'000'000;
/// The most sums of storage sizes that are enumerated for one moment, because storages leave whole.
inline constexpr double whole_sums = 256;

}  // namespace constants

}  // namespace tidepool::plan
