// Prices for `price_proof`: windows around the moments at which much is held.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/prices.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

// In a window all of the link's time counts. Bytes leave up to some moment and come back after it.
// What is above the budget at that moment must have left in the window or come back in it, unless
// it was committed before it and is restored after it. So with one microbatch that has just gone
// forward, another that is about to go backward, V bytes each and M of memory, the two passes take
// at least (2V - M) / rate. Half a window counts what leaves alone, or what comes back alone.
// Windows do not overlap, so what each adds is added; the best set of them is found exactly, among
// the ends that are looked at. Those are finer than what `price_search` sees, which in return knows
// of several moments at once and of computing again.
class window_search {
 public:
  explicit window_search(const timeline& of)
      : of_(&of), parcels_(of.parcels), restores_(of.size(), false), upto_(of.size() + 1, 0) {
    std::sort(parcels_.begin(), parcels_.end(),
              [](const parcel& a, const parcel& b) { return a.first < b.first; });
    best_.assign(of.size() + 1, 0);
    chosen_.assign(of.size() + 1, {});
    for (std::size_t i = 0; i < of.size(); ++i) upto_[i + 1] = upto_[i] + of.compute[i];
    double slow_out = of.parcels.empty() ? 1 : of.parcels.front().slow_out;
    double slow_in = of.parcels.empty() ? 1 : of.parcels.front().slow_in;
    for (const auto& each : of.parcels) {
      slow_out = std::min(slow_out, each.slow_out);
      slow_in = std::min(slow_in, each.slow_in);
    }
    const auto out = slow_out / of.out;
    const auto in = slow_in / of.in;
    const auto both = 1 / of.both;
    whole_ = {{{out, in, std::min(out, in)}, {out, in, std::max(out, in)}, {both, both, both}}};
    for (const auto& each : of.parcels) {
      longest_ = std::max(longest_, each.last - each.first);
      restores_[each.last] = true;
    }
  }

  // Prices that say most; all 0 where no window says anything.
  [[nodiscard]] prices run() {
    for (std::size_t end = 0; end + 1 < of_->size(); ++end) {
      if (of_->over[end] > 0) look_around(end);
    }
    settle(of_->size());
    prices result(of_->size());
    for (auto at = of_->size(); at > 0 && best_[at] > 0;) {
      const auto& last = chosen_[at];
      if (last.to > 0) enter(last, result);
      at = last.to > 0 ? last.from : at - 1;
    }
    return result;
  }

 private:
  struct rates {
    double out = 0;  // microseconds of a byte
    double in = 0;
    double memory = 0;
  };
  enum class kind : std::uint8_t { cheaper, dearer, shared, leaving, arriving };
  struct window {
    std::size_t from = 0;  // first stretch
    std::size_t peak = 0;  // the last in which bytes leave
    std::size_t to = 0;    // one past the last stretch; 0: none ends here
    kind what{};
  };
  // Bytes that are there at a moment, by where windows around it begin and end.
  struct table {
    std::vector<std::size_t> from;  // first stretches of windows
    std::vector<std::size_t> to;    // last stretches
    std::vector<double> older;      // committed before the first
    std::vector<double> younger;    // restored after the last
    double all = 0;
  };

  // More must be away than next to it; of moments alike, the one before something is restored.
  [[nodiscard]] bool is_peak(std::size_t i) const {
    const auto& over = of_->over;
    if (over[i + 1] > over[i] || (i > 0 && over[i - 1] > over[i])) return false;
    return over[i + 1] < over[i] || restores_[i + 1];
  }

  // The best of what ends up to `to`. Waits after the first window are lost.
  void settle(std::size_t to) {
    for (; settled_ < to; ++settled_) {
      const auto carried = best_[settled_] - of_->wait[settled_];
      if (carried < best_[settled_ + 1]) continue;
      best_[settled_ + 1] = carried;
      chosen_[settled_ + 1] = {};
    }
  }

  [[nodiscard]] static std::vector<std::size_t> some_of(std::size_t from, std::size_t to) {
    std::vector<std::size_t> result;
    const auto by = (to - from) / constants::window_ends + 1;
    for (auto i = from; i < to; i += by) result.push_back(i);
    return result;
  }

  // Calls `use` with the bytes there at `peak`, and their row and column in the table.
  template <class Use>
  void each_there(std::size_t peak, const table& in, const Use& use) const {
    // They are in the order of their first stretch.
    const auto from = std::lower_bound(
        parcels_.begin(), parcels_.end(), peak - std::min(peak, longest_),
        [](const parcel& each, std::size_t stretch) { return each.first < stretch; });
    for (auto at = from; at != parcels_.end() && at->first <= peak; ++at) {
      const auto& each = *at;
      if (each.last <= peak) continue;
      const auto row = std::upper_bound(in.from.begin(), in.from.end(), each.first);
      const auto column = std::lower_bound(in.to.begin(), in.to.end(), each.last);
      use(each.bytes, static_cast<std::size_t>(row - in.from.begin()),
          static_cast<std::size_t>(column - in.to.begin()));
    }
  }

  [[nodiscard]] table around(std::size_t peak) const {
    table result;
    result.from = some_of(peak - std::min(peak, longest_), peak + 1);
    result.to = some_of(peak + 1, std::min(of_->size(), peak + 2 + longest_));
    auto& older = result.older;
    auto& younger = result.younger;
    older.assign(result.from.size() + 1, 0);
    younger.assign(result.to.size() + 1, 0);
    each_there(peak, result, [&](double bytes, std::size_t row, std::size_t column) {
      result.all += bytes;
      older[row] += bytes;
      younger[column] += bytes;
    });
    for (std::size_t r = 1; r < older.size(); ++r) older[r] += older[r - 1];
    for (auto c = younger.size() - 1; c-- > 0;) younger[c] += younger[c + 1];
    younger.erase(younger.begin());  // what comes back by the end of a column is not after it
    return result;
  }

  // Bytes committed before a row's window and restored after a column's.
  [[nodiscard]] std::vector<double> free_around(std::size_t peak, const table& of) const {
    const auto columns = of.to.size() + 1;
    std::vector<double> free((of.from.size() + 1) * columns);
    each_there(peak, of, [&](double bytes, std::size_t row, std::size_t column) {
      free[row * columns + column] += bytes;
    });
    for (auto i = free.size() - 1; i-- > 0;) {
      if ((i + 1) % columns > 0) free[i] += free[i + 1];
    }
    for (auto i = columns; i < free.size(); ++i) free[i] += free[i - columns];
    return free;
  }

  void offer(const window& next, double says) {
    const auto sum = says + best_[next.from];
    if (sum <= best_[next.to]) return;
    best_[next.to] = sum;
    chosen_[next.to] = next;
  }

  void look_around(std::size_t peak) {
    const auto of = around(peak);
    settle(peak);
    const auto over = of_->over[peak];
    for (std::size_t r = 0; r < of.from.size(); ++r) {
      const auto compute = upto_[peak + 1] - upto_[of.from[r]];
      offer({of.from[r], peak, peak + 1, kind::leaving},
            whole_[0].out * (over - of.older[r]) - compute);
    }
    settle(peak + 1);
    for (std::size_t c = 0; c < of.to.size(); ++c) {
      const auto compute = upto_[of.to[c] + 1] - upto_[peak + 1];
      offer({peak + 1, peak, of.to[c] + 1, kind::arriving},
            whole_[0].in * (over - of.younger[c]) - compute);
    }
    if (is_peak(peak)) whole_windows(peak, of);
  }

  void whole_windows(std::size_t peak, const table& of) {
    const auto free_bytes = free_around(peak, of);
    const auto columns = of.to.size() + 1;
    for (std::size_t r = 0; r < of.from.size(); ++r) {
      for (std::size_t c = 0; c + 1 < columns; ++c) {
        const auto free = free_bytes[r * columns + c + 1];
        const auto older = of.older[r] - free;
        const auto younger = of.younger[c] - free;
        const auto compute = upto_[of.to[c] + 1] - upto_[of.from[r]];
        for (std::size_t k = 0; k < whole_.size(); ++k) {
          const auto& at = whole_[k];
          offer({of.from[r], peak, of.to[c] + 1, static_cast<kind>(k)},
                at.memory * (of_->over[peak] - free) - older * std::max(0.0, at.memory - at.in) -
                    younger * std::max(0.0, at.memory - at.out) - compute);
        }
      }
    }
  }

  void enter(const window& from, prices& into) const {
    for (auto i = from.from; i < from.to; ++i) {
      auto& of = from.what == kind::shared ? into.both : i <= from.peak ? into.out : into.in;
      of[i] = 1;
    }
    into.memory[from.peak] += from.what == kind::leaving    ? whole_[0].out
                              : from.what == kind::arriving ? whole_[0].in
                                                            : whole_[to_index(from.what)].memory;
  }
  [[nodiscard]] static std::size_t to_index(kind what) { return static_cast<std::size_t>(what); }

  const timeline* of_;
  std::vector<parcel> parcels_;
  std::vector<bool> restores_;  // something, in a stretch
  std::vector<double> upto_;    // computing before a stretch
  std::vector<double> best_;    // of windows that end before a stretch
  std::vector<window> chosen_;
  std::array<rates, 3> whole_;
  std::size_t longest_ = 0;  // stretches of a parcel
  std::size_t settled_ = 0;
};

}  // namespace tidepool::plan::detail
