// Which copy a stall is put down to, and what a device says that it computed.
#include "tidepool/observe/stall_causes.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace {

using tidepool::trace::record;
using tidepool::trace::span;
using tidepool::trace::span_kind;
using runs = std::vector<std::pair<double, double>>;

span copy_of(const char* module, double start, double end, span_kind kind = span_kind::reload) {
  return {kind, 1, module, 3, 1, 64, start, end, {}};
}
span stall_for(const char* join, double start, double end) {
  return {span_kind::stall, 0, join, -1, -1, 0, start, end, {}};
}

// The module that a stall of [10, 20] for `join` is put down to.
std::string cause_of(const char* join, std::vector<span> others) {
  record all;
  all.spans = std::move(others);
  all.spans.push_back(stall_for(join, 10, 20));
  tidepool::detail::find_causes(all);
  return all.spans.back().module;
}

// What is added on lane 0 where `kernels` ran; its bounds.
runs added(record all, runs kernels) {
  const auto before = all.spans.size();
  tidepool::detail::add_unnamed_compute(all, 0, std::move(kernels));
  runs result;
  for (auto i = before; i < all.spans.size(); ++i) {
    CHECK(all.spans[i].kind == span_kind::compute);
    CHECK(all.spans[i].lane == 0);
    CHECK(all.spans[i].name == "compute");
    result.emplace_back(all.spans[i].start, all.spans[i].end);
  }
  return result;
}

}  // namespace

TEST_CASE("stalls: the copy whose end is nearest, of two alike the earlier") {
  CHECK(cause_of("consumer", {copy_of("far", 0, 15), copy_of("near", 5, 19)}) == "near");
  CHECK(cause_of("consumer", {copy_of("later", 5, 21), copy_of("earlier", 5, 19)}) == "earlier");
  CHECK(cause_of("consumer", {copy_of("long gone", 0, 9)}).empty());
}

TEST_CASE("stalls: clocks are taken to agree to 20 us, and to no more") {
  CHECK(cause_of("consumer", {copy_of("in", 5, 40)}) == "in");
  CHECK(cause_of("consumer", {copy_of("in", 5, 40.5)}).empty());
}

TEST_CASE("stalls: what is no copy, or took no time, is no cause") {
  span computing = copy_of("computing", 5, 20, span_kind::compute);
  CHECK(cause_of("consumer", {computing}).empty());
  CHECK(cause_of("consumer", {copy_of("of no length", 20, 20)}).empty());
}

TEST_CASE("stalls: a copy that was over when the stall began is no cause, and no wait has none") {
  CHECK(cause_of("consumer", {copy_of("over", 0, 10)}).empty());
  CHECK(cause_of("consumer", {copy_of("over", 0, 10), copy_of("under way", 5, 11)}) == "under way");
  record all;
  all.spans = {copy_of("in", 5, 21), stall_for("consumer", 20, 20)};
  tidepool::detail::find_causes(all);
  CHECK(all.spans.back().module.empty());
}

TEST_CASE("stalls: a consumer waits for a reload, a cap for an offload, others for either") {
  const std::vector<span> both{copy_of("out", 5, 20, span_kind::offload), copy_of("in", 5, 19)};
  CHECK(cause_of("consumer", both) == "in");
  CHECK(cause_of("cap", both) == "out");
  CHECK(cause_of("device_reuse", both) == "out");
}

TEST_CASE("unnamed compute: what a device ran beside the spans of its lane") {
  record all;
  all.spans = {{span_kind::compute, 0, "named", -1, -1, 0, 10, 20, {}},
               {span_kind::compute, 1, "of another lane", -1, -1, 0, 30, 40, {}},
               {span_kind::stall, 0, "consumer", -1, -1, 0, 50, 60, {}}};
  CHECK(added(all, {{5, 70}}) == runs{{5, 10}, {20, 70}});
  CHECK(added(all, {{12, 18}}).empty());
  // In any order; kernels without a gap are one.
  CHECK(added(all, {{80, 90}, {70, 80}, {100, 110}}) == runs{{70, 90}, {100, 110}});
}

TEST_CASE("unnamed compute: a picosecond is no gap and no work") {
  constexpr double picosecond = 1e-6;
  CHECK(added({}, {{2, 4}, {4 + picosecond, 9}}) == runs{{2, 9}});
  CHECK(added({}, {{2, 4}, {4 + 2 * picosecond, 9}}) == runs{{2, 4}, {4 + 2 * picosecond, 9}});
  CHECK(added({}, {{0, picosecond}}).empty());
}

TEST_CASE("unnamed compute: it is cut where passes begin and end, in whatever order they stand") {
  record all;
  all.passes = {{true, 0, 0, 30, 40}, {false, 0, 0, 10, 20}};
  CHECK(added(all, {{5, 50}}) == runs{{5, 10}, {10, 20}, {20, 30}, {30, 40}, {40, 50}});
}

TEST_CASE("unnamed compute: what the trainer named is left out, in whatever order it stands") {
  record all;
  all.spans = {{span_kind::compute, 0, "later", -1, -1, 0, 30, 40, {}},
               {span_kind::compute, 0, "earlier", -1, -1, 0, 10, 20, {}},
               {span_kind::compute, 0, "behind", -1, -1, 0, 40, 45, {}},
               {span_kind::compute, 0, "within", -1, -1, 0, 32, 35, {}}};
  CHECK(added(all, {{5, 50}}) == runs{{5, 10}, {20, 30}, {45, 50}});
  CHECK(added(all, {{5, 10}, {20, 30}, {47, 48}}) == runs{{5, 10}, {20, 30}, {47, 48}});
}
