// Programs that a trainer may write but hardly does: drawn from a seed, as data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tidepool/options.hpp"

namespace explore::stress {

/// As with `explore::action`, any list is a program.
struct action {
  enum class kind : std::uint8_t {
    begin,  // a chunk, of which several are open at a time
    commit,
    discard,
    end_forward,
    start_reload,
    restore,  // or recompute
    finish,
    abandon,    // a chunk, with what it saved
    evaluate,   // a whole forward-only pass
    end_step,   // chunks that are open are abandoned
    make,       // a tensor of no chunk, which a later commit may take or share
    give_back,  // one of those
    hand_on,    // memory that one stream is handed and another gives back
    visit,      // state on the host comes to the device or leaves it
    capture,    // a step of its own becomes a graph and is launched
    launch,     // the graph once more, if that is still allowed
    synchronize,
    fail,  // a call of the device in the next action
    count
  };

  kind what{};
  std::uint32_t draw = 0;  // of the choices inside
};

struct program {
  std::uint64_t seed = 0;
  tidepool::options options;
  std::uint64_t order_seed = 0;  // of the device; 0: the order of the clock
  std::size_t streams = 1;
  std::vector<action> actions;
};

inline std::string describe(const action& each) {
  constexpr const char* names[]{"begin",   "commit",      "discard", "end forward", "start reload",
                                "restore", "finish",      "abandon", "evaluate",    "end step",
                                "make",    "give back",   "hand on", "visit",       "capture",
                                "launch",  "synchronize", "fail"};
  static_assert(std::size(names) == static_cast<std::size_t>(action::kind::count));
  return names[static_cast<std::size_t>(each.what)];
}

/// What the next program is to be.
class generator {
 public:
  explicit generator(std::uint64_t seed) : random_(seed * 2654435761U + 29) { out_.seed = seed; }

  [[nodiscard]] program make() {
    out_.streams = 1 + any(3);
    if (once_in(2)) out_.order_seed = random_();
    choose_options();
    const bool fails = once_in(2);
    for (auto left = 40 + any(120); left > 0; --left) {
      if (fails && once_in(6)) add(action::kind::fail);
      add(next());
    }
    return std::move(out_);
  }

 private:
  std::size_t any(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
  bool once_in(std::size_t count) { return any(count) == 0; }
  void add(action::kind what) {
    out_.actions.push_back({what, static_cast<std::uint32_t>(random_())});
  }

  action::kind next() {
    using kind = action::kind;
    struct share {
      kind what;
      std::size_t weight;
    };
    static constexpr std::array<share, 17> shares{{{kind::begin, 8},
                                                   {kind::commit, 24},
                                                   {kind::discard, 4},
                                                   {kind::end_forward, 8},
                                                   {kind::start_reload, 3},
                                                   {kind::restore, 26},
                                                   {kind::finish, 8},
                                                   {kind::abandon, 1},
                                                   {kind::evaluate, 2},
                                                   {kind::end_step, 6},
                                                   {kind::make, 6},
                                                   {kind::give_back, 4},
                                                   {kind::hand_on, 6},
                                                   {kind::visit, 10},
                                                   {kind::capture, 1},
                                                   {kind::launch, 1},
                                                   {kind::synchronize, 1}}};
    std::size_t all = 0;
    for (const auto& each : shares) all += each.weight;
    auto at = any(all);
    for (const auto& each : shares) {
      if (at < each.weight) return each.what;
      at -= each.weight;
    }
    return kind::begin;
  }

  void choose_options() {
    auto& o = out_.options;
    o.offload_modules = {"core_attn", "expert_fc1", "moe_act"};
    o.recompute_modules = {"layernorm"};
    o.min_tensor_elements = once_in(4) ? 200 : 1;
    o.margin = once_in(3);
    o.fraction = once_in(4) ? 0.5 : 1;
    o.reload_ahead = any(5);
    if (once_in(3)) o.max_inflight = any(3);
    if (once_in(5)) o.copy_piece = 160;
    o.device_step = 1024;
    o.host_step = once_in(2) ? 512 : 4096;
    o.host_budget = once_in(3) ? 2048 * (2 + any(4)) : 64 * 1024;
    switch (any(4)) {
      case 0:
        o.memory = tidepool::memory_kind::slots;
        o.slots = {{512, 5 + any(10)}, {1024, 4 + any(8)}};
        break;
      case 1:
        if (once_in(2)) o.device_budget = 1024 * (6 + any(14));
        break;
      default:
        o.memory = tidepool::memory_kind::arena;
        o.device_budget = 512 * (8 + any(24));
    }
    if (o.memory == tidepool::memory_kind::arena && once_in(2)) {
      o.policy = tidepool::policy_kind::automatic;
      o.timed_step = once_in(2) ? 2 : 3;
      o.fraction = 1;  // the plan decides
    }
    // Undrawn: what a seed stands for stays as it is.
    o.poison = out_.seed % 8 == 5;
    if (out_.seed % 5 == 2) {
      o.pack = {"all"};
      if (o.device_budget) *o.device_budget *= 2;
      *o.host_budget *= 2;
      for (auto& each : o.slots) each.bytes *= 2;
    }
    if (out_.seed % 3 == 1) {
      o.places = {tidepool::place_kind::peer, tidepool::place_kind::host};
      o.peer_budget = 512 * (2 + out_.seed / 3 % 24);
    }
  }

  std::mt19937_64 random_;
  program out_;
};

}  // namespace explore::stress
