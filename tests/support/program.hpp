/// Small training programs, drawn from a seed, that check every word they saved.
///
/// The kernels of forward write a pattern that depends on the weights; those of backward compare
/// and add up gradients in single precision, in stream order; a step ends with an update of the
/// weights. So data that comes back wrong is counted, and changes the weights for good.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rig.hpp"
#include "schedule.hpp"

namespace tidepool::test {

struct program {
  std::uint64_t seed = 1;  ///< of sizes, durations and orders
  options opts = small_options();
  machine model;
  std::vector<std::string> modules{"qkv_linear", "core_attn", "expert_fc1"};
  int steps = 2;
  int microbatches = 4;
  int depth = 2;         ///< microbatches in flight
  int model_chunks = 1;  ///< of an interleaved pipeline
  int layers = 2;
  int tensors = 2;           ///< of a group, at most 3
  std::size_t smallest = 4;  ///< bytes of a tensor
  std::size_t largest = 3000;
  bool fixed_shapes = false;  ///< otherwise they change with every microbatch
  bool two_streams = false;   ///< backward passes run on a stream of their own
  bool shuffled = false;      ///< restores in any order, not in reverse
  bool shares = false;        ///< a layer's modules save one tensor in common
  bool evaluates = false;     ///< a forward-only pass before each forward pass
  std::vector<join_site> left_out;
  tidepool::detail::file_opener file = nullptr;  ///< as in `parts`
};

struct outcome {
  std::size_t wrong = 0;               ///< words that were not what had been written
  std::vector<std::uint32_t> weights;  ///< their exact bits after the last step
  trace::counters counters;
  double clock_ns = 0;
};

namespace detail {

class program_run {
 public:
  explicit program_run(const program& plan)
      : plan_(plan), random_(plan.seed), desk_(plan.model), backward_(desk_.dev.make_stream()) {
    weights_.resize(static_cast<std::size_t>(plan.layers * plan.model_chunks) * plan.modules.size(),
                    1.0F);
    gradients_.resize(weights_.size());
    for (const auto site : plan.left_out) desk_.dev.leave_out(site);
  }

  outcome run() {
    offloader off(desk_.dev, plan_.opts, {.file = plan_.file});
    off.on_report([](std::string_view) {});
    std::vector<module_id> ids;
    for (const auto& name : plan_.modules) ids.push_back(off.module(name));
    for (int step = 0; step < plan_.steps; ++step) {
      for (const auto& each : one_f_one_b(plan_.microbatches, plan_.depth, plan_.model_chunks)) {
        const std::pair key(each.microbatch, each.model_chunk);
        if (each.backward) {
          backward(open_.at(key));
          open_.erase(key);
        } else {
          if (plan_.evaluates) evaluate(off, ids, step, each);
          forward(open_[key], off, ids, step, each);
        }
      }
      off.end_step();
      update();
    }
    outcome result;
    desk_.dev.synchronize();
    result.wrong = wrong_;
    for (const auto weight : weights_)
      result.weights.push_back(std::bit_cast<std::uint32_t>(weight));
    result.counters = off.counters();
    result.clock_ns = desk_.dev.now_ns();
    return result;
  }

 private:
  using offloader = rig::offloader<>;
  using stream_ref = rig::stream_ref;

  struct group {
    module_id module{};
    int layer = 0;
    std::size_t weight = 0;  // index of the weight behind it
    std::vector<std::uint32_t> tags;
    std::vector<std::size_t> weights;  // behind each of its tensors
    std::vector<std::size_t> words;
    std::vector<rig::buffer> handles;
  };

  struct chunk {
    offloader::chunk open;
    std::vector<group> groups;
  };

  [[nodiscard]] stream_ref forward_stream() const { return desk_.stream(); }
  [[nodiscard]] stream_ref backward_stream() const {
    return plan_.two_streams ? backward_.ref() : desk_.stream();
  }
  [[nodiscard]] double duration() { return 100 + static_cast<double>(random_() % 3000); }

  [[nodiscard]] std::size_t size_of(std::uint32_t tag) const {
    std::mt19937_64 size(plan_.fixed_shapes ? tag % 1000 : tag + 1'000'003 * plan_.seed);
    return plan_.smallest + size() % ((plan_.largest - plan_.smallest) / 4 + 1) * 4;
  }

  // Fills a group with tensors, all of them written.
  void produce(group& into, offloader& off, std::uint32_t tag, const rig::buffer* shared,
               const group* owner) {
    const auto count = 1 + tag % static_cast<std::uint32_t>(plan_.tensors);
    for (std::uint32_t t = 0; t < count; ++t) {
      const auto own = tag * 4 + t;
      const auto bytes = size_of(own);
      auto fresh = off.allocate(bytes, forward_stream());
      write(fresh, own, into.weight);
      into.tags.push_back(own);
      into.weights.push_back(into.weight);
      into.words.push_back(bytes / 4);
      into.handles.push_back(std::move(fresh));
    }
    if (shared == nullptr) return;
    into.tags.push_back(owner->tags.front());
    into.weights.push_back(owner->weight);
    into.words.push_back(owner->words.front());
    into.handles.push_back(shared->share());
  }

  void forward(chunk& into, offloader& off, const std::vector<module_id>& ids, int step,
               const pass& which) {
    into.open = off.begin({which.microbatch, which.model_chunk, false});
    for (int l = 0; l < plan_.layers; ++l) {
      const auto layer = which.model_chunk * plan_.layers + l;
      rig::buffer shared;
      const auto first = into.groups.size();
      for (std::size_t m = 0; m < ids.size(); ++m) {
        into.groups.emplace_back();
        auto& next = into.groups.back();
        next.module = ids[m];
        next.layer = layer;
        next.weight = static_cast<std::size_t>(layer) * ids.size() + m;
        const auto tag =
            static_cast<std::uint32_t>(((step * plan_.microbatches + which.microbatch) *
                                            plan_.layers * plan_.model_chunks +
                                        layer) *
                                       8) +
            static_cast<std::uint32_t>(m);
        produce(next, off, tag, shared ? &shared : nullptr, &into.groups[first]);
        if (plan_.shares && m == 0) shared = next.handles.front().share();
        look(next, forward_stream(), false);
        commit(into.open, next);
      }
      shared.reset(forward_stream());
    }
    into.open.end_forward();
    if (plan_.two_streams) pass_on(forward_stream(), backward_stream());
  }

  void evaluate(offloader& off, const std::vector<module_id>& ids, int step, const pass& which) {
    auto open = off.begin({which.microbatch, which.model_chunk, true});
    for (std::size_t m = 0; m < ids.size(); ++m) {
      group next;
      next.module = ids[m];
      produce(next, off,
              static_cast<std::uint32_t>(100'000 + step * 100) + static_cast<std::uint32_t>(m),
              nullptr, nullptr);
      commit(open, next);
      look(next, forward_stream(), false);
      for (auto& each : next.handles) each.reset(forward_stream());
    }
    open.end_forward();
    open.finish();
  }

  void backward(chunk& of) {
    std::vector<std::size_t> order(of.groups.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    if (plan_.shuffled) std::shuffle(order.begin(), order.end(), random_);
    for (const auto i : order) {
      auto& next = of.groups[i];
      restore(of.open, next);
      look(next, backward_stream(), true);
      for (auto& each : next.handles) each.reset(backward_stream());
    }
    of.open.finish();
  }

  // Makes the weights of the next step.
  void update() {
    pass_on(backward_stream(), forward_stream());
    desk_.dev.launch(forward_stream(), 500, [this] {
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        weights_[i] -= 1e-3F * gradients_[i];
        gradients_[i] = 0;
      }
    });
    pass_on(forward_stream(), backward_stream());
  }

  // The program's own order, of which the offloader knows nothing.
  void pass_on(stream_ref from, stream_ref to) {
    if (from.key() == to.key()) return;
    auto mark = desk_.dev.make_event();
    desk_.dev.record(mark, from);
    desk_.dev.wait(to, mark);
  }

  void commit(offloader::chunk& to, group& which) {
    auto& x = which.handles;
    const auto on = forward_stream();
    switch (x.size()) {
      case 1:
        return to.commit(which.module, which.layer, on, x[0]);
      case 2:
        return to.commit(which.module, which.layer, on, x[0], x[1]);
      case 3:
        return to.commit(which.module, which.layer, on, x[0], x[1], x[2]);
      case 4:
        return to.commit(which.module, which.layer, on, x[0], x[1], x[2], x[3]);
      default:
        throw std::logic_error("a group of that many tensors");
    }
  }
  void restore(offloader::chunk& from, group& which) {
    auto& x = which.handles;
    const auto on = backward_stream();
    switch (x.size()) {
      case 1:
        return from.restore(which.module, which.layer, on, x[0]);
      case 2:
        return from.restore(which.module, which.layer, on, x[0], x[1]);
      case 3:
        return from.restore(which.module, which.layer, on, x[0], x[1], x[2]);
      case 4:
        return from.restore(which.module, which.layer, on, x[0], x[1], x[2], x[3]);
      default:
        throw std::logic_error("a group of that many tensors");
    }
  }

  [[nodiscard]] std::uint32_t word(std::uint32_t tag, std::size_t weight, std::size_t i) const {
    return rig::word(tag, i) ^ std::bit_cast<std::uint32_t>(weights_[weight]);
  }

  void write(const rig::buffer& to, std::uint32_t tag, std::size_t weight) {
    auto* const data = to.as<std::uint32_t>();
    const auto words = to.size() / 4;
    desk_.dev.launch(forward_stream(), duration(), [=, this] {
      for (std::size_t i = 0; i < words; ++i) data[i] = word(tag, weight, i);
    });
  }

  // Compares the tensors of a group; with `learn` they count for its gradient as well.
  void look(const group& which, stream_ref on, bool learn) {
    for (std::size_t t = 0; t < which.handles.size(); ++t) {
      const auto* const data = which.handles[t].template as<std::uint32_t>();
      if (data == nullptr) {
        wrong_ += which.words[t];
        continue;
      }
      const auto tag = which.tags[t];
      const auto words = which.words[t];
      const auto behind = which.weights[t];
      const auto to = which.weight;
      desk_.dev.launch(on, duration(), [=, this] {
        for (std::size_t i = 0; i < words; ++i) {
          if (data[i] != word(tag, behind, i)) ++wrong_;
          if (!learn) continue;
          gradients_[to] = 0.875F * gradients_[to] + 1e-4F * static_cast<float>(data[i] & 0xFFFFU);
        }
      });
    }
  }

  program plan_;
  std::mt19937_64 random_;
  rig desk_;
  rig::device_type::stream backward_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::size_t wrong_ = 0;
  std::map<std::pair<int, int>, chunk> open_;  // by microbatch and model chunk
};

}  // namespace detail

/// Runs a program to its end. Throws what the offloader throws.
[[nodiscard]] inline outcome run(const program& plan) { return detail::program_run(plan).run(); }

/// The same program with nothing offloaded, from a pool without a limit.
[[nodiscard]] inline outcome run_resident(program plan) {
  plan.opts = small_options({});
  return run(plan);
}

}  // namespace tidepool::test
