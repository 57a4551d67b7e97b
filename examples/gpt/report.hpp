/// The outcome of trainings: as lines, as a table, and as JSON.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// One training.
struct run_result {
  std::string way;  ///< plain arrays, Tidepool without offload, or its options
  std::string_view device;
  std::vector<float> losses;
  std::vector<double> step_ms;
  std::size_t driver_peak = 0;  ///< bytes of the device that the training took at most
  std::uint64_t moved = 0;      ///< bytes that left in the last step
};

inline std::string bits_of(float loss) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", std::bit_cast<std::uint32_t>(loss));
  return text;
}
inline double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) * 0x1p-20; }

/// Without the first steps, in which memory and plans are made, if there are more.
inline double median_ms(const run_result& run, int warm_up = 5) {
  const auto skipped = std::min(static_cast<std::size_t>(warm_up), run.step_ms.size() / 2);
  std::vector<double> ms(run.step_ms.begin() + static_cast<std::ptrdiff_t>(skipped),
                         run.step_ms.end());
  std::sort(ms.begin(), ms.end());
  return (ms[ms.size() / 2] + ms[(ms.size() - 1) / 2]) / 2;
}

inline void print_step(const run_result& run, int steps) {
  const float loss = run.losses.back();
  std::printf("step %4zu/%d  loss %.4f %s  %9.3f ms  driver %8.0f MiB\n", run.losses.size(), steps,
              static_cast<double>(loss), bits_of(loss).c_str(), run.step_ms.back(),
              mebibytes(run.driver_peak));
  std::fflush(stdout);
}

inline bool equal(const run_result& a, const run_result& b) {
  return std::ranges::equal(a.losses, b.losses, {}, std::bit_cast<std::uint32_t, float>,
                            std::bit_cast<std::uint32_t, float>);
}

/// Prints a row for each training; returns whether all losses have the bits of the first one's.
inline bool print_table(const std::vector<run_result>& runs) {
  std::printf("%-12s %11s %13s %15s  %s\n", "training", "median ms", "driver MiB", "MiB out a step",
              "last loss");
  bool all_equal = true;
  for (const run_result& run : runs) {
    const bool same = equal(run, runs.front());
    all_equal = all_equal && same;
    std::printf("%-12s %11.3f %13.0f %15.1f  %.4f %s%s\n", run.way.c_str(), median_ms(run),
                mebibytes(run.driver_peak), mebibytes(run.moved),
                static_cast<double>(run.losses.back()), bits_of(run.losses.back()).c_str(),
                same ? "" : "  DIFFERS");
  }
  if (runs.size() > 1) {
    std::printf("%zu losses %s\n", runs.front().losses.size(),
                all_equal ? "equal to the bit in all trainings" : "DIFFER");
  }
  return all_equal;
}

inline nlohmann::ordered_json to_json(const std::vector<run_result>& runs) {
  nlohmann::ordered_json json{{"device", runs.front().device}};
  for (const run_result& run : runs) {
    nlohmann::ordered_json one{{"training", run.way}};
    for (std::size_t i = 0; i < run.losses.size(); ++i) {
      one["steps"].push_back(
          {{"loss", run.losses[i]}, {"bits", bits_of(run.losses[i])}, {"ms", run.step_ms[i]}});
    }
    one["step_ms"] = median_ms(run);
    one["driver_peak_bytes"] = run.driver_peak;
    one["step_bytes_offloaded"] = run.moved;
    json["trainings"].push_back(one);
  }
  return json;
}

}  // namespace gpt
