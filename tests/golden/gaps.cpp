/// gaps: how far plans are from the bound, for each recorded step and share of its peak.
///
///   gaps [folder]         a row for each profile and share, and for the proxy of DeepSeek-V3
///   gaps [folder] quick   the bound alone; no plan is made
///   gaps [folder] only=a,b    the rows of these profiles
///   gaps [folder] peer=8  a neighbour has that share of the peak as well, in percent; its link is
///                         that of NVLink 4 where the profile has none
///   gaps [folder] shares  of gaps above 2 %, what they are made of as well, in percent of the
///   bound:
///                         places (the engine takes longer than the simulator, in which memory is
///                         never in pieces), search (one of 100 times the effort finds a plan that
///                         the simulator takes for faster), and the rest, the bound itself
///
/// A plan is made as `automatic` makes it, and its time is that of the engine on the virtual
/// device; bytes that leave and seconds of planning stand beside it. Takes some minutes; `quick` a
/// second.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <tidepool/plan/automatic.hpp>
#include <tidepool/plan/bound.hpp>

#include "../../examples/plan/model.hpp"
#include "cases.hpp"

namespace {

namespace plan = tidepool::plan;
constexpr double gib = 1073741824;

struct asked {
  bool quick = false;
  bool shares = false;
  std::string only;

  [[nodiscard]] bool wants(const std::string& name) const {
    return only.empty() || ("," + only + ",").find("," + name + ",") != std::string::npos;
  }
  std::size_t peer_percent = 0;
  std::size_t peer_bytes = 0;
};

void show_shares(const plan::profile& step, const plan::step_plan& made, double bound,
                 const plan::goal& wanted) {
  plan::planner plans(step);
  const auto as_planned = plans.judge(made.what, {made.device_budget, made.reload_ahead,
                                                  made.reload_ahead_bytes, made.peer_budget});
  auto longer = wanted;
  longer.work = 400'000'000;
  const auto found = plans.best(longer).expected;
  // Where the simulator does not run what the engine runs, there is nothing between them.
  const auto engine = made.expected.step_us;
  const auto simulated = as_planned.runs ? as_planned.step_us : engine;
  const auto best = found.runs ? std::min(found.step_us, simulated) : simulated;
  std::printf(" %7.2f %7.2f %7.2f", 100 * (engine - simulated) / bound,
              100 * (simulated - best) / bound, 100 * (best / bound - 1));
}

void show(const std::string& name, const plan::profile& step, double share, std::size_t budget,
          bool recompute, const asked& with) {
  const bool quick = with.quick;
  const plan::detail::layout map(step);
  const plan::step_links links{step.link, step.peer_link, step.peer_shares_link, with.peer_bytes};
  const auto begin = std::clock();
  const auto bound = plan::lower_bound(map, links, budget, recompute);
  const auto took = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::printf("%-24s %-3s %5.1f %9.3f %10.3f %8.2f", name.c_str(), recompute ? "yes" : "no",
              100 * share, static_cast<double>(budget) / gib, bound / 1e3, took);
  if (!quick) {
    tidepool::options opts;
    opts.memory = tidepool::memory_kind::arena;
    opts.device_budget = budget;
    opts.recompute_by_plan = recompute;
    if (with.peer_bytes > 0) {
      opts.places = {tidepool::place_kind::peer, tidepool::place_kind::host};
      opts.peer_budget = with.peer_bytes;
    }
    const auto start = std::clock();
    const auto made = plan::automatic(step, opts);
    const auto seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    if (made.expected.runs) {
      std::printf(" %10.3f %7.2f %8.3f", made.expected.step_us / 1e3,
                  100 * (made.expected.step_us / bound - 1),
                  static_cast<double>(made.expected.moved) / 1e9);
    } else {
      std::printf(" %10s %7s %8s", "-", "-", "-");
    }
    std::printf(" %6.2f", seconds);
    if (with.shares && made.expected.runs && made.expected.step_us > 1.02 * bound) {
      show_shares(
          step, made, bound,
          {.device_budget = budget, .recompute = recompute, .peer_budget = with.peer_bytes});
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

void show_all(const std::string& name, plan::profile step, asked with) {
  const auto peak = plan::planner(step).in_core().peak;
  with.peer_bytes = peak / 100 * with.peer_percent;
  if (!step.peer_link) step.peer_link = {396, 394, 782, 2};
  for (const bool recompute : {false, true}) {
    if (recompute && !plan::detail::may_recompute(step)) continue;
    for (const int percent : {90, 75, 60, 50, 40, 30, 20}) {
      show(name, step, percent / 100.0, peak / 100 * static_cast<std::size_t>(percent), recompute,
           with);
    }
  }
}

}  // namespace

int main(int count, char** given) try {
  asked with;
  std::string folder = TIDEPOOL_SOURCE_DIR "/tests/profiles";
  for (int i = 1; i < count; ++i) {
    const std::string_view word = given[i];
    if (word == "quick") {
      with.quick = true;
    } else if (word == "shares") {
      with.shares = true;
    } else if (word.starts_with("only=")) {
      with.only = word.substr(5);
    } else if (word.starts_with("peer=")) {
      with.peer_percent = std::stoul(std::string(word.substr(5)));
    } else {
      folder = word;
    }
  }
  golden::recordings all(folder);
  std::printf("%-24s %-3s %5s %9s %10s %8s %s%s\n", "profile", "re", "%", "GiB", "bound ms",
              "in ms", with.quick ? "" : "  engine ms   gap %    GB out   in s",
              with.shares ? "  places  search   bound" : "");
  const auto proxy = planning::profile_of(planning::model_named("deepseek-v3-proxy"),
                                          planning::machine_named("h200"));
  const auto held = plan::planner(proxy).in_core().peak;
  const auto peak = static_cast<double>(held);
  with.peer_bytes = held / 100 * with.peer_percent;
  for (const bool recompute : {false, true}) {
    if (!with.wants("deepseek-v3-proxy")) break;
    for (const double size : {8.0, 6.0, 4.0, 2.0}) {
      show("deepseek-v3-proxy", proxy, size * gib / peak, static_cast<std::size_t>(size * gib),
           recompute, with);
    }
  }
  for (const auto& name : all.names()) {
    if (with.wants(name)) show_all(name, all.profile(name), with);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gaps: %s\n", error.what());
  return 1;
}
