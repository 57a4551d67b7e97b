/// Small training programs on a device that fails, which check every word that comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "faults/desk.hpp"
#include "schedule.hpp"
#include "tidepool/error.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/host_state.hpp"
#include "tidepool/observe/tracing.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/places/file.hpp"
#include "tidepool/plan.hpp"

namespace tidepool::test {

/// What a program does besides forward and backward passes.
struct program_plan {
  std::string name;
  options opts;
  int steps = 2;  ///< before the capture, where there is one
  int microbatches = 3;
  int depth = 2;
  int layers = 3;
  std::size_t bytes = 1024;  ///< of the larger tensor
  bool shares = false;       ///< both modules save one tensor
  bool views = false;        ///< the second module saves a rectangle
  bool manual = false;
  bool recomputed = false;  ///< the second module's tensor is computed again
  bool by_plan = false;     ///< the same, since a plan that is followed says so
  bool stateful = false;    ///< state on the host is written before a step and read after it
  bool adopts = false;      ///< the larger tensor is in the trainer's own memory
  bool given = false;       ///< and so is what is reloaded
  bool two_streams = false;
  bool traced = false;
  int replays = 0;  ///< of a whole step that is captured
  /// Comes while a capture is given up whose body threw, with copies from before it under way.
  std::optional<fault> spoils = std::nullopt;
};

/// Runs a program once, in one go or with one more try for every call that fails.
template <class Desk>
class faulty_run {
 public:
  using device_type = typename Desk::device_type;
  using offloader = tidepool::offloader<device_type, modules<"fc1", "core_attn">>;
  using buffer = typename offloader::buffer;
  using view = typename offloader::view;

  faulty_run(Desk& desk, const program_plan& plan, bool retries)
      : desk_(desk), plan_(plan), retries_(retries) {}

  // What was queued before a failure is still checked; an offloader that goes with it drops it.
  void run() {
    try {
      run_all();
    } catch (...) {
      desk_.synchronize();
      throw;
    }
  }

  /// Replays that were launched, and steps: every one has run when the run claims success.
  [[nodiscard]] std::uint32_t rounds() const { return rounds_; }

 private:
  using stream_ref = typename device_type::stream_ref;

  void run_all() {
    attempt([&] { off_.emplace(desk_.dev, plan_.opts, parts_of()); });
    off_->on_report([](std::string_view) {});
    if (plan_.by_plan) follow();
    open_.resize(static_cast<std::size_t>(plan_.depth));
    for (int i = 0; plan_.stateful && i < 2; ++i) {
      attempt([&] { states_.push_back(off_->state_on_host(plan_.bytes, "state")); });
    }
    for (int i = 0; i < plan_.steps; ++i) {
      const bool traced = plan_.traced && i > 0;
      if (traced) attempt([&] { off_->start_trace("step", main()); });
      step();
      if (traced) attempt([&] { static_cast<void>(off_->finish_trace()); });
    }
    if (plan_.spoils) spoil();
    if (plan_.replays > 0) replay();
    const auto totals = off_->counters();
    if (totals.live_peak > totals.live_peak_without || totals.live_peak_without > sane) {
      throw std::logic_error("the counters are wrong");
    }
    desk_.synchronize();
  }

  // Not every desk has memory of the trainer's own.
  static constexpr bool borrows = requires(Desk & desk, void* data) { desk.give(data); };

  [[nodiscard]] parts parts_of() {
    parts with{.planner = planner(), .file = file_place()};
    if constexpr (borrows) {
      if (plan_.given) {
        with.memory = memory_on<device_type>(
            main(), [this](std::size_t bytes) { return desk_.take(bytes); },
            [this](void* data) { desk_.give(data); });
      }
    }
    return with;
  }
  [[nodiscard]] buffer adopt() {
    if constexpr (borrows) {
      auto* const data = desk_.take(plan_.bytes);
      return off_->adopt(data, plan_.bytes, main(), [desk = &desk_, data] { desk->give(data); });
    }
    return {};
  }

  struct saved_layer {
    buffer x, y, z;
    view part;
  };
  struct in_flight {
    typename offloader::chunk chunk;
    std::vector<saved_layer> layers;
  };

  [[nodiscard]] stream_ref main() const { return desk_.main(); }
  [[nodiscard]] stream_ref back() const {
    return plan_.two_streams ? desk_.second() : desk_.main();
  }

  // A capture is tried again as a whole: what failed inside it is lost.
  template <class Call>
  void attempt(const Call& call) {
    if (!retries_ || inside_) return call();
    try {
      call();
    } catch (const error&) {
      call();
    }
  }

  void follow() {
    plan::profile recorded;
    plan::step_plan made;
    recorded.modules = {"fc1", "core_attn"};
    for (const auto& each : one_f_one_b(plan_.microbatches, plan_.depth)) {
      recorded.passes.push_back({static_cast<std::size_t>(each.microbatch), each.backward});
      if (each.backward) continue;
      auto& chunk = recorded.chunks.emplace_back();
      chunk.microbatch = each.microbatch;
      auto& row = made.what.emplace_back();
      for (int l = 0; l < plan_.layers; ++l) {
        chunk.groups.push_back({module_id{0}, l, plan_.bytes});
        chunk.groups.push_back({module_id{1}, l, y_bytes, 1});
        row.insert(row.end(), {plan::action::offload, plan::action::recompute});
      }
    }
    off_->follow(made, recorded);
  }

  void step() {
    write_states();
    for (const auto& each : one_f_one_b(plan_.microbatches, plan_.depth)) {
      auto& at = open_[static_cast<std::size_t>(each.microbatch % plan_.depth)];
      each.backward ? backward(at, each.microbatch) : forward(at, each.microbatch);
    }
    read_states();
    off_->end_step();
    order(back(), main());
    desk_.next_round(main());
    order(main(), back());
    if (!inside_) ++rounds_;
  }

  void write_states() {
    for (auto& state : states_) {
      buffer fresh;
      attempt([&] { fresh = state.create(main()); });
      write(fresh, state_tag);
      attempt([&] { state.write_back(fresh, main()); });
    }
  }
  void read_states() {
    for (auto& state : states_) {
      attempt([&] { state.prefetch(); });
      buffer here;
      attempt([&] { here = state.fetch(back()); });
      check(here, state_tag, back());
      release(here, back());
    }
  }

  void spoil() {
    struct own_error {};
    forward(open_.front(), 0);
    open_.clear();
    open_.resize(static_cast<std::size_t>(plan_.depth));
    try {
      static_cast<void>(off_->capture(main(), [&] {
        desk_.dev.arm(*plan_.spoils);
        throw own_error{};
      }));
    } catch (const own_error&) {
    }
    step();
  }

  void replay() {
    for (int i = 0; i < 2; ++i) {
      std::optional<graph<device_type>> made;
      attempt([&] {
        open_.clear();
        open_.resize(static_cast<std::size_t>(plan_.depth));
        inside_ = true;
        const auto leave = [&](void*) { inside_ = false; };
        const std::unique_ptr<faulty_run, decltype(leave)> guard(this, leave);
        made = off_->capture(main(), [&] { step(); });
      });
      for (int r = 0; r < plan_.replays; ++r) {
        attempt([&] { made->launch(main()); });
        ++rounds_;
      }
      step();
    }
  }

  void forward(in_flight& at, int microbatch) {
    at.layers.clear();
    at.layers.resize(static_cast<std::size_t>(plan_.layers));
    at.chunk = off_->begin({microbatch, 0, false});
    for (int l = 0; l < plan_.layers; ++l) {
      auto& saved = at.layers[static_cast<std::size_t>(l)];
      const auto tag = tag_of(microbatch, l);
      attempt([&] { saved.x = plan_.adopts ? adopt() : off_->allocate(plan_.bytes, main()); });
      if (!plan_.opts.pack.empty()) saved.x.holds_bfloat16();
      write(saved.x, tag);
      if (plan_.shares) {
        saved.z = saved.x.share();
      } else {
        attempt([&] { saved.y = off_->allocate(y_bytes, main(), tidepool::fill::zero); });
        write(saved.y, tag + 1);
      }
      save<"fc1">(at.chunk, l, saved.x, tag);
      if (plan_.shares) {
        save<"core_attn">(at.chunk, l, saved.z, tag);
      } else if (plan_.recomputed) {
        attempt([&] { at.chunk.template commit_or_discard<"layernorm">(l, main(), saved.y); });
      } else if (plan_.by_plan) {
        attempt([&] { at.chunk.template commit_or_discard<"core_attn">(l, main(), saved.y); });
      } else if (plan_.views) {
        saved.part = saved.y.view(shape);
        save<"core_attn">(at.chunk, l, saved.part, tag + 1);
        release(saved.y, main());
      } else {
        save<"core_attn">(at.chunk, l, saved.y, tag + 1);
      }
    }
    attempt([&] { at.chunk.end_forward(); });
    order(main(), back());
  }

  void backward(in_flight& at, int microbatch) {
    for (int l = plan_.layers; l-- > 0;) {
      auto& saved = at.layers[static_cast<std::size_t>(l)];
      const auto tag = tag_of(microbatch, l);
      if (plan_.shares) {
        fetch<"core_attn">(at.chunk, l, saved.z, tag);
      } else if (plan_.recomputed) {
        const auto again = [&] { write(saved.y, tag + 1, back()); };
        attempt([&] {
          at.chunk.template restore_or_recompute<"layernorm">(l, back(), again, saved.y);
        });
        check(saved.y, tag + 1, back());
      } else if (plan_.by_plan) {
        const auto again = [&] { write(saved.y, tag + 1, back()); };
        attempt([&] {
          at.chunk.template restore_or_recompute<"core_attn">(l, back(), again, saved.y);
        });
        check(saved.y, tag + 1, back());
      } else if (plan_.views) {
        fetch<"core_attn">(at.chunk, l, saved.part, tag + 1);
      } else {
        fetch<"core_attn">(at.chunk, l, saved.y, tag + 1);
      }
      fetch<"fc1">(at.chunk, l, saved.x, tag);
      release(saved.part, back());
      for (auto* each : {&saved.y, &saved.z, &saved.x}) release(*each, back());
    }
    attempt([&] { at.chunk.finish(); });
    order(back(), main());
  }

  template <fixed_string Module, class Handle>
  void save(typename offloader::chunk& chunk, int layer, Handle& what, std::uint32_t tag) {
    if (plan_.manual) {
      attempt([&] { chunk.template start_offload<Module>(layer, main(), what); });
      check(what, tag, main());
      return release(what, main());
    }
    attempt([&] {
      const auto flying = desk_.dev.flying();
      try {
        chunk.template commit<Module>(layer, main(), what);
      } catch (...) {
        // A commit that failed left the handle as it was, and no copy of it is running.
        check(what, tag, main());
        if (desk_.dev.flying() > flying && !desk_.dev.broken()) desk_.note_wrong();
        throw;
      }
    });
  }
  template <fixed_string Module, class Handle>
  void fetch(typename offloader::chunk& chunk, int layer, Handle& what, std::uint32_t tag) {
    if (plan_.manual) attempt([&] { chunk.template start_reload<Module>(layer); });
    attempt([&] { chunk.template restore<Module>(layer, back(), what); });
    check(what, tag, back());
  }
  template <class Handle>
  void release(Handle& what, stream_ref on) {
    attempt([&] { what.reset(on); });
  }

  void order(stream_ref from, stream_ref to) {
    if (plan_.two_streams) desk_.order(from, to);
  }

  [[nodiscard]] static std::uint32_t tag_of(int microbatch, int layer) {
    return static_cast<std::uint32_t>(microbatch * 100 + layer * 2);
  }
  void write(const buffer& to, std::uint32_t tag) { write(to, tag, main()); }
  void write(const buffer& to, std::uint32_t tag, stream_ref on) {
    desk_.write(on, to.template as<std::uint32_t>(), to.size() / 4, tag);
  }
  void check(const buffer& what, std::uint32_t tag, stream_ref on) {
    check(what.template as<std::uint32_t>(), {.width = what.size() / 4}, tag, on);
  }
  void check(const view& what, std::uint32_t tag, stream_ref on) {
    const word_rows rows{what.width() / 4, what.rows(), what.pitch() / 4, shape.offset / 4,
                         shape.pitch / 4};
    check(what.template as<std::uint32_t>(), rows, tag, on);
  }
  void check(const std::uint32_t* at, const word_rows& rows, std::uint32_t tag, stream_ref on) {
    if (at == nullptr || rows.width == 0) return desk_.note_wrong();
    desk_.check(on, at, rows, tag);
  }

  static constexpr std::size_t y_bytes = 768;
  static constexpr std::uint32_t state_tag = 9000;
  static constexpr std::size_t sane = std::size_t{1} << 20;
  static constexpr view_shape shape{.offset = 64, .width = 32, .rows = 5, .pitch = 96};

  Desk& desk_;
  const program_plan& plan_;
  bool retries_;
  bool inside_ = false;  // a capture
  std::uint32_t rounds_ = 0;
  std::optional<offloader> off_;
  std::vector<in_flight> open_;
  std::vector<host_state<device_type>> states_;
};

}  // namespace tidepool::test
