// Options to text and back.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "refusal.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/validate.hpp"

namespace tidepool {
namespace {

class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_(seed) {}

  std::size_t below(std::size_t end) { return engine_() % end; }
  bool half() { return below(2) == 0; }
  // Sizes of every magnitude, so that each unit and plain bytes come up.
  std::size_t size() { return (engine_() >> below(64)) << below(24) >> 1; }
  double share() { return std::generate_canonical<double, 53>(engine_); }
  std::optional<std::size_t> perhaps() {
    return half() ? std::optional<std::size_t>() : std::optional<std::size_t>(size());
  }
  std::vector<std::string> names(std::size_t most) {
    std::vector<std::string> result;
    for (std::size_t n = below(most + 1); n > 0; --n) {
      result.emplace_back(standard_modules[below(standard_modules.size())]);
    }
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

options random_options(dice& roll) {
  options value;
  value.offload_modules = roll.below(8) == 0 ? std::vector<std::string>{"all"} : roll.names(4);
  if (roll.half()) value.own_modules = {"rope", "my-norm.2", "a/b"};
  for (std::size_t n = roll.below(6); n > 0; --n) {
    const int first = static_cast<int>(roll.below(40));
    for (int i = 0; i < 1 + static_cast<int>(roll.below(4)); ++i) {
      value.offload_layers.push_back(first + i);
    }
  }
  value.recompute_modules = roll.names(2);
  value.max_inflight = roll.perhaps();
  value.max_inflight_bytes = roll.perhaps();
  for (const std::string& name : roll.names(3)) value.module_max_inflight[name] = roll.below(9);
  if (roll.half()) value.min_tensor_elements = roll.size();
  if (roll.half()) value.fraction = roll.share();
  if (roll.half()) value.delta_bytes_per_rank = roll.size();
  value.pipeline_rank = static_cast<int>(roll.below(16));
  value.margin = roll.half();
  value.recompute_by_plan = roll.half();
  value.reload_ahead = roll.below(5);
  value.reload_ahead_bytes = roll.perhaps();
  value.memory = static_cast<memory_kind>(roll.below(3));
  value.host_memory = static_cast<tidepool::host_kind>(roll.below(6));
  value.host_bind = roll.below(2) == 0;
  value.poison = roll.half();
  value.policy = static_cast<tidepool::policy_kind>(roll.below(2));
  if (roll.half()) value.timed_step = 2 + static_cast<int>(roll.below(9));
  value.adopt_after = roll.perhaps();
  value.plan_effort = roll.perhaps();
  value.device_budget = roll.perhaps();
  for (std::size_t n = roll.below(4); n > 0; --n) {
    value.slots.push_back({roll.size(), roll.below(9)});
  }
  if (roll.half()) value.device_step = roll.size();
  value.borrowed_slack = roll.perhaps();
  if (roll.half()) value.copy_piece = roll.size();
  value.pack = roll.names(3);
  if (roll.half()) value.places.insert(value.places.begin(), place_kind::peer);
  if (roll.half()) value.places.push_back(place_kind::host);
  if (roll.half()) {
    value.places.push_back(place_kind::file);
    value.file_path = "/mnt/" + std::to_string(roll.below(9));
  }
  value.file_budget = roll.perhaps();
  if (roll.half()) value.file_ring = roll.size();
  value.peer_device = static_cast<int>(roll.below(9));
  value.peer_budget = roll.perhaps();
  value.host_budget = roll.perhaps();
  if (roll.half()) value.host_step = roll.size();
  value.local_ranks = static_cast<int>(roll.below(9));
  value.summary = roll.half();
  for (std::size_t n = roll.below(4); n > 0; --n) {
    value.trace_step.push_back(1 + static_cast<int>(roll.below(40)));
  }
  if (roll.half()) value.trace_to = "/tmp/" + std::to_string(roll.below(9));
  return value;
}

TEST_CASE("defaults are no text") { CHECK(to_text({}).empty()); }

TEST_CASE("only what differs from the defaults is written") {
  options value;
  value.offload_modules = {"core_attn", "expert_fc1"};
  value.max_inflight = 2;
  value.module_max_inflight = {{"core_attn", 1}};
  value.margin = false;
  value.device_budget = std::size_t{8} << 30;
  value.offload_layers = {0, 2, 4, 5, 6, 7};
  value.fraction = 0.1;
  value.slots = {{std::size_t{64} << 20, 4}, {1000, 2}};
  CHECK(to_text(value) ==
        "--offload-modules=core_attn,expert_fc1 --offload-layers=0,2,4-7 "
        "--max-inflight=2,core_attn:1 --offload-fraction=0.1 --no-margin --device-budget=8GiB "
        "--slots=64MiBx4,1000Bx2");
}

TEST_CASE("random options come back from their text") {
  dice roll(20240607);
  for (int round = 0; round < 3000; ++round) {
    const options value = random_options(roll);
    const std::string text = to_text(value);
    CAPTURE(text);
    REQUIRE(parse_options(text) == value);
    REQUIRE(to_text(parse_options(text)) == text);
  }
}

TEST_CASE("each default and each random value comes back on its own, over any base") {
  dice roll(7);
  for (int round = 0; round < 200; ++round) {
    const options value = round == 0 ? options{} : random_options(roll);
    const options base = random_options(roll);
    options read = base;
    for (const auto& item : detail::text::option_table) {
      if (item.write == nullptr) continue;
      const std::string text = item.write(value);
      CAPTURE(item.flag);
      CAPTURE(text);
      item.read(read, {"--" + std::string(item.flag), text});
      REQUIRE(item.write(read) == text);
    }
    // Every member has its option: nothing of the base is left.
    REQUIRE(read == value);
  }
}

TEST_CASE("every member of options is under test here") {
  // A new member breaks this line: give it an option, and a random value above.
  const auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
               m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35, m36,
               m37, m38, m39, m40, m41] = options{};
  CHECK(m1.empty());
  // With the gate, which has no member; the two caps by count share one option, and so do places
  // and the path of the file.
  CHECK(detail::text::option_table.size() == 40);
}

TEST_CASE("extremes come back") {
  options value;
  value.max_inflight_bytes = std::numeric_limits<std::size_t>::max() / 2;
  value.device_budget = 0;
  value.host_step = 0;
  value.fraction = std::numeric_limits<double>::denorm_min();
  value.min_tensor_elements = 0;
  value.pipeline_rank = std::numeric_limits<int>::max();
  value.offload_layers = {5, 5, 4, detail::text::max_layer};
  CHECK(parse_options(to_text(value)) == value);
}

TEST_CASE("names and variables are unique") {
  std::vector<std::string> seen;
  for (const auto& item : detail::text::option_table) {
    seen.emplace_back(item.flag);
    if (!item.megatron.empty() && item.megatron != item.flag) seen.emplace_back(item.megatron);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

#ifdef TIDEPOOL_SOURCE_DIR
TEST_CASE("docs/options.md has every flag, variable, Megatron name and default") {
  std::ifstream file(TIDEPOOL_SOURCE_DIR "/docs/options.md");
  REQUIRE(file);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const auto& item : detail::text::option_table) {
    const std::string flag = "| `--" + std::string(item.flag) + "`";
    CAPTURE(flag);
    const std::size_t begin = page.find(flag);
    REQUIRE(begin != std::string::npos);
    const std::string row = page.substr(begin, page.find('\n', begin) - begin);
    test::check_says(row, {("`" + detail::text::environment_name(item) + "`").c_str()});
    if (!item.field.empty()) test::check_says(row, {("`" + std::string(item.field) + "`").c_str()});
    if (!item.megatron.empty()) {
      test::check_says(row, {("`--" + std::string(item.megatron) + "`").c_str()});
    }
    if (item.write != nullptr) {
      test::check_says(row, {("| " + item.write(options{}) + " |").c_str()});
    }
  }
}
#endif

}  // namespace
}  // namespace tidepool
