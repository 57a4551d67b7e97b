// Training programs as data: options and a list of actions, drawn from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/parse.hpp"

namespace explore {

/// Any list of actions is a program: one that does not apply where it stands does nothing. So a
/// failing program can be made shorter by leaving actions out.
struct action {
  enum class kind : std::uint8_t {
    begin,          // a forward pass
    forward_layer,  // allocate, write, commit
    end_forward,
    backward_layer,  // restore, check, reset
    finish,          // or abandon, when something is left
    evaluate,        // a whole forward-only pass
    end_step,
    switch_stream,  // the trainer goes on on another compute stream
    capture,        // one whole step becomes a graph
    launch,
    start_reload,
    drop_chunk,
    side_work,  // a tensor of its own on a stream that the trainer never joins
  };

  kind what{};
  int microbatch = 0;
  int layer = 0;
  std::uint32_t draw = 0;  // of the choices inside
};

struct program {
  std::uint64_t seed = 0;
  tidepool::options options;
  int layers = 2;
  bool planned = false;        // follows some plan from its first step on
  bool adopts = false;         // tensors in memory of the trainer's own allocators
  bool given = false;          // one of them is the memory of the offloader
  bool forgets = false;        // some groups, instead of restoring them
  std::size_t peer_bytes = 0;  // that the neighbour has; 0: all that is asked for
  std::size_t lent_bytes = 0;  // that another device lends, instead of having a neighbour
  bool packs = false;          // all tensors, some of them larger than a packed record
  bool counts = false;         // some tensors have rows that kernels count
  std::vector<action> actions;
};

inline std::string describe(const action& each) {
  constexpr const char* names[]{"begin",    "forward layer", "end forward",  "backward layer",
                                "finish",   "evaluate",      "end step",     "switch stream",
                                "capture",  "launch",        "start reload", "drop chunk",
                                "side work"};
  std::string text = names[static_cast<std::size_t>(each.what)];
  using kind = action::kind;
  if (each.what == kind::forward_layer || each.what == kind::backward_layer ||
      each.what == kind::start_reload) {
    text += " " + std::to_string(each.layer);
  }
  if (each.what != kind::end_step && each.what != kind::switch_stream &&
      each.what != kind::capture && each.what != kind::launch && each.what != kind::side_work) {
    text += ", microbatch " + std::to_string(each.microbatch);
  }
  return text;
}

class generator {
 public:
  explicit generator(std::uint64_t seed) : random_(seed * 2654435761U + 17) { out_.seed = seed; }

  [[nodiscard]] program make() {
    choose_options();
    const int depth = 1 + any(3);
    const int chunks = once_in(3) ? 2 : 1;
    const int microbatches = (depth + any(2)) * chunks;
    const bool two_streams = once_in(5);
    side_ = once_in(4);
    const int steps = 2 + any(2);
    for (int s = 0; s < steps; ++s) {
      if (once_in(4)) add(action::kind::evaluate, 90);
      step(depth * chunks, microbatches, two_streams);
    }
    const bool captures = once_in(4);
    if (captures) graph();
    borrow(captures);
    go_to_places();
    borrow_memory();
    pack();
    out_.counts = once_in(4);
    return std::move(out_);
  }

  /// The actions of one step, as inside a graph.
  [[nodiscard]] static std::vector<action> plain_step(std::uint32_t draw, int layers) {
    generator inner(draw);
    inner.out_.layers = layers;
    inner.exotic_ = false;
    inner.step(1 + inner.any(2), 1 + inner.any(2), false);
    return std::move(inner.out_.actions);
  }

 private:
  int any(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  bool once_in(int count) { return any(count) == 0; }
  void add(action::kind what, int microbatch = 0, int layer = 0) {
    out_.actions.push_back({what, microbatch, layer, static_cast<std::uint32_t>(random_())});
  }

  void choose_options() {
    auto& o = out_.options;
    out_.layers = 1 + any(3);
    o.offload_modules = {"core_attn"};
    if (!once_in(3)) o.offload_modules.push_back("expert_fc1");
    if (once_in(3)) o.offload_modules.push_back("moe_act");
    o.min_tensor_elements = once_in(6) ? 40 : 1;
    o.recompute_modules = {"layernorm"};
    o.margin = once_in(3);
    o.fraction = once_in(6) ? 0.5 : 1;
    o.reload_ahead = static_cast<std::size_t>(any(5));
    if (once_in(5)) o.reload_ahead_bytes = 256 * (1 + any(6));
    if (once_in(3)) o.max_inflight = any(3);
    if (once_in(6)) o.max_inflight_bytes = 256 * (1 + any(8));
    if (once_in(5)) o.copy_piece = 160;
    o.device_step = 1024;
    o.host_step = once_in(2) ? 512 : 4096;
    // A budget that is met makes host blocks be reused while their reload is under way.
    o.host_budget = once_in(3) ? 2048 * (1 + any(4)) : 64 * 1024;
    switch (any(4)) {
      case 0:
        o.memory = tidepool::memory_kind::slots;
        o.slots = {{512, static_cast<std::size_t>(5 + any(10))},
                   {1024, static_cast<std::size_t>(4 + any(8))}};
        break;
      case 1:
        if (once_in(2)) o.device_budget = 1024 * (8 + any(14));
        break;
      default:
        o.memory = tidepool::memory_kind::arena;
        o.device_budget = 512 * (8 + any(24));
    }
    if (o.device_budget && once_in(4)) {
      o.policy = tidepool::policy_kind::automatic;
      o.timed_step = 2 + any(2);
      o.fraction = 1;  // the plan decides
    } else {
      out_.planned = once_in(3);
    }
  }

  void forward(int mb) {
    add(action::kind::begin, mb);
    for (int l = 0; l < out_.layers; ++l) add(action::kind::forward_layer, mb, l);
    if (exotic_ && side_ && once_in(3)) add(action::kind::side_work);
    add(action::kind::end_forward, mb);
    if (exotic_ && once_in(8)) add(action::kind::start_reload, mb, any(out_.layers));
  }
  void backward(int mb) {
    if (exotic_ && once_in(25)) return add(action::kind::drop_chunk, mb);
    for (int l = out_.layers; l-- > 0;) add(action::kind::backward_layer, mb, l);
    add(action::kind::finish, mb);
  }

  void step(int depth, int microbatches, bool two_streams) {
    int begun = 0;
    for (; begun < depth && begun < microbatches; ++begun) forward(begun);
    for (int done = 0; done < microbatches; ++done) {
      if (two_streams) add(action::kind::switch_stream);
      if (exotic_ && once_in(10)) add(action::kind::evaluate, 91);
      backward(done);
      if (begun < microbatches) forward(begun++);
    }
    add(action::kind::end_step);
  }

  // Drawn last, so that everything else is as in a program without it.
  void borrow(bool captures) {
    out_.forgets = once_in(5);
    if (!once_in(3)) return;
    auto& o = out_.options;
    out_.adopts = true;
    if (!once_in(4)) o.borrowed_slack = 512 * any(5);
    if (captures || once_in(2)) return;  // no graph knows memory that goes back
    out_.given = true;
    o.memory = tidepool::memory_kind::pool;
    o.slots.clear();
  }

  // Drawn behind all others for the same reason.
  void go_to_places() {
    if (!once_in(3)) return;
    using tidepool::place_kind;
    auto& o = out_.options;
    o.places = {place_kind::peer};
    // Blocks of a neighbour alone are reused while their reload is under way, as the host's are.
    o.peer_budget = 512 * (1 + any(40));
    if (once_in(4)) return;
    o.places.insert(once_in(5) ? o.places.begin() : o.places.end(), place_kind::host);
    if (once_in(4)) out_.peer_bytes = 512 * (1 + any(10));
  }

  // The same.
  void borrow_memory() {
    auto& o = out_.options;
    if (o.places.front() != tidepool::place_kind::peer || !once_in(3)) return;
    o.places = {tidepool::place_kind::host};
    o.peer_budget.reset();
    out_.peer_bytes = 0;
    out_.lent_bytes = 4096 * (1 + any(4));
  }

  // The same. Tensors are twice as large.
  void pack() {
    if (!once_in(3)) return;
    auto& o = out_.options;
    out_.packs = true;
    o.pack = {"all"};
    if (o.device_budget) *o.device_budget *= 2;
    *o.host_budget *= 2;
    for (auto& each : o.slots) each.bytes *= 2;
  }

  void graph() {
    add(action::kind::capture);
    if (once_in(2)) step(1, 1, false);
    for (int launches = 1 + any(3); launches > 0; --launches) {
      add(action::kind::launch);
      if (side_) add(action::kind::side_work);
    }
    if (once_in(2)) {
      step(1, 1 + any(2), once_in(3));
      add(action::kind::launch);
    }
    if (once_in(3)) {
      add(action::kind::switch_stream);
      step(1, 1, false);
    }
  }

  std::mt19937_64 random_;
  program out_;
  bool exotic_ = true;
  bool side_ = false;
};

}  // namespace explore
