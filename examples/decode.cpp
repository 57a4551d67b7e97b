// Decoding with a key-value cache that lives on the host: only a few of its pages are on the device
// at once. The same API as for optimizer moments; see docs/memory.md.
//
// One attention head on the virtual device. Each token attends to all before it, page by page, with
// the next page on its way, and the output of a token is the input of the next, so that one wrong
// word would change everything after it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/device_line.hpp"
#include "tools/voice.hpp"

namespace {

using device = tidepool::virtual_device;
using offloader = tidepool::offloader<device>;
using row = std::array<float, 64>;

constexpr int page_tokens = 32;
constexpr int tokens = 640;
constexpr std::size_t page_bytes = 2 * page_tokens * sizeof(row);  // keys, then values

// What the kernels of one sequence work on.
struct head {
  row x{};  // the token, in the end its output
  row sum{};
  float most = 0, weight = 0;

  void start(int token) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = std::sin(0.1F * static_cast<float>(token) + static_cast<float>(i) + x[i]);
    }
    sum = {};
    most = -std::numeric_limits<float>::infinity();
    weight = 0;
  }
  void append(row* page, int slot) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      page[slot][i] = x[x.size() - 1 - i];
      page[page_tokens + slot][i] = 0.5F * x[i];
    }
  }
  // Softmax over pages that come one after the other.
  void attend(const row* page, int count) {
    for (int t = 0; t < count; ++t) {
      float score = 0;
      for (std::size_t i = 0; i < x.size(); ++i) score += x[i] * page[t][i];
      const float top = std::max(most, score);
      const float old = std::exp(most - top);
      const float fresh = std::exp(score - top);
      weight = weight * old + fresh;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum[i] = sum[i] * old + fresh * page[page_tokens + t][i];
      }
      most = top;
    }
  }
  void finish() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = sum[i] / weight;
  }
};

// Full pages visit, one at a time and the next on its way; the open one stays until it is full.
row decode(device& dev, offloader& off) {
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  head h;
  std::vector<tidepool::host_state<device>> full;
  tidepool::buffer<device> open;
  for (int token = 0; token < tokens; ++token) {
    const int slot = token % page_tokens;
    if (slot == 0) {
      full.push_back(off.state_on_host(page_bytes, "page"));
      open = full.back().create(stream);
    }
    dev.launch(stream, 500, [&h, token, slot, page = open.as<row>()] {
      h.start(token);
      h.append(page, slot);
    });
    for (std::size_t p = 0; p + 1 < full.size(); ++p) {
      auto page = full[p].fetch(stream);
      if (p + 2 < full.size()) full[p + 1].prefetch();
      dev.launch(stream, 2000, [&h, at = page.as<row>()] { h.attend(at, page_tokens); });
      page.reset(stream);  // only read: nothing to write back
    }
    dev.launch(stream, 2000, [&h, slot, page = open.as<row>()] {
      h.attend(page, slot + 1);
      h.finish();
    });
    if (slot + 1 == page_tokens) full.back().write_back(open, stream);
  }
  dev.synchronize();
  return h.x;
}

// The same with everything at hand, as the host would compute it.
row reference() {
  head h;
  std::vector<std::vector<row>> pages;
  for (int token = 0; token < tokens; ++token) {
    const int slot = token % page_tokens;
    if (slot == 0) pages.emplace_back(2 * page_tokens);
    h.start(token);
    h.append(pages.back().data(), slot);
    for (std::size_t p = 0; p + 1 < pages.size(); ++p) h.attend(pages[p].data(), page_tokens);
    h.attend(pages.back().data(), slot + 1);
    h.finish();
  }
  return h.x;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"decode", "Decodes with a key-value cache that lives on the host."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    tools::print_device<device>();
    device dev;
    tidepool::options options;
    options.memory = tidepool::memory_kind::arena;
    options.device_budget = 3 * page_bytes;  // the open page, the one that is read, the next
    options.host_step = std::size_t{1} << 20;
    offloader off(dev, options);
    const bool equal = decode(dev, off) == reference();
    const auto seen = off.counters();
    std::printf("%d tokens: %zu KiB of cache, %zu KiB on the device, %.1f MiB fetched; %s\n",
                tokens, seen.live_peak_without / 1024, seen.device_peak / 1024,
                static_cast<double>(seen.state_fetched) / (1 << 20),
                equal ? "the same bits as with all of it at hand" : "WRONG");
    return equal ? 0 : 1;
  });
}
