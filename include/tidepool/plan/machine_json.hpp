/// Machines as JSON, in files that people read and edit; needs nlohmann/json.hpp, which is why
/// `tidepool.hpp` leaves it out.
///
///     {"tidepool_machine": 1, "name": "h200", "device_bytes": 141000000000,
///      "gemm_tflops": 700, "attention_tflops": 400, "memory_rate": 4000, "peer_rate": 397,
///      "link": {"out": 55.1, "in": 55.2, "both": 101.5, "latency_us": 2},
///      "shared": [{"gpus": 2, "out": 53.7, "in": 51.7, "both": 67.3, "latency_us": 2}],
///      "peer_link": {"out": 396, "in": 394, "both": 782}, "source": "measured"}
///
/// Rates of `shared` are those of each GPU, not of all. What may be left out: device_bytes,
/// gemm_share, peer_rate, peer_link, latencies (those of one GPU alone), shared, source.
/// Reading throws `file_error`, writing `profile_error` where the figures contradict themselves.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "tidepool/core/escape.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/json_reader.hpp"
#include "tidepool/plan/detail/json_text.hpp"
#include "tidepool/plan/machines.hpp"

namespace tidepool::inline v0_2_0::plan {

namespace detail {

// `refuse(place, problem, remedy)` throws.
template <class Refuse>
class machine_consistency {
 public:
  machine_consistency(const machine_description& about, const Refuse& refuse)
      : about_(about), refuse_(refuse) {
    require(!about.name.empty(), "/name", "the name is empty", "name the machine");
    text("/name", about.name);
    text("/source", about.source);
    rate("/gemm_tflops", about.gemm_tflops, "TFLOP/s");
    rate("/attention_tflops", about.attention_tflops, "TFLOP/s");
    rate("/memory_rate", about.memory_rate, "GB/s");
    positive_or_none("/gemm_share", about.gemm_share);
    positive_or_none("/peer_rate", about.peer_rate);
    link("/link", about.link);
    if (about.peer_link) link("/peer_link", *about.peer_link);
    for (std::size_t i = 0; i < about.shared.size(); ++i) shared(i);
  }

 private:
  void require(bool holds, const std::string& place, const std::string& problem,
               std::string_view remedy) const {
    if (!holds) refuse_(place, problem, remedy);
  }
  void text(const std::string& place, std::string_view value) const {
    while (!value.empty()) {
      const auto size = trace::detail::character_size(value);
      require(size > 0, place, "the text is not UTF-8", "write it in UTF-8");
      value.remove_prefix(size);
    }
  }
  void rate(const std::string& place, double value, const std::string& unit) const {
    require(std::isfinite(value) && value > 0, place, "the rate is " + number_text(value),
            "give " + unit + ", finite and above 0");
  }
  void positive_or_none(const std::string& place, double value) const {
    require(std::isfinite(value) && value >= 0, place, "found " + number_text(value),
            "give a finite number above 0, or 0 where it is not known");
  }
  void link(const std::string& place, const link_rates& rates) const {
    rate(place + "/out", rates.out, "GB/s");
    rate(place + "/in", rates.in, "GB/s");
    rate(place + "/both", rates.both, "GB/s");
    require(std::isfinite(rates.latency_us) && rates.latency_us >= 0, place + "/latency_us",
            "the latency is " + number_text(rates.latency_us), "give microseconds, 0 or more");
  }
  void shared(std::size_t i) const {
    const auto place = place_of("shared", i);
    const auto& point = about_.shared[i];
    require(point.gpus >= 2, place + "/gpus", "found " + std::to_string(point.gpus),
            "give 2 GPUs or more; \"link\" is of one alone");
    if (i > 0) {
      const auto before = about_.shared[i - 1].gpus;
      require(point.gpus > before, place + "/gpus",
              "found " + std::to_string(point.gpus) + " after " + std::to_string(before),
              "list fewer GPUs first, and each number once");
    }
    link(place, point.each);
    no_gain(place, point.each, about_.link, "alone");
    if (i > 0) no_gain(place, point.each, about_.shared[i - 1].each, "beside fewer");
  }
  // Totals in place of shares would make every plan wrong.
  void no_gain(const std::string& place, const link_rates& beside, const link_rates& before,
               const std::string& when) const {
    const auto compare = [&](const char* way, double now, double then) {
      require(now <= then * constants::most_gain, place + way,
              "a GPU gets " + number_text(now) + " GB/s beside others, and " + number_text(then) +
                  " " + when,
              "give the rates of each GPU, not of all together");
    };
    compare("/out", beside.out, before.out);
    compare("/in", beside.in, before.in);
    compare("/both", beside.both, before.both);
  }

  const machine_description& about_;
  const Refuse& refuse_;
};

[[nodiscard]] inline json document_of(const machine_description& about) {
  json top;
  top["tidepool_machine"] = json_version;
  top["name"] = about.name;
  top["device_bytes"] = about.device_bytes;
  top["gemm_tflops"] = about.gemm_tflops;
  top["gemm_share"] = about.gemm_share;
  top["attention_tflops"] = about.attention_tflops;
  top["memory_rate"] = about.memory_rate;
  top["peer_rate"] = about.peer_rate;
  top["link"] = rates_to_json(about.link);
  auto& shared = top["shared"] = json::array();
  for (const auto& each : about.shared) {
    json point{{"gpus", each.gpus}};
    point.update(rates_to_json(each.each));
    shared.push_back(std::move(point));
  }
  if (about.peer_link) top["peer_link"] = rates_to_json(*about.peer_link);
  top["source"] = about.source;
  return top;
}

// A rate that nobody gave must not be another machine's.
inline void read_rates(const json_node& from, link_rates& rates) {
  from.member("out").read(rates.out);
  from.member("in").read(rates.in);
  from.member("both").read(rates.both);
  from.perhaps("latency_us", rates.latency_us);
}

inline machine_description read_machine(const json_source& source, std::string_view text) {
  const auto document = parse_json(source, text);
  const json_node top(source, document);
  read_version(top, "machine");
  top.only({"tidepool_machine", "name", "device_bytes", "gemm_tflops", "gemm_share",
            "attention_tflops", "memory_rate", "peer_rate", "link", "shared", "peer_link",
            "source"});
  machine_description about;
  top.member("name").read(about.name);
  top.perhaps("device_bytes", about.device_bytes);
  top.member("gemm_tflops").read(about.gemm_tflops);
  top.perhaps("gemm_share", about.gemm_share);
  top.member("attention_tflops").read(about.attention_tflops);
  top.member("memory_rate").read(about.memory_rate);
  top.perhaps("peer_rate", about.peer_rate);
  const auto link = top.member("link");
  link.only({"out", "in", "both", "latency_us"});
  read_rates(link, about.link);
  if (top.has("peer_link")) {
    const auto peer = top.member("peer_link");
    peer.only({"out", "in", "both", "latency_us"});
    about.peer_link.emplace().latency_us = about.link.latency_us;
    read_rates(peer, *about.peer_link);
  }
  read_each(top, "shared", [&](const json_node& each) {
    each.only({"gpus", "out", "in", "both", "latency_us"});
    auto& point = about.shared.emplace_back();
    point.each.latency_us = about.link.latency_us;
    each.member("gpus").read(point.gpus);
    read_rates(each, point.each);
  });
  top.perhaps("source", about.source);
  const auto refuse = [&](const std::string& place, const std::string& problem,
                          std::string_view remedy) { source.refuse(place, problem, remedy); };
  static_cast<void>(machine_consistency(about, refuse));
  return about;
}

[[noreturn]] inline void refuse_machine(const std::string& place, const std::string& problem,
                                        std::string_view remedy) {
  throw profile_error("tidepool: machine at " + place + ": " + problem + "; " +
                      std::string(remedy));
}

}  // namespace detail

/// Throws `profile_error` where planning for `about` would make no sense.
inline void check(const machine_description& about) {
  static_cast<void>(detail::machine_consistency(about, detail::refuse_machine));
}

/// A machine as JSON. Throws `profile_error` where planning for it would make no sense.
[[nodiscard]] inline std::string to_json(const machine_description& about) {
  check(about);
  std::string text;
  detail::write_json(text, detail::document_of(about));
  return text += '\n';
}

/// A machine from JSON; messages call it `name`. Throws `file_error`.
[[nodiscard]] inline machine_description machine_from_json(std::string_view text,
                                                           std::string_view name = "machine") {
  return detail::read_machine({"machine", name}, text);
}

/// A machine from a file. Throws `file_error`, with line and column.
[[nodiscard]] inline machine_description load_machine(const std::string& path) {
  return machine_from_json(detail::read_file({"machine", path}), path);
}

/// Replaces the file at once: a reader sees the old one or the new one.
inline void save(const machine_description& about, const std::string& path) {
  detail::write_file({"machine", path}, to_json(about));
}

}  // namespace tidepool::plan
