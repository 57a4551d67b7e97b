/// plan: which activations of a training step should leave a GPU, before there is one.
///
///   plan --model deepseek-v3-proxy --machine h200 --budget 4GiB
///   plan --model qwen3-30b-a3b --machine gb200 --max-slowdown 1% --frontier frontier.svg
///   plan --machine host.json --gpus-per-host 4 --budget 14GiB
///   plan --budget 6GiB --places peer,host --peer-budget 4GiB
///   plan --profile step.json --budget 12GiB --save plan.json
///
///   plan --budget 4GiB --json -
///
/// Needs no GPU. Exit status: 0; 1 when the budget or the slowdown cannot be met; 2 for wrong use.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <tidepool/plan/forecast.hpp>
#include <tidepool/plan/json.hpp>
#include <tidepool/trace/picture.hpp>
#include <tidepool/trace/report.hpp>
#include <utility>
#include <vector>

#include "../tools/json_file.hpp"
#include "../tools/output_file.hpp"
#include "../tools/progress.hpp"
#include "command_line.hpp"
#include "frontier_picture.hpp"
#include "report.hpp"
#include "result_json.hpp"
#include "study.hpp"

namespace {

nlohmann::ordered_json all_to_json(const planning::request& asked, const planning::study& study,
                                   const std::vector<planning::point>& points,
                                   const std::vector<planning::contestant>& compared) {
  nlohmann::ordered_json json{{"title", asked.title}, {"notes", asked.notes}};
  const auto& in_core = study.in_core();
  json["everything_kept"] = {{"step_us", in_core.step_us}, {"peak_bytes", in_core.peak}};
  for (const auto& each : points) {
    json["frontier"].push_back(planning::to_json(study, each));
    if (!each.chosen || !each.made.expected.runs) continue;
    json["plan"] = planning::plan_to_json(asked.step, each.made);
  }
  for (const auto& each : compared) json["rules"].push_back(planning::to_json(study, each));
  return json;
}

int run(const planning::request& asked) {
  namespace plan = tidepool::plan;
  tools::json_file json(asked.json);
  tools::output_file picture("--picture", asked.picture);
  tools::output_file page("--report", asked.report);
  tools::output_file frontier_file("--frontier", asked.frontier);

  std::optional<tools::progress> shown("plan");
  planning::study study(
      asked.step,
      [&](const std::string& part) {
        if (shown) shown->at(part);  // gone once tables are printed; what is saved is planned later
      },
      asked.peer_budget);
  const auto& in_core = study.in_core();
  std::printf("no device: forecast time\n%s\n", asked.title.c_str());
  for (const auto& note : asked.notes) std::printf("%s\n", note.c_str());
  const auto in = planning::unit_for(in_core.peak);
  std::printf("everything kept: %.2f ms, %.2f %s of saved tensors\n", in_core.step_us / 1e3,
              in.of(in_core.peak), in.name.c_str());

  constexpr double no_slowdown = 0.0005;
  const auto zero = study.least_budget(no_slowdown);
  const auto wanted =
      asked.budget ? study.at(*asked.budget) : study.least_budget(*asked.max_slowdown);
  const auto points = study.frontier(zero, wanted, no_slowdown);
  const auto compared =
      study.compare(*std::find_if(points.begin(), points.end(),
                                  [](const planning::point& each) { return each.chosen; }),
                    {asked.offload.begin(), asked.offload.end()});
  std::vector<planning::point> recomputing;
  if (frontier_file.wanted() && study.can_recompute()) recomputing = study.recomputing(points);
  shown.reset();
  planning::print_frontier(study, points, in);
  const auto& chosen = *std::find_if(points.begin(), points.end(),
                                     [](const planning::point& each) { return each.chosen; });

  const auto& made = chosen.made;
  const bool runs = made.expected.runs;
  if (runs) {
    planning::print_plan(asked.step, made.what);
    std::printf("%s\nReloads ahead: %zu groups",
                std::string(planning::in_words(made.limited_by)).c_str(), made.reload_ahead);
    if (made.reload_ahead_bytes > 0) {
      std::printf(", at most %.2f %s", in.of(made.reload_ahead_bytes), in.name.c_str());
    }
    std::printf(".\nThe trainer's options: %s\n",
                tidepool::to_text(planning::trainer_options(asked.step, made)).c_str());
  }
  planning::print_comparison(study, compared, chosen.budget, in);
  json.fill(all_to_json(asked, study, points, compared));

  frontier_file.fill([&](auto& out) {
    planning::write_frontier(out, asked.title, study, points, recomputing, in);
  });
  if (runs && (picture.wanted() || page.wanted())) {
    auto seen = plan::forecast(asked.step, made, true);
    seen.picture.title = asked.title;
    picture.fill([&](auto& out) { tidepool::trace::write_svg(out, seen.picture); });
    page.fill([&](auto& out) {
      tidepool::trace::write_report(out,
                                    planning::to_report(asked.notes, asked.step, chosen, seen));
    });
  }
  if (!asked.save_profile.empty()) {
    plan::save(asked.step, asked.save_profile);
    std::printf("wrote %s\n", asked.save_profile.c_str());
  }
  if (!asked.save.empty() && runs) {
    const auto best = asked.recompute ? study.with_recompute(chosen.budget) : made;
    plan::save(best.expected.runs ? best : made, asked.step, asked.save);
    std::printf("wrote %s\n", asked.save.c_str());
  }

  if (!runs) {
    std::size_t least = 0;
    for (const auto& each : points) {
      if (each.made.expected.runs) least = each.budget;
    }
    std::fprintf(stderr, "plan: --budget: no plan runs in %.2f %s; give %.2f %s or more\n",
                 in.of(chosen.budget), in.name.c_str(), in.of(least), in.name.c_str());
    return 1;
  }
  const auto slower = study.slowdown(made.expected);
  if (asked.max_slowdown && slower > *asked.max_slowdown + 1e-9) {
    std::printf("\n%.2f %% slower, above the %.2f %% of --max-slowdown: give a budget of %.2f %s\n",
                100 * slower, 100 * *asked.max_slowdown,
                in.of(study.least_budget(*asked.max_slowdown).budget), in.name.c_str());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run("plan", [&] { return run(planning::read_command_line(argc, argv)); });
}
