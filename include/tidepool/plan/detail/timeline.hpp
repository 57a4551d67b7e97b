// A timeline: a step cut into stretches of time, as the bounds of `prices.hpp` and `windows.hpp`
// need it. Inputs are the layout of a step, link rates in GB/s and a budget in bytes. The output
// has, for each stretch, microseconds of computing and the bytes that must be away at its end. Few
// stretches make the bounds fast to compute.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/layout.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

// Bytes that may be away between two stretches.
struct parcel {
  std::size_t first = 0;   // first stretch in which they may leave
  std::size_t last = 0;    // stretch by whose end they are back
  std::size_t commit = 0;  // first stretch at whose end they may be missing, if recomputed
  std::size_t again = 0;   // stretch in which they are computed again
  double bytes = 0;
  double recompute_us = -1;  // microseconds for a byte; negative: they cannot be recomputed
  double slow_out = 1;       // factor by which latency makes the copy longer
  double slow_in = 1;

  // Parcels with equal keys gain equally from being away, so `merge` makes one of them.
  [[nodiscard]] auto key() const {
    return std::tuple(first, last, commit, again, recompute_us, slow_out);
  }
};

// Only some calls end a stretch, because there are many calls and most change nothing that matters
// to the bound. Within a stretch bytes may leave and come back at any time; this freedom can only
// lower the bound, so the bound stays valid.
struct timeline {
  std::vector<double> compute;  // microseconds of each stretch
  std::vector<double> wait;     // part of `compute` that waits for other ranks
  std::vector<double> over;     // bytes that must be away at its end; negative: there is room
  std::vector<parcel> parcels;
  std::size_t opens = none;  // first stretch from which on some parcel may be recomputed
  double out = 0;            // rates, in bytes for a microsecond
  double in = 0;
  double both = 0;

  [[nodiscard]] std::size_t size() const { return compute.size(); }
};

// Rounds up the bytes that must be away. Storages leave whole, so the bytes away are a sum of sizes
// of storages.
class whole_sums {
 public:
  void add(std::size_t bytes, bool comes) {
    auto& count = counts_[bytes];
    count += comes ? 1 : (count > 0 ? -1 : 0);
  }

  // The least such sum of `bytes` or more; `bytes` itself if there are too many sums to enumerate.
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

class timeline_cutter {
 public:
  timeline_cutter(const layout& map, const link_rates& rates, double budget, bool may_recompute,
                  std::size_t most, bool by_passes)
      : map_(&map), latency_us_(rates.latency_us) {
    // `links` may exceed the combined rate by a millionth, so all rates are raised as much; the
    // bound stays below it.
    constexpr double bytes_per_us = 1e3 * (1 + 1e-6);
    const auto scaled = in_memory(map, rates);
    result_.out = scaled.out * bytes_per_us;
    result_.in = scaled.in * bytes_per_us;
    result_.both = std::max({scaled.both, scaled.out, scaled.in}) * bytes_per_us;
    sizes_.resize(map.groups.size());
    for (const auto& each : map.storages) {
      if (each.group != none && each.bytes > 0) sizes_[each.group].push_back(each.bytes);
    }
    hold();
    if (by_passes) cut_passes();
    cut(most);
    fill(budget);
    collect(may_recompute);
  }

  [[nodiscard]] timeline take() { return std::move(result_); }

 private:
  // The bytes held after each call if nothing is offloaded. A group that never comes back may be
  // gone from its commit on, at no cost in the best case.
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

  // Ends stretches where passes begin and end, because the bound depends on when the first byte can
  // leave and when the last byte must be back.
  void cut_passes() {
    const auto count = held_.size();
    std::vector<std::size_t> run;  // consecutive commits, or consecutive restores
    const auto end_run = [&](std::size_t until) {
      if (run.empty()) return;
      const bool out = map_->events[run.front()].kind == event_kind::commit;
      for (std::size_t i = 0; i < run.size(); ++i) {
        const auto from_end = run.size() - 1 - i;
        const bool near = (out ? i : from_end) < constants::pass_ends;
        if (near || (out ? from_end : i) == 0) ends_.push_back(run[i]);
      }
      // After the peak of held memory and before the first restore, nothing more has to leave.
      const auto held = held_.begin();
      const auto at = [&](std::size_t call) { return held + static_cast<std::ptrdiff_t>(call); };
      if (out) {
        const auto most = std::max_element(at(run.front()), at(until));
        ends_.push_back(static_cast<std::size_t>(most - held));
      }
      run.clear();
    };
    for (std::size_t i = 0; i < count; ++i) {
      const auto& each = map_->events[i];
      const bool of_group = each.kind == event_kind::commit || each.kind == event_kind::restore;
      if (!of_group || sizes_[each.what].empty() || !map_->groups[each.what].comes_back) continue;
      if (!run.empty() && map_->events[run.front()].kind != each.kind) end_run(i);
      run.push_back(i);
    }
    end_run(count);
  }

  // Splits the calls into `most` runs of equal length; in each, the call with the most bytes held
  // ends a stretch.
  void cut(std::size_t most) {
    const auto count = held_.size();
    const auto cuts = std::min(count, most);
    for (std::size_t i = 0; i < cuts; ++i) {
      ends_.push_back(most_held(count * i / cuts, count * (i + 1) / cuts));
    }
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    std::size_t stretch = 0;
    for (std::size_t i = 0; i <= count; ++i) {
      while (stretch < ends_.size() && ends_[stretch] < i) ++stretch;
      of_call_.push_back(stretch);
    }
  }
  [[nodiscard]] std::size_t most_held(std::size_t from, std::size_t to) const {
    auto best = from;
    for (auto k = from; k < to; ++k) best = held_[k] >= held_[best] ? k : best;
    return best;
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
      if (again) result_.opens = std::min(result_.opens, of_call_[from]);
    }
    merge();
  }

  void merge() {
    auto& all = result_.parcels;
    std::sort(all.begin(), all.end(),
              [](const parcel& a, const parcel& b) { return a.key() < b.key(); });
    std::size_t kept = 0;
    for (const auto& each : all) {
      if (kept > 0 && all[kept - 1].key() == each.key()) {
        all[kept - 1].bytes += each.bytes;
      } else {
        all[kept++] = each;
      }
    }
    all.resize(kept);
  }

  const layout* map_;
  double latency_us_;
  timeline result_;
  std::vector<std::vector<std::size_t>> sizes_;  // of the storages of each group
  std::vector<double> held_;                     // after each call
  std::vector<std::size_t> ends_;                // calls that end a stretch
  std::vector<std::size_t> of_call_;             // stretch of each call
};

}  // namespace tidepool::plan::detail
