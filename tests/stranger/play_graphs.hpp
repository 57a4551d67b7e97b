// Captures and launches: what they may find, and what must be refused.
#pragma once

#include "player.hpp"

namespace stranger {

// What the handles tell.
inline layout player::standing(int side) const {
  layout all;
  for (const auto& each : contents_) {
    if (each->side == side && each->saves > 0) all.insert({each->id, 0});
  }
  for (const auto& each : slots_) {
    if (each.full() && each.of && each.of->side == side) all.insert({each.of->id, place_of(each)});
  }
  return all;
}

inline layout player::device_layout(int side) const {
  return side_at(side).dirty ? side_at(side).on_device : standing(side);
}

// Whether the device stands where the handles say, after some of them have changed.
inline void player::compare(int side) {
  auto& of = side_at(side);
  if (!of.dirty) return;
  const auto handles = standing(side);
  if (handles == of.on_device) of.dirty = false;
}

// A handle or a save of it has gone; with the last of them it is nobody's on the device either.
inline void player::given_up(const content_ref& of) {
  if (capturing_) return;
  if (of->handles + of->saves == 0) {
    std::erase_if(side_at(of->side).on_device,
                  [&](const auto& each) { return each.first == of->id; });
  }
  compare(of->side);
}

inline void player::begin_body(int side, int stream, bool all) {
  capturing_ = true;
  capture_side_ = side;
  capture_stream_ = stream;
  capture_streams_ = 1U << static_cast<unsigned>(stream);
  body_passes_.clear();
  body_contents_.clear();
  body_states_.clear();
  before_ids_.clear();
  before_places_.clear();
  before_touched_.clear();
  ended_before_.clear();
  into_->side = side;
  into_->before = standing(side);
  const bool settled = !side_at(side).dirty;
  for (const auto& each : contents_) {
    if (each->handles + each->saves > 0) {
      before_ids_.insert(each->id);
    } else {
      ended_before_.insert(each.get());
    }
    if (settled) each->captured = each->truth;
  }
  for (auto& each : slots_) {
    if (!each.full() || !each.of) continue;
    if (!each.is_view) before_places_[each.of->id] = each.b.data();
    auto& touched = before_touched_[each.of->id];
    stranger::join(touched.ready, each.ready);
    stranger::join(touched.used, each.used);
  }
  for (auto& each : states_) {
    into_->ahead = into_->ahead || each.maybe_ahead || each.ahead_inside;
    each.maybe_ahead = false;
    if (!settled) continue;
    each.captured = each.truth;
    each.written_captured = each.written;
  }
  knows_before_ = knows_;
  if (all) {
    for (int s = 0; s < program_.streams; ++s) {
      if (s == stream) continue;
      order(stream, s);
      capture_streams_ |= 1U << static_cast<unsigned>(s);
    }
  }
  for (auto& each : knows_) each = position_;
}

inline void player::end_body(bool done) {
  knows_ = knows_before_;
  capturing_ = false;
  // Nothing inside has run: eager work comes after the eager work from before.
  for (auto& each : slots_) {
    if (!each.of) continue;
    const auto found = before_touched_.find(each.of->id);
    if (found == before_touched_.end()) continue;
    stranger::join(each.ready, found->second.ready);
    stranger::join(each.used, found->second.used);
  }
  if (!done) return;
  auto& of = side_at(capture_side_);
  into_->after = standing(capture_side_);
  for (const auto id : body_contents_) {
    if (!before_ids_.contains(id)) continue;
    const auto found = before_places_.find(id);
    for (const auto& each : contents_) {
      // An earlier visit of a state has its number, and is over.
      if (each->id != id || ended_before_.contains(each.get()) || each->bytes == 0) continue;
      // Computed again inside, it is asked of nobody: a second launch computes it once more.
      if (found == before_places_.end() && each->again && !strict()) continue;
      into_->touched.push_back({each, found == before_places_.end() ? nullptr : found->second});
    }
  }
  into_->states_used.assign(body_states_.begin(), body_states_.end());
  for (const int each : body_states_)
    into_->states.insert(states_[static_cast<std::size_t>(each)].id);
  into_->eager_calls = of.eager_calls;
  into_->lent_to = of.borrows;
  of.graphs_since = of.graphs_since || of.borrows;
  for (const auto& each : states_) {
    if (each.state) into_->all_states.insert(each.id);
  }
  if (!of.dirty) of.on_device = into_->before;
  of.dirty = into_->after != of.on_device;
}

// Of a capture that failed everything is lost.
inline void player::give_up_body() {
  const auto passes = body_passes_;
  for (const int each : passes) abandon(each);
  for (const int each : body_states_) {
    auto& state = states_[static_cast<std::size_t>(each)];
    if (state.slot >= 0) destroy(state.slot);
  }
  for (int i = 0; i < slot_count; ++i) {
    auto& which = at(i);
    if (which.full() && which.of && body_contents_.contains(which.of->id) && which.group < 0)
      destroy(i);
  }
  auto& of = side_at(capture_side_);
  of.dirty = false;
}

inline std::size_t player::capture(const operation& op, std::size_t next) {
  const auto skip = [&] {
    int depth = 1;
    auto i = next;
    for (; i < program_.operations.size() && depth > 0; ++i) {
      if (program_.operations[i].what == kind::capture_begin) ++depth;
      if (program_.operations[i].what == kind::capture_end) --depth;
    }
    return i;
  };
  auto& into = graphs_[static_cast<std::size_t>(op.a)];
  const int side = op.c;
  if (capturing_ || into.graph || !usable_side(side) || program_.eager) return skip();
  auto& of = side_at(side);
  const int stream = stream_of(op.b);
  for (int s = 0; s < program_.streams; ++s) {
    // Streams that it has not met are not waited for.
    if ((of.known >> static_cast<unsigned>(s) & 1U) == 0) order(s, stream);
  }
  into = {};
  into_ = &into;
  std::size_t end = next;
  if (code_.on()) {
    code_.open("attempt([&] { g" + std::to_string(op.a) + ".emplace(" + off_name(side) +
               "->capture(s" + std::to_string(stream) + ", [&] {");
  }
  bool began = false;
  const auto threw =
      call("", may(side) | misuse | budget | (op.e != 0 ? static_cast<unsigned>(own) : 0U), [&] {
        into.graph.emplace(of.off->capture(ref(stream), [&] {
          began = true;
          begin_body(side, stream, op.d != 0);
          end = run_from(next, true);
          if (op.d != 0) {
            for (int s = 0; s < program_.streams; ++s) {
              if (s != stream && (capture_streams_ >> static_cast<unsigned>(s) & 1U) != 0)
                order(s, stream);
            }
          }
          if (op.e != 0) throw trainer_error();
        }));
      });
  if (op.e != 0) code_.line("throw std::runtime_error(\"the trainer's own error\");");
  if (code_.on()) code_.close("})); });");
  if (began) end_body(threw == 0);
  // A stream that only took part in it is unknown to the offloader still; no launch waits for it.
  give(side, stream);
  of.late = true;
  if (threw == 0 && settings(side).own >= on_stream) {
    find("captured, with memory that goes back", "");
  }
  if (threw != 0) {
    into.graph.reset();
    if (began) give_up_body();
    into = {};
    return skip();
  }
  into.eager_calls = of.eager_calls;
  return end;
}

// Something that it uses and that was there before it has gone, or lies elsewhere.
inline bool player::dead_inside(const recorded_graph& which) const {
  const auto now = device_layout(which.side);
  for (const auto& each : which.touched) {
    const auto found = now.lower_bound({each.of->id, 0});
    if (found == now.end() || found->first != each.of->id) return true;
    if (each.at == nullptr || side_at(which.side).dirty) continue;
    bool there = false;
    for (int i = 0; i < slot_count && !there; ++i) {
      const auto& other = at(i);
      there = other.full() && other.of == each.of && !other.is_view && other.b.data() == each.at;
    }
    bool views = false;
    for (const auto& other : slots_) views = views || (other.is_view && other.of == each.of);
    if (!there && !views) return true;
  }
  for (const int each : which.states_used) {
    const auto& state = states_[static_cast<std::size_t>(each)];
    if (!state.state || !which.states.contains(state.id)) return true;
  }
  return false;
}

inline bool player::must_run(const recorded_graph& which) const {
  const auto& of = side_at(which.side);
  if (device_.failed() || of.tracing || which.ahead || of.forgiven) return false;
  if (others_alive(which.side)) return false;
  for (const auto& each : states_) {
    if (each.state && each.side == which.side && each.maybe_ahead) return false;
  }
  std::set<std::uint64_t> all_states;
  for (const auto& each : states_) {
    if (each.state) all_states.insert(each.id);
  }
  if (all_states != which.all_states && !strict()) return false;
  const auto now = device_layout(which.side);
  if (now != which.before) return false;
  if (of.eager_calls == which.eager_calls) return true;  // nothing has happened since
  if (of.dirty || which.after != which.before) return false;
  for (const auto& [id, place] : now) {
    if (place == 0) return false;  // what is away may have been reloaded ahead
  }
  return !pass_open(which.side);
}

inline void player::launch(const operation& op) {
  auto& which = graphs_[static_cast<std::size_t>(op.a)];
  if (!which.graph || capturing_ || !usable_side(which.side)) return;
  auto& of = side_at(which.side);
  const int stream = stream_of(op.b);
  for (int s = 0; s < program_.streams; ++s) {
    if ((of.known >> static_cast<unsigned>(s) & 1U) == 0) order(s, stream);
  }
  const bool dead = dead_inside(which);
  const bool must = !dead && must_run(which);
  const auto code = "g" + std::to_string(op.a) + "->launch(s" + std::to_string(stream) + ");";
  const auto now = device_layout(which.side);
  const auto lender = which.lent_to && of.borrows && !of.lender_here ? gone : 0U;
  const auto threw =
      call(code, may(which.side) | lender | (must ? 0U : static_cast<unsigned>(misuse)),
           [&] { which.graph->launch(ref(stream)); });
  tick(stream);
  of.known |= 1U << static_cast<unsigned>(stream);
  if ((threw & failure) != 0) {
    for (const auto& each : contents_) {
      if (each->side == which.side) each->truth = 0;  // nobody knows whether it ran
    }
  }
  if (threw != 0) return;
  if (dead && (!of.dirty || strict())) {
    // Without a part that is to run first, or without a tensor.
    find(of.dirty ? "launched although what it uses has not come to be"
                  : "launched although what it uses has gone",
         code);
  }
  // What it writes may not be anybody else's.
  std::set<std::uint64_t> its;
  for (const auto& [id, place] : which.before) its.insert(id);
  for (const auto& [id, place] : which.after) its.insert(id);
  for (auto& other : slots_) {
    if (!other.full() || !other.of || its.contains(other.of->id) || of.dirty) continue;
    const auto from = reinterpret_cast<std::uintptr_t>(other.h().data());
    const auto to = from + other.where.span(other.pitch());
    for (const auto& item : device_.last_replayed()) {
      for (const auto& each : item.touches) {
        if (each.writes && each.first < to && from < each.first + each.bytes) {
          find("a graph writes into a tensor that it does not know", code);
        }
      }
    }
  }
  for (const auto& effect : which.effects) effect();
  layout after;
  for (const auto& each : now) {
    if (!which.before.contains(each) || which.after.contains(each)) after.insert(each);
  }
  for (const auto& each : which.after) {
    if (!which.before.contains(each)) after.insert(each);
  }
  of.on_device = after;
  of.dirty = after != standing(which.side);
  for (auto& each : slots_) {
    if (!each.full() || !each.of || each.of->side != which.side) continue;
    if (!its.contains(each.of->id)) continue;
    each.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
    each.ready[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  }
}

inline void player::drop_graph(int index) {
  auto& which = graphs_[static_cast<std::size_t>(index)];
  if (!which.graph || capturing_) return;
  call("g" + std::to_string(index) + ".reset();", 0, [&] { which.graph.reset(); });
  which = {};
}

}  // namespace stranger
