/// The sum of gradients over the ranks that hold the same tensors.
#pragma once

#include <algorithm>
#include <array>
#include <tidepool/offloader.hpp>
#include <vector>

#include "../model/parameters.hpp"
#include "exchange.hpp"

namespace moe {

/// Adds up what the ranks have, in the order of the ranks, so that all get the same bits however
/// the bytes travel: each sums a share of the elements and gives it to the others.
template <class Device, class Kernels, class Offloader>
class gradient_sum {
 public:
  using stream_ref = typename Device::stream_ref;

  gradient_sum(expert_exchange& link, int rank, Kernels& kernels, Offloader& off, stream_ref stream)
      : link_(link),
        rank_(static_cast<std::size_t>(rank)),
        kernels_(kernels),
        offloader_(off),
        stream_(stream) {}

  /// Of every tensor that each rank holds as a whole.
  void run(const parameters<Device>& weights) {
    if (link_.ranks() == 1) return;
    float* first = nullptr;
    index count = 0;
    // Tensors that lie one behind the other go together, with the padding between them.
    for (const parameter& p : weights.all()) {
      if (!p.held || p.split) continue;
      if (p.gradient != first + count) {
        sum(first, count);
        first = p.gradient;
        count = 0;
      }
      count = p.gradient + (p.count + row - 1) / row * row - first;
    }
    sum(first, count);
  }

 private:
  static constexpr index row = 64;               // floats; tensors start at multiples of it
  static constexpr index most = index{1} << 16;  // rows at once, for the sake of the memory

  void sum(float* values, index count) {
    for (index done = 0; done < count; done += most * row) {
      sum_rows(values + done, std::min(most * row, count - done) / row);
    }
  }

  void sum_rows(float* values, index rows) {
    const auto ranks = static_cast<index>(link_.ranks());
    row_counts counts;
    std::vector<index> parts;
    index start = 0, mine = 0;
    for (index r = 0; r < ranks; ++r) {
      const index share = rows * (r + 1) / ranks - rows * r / ranks;
      if (static_cast<std::size_t>(r) == rank_) {
        mine = share;
        start = rows * r / ranks * row;
      }
      counts.sent.push_back(share);
      parts.push_back(share * row);
    }
    counts.received.assign(static_cast<std::size_t>(ranks), mine);
    const index each = mine * row;
    // The saved tensors' memory is free at the end of a step.
    auto all = offloader_.template allocate<float>(
        static_cast<std::size_t>(std::max(ranks * each, row)), stream_);
    auto* const from = all.template as<float>();
    const std::array<moving_rows, 1> what{{{values, from, row}}};
    link_.finish(link_.start(counts, what));
    if (each > 0) {
      kernels_.add(values + start, from, from + each, each);
      for (index r = 2; r < ranks; ++r) {
        kernels_.add(values + start, values + start, from + r * each, each);
      }
    }
    all.reset(stream_);
    link_.gather_parts(values, parts);
  }

  expert_exchange& link_;
  std::size_t rank_;
  Kernels& kernels_;
  Offloader& offloader_;
  stream_ref stream_;
};

}  // namespace moe
