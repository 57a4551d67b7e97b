/// The flags of `plan`, read with CLI11.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <tidepool/config/formats.hpp>
#include <tidepool/plan/json.hpp>
#include <tidepool/trace/detail/print.hpp>
#include <vector>

#include "../tools/command_line.hpp"
#include "fields.hpp"
#include "machine_json.hpp"
#include "model.hpp"

namespace planning {

/// What the command line asks for.
struct request {
  tidepool::plan::profile step;
  std::string title;
  std::vector<std::string> notes;  ///< what the figures rest on
  std::optional<std::size_t> budget;
  std::size_t peer_budget = 0;         ///< of a neighbour's memory; 0: places are the host alone
  std::optional<double> max_slowdown;  ///< none: 1 % where there is no budget
  std::vector<std::string> offload;    ///< names of `step.modules`
  bool recompute = false;
  std::string json;
  std::string picture;
  std::string frontier;
  std::string report;
  std::string save;
  std::string save_profile;
};

namespace detail {

inline std::string names_of(const auto& known) {
  std::vector<std::string> names;
  for (const auto& each : known) names.push_back(each.name);
  return tidepool::detail::text::join(names, ", ");
}

// A file has a dot or a slash in its name, and a known machine has neither.
inline bool names_file(const std::string& machine) {
  return machine.find_first_of("./") != std::string::npos;
}

// What the rates of the link rest on.
inline std::string shared_in_words(const link_share& link) {
  const auto gpus = std::to_string(link.gpus);
  const auto measured = std::to_string(link.measured);
  const auto beside = "of each of " + gpus + " GPUs of a host that copy at once, ";
  if (link.measured == 0) {
    return beside + "but nobody measured several here: these are the rates of one alone";
  }
  if (link.measured > link.gpus) return beside + "as measured with " + measured;
  if (link.measured < link.gpus) return beside + "the total measured with " + measured + " divided";
  return beside + "as measured";
}

inline void describe(request& result, const std::string& model, const std::string& machine,
                     const std::vector<std::string>& changes, double tflops,
                     std::optional<std::size_t> gpus_per_host) {
  namespace plan = tidepool::plan;
  auto about = model_named(model);
  auto on = names_file(machine) ? load_machine(machine) : machine_named(machine);
  for (const auto& change : changes) set_field(about, change);
  if (tflops > 0) on.gemm_tflops = tflops;
  const auto gpus = gpus_per_host.value_or(copying_at_once(about, on));
  const auto link = link_at_once(on, gpus);
  result.step = profile_of(about, on, gpus);
  result.title = about.name + " on " + on.name;
  if (names_file(machine)) result.title += " (" + tidepool::detail::text::printable(machine) + ")";
  const auto number = [](std::size_t value) { return std::to_string(value); };
  result.notes.push_back(number(about.layers / about.pipeline_parallel) + " layers on this rank, " +
                         number(about.microbatch * about.sequence) + " tokens a microbatch, " +
                         number(about.microbatches) + " microbatches, " + number(about.depth()) +
                         " in flight");
  char text[200];
  std::snprintf(text, sizeof text,
                "GEMMs %.0f TFLOP/s, memory %.0f GB/s; link %.1f out, %.1f in, %.1f GB/s both ways",
                on.gemm_tflops * about.efficiency, on.memory_rate, result.step.link.out,
                result.step.link.in, result.step.link.both);
  result.notes.emplace_back(text);
  if (link.gpus > 1) {
    result.notes.push_back("link: " + shared_in_words(link));
  } else if (about.ranks() > 1) {
    result.notes.emplace_back(
        "link: of one GPU alone on its host; --gpus-per-host says how many copy at once");
  }
}

// Where groups go: `--places=peer,host` needs a budget, and a link that the machine or profile has.
inline void choose_places(request& result, const std::vector<std::string>& places,
                          const std::string& budget) {
  namespace text = tidepool::detail::text;
  const auto named = text::join(places, ",");
  const bool peer = std::find(places.begin(), places.end(), "peer") != places.end();
  const bool known = std::all_of(places.begin(), places.end(), [](const std::string& each) {
    return each == "peer" || each == "host";
  });
  if (!known || places.size() != (peer ? 2U : 1U)) {
    text::refuse({"--places", named}, "that is neither", "give host, or peer,host");
  }
  if (peer == budget.empty()) {
    text::refuse({"--peer-budget", budget}, peer ? "it is missing" : "no neighbour is asked",
                 "give --places=peer,host --peer-budget=8GiB");
  }
  if (!peer) return;
  result.peer_budget = text::bytes_format::read({"--peer-budget", budget});
  if (result.peer_budget == 0) text::refuse({"--peer-budget", budget}, "nothing fits", "give more");
  const auto& link = result.step.peer_link;
  if (!link) {
    text::refuse({"--places", named}, "nothing is known of the link to a neighbour",
                 "add peer_link to the machine or the profile");
  }
  char note[160];
  std::snprintf(note, sizeof note,
                "neighbour: %s of its memory; link %.1f out, %.1f in, %.1f GB/s both ways",
                tidepool::trace::detail::bytes_text(result.peer_budget).c_str(), link->out,
                link->in, link->both);
  result.notes.emplace_back(note);
}

inline void choose(request& result, const std::vector<std::string>& offload) {
  const std::vector<std::string_view> known(result.step.modules.begin(), result.step.modules.end());
  for (const auto& name : offload) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      tidepool::detail::text::refuse({"--offload", name}, "the step has no such module",
                                     "take of " + tidepool::detail::text::join(known, ", "));
    }
    result.offload.emplace_back(*found);
  }
}

}  // namespace detail

/// Reads the arguments. Throws `tools::answer`, or `tidepool::error` naming option, value, remedy.
inline request read_command_line(int argc, const char* const* argv) {
  namespace text = tidepool::detail::text;
  request result;
  std::string model = "deepseek-v3-proxy";
  std::string machine = "h200";
  std::string profile;
  std::string budget;
  std::string slowdown = "1%";
  std::vector<std::string> changes;
  std::vector<std::string> offload;
  std::vector<std::string> places{"host"};
  std::string peer_budget;
  double tflops = 0;
  std::size_t gpus_per_host = 0;
  tools::command_line app{
      {"plan", "Plans which activations of a training step leave a GPU, before there is one."}};
  app.add_option("--model", model, "of " + detail::names_of(known_models()))->capture_default_str();
  app.add_option("--machine", machine,
                 "of " + detail::names_of(known_machines()) +
                     ", or a file (JSON) such as host.json, as bench_link --json records one")
      ->capture_default_str();
  app.add_option("--gpus-per-host", gpus_per_host,
                 "that copy at once and share the host's memory; default: the model's ranks, as "
                 "many as were measured on one host")
      ->check(CLI::Range(1, 1024));
  app.add_option("--set", changes, "field=value of the model, such as layers=16; may be repeated")
      ->take_all();
  app.add_option("--gemm-tflops", tflops, "what GEMMs reach, in TFLOP/s, instead of the machine's");
  app.add_file("--profile", profile, "a recorded step (JSON), instead of a model and a machine");
  app.add_option("--budget", budget,
                 "device memory for saved tensors, such as 4GiB; default: the least that "
                 "--max-slowdown allows")
      ->type_name("SIZE");
  app.add_option("--max-slowdown", slowdown,
                 "over keeping everything; default: 1% where no budget is given")
      ->type_name("PERCENT");
  app.add_option("--offload", offload, "modules, as a further rule in the comparison: a,b")
      ->delimiter(',');
  app.add_option("--places", places, "where groups go: host, or peer,host; default: host")
      ->delimiter(',');
  app.add_option("--peer-budget", peer_budget, "of a neighbour's memory, such as 8GiB")
      ->type_name("SIZE");
  app.add_flag("--recompute", result.recompute, "save the plan that may recompute as well");
  app.add_file("--json", result.json, "for all figures (JSON); -: standard output, JSON alone");
  app.add_file("--picture", result.picture, "for a drawing of the forecast step (SVG)");
  app.add_file("--report", result.report, "for a page with the picture and tables (HTML)");
  app.add_file("--frontier", result.frontier, "for a drawing of the frontier (SVG)");
  app.add_file("--save", result.save, "for the plan (JSON)");
  app.add_file("--save-profile", result.save_profile, "for the profile (JSON)");
  app.read(argc, argv);
  if (app.count("--max-slowdown") > 0 || app.count("--budget") == 0) {
    result.max_slowdown = read_share({"--max-slowdown", text::trim(slowdown)});
  }
  if (app.count("--budget") > 0) {
    const auto value = text::trim(budget);
    if (value.empty()) text::refuse({"--budget", value}, "it is empty", text::bytes_format::remedy);
    result.budget = text::bytes_format::read({"--budget", value});
    if (*result.budget == 0) text::refuse({"--budget", value}, "nothing fits", "give more");
  }
  if (app.count("--gemm-tflops") > 0 && !(tflops > 0 && tflops < 1e6)) {
    throw tidepool::option_error("tidepool: option --gemm-tflops is '" + std::to_string(tflops) +
                                 "': give TFLOP/s above 0");
  }
  if (profile.empty()) {
    std::optional<std::size_t> gpus;
    if (app.count("--gpus-per-host") > 0) gpus = gpus_per_host;
    detail::describe(result, model, machine, changes, tflops, gpus);
    detail::choose(result, offload);
    detail::choose_places(result, places, peer_budget);
    return result;
  }
  for (const auto* other : {"--model", "--machine", "--set", "--gemm-tflops", "--gpus-per-host"}) {
    if (app.count(other) == 0) continue;
    throw tidepool::option_error(std::string("tidepool: option ") + other +
                                 " stands beside --profile=" + text::printable(profile) +
                                 ", which has its own times and rates; leave one out");
  }
  result.step = tidepool::plan::load_profile(profile);
  if (!result.step.timed()) {
    throw tidepool::option_error(
        "tidepool: option --profile is " + text::in_quotes(profile) +
        ": the step in it was not timed; record one with --policy=automatic,"
        " in which --timed-step says which step that is");
  }
  result.title = "profile " + profile;
  detail::choose(result, offload);
  detail::choose_places(result, places, peer_budget);
  return result;
}

}  // namespace planning
