// Passes: begin, commit, restore, and what gives them up.
#pragma once

#include "player.hpp"

namespace stranger {

namespace detail {

// Calls `with` with as many handles as there are.
template <class Handle, class Call>
void spread(const std::vector<Handle*>& all, Call&& with) {
  switch (all.size()) {
    case 1:
      return with(*all[0]);
    case 2:
      return with(*all[0], *all[1]);
    case 3:
      return with(*all[0], *all[1], *all[2]);
    default:
      return;
  }
}

}  // namespace detail

inline void player::begin(const operation& op) {
  if (!usable_side(op.b)) return;
  auto& into = passes_[static_cast<std::size_t>(op.a)];
  if (into.open && (capturing_ || op.e == 2)) return;
  const auto code = "c" + std::to_string(op.a) + " = " + off_name(op.b) + "->begin({" +
                    ".microbatch = " + std::to_string(op.c) +
                    ", .model_chunk = " + std::to_string(op.d) +
                    (op.e == 1 || op.e == 3 ? ", .forward_only = true" : "") +
                    (op.e == 3 ? ", .release = true" : "") + "});";
  tp::chunk_info info;
  info.microbatch = op.c;
  info.model_chunk = op.d;
  info.forward_only = op.e == 1 || op.e == 3;
  info.release = op.e == 3;
  const auto lender = info.forward_only ? 0U : may_miss_lender(op.b);
  if (call(code, may_report(op.b) | lender, [&] { into.chunk = side_at(op.b).off->begin(info); }) !=
      0) {
    return;
  }
  if (!info.forward_only) begun_without_lender(op.b, code);
  if (into.open) {
    side_at(into.side).spoiled = true;
    forget_pass(into);
  }
  side_at(op.b).begun = true;
  into = {std::move(into.chunk),
          true,
          op.b,
          info.forward_only,
          info.release,
          false,
          false,
          false,
          {},
          {}};
  if (capturing_) body_passes_.insert(op.a);
}

inline std::vector<int> player::arguments(const operation& op, int side, bool buffers,
                                          std::size_t most) const {
  std::vector<int> chosen;
  for (const int each : op.slots) {
    const auto& which = at(each);
    if (!which.full() || !which.of || which.group >= 0 || which.visits >= 0) continue;
    if (which.of->side != side || !usable(each) || (buffers && which.is_view)) continue;
    // A function that computes again may write, and nobody writes to what is lent.
    if (buffers && which.of->loan >= 0) continue;
    if (std::find(chosen.begin(), chosen.end(), each) == chosen.end()) chosen.push_back(each);
  }
  if (chosen.size() > most) chosen.resize(most);
  return chosen;
}

inline std::string player::list_of(const std::vector<int>& slots) const {
  std::string text;
  for (const int each : slots) text += (text.empty() ? "&" : ", &") + name(each);
  return text;
}

inline void player::commit(const operation& op) {
  auto& in = passes_[static_cast<std::size_t>(op.a)];
  if (!in.open || in.lost || in.ended || in.restored || !usable_side(in.side)) return;
  const auto& with = settings(in.side);
  if (op.e == or_discard && (with.modules >> static_cast<unsigned>(op.b) & 1U) == 0) {
    const auto name = std::ranges::find(
        discard_names, std::string_view(module_names[static_cast<std::size_t>(op.b)]));
    const auto number = static_cast<int>(name - discard_names.begin());
    if (name != discard_names.end() && (with.recompute >> number & 1U) != 0) {
      auto by_name = op;  // `recompute_modules` decides
      by_name.b = number;
      return discard(by_name);
    }
  }
  const auto slots = arguments(op, in.side, op.e == or_discard, op.e == listed ? 8 : 3);
  if (slots.empty() || (in.release && op.e == by_hand)) return;
  const int stream = stream_of(op.d);
  for (const int each : slots) {
    order_for(at(each).ready, stream);
    order_for(at(each).used, stream);
  }
  static constexpr const char* ways[]{"commit", "start_offload", "commit_or_discard", "commit"};
  std::string code = "c" + std::to_string(op.a) + "." + ways[op.e] + "<\"" +
                     module_names[static_cast<std::size_t>(op.b)] + "\">(" + std::to_string(op.c) +
                     ", s" + std::to_string(stream);
  if (op.e == listed)
    code = "{ const std::vector<tp::handle<device>*> all{" + list_of(slots) + "}; " + code +
           ", offloader::chunk::handle_list(all)";
  std::vector<handle*> handles;
  std::vector<buffer*> buffers;
  std::vector<const void*> places;
  bool lent = false;
  for (const int each : slots) {
    if (op.e != listed) code += ", " + name(each);
    lent = lent || lies_in_loan(at(each));
    handles.push_back(&at(each).h());
    buffers.push_back(&at(each).b);
    places.push_back(at(each).h().data());
    touch(at(each).of);
  }
  const auto id = static_cast<tp::module_id>(op.b);
  const bool does =
      (settings(in.side).modules >> static_cast<unsigned>(op.b) & 1U) != 0 && !in.forward_only;
  const auto module = static_cast<std::size_t>(op.b);
  const auto before = side_at(in.side).off->counters().modules[module];
  const auto moved = device_.bytes_out();
  device_.forget_moves();
  auto allowed = may(in.side);
  if (settings(in.side).tight_host()) allowed |= budget;
  if (!does) allowed &= ~budget;
  const auto threw = call(code + (op.e == listed ? "); }" : ");"), allowed, [&] {
    if (op.e == listed) {
      in.chunk.commit(id, op.c, ref(stream), offloader::chunk::handle_list(handles));
    } else if (op.e == or_discard) {
      detail::spread(buffers, [&](auto&... all) {
        in.chunk.commit_or_discard(id, op.c, ref(stream), all...);
      });
    } else if (op.e == by_hand) {
      detail::spread(handles,
                     [&](auto&... all) { in.chunk.start_offload(id, op.c, ref(stream), all...); });
    } else {
      detail::spread(handles,
                     [&](auto&... all) { in.chunk.commit(id, op.c, ref(stream), all...); });
    }
  });
  if (does || in.release) give(in.side, stream);
  if (capturing_) body_passes_.insert(op.a);
  if (in.release && threw == 0) {
    for (const int each : slots) {
      if (at(each).full()) find("a commit that releases left a handle full", code);
      at(each).used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
      emptied(at(each));
      if (!at(each).is_view) at(each).by_commit = true;
    }
  }
  const auto after = side_at(in.side).off->counters().modules[module];
  if (threw != 0 || !does) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (in.release && threw == 0) continue;
      if (at(slots[i]).h().data() != places[i])
        find("a commit that did nothing changed a handle", code);
    }
    const auto figures = [](const tp::trace::module_counters& c) {
      return std::array{
          c.groups,         c.groups_offloaded, c.groups_resident, c.tensors_offloaded,
          c.tensors_shared, c.tensors_small,    c.bytes_offloaded, c.bytes_packed,
          c.bytes_on_link};
    };
    if (figures(before) != figures(after)) {
      find("a commit that failed is counted", code + ": bytes_offloaded " +
                                                  std::to_string(before.bytes_offloaded) + " -> " +
                                                  std::to_string(after.bytes_offloaded));
    }
    return;
  }
  const auto left = [](const tp::trace::module_counters& c) {
    return c.bytes_offloaded - c.bytes_packed + c.bytes_on_link;
  };
  if (left(after) - left(before) != device_.bytes_out() - moved) {
    find("bytes_offloaded is not what was copied",
         code + ": " + std::to_string(left(after) - left(before)) + " counted, " +
             std::to_string(device_.bytes_out() - moved) + " copied");
  }
  check_packed(in.side, op.b, slots, places, before, after, code);
  note_commit(in, op, slots, places, stream);
  if (capturing_ && lent) find("a capture committed what was adopted", code);
  if (device_.bytes_out() != moved && !capturing_) {
    flights_[{in.side, op.b}].push_back(
        {device_.last_out(), device_.last_out_position(), device_.bytes_out() - moved});
  }
  check_cap(in.side, op.b, stream);
}

inline void player::note_commit(pass& in, const operation& op, const std::vector<int>& slots,
                                const std::vector<const void*>& places, int stream) {
  group made;
  made.number = ++group_numbers_;
  made.module = op.b;
  made.layer = op.c;
  made.way = static_cast<commit_way>(op.e);
  std::vector<bool> saved_before;
  for (const int each : slots) saved_before.push_back(at(each).of->saves > 0);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    auto& which = at(slots[i]);
    argument each{slots[i], !which.full(), false, which.of, which.where, false};
    each.saved = each.left || made.way == by_hand;
    const bool covers = which.where.rows == 1 && which.where.width == which.of->bytes;
    each.own = which.is_view && !which.whole && !saved_before[i] && !covers;
    if (each.left && made.way == by_hand) find("start_offload emptied a handle", name(slots[i]));
    if (each.left && !which.is_view && made.way != by_hand && which.of->bytes > 0) {
      const auto first = reinterpret_cast<std::uintptr_t>(places[i]);
      const auto kept = which.of->kept_at.lower_bound(first);
      const bool opted_out = kept != which.of->kept_at.end() && *kept - first < which.of->bytes;
      if (opted_out || which.elements < settings(in.side).min_elements) {
        find("what was opted out or small left", name(slots[i]));
      }
    }
    if (each.saved) ++each.of->saves;
    if (each.left) emptied(which);
    if (each.left) each.of->ahead = each.of->ahead || each.of->restored;
    if (each.saved && each.of->handles > 0) each.of->copied = true;
    if (!which.is_view) which.by_commit = each.left;
    which.group = made.number;
    which.by_hand = made.way == by_hand;
    which.follows |= 1U << static_cast<unsigned>(stream);
    made.arguments.push_back(std::move(each));
  }
  in.groups.push_back(std::move(made));
}

inline void player::check_cap(int side, int module, int stream) {
  const auto& with = settings(side);
  auto& all = flights_[{side, module}];
  const auto lane = device_.lane_of(ref(stream));
  std::erase_if(all, [&](const flight& each) {
    return device_.order().covers(lane, each.lane, each.position);
  });
  if (capturing_ || (with.cap < 0 && with.cap_bytes < 0)) return;
  for (const auto& each : graphs_) {
    if (each.graph) return;
  }
  std::size_t bytes = 0;
  for (const auto& each : all) bytes += each.bytes;
  if ((with.cap >= 0 && all.size() > static_cast<std::size_t>(with.cap)) ||
      (with.cap_bytes >= 0 && bytes > static_cast<std::size_t>(with.cap_bytes))) {
    find("more in flight than the cap", std::to_string(all.size()) + " groups, " +
                                            std::to_string(bytes) + " bytes of " +
                                            module_names[static_cast<std::size_t>(module)]);
  }
}

inline void player::end_forward(int chunk) {
  auto& in = passes_[static_cast<std::size_t>(chunk)];
  if (!in.open || in.lost || !usable_side(in.side)) return;
  if (capturing_) body_passes_.insert(chunk);
  if (in.ended && !strict()) return;  // twice: the profile of the step then cannot be saved
  call("c" + std::to_string(chunk) + ".end_forward();", may(in.side),
       [&] { in.chunk.end_forward(); });
  in.ended = true;
  ++side_at(in.side).eager_calls;
  note_saved(in.side);
}

inline bool player::newest(const pass& in, const group& which) const {
  const group* last = nullptr;
  for (const auto& each : in.groups) {
    if (!each.restored && each.module == which.module && each.layer == which.layer) last = &each;
  }
  return last == &which;
}

inline group* player::group_at(pass& in, int back) {
  std::vector<group*> left;
  for (auto& each : in.groups) {
    if (!each.restored && newest(in, each)) left.push_back(&each);
  }
  if (left.empty()) return nullptr;
  return left[left.size() - 1 - static_cast<std::size_t>(back) % left.size()];
}

inline void player::start_reload(const operation& op) {
  auto& in = passes_[static_cast<std::size_t>(op.a)];
  if (!in.open || in.lost || in.forward_only || !usable_side(in.side)) return;
  auto* const which = group_at(in, op.b);
  if (which == nullptr) return;
  if (capturing_) body_passes_.insert(op.a);
  for (const auto& each : which->arguments) touch(each.of);
  call("c" + std::to_string(op.a) + ".start_reload<\"" +
           module_names[static_cast<std::size_t>(which->module)] + "\">(" +
           std::to_string(which->layer) + ");",
       may_allocate(in.side) | budget,
       [&] { in.chunk.start_reload(static_cast<tp::module_id>(which->module), which->layer); });
  ++side_at(in.side).eager_calls;
}

inline void player::restore(const operation& op) {
  auto& in = passes_[static_cast<std::size_t>(op.a)];
  if (!in.open || in.lost || in.forward_only || !usable_side(in.side)) return;
  auto* const which = group_at(in, op.b);
  if (which == nullptr) return;
  const int stream = stream_of(op.c);
  if (capturing_) body_passes_.insert(op.a);
  bool foreign = false;
  for (auto& each : which->arguments) {
    touch(each.of);
    if (each.of->source > 0) foreign = true;
    if (op.d != 1 || !each.left || at(each.slot).is_view) continue;
    for (int i = 0; i < slot_count; ++i) {  // another empty handle takes it
      auto& other = at(i);
      if (other.full() || other.group >= 0 || other.of || other.is_view || other.by_commit)
        continue;
      other.elements = at(each.slot).elements;
      other.group = std::exchange(at(each.slot).group, -1);
      each.slot = i;
      break;
    }
  }
  const bool again = which->way == or_discard;
  std::string code = "c" + std::to_string(op.a) +
                     (again ? ".restore_or_recompute<\"" : ".restore<\"") +
                     module_names[static_cast<std::size_t>(which->module)] + "\">(" +
                     std::to_string(which->layer) + ", s" + std::to_string(stream);
  std::vector<handle*> handles;
  std::vector<buffer*> buffers;
  std::string names;
  for (const auto& each : which->arguments) {
    names += ", " + name(each.slot);
    handles.push_back(&at(each.slot).h());
    buffers.push_back(&at(each.slot).b);
    if (again && at(each.slot).full()) {
      order_for(at(each.slot).used, stream);
      order_for(at(each.slot).ready, stream);
    }
  }
  const auto id = static_cast<tp::module_id>(which->module);
  auto allowed = may_allocate(in.side);
  if (group_fits(in, *which)) allowed &= ~static_cast<unsigned>(budget);
  if (foreign) allowed |= budget;
  unsigned threw = 0;
  bool called = false;
  if (again) {
    const bool will = in.chunk.will_recompute(id, which->layer);
    bool others = false;
    for (const auto& each : which->arguments) {
      others = others || each.of->handles > 1 || each.of->saves > static_cast<int>(each.saved);
    }
    if (code_.on()) code_.open("attempt([&] { " + code + ", [&] {");
    threw = call("", allowed | (op.e != 0 ? static_cast<unsigned>(own) : 0U), [&] {
      detail::spread(buffers, [&](auto&... all) {
        in.chunk.restore_or_recompute(
            id, which->layer, ref(stream),
            [&] {
              called = true;
              recompute_again(*which, stream);
              if (op.e != 0) throw trainer_error();
            },
            all...);
      });
    });
    if (op.e != 0 && called) code_.line("throw std::runtime_error(\"the trainer's own error\");");
    if (code_.on()) code_.close("}" + names + "); });");
    if (called && !will) find("recomputed although will_recompute said no", code);
    if (!called && will && !others && threw == 0)
      find("not recomputed although will_recompute said so", code);
  } else if (which->arguments.size() > 3 || op.d == 2) {
    std::vector<int> slots;
    for (const auto& each : which->arguments) slots.push_back(each.slot);
    code = "{ const std::vector<tp::handle<device>*> all{" + list_of(slots) + "}; " + code +
           ", offloader::chunk::handle_list(all)); }";
    threw = call(code, allowed, [&] {
      in.chunk.restore(id, which->layer, ref(stream), offloader::chunk::handle_list(handles));
    });
  } else {
    threw = call(code + names + ");", allowed, [&] {
      detail::spread(
          handles, [&](auto&... all) { in.chunk.restore(id, which->layer, ref(stream), all...); });
    });
  }
  give(in.side, stream);
  in.restored = true;
  if (threw == 0) return come_back(in, *which, stream);
  for (auto& each : which->arguments) {
    if (each.left && at(each.slot).full())
      find("a restore that threw filled a handle", code + names);
    if (!each.left) {  // what was there may have been computed again before that threw
      const auto s = static_cast<std::size_t>(stream);
      if (called) at(each.slot).ready[s] = position_[s];
      continue;
    }
    at(each.slot).of.reset();
    at(each.slot).used = {};
  }
}

inline void player::come_back(pass& in, group& which, int stream) {
  which.restored = true;
  const auto s = static_cast<std::size_t>(stream);
  tick(stream);
  for (auto& each : which.arguments) {
    auto& into = at(each.slot);
    if (!into.full()) {
      find("a restore left a handle empty", name(each.slot));
    }
    const bool came = !into.of || each.left;
    if (each.saved) --each.of->saves;
    each.of->restored = true;
    into.group = -1;
    into.by_hand = false;
    if (!into.is_view) into.by_commit = false;
    if (came) {
      into.handed = {};
      into.handed[s] = position_[s];
      into.of = each.of;
      into.where = each.where;
      ++into.of->handles;
      into.ready = {};
      if (which.way != or_discard) into.used = {};
      into.follows = 1U << static_cast<unsigned>(stream);
    } else {
      into.follows |= 1U << static_cast<unsigned>(stream);
    }
    // What is offered to be computed again may have been, on this stream, although it was there.
    if (came || each.saved || which.way == or_discard) into.ready[s] = position_[s];
    if (into.is_view) {
      const bool pitched = !each.where.empty() && into.v.pitch() != each.where.width &&
                           into.v.pitch() != each.where.pitch;
      if (into.v.width() != each.where.width || into.v.rows() != each.where.rows || pitched) {
        find("a view came back with another shape", name(each.slot));
      }
    } else if (into.b.size() != into.of->bytes) {
      find("a tensor came back with another size", name(each.slot));
    }
    if (came) check_places(each.slot);
  }
  if (!capturing_) compare(in.side);
}

// Writes what was, as the function that recomputes must.
inline void player::recompute_again(group& which, int stream) {
  for (auto& each : which.arguments) fill_again(each, stream);
}

inline void player::fill_again(argument& each, int stream) {
  auto& into = at(each.slot);
  if (!into.full()) find("a handle is empty in the function that recomputes", name(each.slot));
  if (each.left || !into.of) {
    into.of = each.of;
    into.where = each.where;
    into.ready = {};
    into.used = {};
  }
  auto& version = version_of(*each.of);
  const auto value = version == 0 ? ++versions_ : version;
  kernel(into, each.slot, stream, true, value);
  // Where nobody had written it, what others have of it need not be what is written now.
  const bool others = each.of->handles > static_cast<int>(!each.left) ||
                      each.of->saves > static_cast<int>(each.saved);
  if (version == 0 && others) return;
  version = value;
  if (capturing_) into_->effects.emplace_back([of = each.of, value] { of->truth = value; });
}

inline void player::discard(const operation& op) {
  auto& in = passes_[static_cast<std::size_t>(op.a)];
  if (!in.open || in.lost || in.ended || in.restored || !usable_side(in.side)) return;
  auto slots = arguments(op, in.side, true, 3);
  const bool does = (settings(in.side).recompute >> static_cast<unsigned>(op.b) & 1U) != 0;
  std::erase_if(slots,
                [&](int each) { return at(each).of->handles != 1 || at(each).of->saves != 0; });
  if (slots.empty() || !does) return;
  const int stream = stream_of(op.d);
  std::string code = "c" + std::to_string(op.a) + ".commit_or_discard(\"" +
                     discard_names[static_cast<std::size_t>(op.b)] + "\", " + std::to_string(op.c) +
                     ", s" + std::to_string(stream);
  std::vector<buffer*> buffers;
  for (const int each : slots) {
    order_for(at(each).ready, stream);
    order_for(at(each).used, stream);
    code += ", " + name(each);
    buffers.push_back(&at(each).b);
    touch(at(each).of);
  }
  if (capturing_) body_passes_.insert(op.a);
  const auto threw = call(code + ");", may(in.side), [&] {
    detail::spread(buffers, [&](auto&... all) {
      in.chunk.commit_or_discard(discard_names[static_cast<std::size_t>(op.b)], op.c, ref(stream),
                                 all...);
    });
  });
  give(in.side, stream);
  if (threw != 0) return;
  discarded made;
  made.number = ++group_numbers_;
  made.name = op.b;
  made.layer = op.c;
  for (const int each : slots) {
    auto& which = at(each);
    which.of->keep = false;
    which.of->kept_at.clear();
    if (which.full()) find("discard left a handle full", name(each));
    made.arguments.push_back({each, true, true, which.of, which.where, false});
    ++which.of->saves;
    which.of->again = true;
    emptied(which);
    which.group = made.number;
  }
  in.given.push_back(std::move(made));
}

inline void player::recompute(const operation& op) {
  auto& in = passes_[static_cast<std::size_t>(op.a)];
  if (!in.open || in.lost || in.forward_only || !usable_side(in.side)) return;
  std::vector<discarded*> left;
  for (auto& each : in.given) {
    if (each.done) continue;
    std::erase_if(left, [&](const discarded* other) {
      return other->name == each.name && other->layer == each.layer;
    });
    left.push_back(&each);
  }
  if (left.empty()) return;
  auto& which = *left[left.size() - 1 - static_cast<std::size_t>(op.b) % left.size()];
  const int stream = stream_of(op.c);
  std::vector<buffer*> buffers;
  std::string names;
  for (auto& each : which.arguments) {
    buffers.push_back(&at(each.slot).b);
    names += ", " + name(each.slot);
    touch(each.of);
  }
  if (capturing_) body_passes_.insert(op.a);
  const auto* const word = discard_names[static_cast<std::size_t>(which.name)];
  if (code_.on()) {
    code_.open("attempt([&] { c" + std::to_string(op.a) + ".restore_or_recompute(\"" + word +
               "\", " + std::to_string(which.layer) + ", s" + std::to_string(stream) + ", [&] {");
  }
  bool called = false;
  bool foreign = false;
  for (const auto& each : which.arguments) foreign = foreign || each.of->source > 0;
  const auto allowed = may_allocate(in.side) | (foreign ? static_cast<unsigned>(budget) : 0U);
  const auto threw = call("", allowed | (op.e != 0 ? static_cast<unsigned>(own) : 0U), [&] {
    detail::spread(buffers, [&](auto&... all) {
      in.chunk.restore_or_recompute(
          word, which.layer, ref(stream),
          [&] {
            called = true;
            for (auto& each : which.arguments) fill_again(each, stream);
            if (op.e != 0) throw trainer_error();
          },
          all...);
    });
  });
  if (op.e != 0 && called) code_.line("throw std::runtime_error(\"the trainer's own error\");");
  if (code_.on()) code_.close("}" + names + "); });");
  give(in.side, stream);
  for (auto& each : which.arguments) {
    auto& into = at(each.slot);
    if (threw != 0) {
      into.of.reset();
      if (into.full()) find("a recompute that threw left a handle full", name(each.slot));
      continue;
    }
    if (!called) find("recompute did not call its function", name(each.slot));
    --each.of->saves;
    ++each.of->handles;
    if (!capturing_) each.of->again = false;
    into.group = -1;
    into.ready = {};
    into.ready[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
    into.follows = 1U << static_cast<unsigned>(stream);
    check_places(each.slot);
  }
  if (threw == 0) which.done = true;
  in.restored = in.restored || !in.forward_only;
  if (!capturing_) compare(in.side);
}

inline void player::finish_pass(int chunk) {
  auto& in = passes_[static_cast<std::size_t>(chunk)];
  if (!in.open || in.lost || !usable_side(in.side)) return;
  bool whole = true, away = false;
  for (const auto& each : in.groups) {
    if (each.restored) continue;
    whole = false;
    for (const auto& one : each.arguments) away = away || one.saved;
  }
  for (const auto& each : in.given) {
    if (!each.done) whole = false, away = true;
  }
  if (in.forward_only) whole = true, away = false;
  if (capturing_) body_passes_.insert(chunk);
  const auto code = "c" + std::to_string(chunk) + ".finish();";
  if (away) {
    if (!capturing_) refused(code, [&] { in.chunk.finish(); });
    return;
  }
  ++side_at(in.side).eager_calls;
  const auto threw = call(code, may(in.side) | (whole ? 0U : static_cast<unsigned>(misuse)),
                          [&] { in.chunk.finish(); });
  if (threw != 0) return;
  if (!in.forward_only) ++side_at(in.side).passes;
  forget_pass(in);
}

inline void player::abandon(int chunk) {
  auto& in = passes_[static_cast<std::size_t>(chunk)];
  if (!in.open) return;
  if (capturing_ && in.side != capture_side_) return;
  if (capturing_) body_passes_.insert(chunk);
  call("c" + std::to_string(chunk) + " = {};", 0, [&] { in.chunk = {}; });
  ++side_at(in.side).eager_calls;
  if (!in.forward_only) side_at(in.side).spoiled = true;
  forget_pass(in);
}

// Drops what the model knows of a pass that is over or was given up.
inline void player::forget_pass(pass& which) {
  const auto drop = [&](argument& each, int number, bool pending) {
    auto& here = at(each.slot);
    if (pending && each.saved) --each.of->saves;
    given_up(each.of);
    if (here.group == number) {
      here.group = -1;
      here.by_hand = false;
      if (!here.full()) here.of.reset();
    }
  };
  for (auto& each : which.groups) {
    if (each.restored) continue;
    for (auto& one : each.arguments) drop(one, each.number, true);
  }
  for (auto& each : which.given) {
    if (each.done) continue;
    for (auto& one : each.arguments) drop(one, each.number, true);
  }
  which.groups.clear();
  which.given.clear();
  which.open = false;
  which.lost = false;
  if (!capturing_) compare(which.side);
}

// Calls that the documentation says are refused.
inline void player::misuse_pass(const operation& op) {
  if (capturing_) return;
  auto& in = passes_[static_cast<std::size_t>(op.b) % chunk_count];
  if (!in.open || in.lost || !usable_side(in.side)) return;
  if (side_at(in.side).dirty) return;
  if (in.release) {
    buffer nothing;
    const int on = stream_of(op.d);
    return refused("{ offloader::buffer nothing; c" + std::to_string(op.b % chunk_count) +
                       ".restore<\"core_attn\">(0, s" + std::to_string(on) + ", nothing); }",
                   [&] { in.chunk.restore(tp::module_id{0}, 0, ref(on), nothing); });
  }
  if (in.forward_only) return;
  unsigned module = 0;
  while (module < 4 && (settings(in.side).modules >> module & 1U) == 0) ++module;
  if (module >= 4) return;
  const auto id = static_cast<tp::module_id>(module);
  const std::string start = "c" + std::to_string(op.b % chunk_count) + ".";
  const std::string named = std::string("<\"") + module_names[module] + "\">(";
  const int stream = stream_of(op.d);
  const auto tail = ", s" + std::to_string(stream) + ", ";
  switch (op.a) {
    case 4: {  // where there is no group
      return refused(start + "forget" + named + "99);", [&] { in.chunk.forget(id, 99); });
    }
    case 5: {  // no memory, for bytes
      const int from = find_region(256, stream, 0);
      if (from < 0) return;
      write_region(from);
      const int number = lend(from, in.side);
      refused("static_cast<void>(" + off_name(in.side) + "->adopt(nullptr, 256, s" +
                  std::to_string(stream) + ", " + owner_text(from, callable) + "));",
              [&] {
                with_owner(number, callable, [&](tp::memory_owner&& owner) {
                  static_cast<void>(
                      side_at(in.side).off->adopt(nullptr, 256, ref(stream), std::move(owner)));
                });
              });
      if (loans_[static_cast<std::size_t>(number)].times_back != 1) {
        find("adopt threw, and its owner has nothing back", "misuse");
      }
      return;
    }
    case 6: {  // the address of what a commit emptied
      const auto& one = at(op.c % slot_count);
      if (one.full() || one.group < 0 || one.is_view || !one.by_commit) return;
      return refused("static_cast<void>(" + name(op.c % slot_count) + ".data());",
                     [&] { static_cast<void>(one.b.data()); });
    }
    case 7: {  // a chunk that is not open
      offloader::chunk closed;
      refused("{ offloader::chunk closed; closed.end_forward(); }", [&] { closed.end_forward(); });
      return refused("{ offloader::chunk closed; closed.forget" + named + "0); }",
                     [&] { closed.forget(id, 0); });
    }
    case 0: {  // an empty handle
      if (in.ended || in.restored) return;
      buffer nothing;
      return refused(
          "{ offloader::buffer nothing; " + start + "commit" + named + "0" + tail + "nothing); }",
          [&] { in.chunk.commit(id, 0, ref(stream), nothing); });
    }
    case 1: {  // never committed
      buffer nothing;
      return refused(
          "{ offloader::buffer nothing; " + start + "restore" + named + "99" + tail + "nothing); }",
          [&] { in.chunk.restore(id, 99, ref(stream), nothing); });
    }
    case 2: {  // another number of arguments
      auto* const which = group_at(in, op.c);
      if (which == nullptr || which->arguments.size() > 2) return;
      std::vector<handle*> all;
      std::string code = start + "restore<\"" +
                         module_names[static_cast<std::size_t>(which->module)] + "\">(" +
                         std::to_string(which->layer) + ", s" + std::to_string(stream);
      for (const auto& each : which->arguments) {
        all.push_back(&at(each.slot).h());
        code += ", " + name(each.slot);
      }
      buffer more;
      all.push_back(&more);
      if (which->way == or_discard) return;
      return refused("{ offloader::buffer more; " + code + ", more); }", [&] {
        detail::spread(all, [&](auto&... each) {
          in.chunk.restore(static_cast<tp::module_id>(which->module), which->layer, ref(stream),
                           each...);
        });
      });
    }
    case 3: {  // too late, twice, or somebody else's
      const auto& one = at(op.c % slot_count);
      if (!one.full() || one.group >= 0 || one.visits >= 0 || !usable(op.c % slot_count)) return;
      auto& given = at(op.c % slot_count).h();
      const auto name_of_it = name(op.c % slot_count);
      if (one.of->side != in.side || in.ended || in.restored) {
        return refused(start + "commit" + named + "0" + tail + name_of_it + ");",
                       [&] { in.chunk.commit(id, 0, ref(stream), given); });
      }
      return refused(start + "commit" + named + "0" + tail + name_of_it + ", " + name_of_it + ");",
                     [&] { in.chunk.commit(id, 0, ref(stream), given, given); });
    }
    default: {
      return refused(off_name(in.side) + "->end_step();",
                     [&] { side_at(in.side).off->end_step(); });
    }
  }
}

}  // namespace stranger
