// Handles: what a trainer does with tensors outside of passes.
#pragma once

#include "play_packing.hpp"

namespace stranger {

inline std::string player::name(int index) const {
  return (at(index).is_view ? "v" : "t") + std::to_string(index);
}

// No two tensors that are alive may lie on each other.
inline void player::check_places(int index) {
  auto& one = at(index);
  const auto span = [](slot& of) {
    const auto first = reinterpret_cast<std::uintptr_t>(of.h().data());
    return std::pair{first, first + of.where.span(of.pitch())};
  };
  const auto [first, end] = span(one);
  if (first == end) return;  // an empty tensor has no place
  for (int i = 0; i < slot_count; ++i) {
    auto& other = at(i);
    if (i == index || !other.full() || !other.of || other.of->id == one.of->id) continue;
    if (words_of(*other.of) == words_of(*one.of)) continue;  // adopted twice
    if (side_at(other.of->side).dirty || side_at(one.of->side).dirty) continue;
    const auto [from, to] = span(other);
    if (from < to && first < to && from < end) {
      find("two tensors at one place", name(index) + " lies on " + name(i));
    }
  }
}

inline void player::fill(int index, buffer&& made, content_ref of, int stream) {
  auto& into = at(index);
  into.is_view = false;
  into.b = std::move(made);
  into.of = std::move(of);
  into.where = {0, into.of->bytes, 1, into.of->bytes};
  into.ready = {};
  into.ready[static_cast<std::size_t>(stream)] = tick(stream);
  into.handed = into.ready;
  into.used = {};
  into.follows = 1U << static_cast<unsigned>(stream);
  into.visits = -1;
  into.by_commit = false;
  ++into.of->handles;
  touch(into.of);
  if (!into.full()) find("an allocation gave an empty handle", name(index));
  if (into.b.size() != into.of->bytes) {
    find("size() is wrong", name(index) + ": " + std::to_string(into.b.size()) + " bytes, not " +
                                std::to_string(into.of->bytes));
  }
  check_places(index);
}

// Books that a handle holds nothing any more.
inline void player::emptied(slot& which) {
  if (!which.of) return;
  if (--which.of->handles == 0) {
    which.of->keep = false;
    which.of->kept_at.clear();
    which.of->ahead = which.of->saves > 0;
  }
  stranger::join(which.of->past, which.used);
  if (which.visits >= 0) {
    states_[static_cast<std::size_t>(which.visits)].slot = -1;
    which.visits = -1;
  }
  const auto of = std::move(which.of);
  which.of.reset();
  which.used = {};
  given_up(of);
}

// Makes a slot ready for something new; false where that may not be.
inline bool player::vacate(int index, int stream) {
  auto& which = at(index);
  if (which.group >= 0) return false;
  if (which.full() && !reset(index, stream)) return false;
  which.of.reset();
  return !which.full();
}

inline bool player::reset(int index, int wanted) {
  auto& which = at(index);
  if (!which.full() || (which.group >= 0 && !which.by_hand)) return false;
  const int side = which.of->side;
  if (capturing_ && side != capture_side_) return false;
  const int stream = stream_of(wanted);
  order_for(which.used, stream);
  const auto threw = call(name(index) + ".reset(s" + std::to_string(stream) + ");", may(side),
                          [&] { which.h().reset(ref(stream)); });
  give(side, stream);
  which.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  if (threw != 0) {
    if (!which.full()) find("a reset that threw emptied the handle", name(index));
    return false;
  }
  if (which.full()) find("a reset left the handle full", name(index));
  emptied(which);
  return true;
}

inline void player::destroy(int index) {
  auto& which = at(index);
  if (!which.full() || (which.group >= 0 && !which.by_hand)) return;
  if (capturing_ && (which.of->side != capture_side_ || (which.follows & ~capture_streams_) != 0)) {
    return;
  }
  for (int s = 0; s < program_.streams; ++s) {
    if ((which.follows >> static_cast<unsigned>(s) & 1U) == 0) continue;
    order_for(which.used, s);
    tick(s);
  }
  call(name(index) + " = {};", 0, [&] {
    if (which.is_view) {
      which.v = view();
    } else {
      which.b = buffer();
    }
  });
  for (int s = 0; s < program_.streams; ++s) {
    if ((which.follows >> static_cast<unsigned>(s) & 1U) != 0) {
      which.used[static_cast<std::size_t>(s)] = position_[static_cast<std::size_t>(s)];
    }
  }
  emptied(which);
}

inline void player::allocate(const operation& op) {
  if (!usable_side(op.e)) return;
  const int stream = stream_of(op.c);
  if (!vacate(op.a, stream)) return;
  auto& side = side_at(op.e);
  const int type = op.b % 2 != 0 || op.d > 0 ? int{as_bytes} : op.f % 8;
  const auto bytes = static_cast<std::size_t>(op.b);
  buffer made;
  const auto source = static_cast<std::size_t>(op.d);
  if (source > 0 && bytes <= source_bytes && !capturing_ && source < source_count) {
    const auto code = name(op.a) + " = " + off_name(op.e) + "->allocate_from(*f" +
                      std::to_string(source) + ", " + std::to_string(bytes) + ", s" +
                      std::to_string(stream) + ");";
    auto& from = *sources_[source];
    if (source_side_[source] >= 0 && source_side_[source] != op.e) {
      return refused(code, [&] { made = side.off->allocate_from(from, bytes, ref(stream)); });
    }
    const auto allowed = may_allocate(op.e) | budget;
    if (call(code, allowed, [&] { made = side.off->allocate_from(from, bytes, ref(stream)); }) !=
        0) {
      give(op.e, stream);
      return;
    }
    source_side_[source] = op.e;
  } else {
    at(op.a).is_view = false;
    const auto code = name(op.a) + " = " + off_name(op.e) + "->allocate" + type_text(type) + "(" +
                      std::to_string(elements_of(type, bytes)) + ", s" + std::to_string(stream) +
                      ");";
    const auto threw = call(code, may_allocate(op.e),
                            [&] { made = allocate_as(type, *side.off, bytes, ref(stream)); });
    give(op.e, stream);
    if (threw != 0) return;
  }
  auto of = std::make_shared<content>();
  of->id = ++numbers_;
  of->bytes = bytes;
  of->side = op.e;
  of->source = op.d;
  of->bfloat16 = type != as_bytes;
  contents_.push_back(of);
  at(op.a).elements = elements_of(type, bytes);
  if (!capturing_ && side.dirty) {
    side.dirty = false;  // it was let through, so that all is settled
  }
  fill(op.a, std::move(made), std::move(of), stream);
}

inline void player::share(int from, int to) {
  auto& source = at(from);
  if (from == to || !source.full() || source.is_view || source.visits >= 0) return;
  if (!usable_side(source.of->side) || !usable(from)) return;
  if (!vacate(to, 0)) return;
  auto& target = at(to);
  target.is_view = false;
  call(name(to) + " = " + name(from) + ".share();", may(source.of->side),
       [&] { target.b = source.b.share(); });
  if (!target.full()) return;
  target.of = source.of;
  target.where = source.where;
  target.ready = source.ready;
  target.handed = {};
  target.used = {};
  target.follows = source.follows;
  target.visits = -1;
  if (!target.is_view) target.by_commit = false;
  target.elements = source.elements;
  ++target.of->handles;
}

inline void player::make_view(int from, int to, int shape, bool whole) {
  auto& source = at(from);
  if (from == to || !source.full() || source.is_view || source.visits >= 0) return;
  if (!usable_side(source.of->side) || !usable(from)) return;
  if (!vacate(to, 0)) return;
  dice roll(static_cast<std::uint64_t>(shape));
  const auto grains = source.of->bytes / 16;
  tp::view_shape cut;
  cut.rows = 1 + static_cast<std::size_t>(roll.below(4));
  const auto pitch = grains / cut.rows;
  if (pitch == 0 && shape < empty_shape) return;
  cut.pitch = pitch * 16;
  if (pitch != 0) {
    cut.width = 16 * (1 + static_cast<std::size_t>(roll.below(static_cast<int>(pitch))));
    cut.offset =
        16 * static_cast<std::size_t>(roll.below(static_cast<int>(pitch - cut.width / 16 + 1)));
  }
  if (cut.rows == 1) cut.pitch = 0;
  if (shape >= empty_shape) {
    (roll.chance(0.5) || pitch == 0 ? cut.width : cut.rows) = 0;
    if (roll.chance(0.2)) cut.width = cut.rows = 0;
    if (roll.chance(0.3)) cut.offset = source.of->bytes;  // behind the last byte
  }
  cut.whole_storage = whole;
  auto& target = at(to);
  target.is_view = true;
  call(name(to) + " = " + name(from) + ".view({" + std::to_string(cut.offset) + ", " +
           std::to_string(cut.width) + ", " + std::to_string(cut.rows) + ", " +
           std::to_string(cut.pitch) + ", " + (whole ? "true" : "false") + "});",
       may(source.of->side), [&] { target.v = source.b.view(cut); });
  if (!target.full()) {
    if (cut.width * cut.rows == 0 && !side_at(source.of->side).dirty) {
      find("an empty view is an empty handle", name(to));
    }
    return;
  }
  target.of = source.of;
  target.where = {cut.offset, cut.width, cut.rows, cut.pitch == 0 ? cut.width : cut.pitch};
  target.whole = whole;
  target.ready = source.ready;
  target.handed = {};
  target.used = {};
  target.follows = source.follows;
  target.visits = -1;
  if (!target.is_view) target.by_commit = false;
  target.elements = 0;
  ++target.of->handles;
  if (target.v.width() != cut.width || target.v.rows() != cut.rows ||
      (!target.where.empty() && target.v.pitch() != target.where.pitch)) {
    find("a view has another shape", name(to));
  }
}

inline void player::move_handle(int from, int to) {
  auto& source = at(from);
  if (from == to || at(to).group >= 0 || source.is_view) return;
  if (!source.full() && source.group < 0) return;
  if (!vacate(to, 0)) return;
  auto& target = at(to);
  target.is_view = false;
  call("t" + std::to_string(to) + " = std::move(t" + std::to_string(from) + ");", 0,
       [&] { target.b = std::move(source.b); });
  target.of = std::move(source.of);
  source.of.reset();
  target.where = source.where;
  target.ready = source.ready;
  target.handed = source.handed;
  target.used = source.used;
  target.follows = source.follows;
  target.group = std::exchange(source.group, -1);
  target.by_hand = std::exchange(source.by_hand, false);
  target.visits = std::exchange(source.visits, -1);
  target.by_commit = std::exchange(source.by_commit, false);
  target.elements = source.elements;
  if (target.visits >= 0) states_[static_cast<std::size_t>(target.visits)].slot = to;
  for (auto& each : passes_) {
    for (auto& which : each.groups) {
      for (auto& argument : which.arguments) {
        if (argument.slot == from && which.number == target.group) argument.slot = to;
      }
    }
    for (auto& which : each.given) {
      for (auto& argument : which.arguments) {
        if (argument.slot == from && which.number == target.group) argument.slot = to;
      }
    }
  }
}

}  // namespace stranger
