// A step cut into stretches at whose ends memory is counted, and what prices prove about it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/layout.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Bytes that may be away between two stretches.
struct parcel {
  std::size_t first = 0;   // stretch from which on they may leave
  std::size_t last = 0;    // by whose end they are back
  std::size_t commit = 0;  // first stretch at whose end they may be missing, if recomputed
  std::size_t again = 0;   // stretch in which they are computed again
  double bytes = 0;
  double recompute_us = -1;  // of a byte; negative: they cannot be
  double slow_out = 1;       // how much longer its copy takes than its bytes, for the latency
  double slow_in = 1;
};

// Calls are many and most change nothing that matters, so only some of them end a stretch. Within
// one, bytes may leave and come back at any time: that only makes what is proved weaker.
struct timeline {
  std::vector<double> compute;  // microseconds of each stretch
  std::vector<double> wait;     // of it, for other ranks
  std::vector<double> over;     // bytes that must be away at its end
  std::vector<parcel> parcels;
  double out = 0;  // bytes in a microsecond
  double in = 0;
  double both = 0;

  [[nodiscard]] std::size_t size() const { return compute.size(); }
};

// What is away, is away whole: a sum of the sizes of storages that may be.
class whole_sums {
 public:
  void add(std::size_t bytes, bool comes) {
    auto& count = counts_[bytes];
    count += comes ? 1 : (count > 0 ? -1 : 0);
  }

  // The least sum that is not below `bytes`, or `bytes` where there are too many to look at.
  [[nodiscard]] double least_from(double bytes) const {
    if (bytes <= 0) return bytes;
    std::vector<std::pair<double, int>> of;  // sizes and counts, the most frequent last
    for (const auto& [size, count] : counts_) {
      if (count > 0) of.emplace_back(static_cast<double>(size), count);
    }
    if (of.empty()) return bytes;
    std::sort(of.begin(), of.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
    double sums = 1;
    for (std::size_t i = 0; i + 1 < of.size(); ++i) sums *= of[i].second + 1;
    if (sums > constants::whole_sums) return bytes;
    auto best = std::numeric_limits<double>::infinity();
    enumerate(of, 0, bytes, bytes, best);
    return std::isinf(best) ? bytes : best;
  }

 private:
  static void enumerate(const std::vector<std::pair<double, int>>& of, std::size_t i,
                        double missing, double bytes, double& best) {
    const auto [size, count] = of[i];
    if (i + 1 == of.size()) {
      const auto taken = std::max(0.0, std::ceil(missing / size - 1e-9));
      if (taken <= count) best = std::min(best, std::max(bytes, bytes - missing + taken * size));
      return;
    }
    for (int k = 0; k <= count; ++k) enumerate(of, i + 1, missing - k * size, bytes, best);
  }

  std::map<std::size_t, int> counts_;
};

// Builds a timeline of at most `most` + 1 stretches.
class timeline_cutter {
 public:
  timeline_cutter(const layout& map, const link_rates& rates, double budget, bool may_recompute,
                  std::size_t most)
      : map_(&map), latency_us_(rates.latency_us) {
    // A copy beside others may be given a millionth of the rate of both beyond it (`links`).
    constexpr double bytes_per_us = 1e3 * (1 + 1e-6);
    result_.out = rates.out * bytes_per_us;
    result_.in = rates.in * bytes_per_us;
    result_.both = std::max({rates.both, rates.out, rates.in}) * bytes_per_us;
    sizes_.resize(map.groups.size());
    for (const auto& each : map.storages) {
      if (each.group != none && each.bytes > 0) sizes_[each.group].push_back(each.bytes);
    }
    hold();
    cut(most);
    fill(budget);
    collect(may_recompute);
  }

  [[nodiscard]] timeline take() { return std::move(result_); }

 private:
  // Bytes after each call where nothing leaves. What does not come back may be gone from its commit
  // on, at no cost in the best case.
  void hold() {
    double held = 0;
    for (const auto& each : map_->events) {
      using enum event_kind;
      const bool of_storage = each.kind == allocate || each.kind == release;
      const auto bytes = of_storage ? static_cast<double>(map_->storages[each.what].bytes) : 0.0;
      if (each.kind == allocate) held += bytes;
      if (each.kind == release && map_->forgotten(each.what) == none) held -= bytes;
      if (each.kind == commit && !map_->groups[each.what].comes_back) {
        held -= static_cast<double>(map_->groups[each.what].bytes);
      }
      held_.push_back(held);
    }
  }

  // Where most is held among as many neighbours each.
  void cut(std::size_t most) {
    const auto count = held_.size();
    const auto cuts = std::min(count, most);
    std::size_t from = 0;
    for (std::size_t i = 0; i < cuts; ++i) {
      const auto to = count * (i + 1) / cuts;
      auto best = from;
      for (auto k = from; k < to; ++k) best = held_[k] >= held_[best] ? k : best;
      ends_.push_back(best);
      from = to;
    }
    std::size_t stretch = 0;
    for (std::size_t i = 0; i <= count; ++i) {
      while (stretch < ends_.size() && ends_[stretch] < i) ++stretch;
      of_call_.push_back(stretch);
    }
  }

  void fill(double budget) {
    const auto count = ends_.size() + 1;
    result_.compute.assign(count, 0);
    result_.wait.assign(count, 0);
    result_.over.assign(count, -1);
    double before = 0;
    for (std::size_t i = 0; i <= map_->events.size(); ++i) {
      const bool any = i < map_->events.size();
      const auto at = any ? map_->events[i].at : map_->compute_us;
      result_.compute[of_call_[i]] += at - before;
      result_.wait[of_call_[i]] += any ? map_->events[i].wait : map_->rest_wait;
      before = at;
    }
    whole_sums idle;
    std::size_t end = 0;
    for (std::size_t i = 0; i < map_->events.size(); ++i) {
      const auto& each = map_->events[i];
      const bool opens = each.kind == event_kind::commit;
      if ((opens || each.kind == event_kind::restore) && map_->groups[each.what].comes_back) {
        for (const auto bytes : sizes_[each.what]) idle.add(bytes, opens);
      }
      if (end < ends_.size() && ends_[end] == i) {
        result_.over[end++] = idle.least_from(held_[i] - budget);
      }
    }
  }

  void collect(bool may_recompute) {
    std::vector<std::size_t> committed(map_->groups.size(), none);
    for (std::size_t i = 0; i < map_->events.size(); ++i) {
      const auto& each = map_->events[i];
      if (each.kind == event_kind::commit) committed[each.what] = i;
      if (each.kind != event_kind::restore || committed[each.what] == none) continue;
      const auto& group = map_->groups[each.what];
      const auto bytes = static_cast<double>(group.bytes);
      const auto from = std::exchange(committed[each.what], none);
      const auto first = of_call_[from + 1];
      if (bytes <= 0 || of_call_[from] == of_call_[i]) continue;
      const bool again = may_recompute && group.recompute_us > 0;
      if (!again && first >= of_call_[i]) continue;
      result_.parcels.push_back({first, of_call_[i], of_call_[from], of_call_[i + 1], bytes,
                                 again ? group.recompute_us / bytes : -1,
                                 1 + latency_us_ * result_.out / bytes,
                                 1 + latency_us_ * result_.in / bytes});
    }
  }

  const layout* map_;
  double latency_us_;
  timeline result_;
  std::vector<std::vector<std::size_t>> sizes_;  // of the storages of each group
  std::vector<double> held_;                     // after each call
  std::vector<std::size_t> ends_;                // calls that end a stretch
  std::vector<std::size_t> of_call_;             // the stretch that a call belongs to
};

// What time and memory are worth: shares of the link's time in each stretch, which together are at
// most 1, and microseconds for a byte away at the end of it. None is negative.
struct prices {
  std::vector<double> out;
  std::vector<double> in;
  std::vector<double> both;
  std::vector<double> memory;

  explicit prices(std::size_t stretches)
      : out(stretches), in(stretches), both(stretches), memory(stretches) {}
};

// Microseconds that any plan must add to computing, as these prices prove it. A Lagrangian bound:
// each limit of link and memory may be broken at its price, and each byte then does the best for
// itself. So it holds for whatever prices are given, and only how much it says depends on them.
class price_proof {
 public:
  price_proof(const timeline& of, const prices& at) : of_(&of), at_(&at) {
    double worth = 0;
    for (std::size_t i = 0; i < of.size(); ++i) {
      load_.push_back(at.out[i] + at.in[i] + at.both[i]);
      out_.push_back(at.out[i] / of.out);
      in_.push_back(at.in[i] / of.in);
      both_.push_back(at.both[i] / of.both);
      before_.push_back(worth);
      worth += at.memory[i];
    }
  }

  [[nodiscard]] double least_us() const {
    const bool waits =
        std::any_of(of_->wait.begin(), of_->wait.end(), [](double us) { return us > 0; });
    const bool again = std::any_of(of_->parcels.begin(), of_->parcels.end(),
                                   [](const parcel& each) { return each.recompute_us >= 0; });
    if (!waits) return least_us(true);
    return again ? std::max(least_us(false), least_us(true)) : least_us(false);
  }

 private:
  // A wait for other ranks takes as much off as a step is late. `late` is what a microsecond of
  // that is worth from each stretch on: at least what the link's time was until then, and never
  // less later on.
  [[nodiscard]] double least_us(bool at_once) const {
    const auto& of = *of_;
    std::vector<double> late;
    double highest = at_once ? 1 : 0;
    double sum = 0;
    for (std::size_t i = 0; i < of.size(); ++i) {
      sum -= of.compute[i] * load_[i];
      sum -= of.wait[i] * std::max(0.0, highest - load_[i]);
      if (at_->memory[i] > 0) sum += at_->memory[i] * of.over[i];
      late.push_back(highest = std::max(highest, load_[i]));
    }
    for (const auto& each : of.parcels) sum -= each.bytes * gain(each, late);
    return sum;
  }

  // What a byte gains at most by being away.
  [[nodiscard]] double gain(const parcel& each, const std::vector<double>& late) const {
    double best = 0;
    auto cheapest = std::numeric_limits<double>::infinity();
    for (auto i = each.first; i <= each.last; ++i) {
      cheapest = std::min(cheapest, before_[i] + each.slow_out * out_[i] + both_[i]);
      best = std::max(best, before_[i] - each.slow_in * in_[i] - both_[i] - cheapest);
    }
    if (each.recompute_us < 0) return best;
    const auto costs = each.recompute_us * std::max(0.0, late[each.again] - load_[each.again]);
    return std::max(best, before_[each.last] - before_[each.commit] - costs);
  }

  const timeline* of_;
  const prices* at_;
  std::vector<double> load_;
  std::vector<double> out_;  // microseconds of a byte
  std::vector<double> in_;
  std::vector<double> both_;
  std::vector<double> before_;  // memory's prices until a stretch
};

}  // namespace tidepool::plan::detail
