// Runs a stress program once over the public API and judges what it issued.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stress_graphs.hpp"
#include "stress_passes.hpp"
#include "stress_states.hpp"

namespace explore::stress {

class runner {
 public:
  runner(const program& what, std::optional<tp::join_site> without) : program_(what), from_(what) {
    if (without) from_.desk().dev().leave_out(*without);
  }

  void run() {
    from_.open();
    for (const auto& each : program_.actions) {
      from_.choose(each.draw);
      if (each.what == action::kind::fail) {
        fail();
        continue;
      }
      from_.desk().now(describe(each));
      act(each);
      if (from_.problem()) break;
    }
    from_.desk().now("the end");
    end();
    judge();
  }

  [[nodiscard]] const violation& problem() const { return from_.problem(); }
  [[nodiscard]] const recording& seen() const { return from_.desk().seen(); }
  [[nodiscard]] std::size_t refused() const { return from_.refused(); }
  [[nodiscard]] std::size_t failed() const { return from_.failed(); }
  [[nodiscard]] std::size_t copies() const { return from_.desk().copies(); }
  [[nodiscard]] std::size_t launches() const { return graphs_.launches(); }

 private:
  void act(const action& each) {
    using kind = action::kind;
    switch (each.what) {
      case kind::begin:
        return passes_.begin();
      case kind::commit:
        return passes_.commit(shapes_vary_);
      case kind::discard:
        return passes_.discard();
      case kind::end_forward:
        return passes_.end_forward();
      case kind::start_reload:
        return passes_.start_reload();
      case kind::restore:
        return passes_.restore(shapes_vary_);
      case kind::finish:
        return passes_.finish();
      case kind::abandon:
        return passes_.abandon();
      case kind::evaluate:
        return evaluate();
      case kind::end_step:
        passes_.clear();
        from_.attempt([&] { from_.off().end_step(); });
        return;
      case kind::make:
        from_.attempt([&] { shapes_vary_.push_back(from_.make()); });
        return;
      case kind::give_back:
        return give_back();
      case kind::hand_on:
        from_.attempt([&] { from_.give_back(from_.allocate(from_.any_stream())); });
        return;
      case kind::visit:
        return states_.visit(shapes_vary_);
      case kind::capture:
        passes_.clear();
        from_.give_back(std::exchange(shapes_vary_, {}));
        states_.recall();
        return graphs_.make(each.draw);
      case kind::launch:
        return graphs_.launch();
      case kind::synchronize:
        from_.attempt([&] { from_.desk().dev().synchronize(); });
        return;
      case kind::fail:
      case kind::count:
        return;
    }
  }

  // One of the next calls of the device.
  void fail() {
    using tp::test::call_kind;
    using tp::test::manner;
    constexpr call_kind often[]{call_kind::record, call_kind::wait, call_kind::copy};
    constexpr call_kind seldom[]{call_kind::make_event,  call_kind::elapsed,
                                 call_kind::synchronize, call_kind::begin_capture,
                                 call_kind::end_capture, call_kind::replay};
    constexpr call_kind memory[]{call_kind::try_allocate, call_kind::try_allocate_host,
                                 call_kind::try_allocate_peer};
    const auto kinds = std::size(memory) - (program_.options.peer_budget ? 0 : 1);
    const auto index = 1 + from_.any(1 + from_.any(20));
    auto& dev = from_.desk().dev();
    if (from_.once_in(6)) {
      dev.arm({memory[from_.any(kinds)], index, manner::refused});
    } else if (from_.once_in(6)) {
      dev.arm({seldom[from_.any(std::size(seldom))], 1, manner::once});
    } else if (!program_.options.pack.empty() && from_.once_in(3)) {
      const auto kind = from_.once_in(2) ? call_kind::pack : call_kind::unpack;
      dev.arm({kind, 1 + from_.any(2), manner::once});
    } else {
      dev.arm({often[from_.any(std::size(often))], index, manner::once});
    }
  }

  void evaluate() {
    from_.attempt([&] {
      auto chunk = from_.off().begin({.forward_only = true});
      auto x = from_.make();
      const auto stream = from_.any_stream();
      from_.desk().await(stream, x);
      chunk.commit<"core_attn">(0, from_.desk().on(stream), x.whole);
      from_.desk().check(x, from_.any_stream());
      from_.give_back(std::move(x));
      chunk.finish();
    });
  }

  void give_back() {
    if (shapes_vary_.empty()) return;
    auto done = from_.take_any(shapes_vary_);
    from_.desk().check(done, from_.any_stream());
    from_.give_back(std::move(done));
  }

  // The offloader goes before its handles or behind them.
  void end() {
    from_.desk().dev().disarm();
    from_.choose(static_cast<std::uint32_t>(program_.seed));
    if (from_.once_in(2)) from_.close();
    passes_.clear();
    from_.give_back(std::exchange(shapes_vary_, {}));
    states_.clear();
    graphs_.clear();
    from_.close();
    from_.attempt([&] { from_.desk().dev().synchronize(); });
  }

  void judge() {
    const auto& left = from_.desk().dev().held();
    if (left != tp::test::faulty_device<watched_device>::holdings{}) {
      from_.blame("leak", std::to_string(left.device_blocks) + " device blocks, " +
                              std::to_string(left.host_blocks) + " host blocks, " +
                              std::to_string(left.peer_blocks) + " blocks of the neighbour, " +
                              std::to_string(left.streams) + " streams, " +
                              std::to_string(left.events) + " events and " +
                              std::to_string(left.graphs) + " graphs were not given back");
    }
    const auto words = disagreement(from_.desk().dev(), seen().first_race().has_value());
    if (!words.empty()) from_.blame("judges", words);
    if (const auto& found = seen().first_race()) {
      from_.blame("race", describe(seen().ops()[found->first]) + "\n    and " +
                              describe(seen().ops()[found->second]));
    }
    if (from_.desk().wrong() > 0) {
      from_.blame("content", std::to_string(from_.desk().wrong()) + " wrong words");
    }
  }

  program program_;
  supplies from_;
  states states_{from_};
  graphs graphs_{from_, states_};
  std::vector<tensor> shapes_vary_;  // of no chunk
  passes passes_{from_};
};

}  // namespace explore::stress
