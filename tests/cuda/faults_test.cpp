// The fault programs on a GPU: the same calls fail, with real copies and kernels about them.
#include <array>
#include <cstdint>
#include <cstdlib>

#include "faults/injection.hpp"
#include "faulty_desk.hpp"
#include "gpu.hpp"

namespace {

using namespace tidepool::test;

// A run takes milliseconds here. Every k-th index of a kind, and another k-th for each program;
// TIDEPOOL_TEST_EVERY=1 takes all.
std::uint64_t sampled() {
  const auto* const every = std::getenv("TIDEPOOL_TEST_EVERY");
  const auto asked = every == nullptr ? 0 : std::strtoull(every, nullptr, 10);
  return asked == 0 ? 23 : asked;
}

// TIDEPOOL_TEST_SHARD=I/N takes every N-th program, for tools under which a run takes long.
struct part {
  unsigned long which = 0;
  unsigned long of = 1;
};
part asked_for() {
  part result;
  const char* const text = std::getenv("TIDEPOOL_TEST_SHARD");
  if (text == nullptr) return result;
  char* end = nullptr;
  result.which = std::strtoul(text, &end, 10);
  if (*end == '/') result.of = std::strtoul(end + 1, &end, 10);
  REQUIRE_MESSAGE((*end == 0 && result.which < result.of), "TIDEPOOL_TEST_SHARD=" << text);
  return result;
}

TIDEPOOL_GPU_TEST("faults on a GPU: every call of every kind fails once, for good, or finds none") {
  tally counts;
  const auto step = sampled();
  const auto shard = asked_for();
  std::uint64_t first = 1;
  unsigned long number = 0;
  auto plans = programs();
  const bool neighbour = faulty_cuda_desk().dev.why_no_peer(1).empty();
  if (neighbour) {
    for (auto& each : tidepool::test::programs_with_peer()) plans.push_back(std::move(each));
  }
  for (const auto& plan : plans) {
    if (number++ % shard.of != shard.which) continue;
    faulty_cuda_desk desk;
    const auto clean = run_once(desk, plan, false);
    CHECK_MESSAGE((clean.success && clean.complaint.empty()), plan.name << clean.complaint);
    std::array<std::uint64_t, call_kinds> calls{};  // of this run; the next ones count anew
    for (std::size_t k = 0; k < call_kinds; ++k) {
      calls[k] = desk.dev.calls(static_cast<call_kind>(k));
    }
    for (std::size_t k = 0; k < call_kinds; ++k) {
      const auto kind = static_cast<call_kind>(k);
      const auto stride = kind == call_kind::make_event ? 97 * step : step;
      for (auto i = calls[k] < stride ? 1 : first; i <= calls[k]; i += stride) {
        each_manner(kind, i, [&](bool retries, const fault& armed) {
          inject(desk, plan, retries, armed, counts);
        });
      }
    }
    first = first % step + 1;
  }
  CHECK((counts.kinds.size() == call_kinds - (neighbour ? 0 : 1) || shard.of > 1));
  judge(counts, "faults on a GPU");
}

}  // namespace
