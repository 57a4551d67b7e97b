// Ends of steps, plans from files, traces, and state that lives on the host.
#pragma once

#include <tidepool/observe/tracing.hpp>
#include <tidepool/plan/json.hpp>

#include "player.hpp"

namespace stranger {

inline void player::end_step(int side) {
  if (!usable_side(side)) return;
  bool open = false, evaluating = false;
  for (const auto& each : passes_) {
    if (each.open && each.side == side) (each.forward_only ? evaluating : open) = true;
  }
  for (const auto& each : key_passes_) {
    if (each.open && each.side == side) (each.forward_only ? evaluating : open) = true;
  }
  for (const auto& each : layer_sets_) {
    if (each.open && each.side == side) (each.forward_only ? evaluating : open) = true;
  }
  auto& of = side_at(side);
  const auto code = off_name(side) + "->end_step();";
  if (open) {
    if (!capturing_) refused(code, [&] { of.off->end_step(); });
    return;
  }
  if (evaluating) {
    if (!capturing_) refused(code, [&] { of.off->end_step(); });
    return;
  }
  ++of.eager_calls;
  auto allowed = may_report(side);
  if (settings(side).automatic) {
    allowed |= may_allocate(side);
    if (device_.failed()) allowed |= failure;  // what kept the step from being recorded comes now
  }
  const auto threw = call(code, allowed, [&] { of.off->end_step(); });
  if (threw == 0 && of.passes > 0 && !of.spoiled) of.held = false;
  of.passes = 0;
  of.begun = of.spoiled = false;
  if (threw == 0 && settings(side).automatic && !capturing_) {
    if (of.off->current_plan()) {
      ++reached()["steps under a plan"];
      for (const auto& chunk : of.off->current_plan()->what) {
        for (const auto each : chunk)
          ++reached()["groups to " + std::string(tp::plan::name_of(each))];
      }
    }
    const auto name = off_name(side);
    call("static_cast<void>(tp::plan::to_json(" + name + "->profile()));", 0,
         [&] { static_cast<void>(tp::plan::to_json(of.off->profile())); });
  }
}

inline void player::save_plan(int side) {
  if (!usable_side(side) || capturing_) return;
  auto& of = side_at(side);
  const auto& made = of.off->current_plan();
  if (!made) return;
  const unsigned allowed = made->expected.runs ? 0U : static_cast<unsigned>(profile);
  const auto name = off_name(side);
  call("profile = tp::plan::to_json(" + name + "->profile()); plan = tp::plan::to_json(*" + name +
           "->current_plan(), " + name + "->profile());",
       allowed, [&] {
         saved_profile_ = tp::plan::to_json(of.off->profile());
         saved_plan_ = tp::plan::to_json(*made, of.off->profile());
       });
}

inline void player::follow(int side) {
  if (!usable_side(side) || capturing_ || saved_plan_.empty()) return;
  if (pass_open(side)) return;
  auto& of = side_at(side);
  if (of.begun) return;
  const auto threw =
      call(off_name(side) +
               "->follow(tp::plan::plan_from_json(plan), tp::plan::profile_from_json(profile));",
           may(side) | profile | option, [&] {
             of.off->follow(tp::plan::plan_from_json(saved_plan_),
                            tp::plan::profile_from_json(saved_profile_));
           });
  if (threw == 0) of.held = true;
}

inline void player::check_counters(int side) {
  if (!usable_side(side)) return;
  const auto all = side_at(side).off->counters();
  const auto& with = settings(side);
  if (with.memory == 1 && all.device_reserved > (with.budget != 0 ? with.budget : roomy_device)) {
    find("more than the arena", std::to_string(all.device_reserved));
  }
  if (with.own == none && with.budget != 0 && all.device_peak > with.budget) {
    find("more than the budget", std::to_string(all.device_peak));
  }
  const bool alone = sides_.size() == 1 && with.own == none;
  if (alone && with.budget != 0 && device_.device_most() > with.budget) {
    find("more of the device than the budget", std::to_string(device_.device_most()));
  }
  if (all.host_reserved > (with.host_budget != 0 ? with.host_budget : roomy_host)) {
    find("more than the host budget", std::to_string(all.host_reserved));
  }
  for (const auto& each : all.places) {
    const bool another = side_at(side).ever_borrowed && each.name.starts_with("peer");
    if (each.reserved > each.budget || (each.peak > each.reserved && !another)) {
      find("more than the budget of " + each.name, std::to_string(each.reserved));
    }
  }
}

inline void player::trace(int side) {
  if (!usable_side(side) || capturing_) return;
  auto& of = side_at(side);
  if (of.tracing) {
    if (call("static_cast<void>(" + off_name(side) + "->finish_trace());", may(side),
             [&] { static_cast<void>(of.off->finish_trace()); }) == 0) {
      of.tracing = false;
    }
    return;
  }
  if (call(off_name(side) + "->start_trace(\"trace\", s0);", may(side),
           [&] { of.off->start_trace("trace", ref(0)); }) == 0) {
    of.tracing = true;
  }
}

inline void player::span(const operation& op) {
  if (!usable_side(op.a) || capturing_) return;
  const int stream = stream_of(op.b);
  auto& of = side_at(op.a);
  call("{ const auto span = " + off_name(op.a) + "->trace_span(\"span\", s" +
           std::to_string(stream) + "); }",
       may(op.a), [&] { const auto span = of.off->trace_span("span", ref(stream)); });
}

inline void player::wait_for(const operation& op) {
  if (!usable_side(op.a) || capturing_) return;
  const int stream = stream_of(op.b);
  auto& of = side_at(op.a);
  const auto body = [&] {
    if (op.e != 0) throw trainer_error();
  };
  const std::string wait = op.c != 0 ? "->wait_for_peers(s" : "->wait_for_others(s";
  call(off_name(op.a) + wait + std::to_string(stream) +
           (op.e != 0 ? ", [] { throw std::runtime_error(\"the trainer's own error\"); });"
                      : ", [] {});"),
       may(op.a) | (op.e != 0 ? static_cast<unsigned>(own) : 0U), [&] {
         if (op.c != 0) {
           of.off->wait_for_peers(ref(stream), body);
         } else {
           of.off->wait_for_others(ref(stream), body);
         }
       });
  give(op.a, stream);
}

// ---- state on the host ----

inline void player::make_state(const operation& op) {
  auto& into = states_[static_cast<std::size_t>(op.a)];
  if (into.state || !usable_side(op.c)) return;
  const auto bytes = static_cast<std::size_t>(op.b);
  const auto name = "state " + std::to_string(op.a);
  auto allowed = may(op.c);
  if (settings(op.c).tight_host()) allowed |= budget;
  std::optional<tp::host_state<device>> made;
  if (call("h" + std::to_string(op.a) + " = " + off_name(op.c) + "->state_on_host(" +
               std::to_string(bytes) + ", \"" + name + "\");",
           allowed, [&] { made.emplace(side_at(op.c).off->state_on_host(bytes, name)); }) != 0) {
    return;
  }
  into = {};
  into.state = std::move(made);
  into.id = ++numbers_;
  into.bytes = bytes;
  into.side = op.c;
  if (into.state->size() != bytes) find("a state has another size", name);
}

inline void player::create_state(const operation& op) {
  auto& from = states_[static_cast<std::size_t>(op.a)];
  if (!from.state || !usable_side(from.side) || side_at(from.side).gone) return;
  const int stream = stream_of(op.c);
  const auto code = "h" + std::to_string(op.a) + ".create(s" + std::to_string(stream) + ");";
  if (from.slot >= 0) {
    if (!capturing_ && !side_at(from.side).dirty) {
      refused("static_cast<void>(" + code.substr(0, code.size() - 1) + ");",
              [&] { static_cast<void>(from.state->create(ref(stream))); });
    }
    return;
  }
  if (!vacate(op.b, stream)) return;
  buffer made;
  at(op.b).is_view = false;
  const auto threw = call(name(op.b) + " = " + code, may_allocate(from.side),
                          [&] { made = from.state->create(ref(stream)); });
  give(from.side, stream);
  from.maybe_ahead = false;
  if (threw != 0) return;
  if (capturing_) body_states_.insert(op.a);
  auto of = std::make_shared<content>();
  of->id = from.id;
  of->bytes = from.bytes;
  of->side = from.side;
  contents_.push_back(of);
  fill(op.b, std::move(made), std::move(of), stream);
  at(op.b).visits = op.a;
  from.slot = op.b;
}

inline void player::prefetch_state(int which) {
  auto& from = states_[static_cast<std::size_t>(which)];
  if (!from.state || !usable_side(from.side) || side_at(from.side).gone) return;
  bool came = false;
  call("static_cast<void>(h" + std::to_string(which) + ".prefetch());", may(from.side) | budget,
       [&] { came = from.state->prefetch(); });
  ++side_at(from.side).eager_calls;
  if (capturing_) body_states_.insert(which);
  const bool written = capturing_ ? from.written_captured : from.written;
  if (came && !written && !side_at(from.side).dirty)
    find("prefetched what was never written", from.state ? "" : "");
  if (came) (capturing_ ? from.ahead_inside : from.maybe_ahead) = true;
}

inline void player::fetch_state(const operation& op) {
  auto& from = states_[static_cast<std::size_t>(op.a)];
  if (!from.state || !usable_side(from.side) || side_at(from.side).gone) return;
  const int stream = stream_of(op.c);
  const auto code = "h" + std::to_string(op.a) + ".fetch(s" + std::to_string(stream) + ");";
  const bool written = capturing_ ? from.written_captured : from.written;
  if (from.slot >= 0 || !written) {
    if (!capturing_ && !side_at(from.side).dirty) {
      refused("static_cast<void>(" + code.substr(0, code.size() - 1) + ");",
              [&] { static_cast<void>(from.state->fetch(ref(stream))); });
    }
    return;
  }
  if (!vacate(op.b, stream)) return;
  buffer made;
  at(op.b).is_view = false;
  const auto threw = call(name(op.b) + " = " + code,
                          may_allocate(from.side) | (from.unsure ? unsigned{misuse} : 0U),
                          [&] { made = from.state->fetch(ref(stream)); });
  give(from.side, stream);
  if (threw != 0) return;
  from.maybe_ahead = false;
  if (capturing_) body_states_.insert(op.a);
  auto of = std::make_shared<content>();
  of->id = from.id;
  of->bytes = from.bytes;
  of->side = from.side;
  of->truth = from.truth;
  of->captured = from.captured;
  if (capturing_) {
    of->truth = 0;
    into_->effects.emplace_back([of, state = &from] { of->truth = state->truth; });
  }
  contents_.push_back(of);
  fill(op.b, std::move(made), std::move(of), stream);
  at(op.b).visits = op.a;
  from.slot = op.b;
}

inline void player::write_state(const operation& op) {
  auto& to = states_[static_cast<std::size_t>(op.a)];
  if (!to.state || !usable_side(to.side) || side_at(to.side).gone) return;
  const int stream = stream_of(op.c);
  const auto& name_of_it = "h" + std::to_string(op.a);
  if (to.slot < 0) {
    const int other = op.b % slot_count;
    if (capturing_ || side_at(to.side).dirty || !at(other).full() || at(other).is_view ||
        at(other).group >= 0 || !usable(other)) {
      return;
    }
    return refused(
        name_of_it + ".write_back(" + name(other) + ", s" + std::to_string(stream) + ");",
        [&] { to.state->write_back(at(other).b, ref(stream)); });
  }
  auto& from = at(to.slot);
  if (!usable(to.slot)) return;
  order_for(from.ready, stream);
  order_for(from.used, stream);
  auto allowed = may(to.side);
  if (capturing_) {
    body_states_.insert(op.a);
    allowed |= misuse;  // first contents
  }
  const auto code =
      name_of_it + ".write_back(" + name(to.slot) + ", s" + std::to_string(stream) + ");";
  device_.forget_moves();
  const auto threw = call(code, allowed, [&] { to.state->write_back(from.b, ref(stream)); });
  if (!device_.packed().empty()) find("packed state that lives on the host", code);
  give(to.side, stream);
  if (threw != 0) {
    if (!from.full()) find("a write_back that threw emptied the handle", code);
    to.unsure = true;
    return;
  }
  to.unsure = false;
  if (from.full()) find("write_back left the handle full", code);
  if (capturing_) {
    to.captured = from.of->captured;
    to.written_captured = true;
    into_->effects.emplace_back([of = from.of, state = &to] {
      state->truth = of->truth;
      state->written = true;
    });
  } else {
    to.truth = from.of->truth;
    to.written = true;
  }
  emptied(from);
}

inline void player::drop_state(int which) {
  auto& from = states_[static_cast<std::size_t>(which)];
  if (!from.state || capturing_) return;
  const int side = from.side;
  if (from.slot >= 0) {
    const int visitor_slot = from.slot;
    destroy(visitor_slot);
    if (at(visitor_slot).full()) return;
  }
  call("h" + std::to_string(which) + " = {};", 0, [&] { from.state.reset(); });
  from = {};
  ++side_at(side).eager_calls;
  compare(side);
}

}  // namespace stranger
