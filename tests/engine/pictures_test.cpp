// What the pictures of real steps say, against their traces: one that stalls, an arena of half of
// the memory under 1F1B, and a step that follows a plan.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "schedule.hpp"
#include "tidepool/trace/detail/advice.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/picture.hpp"

namespace {

using tidepool::options;
using tidepool::policy_kind;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;
using tidepool::trace::record;
using tidepool::trace::span;
using tidepool::trace::span_kind;
namespace print = tidepool::trace::detail;

using offloader =
    tidepool::test::planning<rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>>;

constexpr std::size_t size = 4096;
constexpr int layers = 6;
constexpr int microbatches = 4;
constexpr int depth = 2;
constexpr std::size_t all_bytes = depth * layers * 3 * size;  // saved at once without offload

class trainer {
 public:
  explicit trainer(const options& opts, double reload_rate = 2)
      : desk_(machine(reload_rate)), off_(desk_.dev, opts) {
    off_.on_report([](std::string_view) {});
  }

  // The last of some steps, traced.
  record last_of(int steps) {
    record seen;
    for (int i = 1; i <= steps; ++i) {
      if (i == steps) off_.start_trace("step " + std::to_string(i), desk_.stream());
      step();
      if (i == steps) seen = off_.finish_trace();
    }
    CHECK(desk_.wrong() == 0);
    return seen;
  }

  [[nodiscard]] const offloader& off() const { return off_; }

 private:
  // Kernels of 4 us for a buffer; a copy of one takes 2 to 4, and more where reloads are slow.
  static tidepool::machine machine(double reload_rate) {
    tidepool::machine model;
    model.offload_rate = 1;
    model.reload_rate = reload_rate;
    model.both_rate = 2;
    model.copy_latency_ns = 100;
    return model;
  }

  void step() {
    for (const auto& each : tidepool::test::one_f_one_b(microbatches, depth)) {
      auto& mine = passes_[static_cast<std::size_t>(each.microbatch)];
      if (each.backward) {
        backward(mine);
      } else {
        mine.open = off_.begin({.microbatch = each.microbatch});
        forward(mine);
      }
    }
    off_.end_step();
  }

  struct pass {
    rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>::chunk open;
    std::array<std::array<rig::buffer, 3>, layers> x;
  };

  void forward(pass& mine) {
    for (int layer = 0; layer < layers; ++layer) {
      auto& x = mine.x[static_cast<std::size_t>(layer)];
      for (auto& each : x) {
        each = off_.allocate(size, desk_.stream());
        desk_.write(each, static_cast<std::uint32_t>(layer), 4000);
      }
      mine.open.commit<"core_attn">(layer, desk_.stream(), x[0]);
      mine.open.commit<"expert_fc1">(layer, desk_.stream(), x[1], x[2]);
    }
    mine.open.end_forward();
  }

  void backward(pass& mine) {
    for (int layer = layers; layer-- > 0;) {
      auto& x = mine.x[static_cast<std::size_t>(layer)];
      mine.open.restore<"expert_fc1">(layer, desk_.stream(), x[1], x[2]);
      mine.open.restore<"core_attn">(layer, desk_.stream(), x[0]);
      for (auto& each : x) {
        desk_.check(each, static_cast<std::uint32_t>(layer));
        desk_.dev.launch(desk_.stream(), 4000, {});
        each.reset(desk_.stream());
      }
    }
    mine.open.finish();
  }

  rig desk_;
  offloader off_;
  std::array<pass, microbatches> passes_;
};

struct sum {
  std::size_t count = 0;
  double time = 0;
  span longest;
};

// By reason and module.
std::map<std::pair<std::string, std::string>, sum> stalls_of(const record& seen) {
  std::map<std::pair<std::string, std::string>, sum> sums;
  for (const auto& each : seen.spans) {
    if (each.kind != span_kind::stall || !(each.end > each.start)) continue;
    auto& of = sums[{each.name, each.module}];
    ++of.count;
    of.time += each.end - each.start;
    if (each.end - each.start > of.longest.end - of.longest.start) of.longest = each;
  }
  return sums;
}

std::size_t highest(const std::vector<tidepool::trace::level>& of) {
  std::size_t most = 0;
  for (const auto& each : of) most = std::max(most, each.bytes);
  return most;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

// The words of the picture are those of the trace, whose passes, peaks and copies they count.
std::string check_words(const record& seen) {
  std::ostringstream out;
  tidepool::trace::write_svg(out, seen);
  const auto text = out.str();
  const auto says = [&](const std::string& words) {
    CAPTURE(words);
    CHECK(text.find(words) != std::string::npos);
  };
  says(">" + seen.title + "</text>");
  says(">peak held " + print::bytes_text(highest(seen.device_bytes)) + " at ");
  says(">without offload " + print::bytes_text(highest(seen.device_bytes_without)) + "</text>");
  if (seen.budget > 0) says(">budget " + print::bytes_text(seen.budget));
  std::size_t offloaded = 0, reloaded = 0;
  for (const auto& each : seen.spans) {
    if (each.kind == span_kind::offload) offloaded += each.bytes;
    if (each.kind == span_kind::reload) reloaded += each.bytes;
  }
  says("offloaded " + print::bytes_text(offloaded));
  says("reloaded " + print::bytes_text(reloaded));
  CHECK(seen.passes.size() == 2 * microbatches);
  for (int mb = 0; mb < microbatches; ++mb) {
    CHECK(count_of(text, "forward, microbatch " + std::to_string(mb) + "\n") == 1);
    CHECK(count_of(text, "backward, microbatch " + std::to_string(mb) + "\n") == 1);
  }
  return text;
}

}  // namespace

TEST_CASE("pictures: a stalled step says why, in all and for each module") {
  auto opts = arena_options(all_bytes / 6);
  opts.max_inflight = 0;
  opts.reload_ahead = 0;
  trainer run(opts, 0.5);
  const auto seen = run.last_of(2);
  const auto text = check_words(seen);
  const auto sums = stalls_of(seen);
  std::map<std::string, double> reasons;
  for (const auto& [key, of] : sums) reasons[key.first] += of.time;
  REQUIRE(reasons.size() >= 2);  // the cap in forward, what is late in backward
  REQUIRE(sums.size() <= 6);     // as many lines as there are
  for (const auto& [reason, time] : reasons) {
    const auto words = reason + " " + print::duration_text(time);
    CAPTURE(words);
    const auto heading = text.find(">Why it stalled: ");
    REQUIRE(heading != std::string::npos);
    CHECK(text.find(words, heading) < text.find("</text>", heading));
  }
  for (const auto& [key, of] : sums) {
    const auto words = print::duration_text(of.time) + " in " + std::to_string(of.count) +
                       (of.count == 1 ? " stall: " : " stalls: ") + key.first + " (";
    const auto longest = "the longest, " + print::duration_text(of.longest.end - of.longest.start) +
                         ", at layer " + std::to_string(of.longest.layer) + ", microbatch " +
                         std::to_string(of.longest.microbatch);
    CAPTURE(words);
    CAPTURE(longest);
    CHECK(text.find(words) != std::string::npos);
    CHECK(text.find(longest) != std::string::npos);
  }
}

TEST_CASE("pictures: an arena of half of the memory under 1F1B, and a step that never stalls") {
  trainer run(arena_options(all_bytes / 2));
  const auto seen = run.last_of(2);
  CHECK(seen.budget == all_bytes / 2);
  CHECK(highest(seen.device_bytes_without) == all_bytes);
  CHECK(highest(seen.device_bytes) <= seen.budget);
  CHECK(stalls_of(seen).empty());
  const auto text = check_words(seen);
  CHECK(text.find("stalled never") != std::string::npos);
  CHECK(text.find("Why it stalled") == std::string::npos);
  // While a backward pass runs, the next microbatch is in flight: its forward came before.
  const auto second = std::find_if(seen.passes.begin(), seen.passes.end(), [](const auto& each) {
    return !each.backward && each.microbatch == 1;
  });
  const auto first_back = std::find_if(seen.passes.begin(), seen.passes.end(),
                                       [](const auto& each) { return each.backward; });
  REQUIRE(second != seen.passes.end());
  CHECK(second->start < first_back->start);
}

TEST_CASE("pictures: a step that follows a plan keeps what the plan kept") {
  auto opts = arena_options(all_bytes / 3);
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 20;
  trainer run(opts);
  const auto seen = run.last_of(4);
  REQUIRE(run.off().current_plan().has_value());
  REQUIRE(run.off().current_plan()->expected.runs);
  const auto text = check_words(seen);
  CHECK(highest(seen.device_bytes) <= seen.budget);
  std::size_t copied = 0;
  for (const auto& each : seen.spans) copied += each.kind == span_kind::offload;
  CHECK(copied > 0);
  CHECK(copied < microbatches * layers * 2);  // some groups stay
  CHECK((text.find("Why it stalled: ") != std::string::npos) == !stalls_of(seen).empty());
}

// Time that compute waited for one reason.
namespace {

double stalled(const record& seen, const std::string& reason) {
  double sum = 0;
  for (const auto& [key, of] : stalls_of(seen)) sum += key.first == reason ? of.time : 0;
  return sum;
}

}  // namespace

TEST_CASE("pictures: the first line of a report takes the stalls away") {
  SUBCASE("memory") {
    auto opts = arena_options(all_bytes / 4);
    const auto seen = trainer(opts).last_of(2);
    REQUIRE(stalled(seen, "device_reuse") > 0);
    const auto words = print::advice(seen);
    CAPTURE(words);
    CHECK(words.find(" for memory: raise --device-budget by ") != std::string::npos);
    opts.device_budget = *opts.device_budget + print::memory_missing(seen);
    CHECK(*opts.device_budget < all_bytes);  // no more than it takes
    CHECK(stalled(trainer(opts).last_of(2), "device_reuse") < stalled(seen, "device_reuse") / 4);
  }
  SUBCASE("the cap") {
    auto opts = arena_options(all_bytes / 2);
    opts.max_inflight = 0;
    const auto seen = trainer(opts).last_of(2);
    REQUIRE(stalled(seen, "cap") > 0);
    CHECK(print::advice(seen).find("raise --max-inflight") != std::string::npos);
    opts.max_inflight = 4;
    CHECK(stalled(trainer(opts).last_of(2), "cap") < stalled(seen, "cap") / 10);
  }
  SUBCASE("a link that is full") {
    auto opts = arena_options(2 * all_bytes);
    const auto seen = trainer(opts, 0.5).last_of(2);
    REQUIRE(stalled(seen, "consumer") > 0);
    CHECK(print::advice(seen).find("the link is full: keep its last ") != std::string::npos);
    opts.fraction = 0.3;
    CHECK(stalled(trainer(opts, 0.5).last_of(2), "consumer") < stalled(seen, "consumer") / 2);
  }
  SUBCASE("nothing") {
    const auto seen = trainer(arena_options(all_bytes / 2)).last_of(2);
    CHECK(print::advice(seen).starts_with("Nothing waits"));
  }
}

TEST_CASE("pictures: memory by module adds up to what is held, from its start to its end") {
  const auto seen = trainer(arena_options(all_bytes / 4)).last_of(2);
  REQUIRE(seen.device_bytes_of.size() >= 2);
  std::size_t highest_part = 0;
  for (const auto& [time, bytes] : seen.device_bytes) {
    // Changes of one moment are told one after another: the last of them counts.
    const auto next = std::upper_bound(
        seen.device_bytes.begin(), seen.device_bytes.end(), time,
        [](double at, const tidepool::trace::level& each) { return at < each.time; });
    std::size_t sum = 0;
    for (const auto& [module, levels] : seen.device_bytes_of) {
      std::size_t now = 0;
      for (const auto& each : levels) now = each.time <= time ? each.bytes : now;
      sum += now;
      highest_part = std::max(highest_part, now);
    }
    CHECK(sum == (next - 1)->bytes);
  }
  CHECK(highest_part > 0);
  for (const auto& [module, levels] : seen.device_bytes_of) {
    CHECK((module == "core_attn" || module == "expert_fc1" || highest(levels) == 0));
  }
}
