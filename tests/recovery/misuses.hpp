/// Mistakes that a trainer may make between any two calls of a step.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "recovery/sweep.hpp"

namespace tidepool::test {

struct misuse {
  std::string_view name;
  kind_of_error wanted;
  /// Makes it. False where there is nothing to do wrong at this point.
  std::function<bool(recovery_trainer&)> make;
};

namespace detail {

// A pass that trains, or none; what is done with the latter is a mistake as well.
inline recovery_trainer::slot* trains(recovery_trainer& t) {
  auto& at = *t.slots.front();
  return at.evaluation && at.open ? nullptr : &at;
}

template <class Make>
[[nodiscard]] auto with_pass(const Make& make) {
  return [make](recovery_trainer& t) {
    auto* const at = trains(t);
    if (at == nullptr) return false;
    make(t, *at);
    return true;
  };
}
template <class Make>
[[nodiscard]] auto always(const Make& make) {
  return [make](recovery_trainer& t) {
    make(t);
    return true;
  };
}

}  // namespace detail

[[nodiscard]] inline std::vector<misuse> misuses() {
  using detail::always;
  using detail::with_pass;
  using trainer = recovery_trainer;
  using slot = trainer::slot;
  constexpr auto wrong = kind_of_error::misuse;
  std::vector<misuse> all{
      {"restore of what was never committed", wrong, with_pass([](trainer& t, slot& at) {
         trainer::buffer none;
         at.chunk.restore(t.fc1, 77, t.back(), none);
       })},
      {"restore of another number of handles", wrong, with_pass([](trainer& t, slot& at) {
         trainer::buffer none[3];
         at.chunk.restore(t.fc1, 0, t.back(), none[0], none[1], none[2]);
       })},
      {"commit of an empty handle", wrong, with_pass([](trainer& t, slot& at) {
         trainer::buffer none;
         at.chunk.commit(t.fc1, 50, t.main(), none);
       })},
      {"commit of another offloader's handle", wrong, with_pass([](trainer& t, slot& at) {
         std::optional<trainer::offloader> other(std::in_place, t.dev, small_options());
         auto foreign = other->allocate(64, t.main());
         std::exception_ptr found;
         try {  // an exception that destroys an offloader drops what its streams were given
           at.chunk.commit(t.fc1, 51, t.main(), foreign);
         } catch (...) {
           found = std::current_exception();
         }
         foreign.reset(t.main());
         other.reset();
         if (found) std::rethrow_exception(found);
       })},
      {"start_reload of what was never committed", wrong,
       with_pass([](trainer& t, slot& at) { at.chunk.start_reload(t.attn, 88); })},
      {"forget of what was never committed", wrong,
       with_pass([](trainer& t, slot& at) { at.chunk.forget(t.attn, 88); })},
      {"a call of a pass that was never begun", wrong, always([](trainer& t) {
         trainer::offloader::chunk none;
         trainer::buffer empty;
         none.commit(t.fc1, 0, t.main(), empty);
       })},
      {"a handle given twice", wrong,
       [](trainer& t) {
         auto& at = *t.slots.front();
         auto& x = at.saved.front().x;
         // What stays by plan may be given twice.
         const bool planned = t.plan.opts.policy == policy_kind::automatic;
         if (!x || planned || detail::trains(t) == nullptr) return false;
         at.chunk.commit(t.fc1, 52, t.main(), x, x);
         return true;
       }},
      {"finish with a group that was not restored", wrong,
       [](trainer& t) {
         auto& at = *t.slots.front();
         if (at.away == 0) return false;
         at.chunk.finish();
         return true;
       }},
      {"end_step with an open pass", wrong,
       [](trainer& t) {
         if (!t.slots.front()->open) return false;
         t.off.end_step();
         return true;
       }},
      {"the address of what has left", wrong,
       [](trainer& t) {
         auto& at = *t.slots.front();
         auto& x = at.saved.front().x;
         if (at.away == 0 || x) return false;
         static_cast<void>(x.data());
         return true;
       }},
      {"more than any memory", wrong, always([](trainer& t) {
         static_cast<void>(t.off.allocate<double>(static_cast<std::size_t>(-1) / 4, t.main()));
       })},
      {"adopt of nothing", wrong,
       always([](trainer& t) { static_cast<void>(t.off.adopt(nullptr, 64, t.main(), {})); })},
      {"a wait for an empty handle", wrong, always([](trainer& t) {
         const trainer::buffer none;
         t.off.wait_for(none, t.main());
       })},
      {"fetch of a state that is none", wrong, always([](trainer& t) {
         host_state<trainer::device_type> none;
         static_cast<void>(none.fetch(t.main()));
       })},
      {"create of a state that visits", wrong,
       [](trainer& t) {
         if (!t.visiting) return false;
         static_cast<void>(t.state.create(t.main()));
         return true;
       }},
      {"done of a layer that was never written", wrong,
       always([](trainer& t) { t.slots.front()->group.done(90, t.main()); })},
      {"load of an unknown key", wrong,
       always([](trainer& t) { static_cast<void>(t.slots.front()->keys.load(12345, t.main())); })},
      {"recompute of what was never discarded", wrong,
       [](trainer& t) {
         auto* const at = detail::trains(t);
         if (at == nullptr || !t.plan.recomputed) return false;
         trainer::buffer none;
         at->chunk.restore_or_recompute(
             "layernorm", 70, t.back(), [] {}, none);
         return true;
       }},
      {"a capture inside another", wrong,
       [](trainer& t) {
         if (!t.base().capturing(t.main())) return false;
         static_cast<void>(t.off.capture(t.main(), [] {}));
         return true;
       }},
      {"a module that nobody knows", kind_of_error::unknown_module,
       always([](trainer& t) { static_cast<void>(t.off.module("core_atn")); })},
      {"options that cannot be", kind_of_error::option, always([](trainer& t) {
         auto opts = small_options();
         opts.memory = memory_kind::arena;
         trainer::offloader other(t.dev, opts);
       })},
      {"an arena that no device has", kind_of_error::budget, always([](trainer& t) {
         trainer::offloader other(t.dev, arena_options(std::size_t{1} << 45));
       })},
      {"a plan of another step", kind_of_error::profile, always([](trainer& t) {
         plan::profile other;
         other.modules = {"expert_fc1"};
         other.chunks.emplace_back().groups.push_back({});
         t.off.follow({}, other);
       })},
  };
  return all;
}

}  // namespace tidepool::test
