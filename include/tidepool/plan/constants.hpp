/// Numbers of the planner that were chosen and do not follow from a step, each with its reason.
#pragma once

#include <cstddef>

namespace tidepool::inline v0_2_0::plan {

/// What a byte that leaves and comes back costs the kernels that run beside its copies, which no
/// simulated time shows: it passes the device's memory twice, and takes power. Measured on one
/// H200: 17 ms of a step for 28 GB, as if each pass went at 3.3 TB/s.
inline constexpr double contention_us_per_byte = 17e3 / 28e9;

/// Where no measurement stands beside a number, there is none. Not here: rounding (1e-6, 1e-9);
/// what describes a model or a machine, with its source; the slack of places
/// (`plan/placement.hpp`); how a link is measured (`device/link.hpp`); and in the search the part
/// of Belady's rule, steps of an eighth, and the fractions of Megatron's rule that are tried.
namespace constants {

// --- how much is as good as nothing

/// Of a step: such plans take as long, and the better by `cost_us` is taken; the engine ran one as
/// planned; what is gained is worth going on. Chosen: a tenth of what predictions miss by.
inline constexpr double as_long = 1.001;
/// Above what the link alone takes: the link limits. Chosen: predictions miss
/// by 1 %, both ways.
inline constexpr double link_limits = 1.02;

// --- how long is looked, in events that are simulated, about 10 ns each, or forecast, some 100

/// Of a search while one waits: 2.5 ms.
inline constexpr std::size_t work = 250'000;
/// Beside them, so that a long step has its starts: whole steps.
inline constexpr std::size_t whole_steps = 75;
/// Of a search for `automatic`, asked for once in a training: 40 ms.
inline constexpr std::size_t work_of_a_share = 4'000'000;
/// All subsets of so many groups are 4096 steps, less than a climb.
inline constexpr std::size_t few_groups = 12;
/// Places at which a list is cut in two, so that all sets together stay linear in the groups.
inline constexpr std::size_t cuts = 16;
/// Largest groups set aside for copies on their way, at most. Chosen.
inline constexpr std::size_t most_spare = 4;
/// Reloads ahead to be tried, in groups: a few, one, and as far as memory goes.
inline constexpr std::size_t reloads_ahead[] = {4, 1, 64};
/// Shares of a budget, finer where most plans are refused, by memory in pieces.
inline constexpr double budget_shares[] = {1.0,  0.98, 0.96, 0.94, 0.92, 0.9, 0.87,
                                           0.84, 0.8,  0.75, 0.7,  0.6,  0.5};
/// Percent of the budget down to which moving less is tried: copies on their way take 1 to 4 %.
inline constexpr int least_percent = 80;

/// Of all that `automatic` has the engine run: a second or two. Each stage takes at most half of
/// what is left.
inline constexpr std::size_t forecast_events = 1'000'000;
/// Of them, for plans that move less, each with a search.
inline constexpr std::size_t moving_less_events = 100'000;
/// Simulated, for changed plans: two tenths of a second.
inline constexpr std::size_t judged_events = 20'000'000;

// --- moving less (threshold accepting)

/// Of what moving the largest group costs, so much worse may a plan be at first.
inline constexpr double widest = 0.5;
/// Copies' times after its commit at which a group may go. Chosen.
inline constexpr double settled_times[] = {0, 1, 2, 3, 4, 6, 8, 12, 16};

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
/// Pairs compared in one order, and in all; then what was found is good enough.
inline constexpr std::size_t most_of_a_try = 3'000'000;
/// See `most_of_a_try`.
inline constexpr std::size_t most_compared = 12'000'000;

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

// --- machines

/// What is measured beside other GPUs above what one alone gets, until it is taken for a mistake.
inline constexpr double most_gain = 1.25;

}  // namespace constants

}  // namespace tidepool::plan
