/// A small training with gradients, in every style that trainers are written in, which an error may
/// meet before each of its calls and in each function that the library calls.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caching_allocator.hpp"
#include "engines.hpp"
#include "heap_fault.hpp"
#include "rig.hpp"
#include "schedule.hpp"
#include "tidepool/keyed.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/plan.hpp"

namespace tidepool::test {

/// In what a trainer keeps what it saves.
enum class keeps : std::uint8_t { handles, layers, keys };

struct training_plan {
  std::string name;
  options opts;
  int depth = 1;
  keeps how = keeps::handles;
  bool recomputed = false;  ///< the second tensor is discarded by name
  bool by_plan = false;     ///< a plan from elsewhere is followed from the second step on
  bool evaluates = false;   ///< a forward-only pass comes first
  bool adopts = false;      ///< the first tensor lies in the trainer's own memory
  bool given = false;       ///< and so does what is reloaded
  bool captured = false;    ///< from the third step on a graph is launched
  bool stateful = false;
  bool views = false;
  bool traced = false;
  bool two_streams = false;
};

/// Passes the library's planner on; `before` is called in each plan that is made.
class watched_planner final : public plan_source {
 public:
  explicit watched_planner(std::function<void()> before) : before_(std::move(before)) {}
  [[nodiscard]] decision make(const recorded_step& recorded, const options& opts) override {
    before_();
    return own_->make(recorded, opts);
  }
  [[nodiscard]] followed_plan follow(const plan::step_plan& made, const plan::profile& recorded,
                                     std::span<const std::string> modules, std::uint64_t enabled,
                                     const options& opts) override {
    return own_->follow(made, recorded, modules, enabled, opts);
  }

 private:
  std::function<void()> before_;
  std::unique_ptr<plan_source> own_ = planner();
};

class recovery_trainer {
 public:
  using device_type = faulty_device<virtual_device>;
  using stream_ref = device_type::stream_ref;
  using offloader = tidepool::offloader<device_type, all_modules>;
  using buffer = offloader::buffer;
  using view = offloader::view;
  using layers_of = layer_group<offloader>;
  using floats = saved_layers<std::uint32_t, offloader>;

  static constexpr int layers = 3;
  static constexpr int microbatches = 3;
  static constexpr std::size_t x_bytes = 1024;
  static constexpr std::size_t y_bytes = 768;
  static constexpr std::size_t words = x_bytes / 4;
  static constexpr view_shape shape{.offset = 64, .width = 32, .rows = 5, .pitch = 96};
  using gradients = std::array<std::uint64_t, layers>;

  struct saved_layer {
    buffer x, y;
    view part;
  };
  // A microbatch in flight.
  struct slot {
    explicit slot(recovery_trainer& owner) : group(owner.off, chunk, "expert_fc1") {}
    offloader::chunk chunk;
    bool open = false;  // the pass, and whether it only evaluates
    bool evaluation = false;
    int away = 0;  // groups that were committed and not restored
    std::array<saved_layer, layers> saved;
    keyed_pass<device_type> keys;
    layers_of group;
    floats x{group}, y{group};
    std::vector<std::uint32_t> hidden = std::vector<std::uint32_t>(words);
  };

  explicit recovery_trainer(const training_plan& of)
      : plan(of), own(dev, compute.ref()), off(dev, of.opts, parts_of()), by_key(off) {
    own.most = 64 * 1024;
    off.on_report([this](std::string_view) { inside(); });
    off.on_measure([this] { inside(); });
    for (int i = 0; i < of.depth; ++i) slots.push_back(std::make_unique<slot>(*this));
    if (of.stateful) state = off.state_on_host(x_bytes, "moments");
    fc1 = off.module("expert_fc1");
    attn = off.module("core_attn");
  }

  recovery_trainer(const recovery_trainer&) = delete;
  recovery_trainer& operator=(const recovery_trainer&) = delete;
  ~recovery_trainer() {
    try {  // kernels refer to what goes
      base().synchronize();
    } catch (const error&) {
    }
  }

  // What tests hang in. The first may throw anything, the second as well.
  std::function<void()> before = [] {};    ///< each call of the library
  std::function<void()> callback = [] {};  ///< each function that the library calls

  void step(int number) {
    batch = number;
    if (!plan.captured || done < 2) {
      eager_step();
    } else {
      if (!made) made.emplace(capture());
      call([&] { made->launch(main()); });
    }
    ++done;
    if (plan.by_plan && done == 1) follow();
  }

  /// The pass that an error ended is given up, and what it left behind is dropped.
  void give_up(bool ends_step) {
    order(back(), main());                // kernels of the broken step may still run there
    if (made && ends_step) made.reset();  // or the graph is launched again
    for (auto& each : slots) {
      each->chunk = {};
      each->keys = {};
      each->open = false;
      each->away = 0;
      each->group.reset(main());
      for (auto& at : each->saved) {
        at.part.reset(main());
        at.x.reset(main());
        at.y.reset(main());
      }
    }
    visiting.reset(main());
    if (tracing) static_cast<void>(off.finish_trace());
    tracing = false;
    if (ends_step) off.end_step();
  }

  /// False where `end_step` alone is missing: then the step has to be ended.
  [[nodiscard]] bool in_a_pass() const {
    return std::any_of(slots.begin(), slots.end(), [](const auto& each) { return each->open; });
  }

  /// Of the latest step, once all has run.
  [[nodiscard]] gradients result() {
    base().synchronize();
    return sums;
  }

  [[nodiscard]] stream_ref main() const { return compute.ref(); }
  [[nodiscard]] stream_ref back() const { return plan.two_streams ? second.ref() : compute.ref(); }
  [[nodiscard]] virtual_device& base() { return dev; }

  training_plan plan;
  device_type dev{machine{.order_seed = 11}};
  virtual_device::stream compute = dev.virtual_device::make_stream();
  virtual_device::stream second = dev.virtual_device::make_stream();
  caching_allocator<virtual_device> own;
  int batch = 0;  // kernels read it
  gradients sums{};
  std::vector<std::uint32_t> upstream = std::vector<std::uint32_t>(words);
  offloader off;
  keyed<device_type> by_key;
  std::vector<std::unique_ptr<slot>> slots;
  host_state<device_type> state;
  buffer visiting;
  std::optional<graph<device_type>> made;
  module_id fc1{}, attn{};
  bool tracing = false;
  int done = 0;

  /// One call of the library.
  template <class Call>
  void call(const Call& what) {
    before();
    const heap_watch library(true);
    what();
  }
  /// A function of the trainer's that the library calls.
  void inside() {
    const heap_watch trainer(false);
    callback();
  }

 private:
  [[nodiscard]] parts parts_of() {
    parts with{.planner = std::make_unique<watched_planner>([this] { inside(); })};
    if (!plan.given) return with;
    with.memory = memory_on<device_type>(
        main(),
        [this](std::size_t bytes) {
          inside();
          const heap_watch trainer(false);
          return own.take(bytes);
        },
        [this](void* data) { give(data); });
    return with;
  }
  void give(void* data) {
    const heap_watch trainer(false);
    own.give(data);
  }

  void follow() {
    auto recorded = off.profile();
    plan::step_plan what;
    for (auto& chunk : recorded.chunks) {
      auto& row = what.what.emplace_back();
      for (auto& each : chunk.groups) {
        const bool again = each.module == attn;
        each.bytes = again ? y_bytes : x_bytes;
        each.recompute_us = again ? 1 : 0;
        row.push_back(again ? plan::action::recompute : plan::action::offload);
      }
    }
    off.follow(what, recorded);
  }

  [[nodiscard]] graph<device_type> capture() {
    std::optional<graph<device_type>> fresh;
    call([&] {
      fresh.emplace(off.capture(main(), [&] {
        inside();
        const heap_watch trainer(false);
        eager_step();
      }));
    });
    return std::move(*fresh);
  }

  void eager_step() {
    if (plan.traced && done > 0) {
      call([&] { off.start_trace("step", main()); });
      tracing = true;
    }
    dev.launch(main(), 100, [this] { sums = {}; });
    if (plan.evaluates) {
      forward(*slots.front(), 0, true);
      for (auto& each : slots.front()->saved) release(each, main());
      finish(*slots.front());
    }
    write_state();
    for (const auto& each : one_f_one_b(microbatches, plan.depth)) {
      auto& at = *slots[static_cast<std::size_t>(each.microbatch % plan.depth)];
      if (each.backward) {
        backward(at, each.microbatch);
      } else {
        forward(at, each.microbatch, false);
      }
    }
    read_state();
    call([&] { off.end_step(); });
    order(back(), main());
    if (tracing) {
      call([&] { static_cast<void>(off.finish_trace()); });
      tracing = false;
    }
  }

  // State that a step makes and reads again: a third of the last layer's gradient.
  void write_state() {
    if (!plan.stateful) return;
    call([&] { visiting = state.create(main()); });
    dev.launch(main(), 100, [this, to = visiting.as<std::uint32_t>()] {
      for (std::size_t i = 0; i < words; ++i) to[i] = static_cast<std::uint32_t>(batch) + 1;
    });
    call([&] { state.write_back(visiting, main()); });
  }
  void read_state() {
    if (!plan.stateful) return;
    call([&] { state.prefetch(); });
    call([&] { visiting = state.fetch(back()); });
    dev.launch(back(), 100, [this, from = visiting.as<const std::uint32_t>()] {
      for (std::size_t i = 0; i < words; ++i) {
        if (from[i] != static_cast<std::uint32_t>(batch) + 1) sums.back() = 0;
      }
    });
    call([&] { visiting.reset(back()); });
  }

  void forward(slot& at, int microbatch, bool evaluation) {
    if (plan.how == keeps::keys) {
      call([&] { at.keys = by_key.begin({microbatch, 0, evaluation}); });
    } else {
      call([&] { at.chunk = off.begin({microbatch, 0, evaluation}); });
    }
    at.open = true;
    at.evaluation = evaluation;
    at.away = 0;
    dev.launch(main(), 100, [this, &at, microbatch] {
      for (std::size_t i = 0; i < words; ++i) {
        at.hidden[i] = rig::word(static_cast<std::uint32_t>(batch * 100 + microbatch), i);
      }
    });
    for (int l = 0; l < layers; ++l) forward_layer(at, l);
    if (plan.how == keeps::keys) {
      call([&] { at.keys.end_forward(); });
    } else {
      call([&] { at.chunk.end_forward(); });
    }
    order(main(), back());
  }

  void forward_layer(slot& at, int l) {
    if (plan.how == keeps::layers) {
      std::uint32_t* x = nullptr;
      std::uint32_t* y = nullptr;
      call([&] { x = at.x.fresh(l, words, main()); });
      call([&] { y = at.y.fresh(l, y_bytes / 4, main()); });
      run_forward(at, l, x, y);
      return call([&] { at.group.done(l, main()); });
    }
    if (plan.how == keeps::keys) return forward_by_key(at, l);
    auto& saved = at.saved[static_cast<std::size_t>(l)];
    auto& x = saved.x;
    auto& y = saved.y;
    auto& part = saved.part;
    call([&] {
      if (!plan.adopts) return void(x = off.allocate(x_bytes, main()));
      auto* const data = own_memory(x_bytes);
      x = off.adopt(data, x_bytes, main(), giver{this, data});
    });
    call([&] { y = off.allocate(y_bytes, main()); });
    run_forward(at, l, x.as<std::uint32_t>(), y.as<std::uint32_t>());
    call([&] { at.chunk.commit(fc1, l, main(), x); });
    if (!at.evaluation) ++at.away;
    if (plan.recomputed) {
      call([&] { at.chunk.commit_or_discard("layernorm", l, main(), y); });
    } else if (plan.by_plan) {
      call([&] { at.chunk.commit_or_discard(attn, l, main(), y); });
    } else if (plan.views) {
      call([&] { part = y.view(shape); });
      call([&] { at.chunk.commit(attn, l, main(), part); });
      call([&] { y.reset(main()); });
    } else {
      call([&] { at.chunk.commit(attn, l, main(), y); });
    }
  }

  void forward_by_key(slot& at, int l) {
    call([&] {
      at.keys.run(fc1, l, main(), [&] {
        inside();
        const heap_watch trainer(false);
        auto* const x = save(at, key(l), x_bytes);
        auto* const y = save(at, key(l) + 1, y_bytes);
        run_forward(at, l, x, y);
      });
    });
  }

  std::uint32_t* save(slot& at, tensor_key key, std::size_t bytes) {
    auto* const data = own_memory(bytes);
    memory_owner owner(giver{this, data});  // has it back whether the call is reached or not
    call([&] { at.keys.save(key, data, bytes, main(), std::move(owner)); });
    return static_cast<std::uint32_t*>(data);
  }

  void backward(slot& at, int microbatch) {
    dev.launch(back(), 100, [this, microbatch] {
      for (std::size_t i = 0; i < words; ++i) {
        upstream[i] = rig::word(static_cast<std::uint32_t>(batch * 100 + microbatch + 50), i);
      }
    });
    call([&] { off.wait_for_others(back(), [this] { inside(); }); });
    call([&] {
      off.wait_for_peers(
          back(), [this] { inside(); }, 3);
    });
    for (int l = layers; l-- > 0;) backward_layer(at, l);
    finish(at);
    order(back(), main());
  }

  void finish(slot& at) {
    if (plan.how == keeps::keys) {
      call([&] { at.keys.finish(); });
    } else {
      call([&] { at.chunk.finish(); });
    }
    at.open = false;
  }

  void backward_layer(slot& at, int l) {
    if (plan.how == keeps::layers) {
      std::uint32_t* x = nullptr;
      std::uint32_t* y = nullptr;
      call([&] { x = at.x.back(l, back()); });
      call([&] { y = at.y.back(l, back()); });
      run_backward(l, x, y, shape.offset / 4, shape.pitch / 4);
      return call([&] { at.group.release(l, back()); });
    }
    if (plan.how == keeps::keys) {
      void* x = nullptr;
      void* y = nullptr;
      call([&] { y = at.keys.load(key(l) + 1, back()); });
      call([&] { x = at.keys.load(key(l), back()); });
      run_backward(l, x, y, shape.offset / 4, shape.pitch / 4);
      call([&] { at.keys.drop(key(l), back()); });
      return call([&] { at.keys.drop(key(l) + 1, back()); });
    }
    auto& saved = at.saved[static_cast<std::size_t>(l)];
    auto& x = saved.x;
    auto& y = saved.y;
    auto& part = saved.part;
    const auto again = [&, l] {
      inside();
      const heap_watch trainer(false);
      run_again(l, at.saved[static_cast<std::size_t>(l)].y.as<std::uint32_t>());
    };
    call([&] { at.chunk.restore(fc1, l, back(), x); });
    --at.away;
    x_of_layer_ = x.as<std::uint32_t>();
    if (plan.recomputed) {
      call([&] { at.chunk.restore_or_recompute("layernorm", l, back(), again, y); });
    } else if (plan.by_plan) {
      call([&] { at.chunk.restore_or_recompute(attn, l, back(), again, y); });
    } else if (plan.views) {
      call([&] { at.chunk.restore(attn, l, back(), part); });
    } else {
      call([&] { at.chunk.restore(attn, l, back(), y); });
    }
    if (plan.views) {
      run_backward(l, x.data(), part.data(), 0, part.pitch() / 4);
    } else {
      run_backward(l, x.data(), y.data(), shape.offset / 4, shape.pitch / 4);
    }
    call([&] { release(at.saved[static_cast<std::size_t>(l)], back()); });
  }

  void release(saved_layer& which, stream_ref on) {
    which.part.reset(on);
    which.y.reset(on);
    which.x.reset(on);
  }

  // ---- kernels ----

  [[nodiscard]] static std::uint32_t y_of(std::uint32_t x, int l) {
    return x * 2246822519U + static_cast<std::uint32_t>(l);
  }
  void run_forward(slot& at, int l, std::uint32_t* x, std::uint32_t* y) {
    dev.launch(main(), 1000, [&at, l, x, y] {
      for (std::size_t i = 0; i < words; ++i) x[i] = at.hidden[i];
      for (std::size_t i = 0; i < y_bytes / 4; ++i) y[i] = y_of(x[i], l);
      for (std::size_t i = 0; i < words; ++i) at.hidden[i] = y[i % (y_bytes / 4)] ^ (x[i] >> 3U);
    });
  }
  void run_again(int l, std::uint32_t* y) {
    dev.launch(back(), 1000, [x = x_of_layer_, l, y] {
      for (std::size_t i = 0; i < y_bytes / 4; ++i) y[i] = y_of(x[i], l);
    });
  }
  void run_backward(int l, const void* x, const void* y, std::size_t first, std::size_t pitch) {
    dev.launch(back(), 1000,
               [this, l, first, pitch, x = static_cast<const std::uint32_t*>(x),
                y = static_cast<const std::uint32_t*>(y)] {
                 auto& sum = sums[static_cast<std::size_t>(l)];
                 for (std::size_t i = 0; i < words; ++i) {
                   const auto at = i % (shape.width / 4 * shape.rows);
                   const auto part =
                       y[first + at / (shape.width / 4) * pitch + at % (shape.width / 4)];
                   upstream[i] = upstream[i] * 5 + x[i] * part;
                   sum = sum * 31 + upstream[i];
                 }
               });
  }

  [[nodiscard]] static tensor_key key(int l) { return static_cast<tensor_key>(l) * 2; }
  [[nodiscard]] void* own_memory(std::size_t bytes) {
    const heap_watch trainer(false);
    if (auto* const data = own.take(bytes)) return data;
    throw out_of_budget("the trainer's own memory is full", bytes, own.most);
  }
  void order(stream_ref from, stream_ref to) {
    if (!plan.two_streams) return;
    auto mark = base().make_event();
    base().record(mark, from);
    base().wait(to, mark);
  }

  struct giver {
    recovery_trainer* trainer = nullptr;
    void* data = nullptr;
    void operator()() const { trainer->give(data); }
  };
  const std::uint32_t* x_of_layer_ = nullptr;
};

/// One of each style.
[[nodiscard]] inline std::vector<training_plan> training_plans() {
  auto capped = arena_options(6 * 1024);
  capped.max_inflight = 1;
  auto again = arena_options(6 * 1024);
  again.recompute_modules = {"layernorm"};
  auto automatic = arena_options(12 * 1024);
  automatic.policy = policy_kind::automatic;
  automatic.plan_effort = 10;
  auto slack = small_options();
  slack.borrowed_slack = 1024;
  slack.device_budget = 64 * 1024;
  auto pool = small_options();
  pool.device_budget = 64 * 1024;
  const auto arena = arena_options(8 * 1024);
  std::vector<training_plan> all{
      {.name = "depth 1", .opts = capped},
      {.name = "depth 2", .opts = arena, .depth = 2, .two_streams = true},
      {.name = "depth 4", .opts = pool, .depth = 4},
      {.name = "recomputed", .opts = again, .depth = 2, .recomputed = true},
      {.name = "plan followed", .opts = arena, .depth = 2, .by_plan = true},
      {.name = "automatic", .opts = automatic, .depth = 2},
      {.name = "forward-only", .opts = arena, .evaluates = true},
      {.name = "layers", .opts = pool, .depth = 2, .how = keeps::layers},
      {.name = "keyed", .opts = slack, .depth = 2, .how = keeps::keys},
      {.name = "adopted", .opts = slack, .adopts = true, .given = true, .two_streams = true},
      {.name = "graph", .opts = arena, .depth = 2, .captured = true},
      {.name = "state, views, traced",
       .opts = pool,
       .stateful = true,
       .views = true,
       .traced = true},
  };
  for (auto& each : all) each.opts.host_budget = 64 * 1024;
  return all;
}

}  // namespace tidepool::test
