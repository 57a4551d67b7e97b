/// Machines as JSON, in files that people read and edit; needs nlohmann/json.hpp, which is why
/// `machines.hpp` leaves it out.
///
///     {"tidepool_machine": 1, "name": "h200", "device_bytes": 141000000000,
///      "gemm_tflops": 700, "attention_tflops": 400, "memory_rate": 4000, "peer_rate": 397,
///      "link": {"out": 55.1, "in": 55.2, "both": 101.5, "latency_us": 2},
///      "shared": [{"gpus": 2, "out": 53.7, "in": 51.7, "both": 67.3, "latency_us": 2}],
///      "peer_link": {"out": 396, "in": 394, "both": 782}, "source": "measured"}
///
/// Rates of `shared` are those of each GPU, not of all. What may be left out: device_bytes,
/// gemm_share, peer_rate, peer_link, latencies (those of one GPU alone), shared, source.
/// Reading throws `tidepool::plan::file_error`, writing `profile_error` where the figures
/// contradict themselves.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <tidepool/core/escape.hpp>
#include <tidepool/plan/detail/json_file.hpp>
#include <tidepool/plan/detail/json_structs.hpp>
#include <tidepool/plan/detail/json_text.hpp>
#include <tidepool/plan/refusal.hpp>

#include "machines.hpp"

namespace planning {

namespace plan = tidepool::plan;

// As `tidepool::plan` has for its own; found by the type of `of`.
void each_member(plan::detail::either<shared_link> auto& of, const auto& see) {
  using plan::detail::presence;
  see("gpus", of.gpus, presence::needed);
  plan::detail::each_member(of.each, see);
}
void each_member(plan::detail::either<machine_description> auto& of, const auto& see) {
  using plan::detail::presence;
  see("name", of.name, presence::needed);
  see("device_bytes", of.device_bytes);
  see("gemm_tflops", of.gemm_tflops, presence::needed);
  see("gemm_share", of.gemm_share);
  see("attention_tflops", of.attention_tflops, presence::needed);
  see("memory_rate", of.memory_rate, presence::needed);
  see("peer_rate", of.peer_rate);
  see("link", of.link, presence::needed);  // before the others, which have its latency
  see("shared", of.shared, presence::usual, shared_link{2, of.link});
  see("peer_link", of.peer_link, presence::unless_empty, of.link);
  see("source", of.source);
}

namespace detail {

using plan::detail::phrase;
using plan::detail::subject;

// What is measured beside other GPUs above what one alone gets, until it is taken for a mistake.
inline constexpr double most_gain = 1.25;

// Totals in place of shares would make every plan wrong.
inline void check_no_gain(const subject& of, const std::string& place,
                          const plan::link_rates& beside, const plan::link_rates& before,
                          const char* problem) {
  const auto compare = [&](const char* way, double now, double then) {
    of.require(now <= then * most_gain, {way, place}, {problem, now, then},
               "give the rates of each GPU, not of all together");
  };
  compare("{}/out", beside.out, before.out);
  compare("{}/in", beside.in, before.in);
  compare("{}/both", beside.both, before.both);
}

inline void check_shared(const subject& of, const machine_description& about, std::size_t i) {
  const phrase place{"/shared/{}/gpus", i};
  const auto& point = about.shared[i];
  of.require(point.gpus >= 2, place, {"found {}", point.gpus},
             "give 2 GPUs or more; \"link\" is of one alone");
  const auto fewer = i > 0 ? about.shared[i - 1].gpus : 1;
  of.require(point.gpus > fewer, place, {"found {} after {}", point.gpus, fewer},
             "list fewer GPUs first, and each number once");
  const auto at = phrase("/shared/{}", i).text();
  of.link(point.each, at);
  check_no_gain(of, at, point.each, about.link, "a GPU gets {} GB/s beside others, and {} alone");
  if (i == 0) return;
  check_no_gain(of, at, point.each, about.shared[i - 1].each,
                "a GPU gets {} GB/s beside others, and {} beside fewer");
}

inline void check_machine(const machine_description& about, const subject& of) {
  of.require(!about.name.empty(), "/name", "the name is empty", "name the machine");
  const auto text = [&](const phrase& place, const std::string& value) {
    of.require(tidepool::trace::detail::is_utf8(value), place, "the text is not UTF-8",
               "write it in UTF-8");
  };
  text("/name", about.name);
  text("/source", about.source);
  of.rate(about.gemm_tflops, "/gemm_tflops", "TFLOP/s");
  of.rate(about.attention_tflops, "/attention_tflops", "TFLOP/s");
  of.rate(about.memory_rate, "/memory_rate", "GB/s");
  const auto positive_or_none = [&](const phrase& place, double value) {
    of.require(std::isfinite(value) && value >= 0, place, {"found {}", value},
               "give a finite number above 0, or 0 where it is not known");
  };
  positive_or_none("/gemm_share", about.gemm_share);
  positive_or_none("/peer_rate", about.peer_rate);
  of.link(about.link, "/link");
  if (about.peer_link) of.link(*about.peer_link, "/peer_link");
  for (std::size_t i = 0; i < about.shared.size(); ++i) check_shared(of, about, i);
}

}  // namespace detail

/// Throws `tidepool::plan::profile_error` where planning for `about` would make no sense.
inline void check(const machine_description& about) { detail::check_machine(about, {"machine"}); }

/// A machine as JSON. Throws `tidepool::plan::profile_error` where planning for it would make no
/// sense.
[[nodiscard]] inline std::string to_json(const machine_description& about) {
  check(about);
  return plan::detail::finished(plan::detail::json_writer().document("machine", about));
}

/// A machine from JSON; messages call it `name`. Throws `tidepool::plan::file_error`.
[[nodiscard]] inline machine_description machine_from_json(std::string_view text,
                                                           std::string_view name = "machine") {
  const detail::subject source{"machine", name};
  machine_description about;
  plan::detail::json_reader(source, text, plan::detail::rates::all).read_top(about);
  detail::check_machine(about, source);
  return about;
}

/// A machine from a file. Throws `tidepool::plan::file_error`, with line and column.
[[nodiscard]] inline machine_description load_machine(const std::string& path) {
  return machine_from_json(plan::detail::read_file({"machine", path}), path);
}

/// Replaces the file at once: a reader sees the old one or the new one.
inline void save(const machine_description& about, const std::string& path) {
  plan::detail::write_file({"machine", path}, to_json(about));
}

}  // namespace planning
