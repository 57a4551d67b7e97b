// Steps of several streams that become graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "stress_groups.hpp"
#include "stress_states.hpp"

namespace explore::stress {

class graphs {
 public:
  graphs(supplies& from, states& visitors) : from_(&from), visitors_(&visitors) {}

  /// Captures a step and launches it. Nothing else is open.
  void make(std::uint32_t draw) {
    const auto eager = [&] {
      return from_->attempt([&] {
        step(draw, false);
        from_->off().end_step();
      });
    };
    if (!from_->attempt([&] { from_->off().end_step(); })) return;
    for (auto count = from_->warm_up_steps(); count > 0; --count) {
      if (!eager()) return;
    }
    // It may have been larger than any step before it, or smaller.
    const auto warms_up = [&] { return from_->off().profile().chunks.empty(); };
    for (int tries = 12; tries > 0 && warms_up(); --tries) {
      if (!eager()) return;
    }
    visitors_->look_ahead();
    // Streams that the offloader meets inside.
    const auto& opts = from_->off().settings();
    const auto most = !opts.peer_budget ? most_streams : most_streams - (opts.pack.empty() ? 1 : 2);
    while (from_->desk().stream_count() < most && from_->once_in(2)) {
      from_->desk().add_stream();
    }
    const auto origin = from_->any_stream();
    const bool made = from_->attempt(
        [&] {
          made_.push_back(
              from_->off().capture(from_->desk().on(origin), [&] { body(origin, draw); }));
        },
        "would have to be allocated");
    if (!made) return;
    for (auto count = 1 + from_->any(3); count > 0; --count) {
      launch();
      if (from_->once_in(3)) {
        from_->attempt([&] { from_->give_back(from_->make()); });
      }
    }
    if (from_->once_in(2)) eager();
  }

  void launch() {
    if (made_.empty()) return;
    auto& which = made_[from_->any(made_.size())];
    const auto stream = from_->any_stream();
    launches_ +=
        from_->attempt([&] { which.launch(from_->desk().on(stream)); }, "memory is not as it was")
            ? 1
            : 0;
  }

  [[nodiscard]] std::size_t launches() const { return launches_; }
  void clear() { made_.clear(); }

 private:
  static constexpr std::size_t most_streams = 5;

  void body(std::size_t origin, std::uint32_t draw) {
    auto& desk = from_->desk();
    desk.captured_on(origin);
    try {
      step(draw, true);
      desk.join_capture();
      desk.next_round(origin);
    } catch (...) {
      desk.captured_on({});
      throw;
    }
    desk.captured_on({});
  }

  // Gives back all that it takes. The same draw needs the same memory each time.
  void step(std::uint32_t draw, bool in_graph) {
    from_->choose(draw);
    auto chunk = from_->off().begin();
    std::vector<group> saved(1 + from_->any(3));
    try {
      forward(chunk, saved, in_graph);
      backward(chunk, saved);
      visitors_->visit_in_graph();
      chunk.finish();
    } catch (...) {
      for (auto& each : saved) from_->give_back(std::move(each.saved));
      throw;
    }
  }

  void forward(offloader::chunk& chunk, std::vector<group>& saved, bool in_graph) {
    for (std::size_t layer = 0; layer < saved.size(); ++layer) {
      auto& each = saved[layer];
      constexpr group::manner ways[]{group::manner::plain, group::manner::plain,
                                     group::manner::by_hand, group::manner::discarded};
      each.how = ways[from_->any(std::size(ways))];
      each.saved.push_back(from_->make(in_graph));
      group_calls(*from_, chunk).save(each, 0, static_cast<int>(layer), from_->any_stream());
      if (each.how == group::manner::by_hand) from_->give_back(each.saved[0]);
      if (from_->once_in(3)) from_->give_back(from_->allocate(from_->any_stream()));
    }
    chunk.end_forward();
  }

  void backward(offloader::chunk& chunk, std::vector<group>& saved) {
    for (auto layer = saved.size(); layer-- > 0;) {
      auto& each = saved[layer];
      group_calls(*from_, chunk).bring_back(each, 0, static_cast<int>(layer), from_->any_stream());
      if (!from_->once_in(4)) from_->desk().check(each.saved[0], from_->any_stream());
      from_->give_back(std::move(each.saved));
    }
  }

  supplies* from_;
  states* visitors_;
  std::vector<tp::graph<device>> made_;
  std::size_t launches_ = 0;
};

}  // namespace explore::stress
