/// The flags of `caps`, read with CLI11.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <tidepool/config/formats.hpp>
#include <vector>

#include "../tools/command_line.hpp"
#include "measure.hpp"

namespace caps {

/// What the command line asks for.
struct request {
  std::string device = "auto";
  std::string profile;
  axes what;
  double tolerance = 0.005;
  std::string picture;
  std::string json;
};

namespace detail {

namespace text = tp::detail::text;

template <class Read>
auto read_list(const char* option, std::string_view given, const char* remedy, const Read& read) {
  std::vector<decltype(read(text::setting{}))> result;
  for (const auto part : text::split(given, ',')) {
    const text::setting item{option, part};
    if (part.empty()) text::refuse({option, given}, "an item is empty", remedy);
    auto value = read(item);
    if (std::find(result.begin(), result.end(), value) != result.end()) {
      text::refuse({option, given}, text::in_quotes(part) + " is there twice", "give it once");
    }
    result.push_back(std::move(value));
  }
  return result;
}

inline cap_limit read_cap(const text::setting& given) {
  if (given.value == "none") return {};
  return text::read_integer<std::size_t>(given, given.value, "give none,0,1,2,4");
}

inline double read_ratio(const text::setting& given) {
  double value = 0;
  const auto* const end = given.value.data() + given.value.size();
  const auto [stop, code] = std::from_chars(given.value.data(), end, value);
  if (code != std::errc{} || stop != end || !(value >= 0.001 && value <= 1000)) {
    text::refuse(given, "that is no ratio between 0.001 and 1000", "give 0.5,1,2");
  }
  return value;
}

inline int read_depth(const text::setting& given) {
  const auto value = text::read_integer<unsigned>(given, given.value, "give 1,2");
  if (value < 1 || value > 64) text::refuse(given, "that is not between 1 and 64", "give 1,2");
  return static_cast<int>(value);
}

}  // namespace detail

/// Reads the arguments. Throws `tools::answer`, or `tidepool::option_error`.
inline request read_command_line(int argc, const char* const* argv) {
  namespace text = tp::detail::text;
  request result;
  std::string limits = "none,0,1,2,4";
  std::string ratios = "0.5,1,2";
  std::string depths = "1,2";
  std::string tolerance = "0.5";
  unsigned groups = 8;
  unsigned steps = 10;
  auto& what = result.what;
  what.work.group_bytes = std::size_t{64} << 20;
  tools::command_line app{{"caps",
                           "Which cap on offloads in flight (--max-inflight) costs no time, and "
                           "what memory it saves."}};
  app.add_option("--device", result.device, "auto, cuda or virtual")
      ->check(CLI::IsMember({"auto", "cuda", "virtual"}))
      ->capture_default_str();
  app.add_option("--caps", limits, "offloads of one module in flight, at most")
      ->capture_default_str();
  app.add_size("--group", what.work.group_bytes, "that one run of the module saves");
  app.add_option("--groups", groups, "of one microbatch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--compute-over-copy", ratios, "compute time of a group over its copy time")
      ->capture_default_str();
  app.add_option("--depth", depths, "microbatches in flight; 1: one at a time, above: 1F1B")
      ->capture_default_str();
  app.add_option("--steps", steps, "timed on a GPU, of which the middle one counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_file("--profile", result.profile,
               "a recorded step (JSON), whose caps are predicted, instead of all of the above but "
               "--caps");
  app.add_option("--tolerance", tolerance, "more time than no cap, in %, that counts as as fast")
      ->capture_default_str();
  app.add_file("--picture", result.picture, "for time against memory (SVG)");
  app.add_file("--json", result.json, "for the figures (JSON); -: standard output, JSON alone");
  app.read(argc, argv);
  what.limits = detail::read_list("--caps", limits, "give none,0,1,2,4", detail::read_cap);
  if (std::find(what.limits.begin(), what.limits.end(), cap_limit{}) == what.limits.end()) {
    what.limits.insert(what.limits.begin(), cap_limit{});  // what all others are compared with
  }
  what.ratios =
      detail::read_list("--compute-over-copy", ratios, "give 0.5,1,2", detail::read_ratio);
  what.depths = detail::read_list("--depth", depths, "give 1,2", detail::read_depth);
  if (what.work.group_bytes == 0) text::refuse({"--group", "0"}, "nothing is saved", "give 64MiB");
  what.work.groups = groups;
  what.steps = static_cast<int>(steps);
  result.tolerance = detail::read_ratio({"--tolerance", text::trim(tolerance)}) / 100;
  if (result.profile.empty()) return result;
  for (const auto* other :
       {"--device", "--group", "--groups", "--compute-over-copy", "--depth", "--steps"}) {
    if (app.count(other) == 0) continue;
    throw tp::option_error(std::string("tidepool: option ") + other +
                           " stands beside --profile=" + text::printable(result.profile) +
                           ", which has its own sizes, times and order; leave one out");
  }
  return result;
}

}  // namespace caps
