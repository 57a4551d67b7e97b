// Tensors by key, as a framework saves them. Not inside captures: what is saved is borrowed.
// play_key_reads.hpp has their reads.
#pragma once

#include "player.hpp"

namespace stranger {

inline key_pass* player::keys_at(int which) {
  auto& in = key_passes_[static_cast<std::size_t>(which)];
  return in.open && !capturing_ && usable_side(in.side) ? &in : nullptr;
}

inline void player::key_begin(const operation& op) {
  auto& in = key_passes_[static_cast<std::size_t>(op.a)];
  if (in.open || capturing_ || !usable_side(op.b)) return;
  auto& side = side_at(op.b);
  const auto off = off_name(op.b);
  if (!side.keys) {
    side.keys.emplace(*side.off);
    code_.line("keys" + std::to_string(op.b) + ".emplace(*" + off + ");");
    exclude_weights(op.b);
  }
  tp::chunk_info info;
  info.microbatch = op.c;
  info.forward_only = op.e != 0;
  info.release = op.e == 3;
  const auto code = key_name(op.a) + " = keys" + std::to_string(op.b) +
                    "->begin({.microbatch = " + std::to_string(op.c) +
                    (op.e != 0 ? ", .forward_only = true" : "") +
                    (op.e == 3 ? ", .release = true" : "") + "});";
  in = {};
  const auto lender = info.forward_only ? 0U : may_miss_lender(op.b);
  if (call(code, may_report(op.b) | lender, [&] { in.pass.emplace(side.keys->begin(info)); }) !=
      0) {
    return;
  }
  if (!info.forward_only) begun_without_lender(op.b, code);
  side.begun = true;
  in.open = true;
  in.side = op.b;
  in.forward_only = op.e != 0;
  in.release = op.e == 3;
}

inline void player::key_enter(const operation& op) {
  auto* const in = keys_at(op.a);
  if (in == nullptr || in->ended || in->restored) return;
  for (const auto& each : in->scopes) {
    if (each.module == op.b && each.layer == op.c) return;
  }
  const auto id = static_cast<tp::module_id>(op.b);
  const auto start = key_name(op.a);
  const auto named = off_name(in->side) + "->module(\"" +
                     module_names[static_cast<std::size_t>(op.b)] + "\"), " + std::to_string(op.c);
  const int scope = static_cast<int>(in->scopes.size());
  if (op.e == 0) {
    if (call(start + ".enter(" + named + ");", may(in->side), [&] { in->pass->enter(id, op.c); }) !=
        0) {
      return;
    }
    in->scopes.push_back({op.b, op.c});
    in->within.push_back(scope);
    return;
  }
  const int stream = stream_of(op.d);
  bool inside = false;
  if (code_.on()) {
    code_.open("attempt([&] { " + start + ".run(" + named + ", s" + std::to_string(stream) +
               ", [&] {");
  }
  const auto threw = call("", may(in->side) | own, [&] {
    in->pass->run(id, op.c, ref(stream), [&] {
      inside = true;
      in->scopes.push_back({op.b, op.c});
      in->within.push_back(scope);
      key_save({kind::key_save, op.a, op.slots.empty() ? 0 : op.slots[0], op.d, 256, callable});
      throw trainer_error();
    });
  });
  code_.line("throw std::runtime_error(\"the trainer's own error\");");
  if (code_.on()) code_.close("}); });");
  if (!inside) return;
  if ((threw & own) == 0) find("what a body threw was not passed on", start);
  in->within.pop_back();
  in->scopes.back().kept = true;
}

// A trainer's question, which may throw.
inline void player::exclude_weights(int side) {
  const auto say = [&](auto& keys) {
    if constexpr (requires { keys.exclude_if(nullptr); }) {
      keys.exclude_if([this](const auto& each) {
        if (std::exchange(evil_question_, false)) throw trainer_error();
        return is_weight(each.data);
      });
      code_.line("keys" + std::to_string(side) +
                 "->exclude_if([&](const auto& each) { return weights.contains(each.data); });");
    }
  };
  say(*side_at(side).keys);
}
inline bool player::is_weight(const void* data) const {
  if constexpr (!excludes) return false;
  return std::any_of(regions_.begin(), regions_.end(),
                     [&](const region& each) { return each.weight && each.at == data; });
}

// What lies where another key's tensor does, whose memory nobody has back.
inline int player::saved_region(const key_pass& in) const {
  for (const auto& [key, each] : in.tensors) {
    const auto& scope = in.scopes[static_cast<std::size_t>(each.scope)];
    if ((!scope.left || each.excluded) && each.bytes > 0) return each.region;
  }
  return -1;
}

inline void player::key_save(const operation& op) {
  auto* const in = keys_at(op.a);
  if (in == nullptr || in->within.empty()) return;
  const auto key = static_cast<std::uint64_t>(op.b) * 7919 + 5;
  const auto found = in->tensors.find(key);
  const bool known = found != in->tensors.end();
  // A tensor of no bytes may have the key of another, as it may have its address.
  const bool again = known && (op.d == 0 || found->second.bytes > 0);
  int from = !known && (op.e & 8) != 0 && op.d > 0 ? saved_region(*in) : -1;
  if (from >= 0) {
    ++reached()["saved by two keys"];
  } else if (again && op.d > 0) {
    const auto& there = found->second;
    const auto& scope = in->scopes[static_cast<std::size_t>(there.scope)];
    from = there.region;
    const bool kept = std::find(in->kept.begin(), in->kept.end(), from) != in->kept.end();
    if (scope.left && !kept && !there.excluded)
      return;  // nobody knows whether the memory still holds it
  } else {
    from = find_region(static_cast<std::size_t>(op.d), stream_of(op.c), op.d / 16 % 16 * 16);
    if (from < 0) return;
    write_region(from);
    regions_[static_cast<std::size_t>(from)].weight = (op.e & 16) != 0 && op.d > 0;
    if (excludes) {
      code_.line(std::string("weights.") + ((op.e & 16) != 0 && op.d > 0 ? "insert" : "erase") +
                 "(m" + std::to_string(from) + ");");
    }
  }
  const auto& of = regions_[static_cast<std::size_t>(from)];
  const int number = lend(from, in->side);
  const int owner = op.e % 4 % 3;
  if ((op.e & 4) != 0 && !known) {
    ++regions_[static_cast<std::size_t>(from)].references;
    in->kept.push_back(from);
  }
  const int lies = again ? found->second.region : from;
  auto* const data =
      of.bytes == 0 && number % 2 == 0 ? nullptr : regions_[static_cast<std::size_t>(lies)].at;
  const auto code = key_name(op.a) + ".save(" + std::to_string(key) + ", " +
                    (data == nullptr ? "nullptr" : "m" + std::to_string(lies)) + ", " +
                    std::to_string(of.bytes) + ", s" + std::to_string(of.home) + ", " +
                    owner_text(from, owner) + ");";
  evil_question_ = (op.e & 32) != 0;
  const auto threw = call(code, may(in->side) | (evil_question_ ? unsigned{own} : 0U), [&] {
    with_owner(number, owner, [&](tp::memory_owner&& owned) {
      in->pass->save(key, data, of.bytes, ref(of.home), std::move(owned));
    });
  });
  evil_question_ = false;
  give(in->side, of.home);
  const auto back = loans_[static_cast<std::size_t>(number)].times_back;
  if ((threw != 0 || again) && back != 1) {
    find("the owner of what was not kept has nothing back", code);
  }
  if (in->pass->size() != in->tensors.size() + static_cast<std::size_t>(threw == 0 && !known)) {
    find("another number of keys", code);
  }
  if (threw != 0) return;
  if (again) {
    ++found->second.references;
    if (op.d == 0 && found->second.bytes > 0) ++reached()["an empty tensor by the key of another"];
  } else {
    if (back != 0 && of.bytes > 0) find("saved, and back at once", code);
    key_tensor made;
    made.references = 1;
    if (known) {
      made.references += found->second.references;
      ++reached()["a tensor by the key of an empty one"];
    }
    made.scope = in->within.back();
    made.region = from;
    made.loan = number;
    made.bytes = of.bytes;
    made.words = of.words;
    made.version = of.version;
    made.streams = 1U << static_cast<unsigned>(of.home);
    made.used[static_cast<std::size_t>(of.home)] = position_[static_cast<std::size_t>(of.home)];
    made.excluded = is_weight(data);
    if (made.excluded) ++reached()["excluded"];
    in->tensors.insert_or_assign(key, made);
  }
}

inline void player::key_leave(const operation& op) {
  auto* const in = keys_at(op.a);
  if (in == nullptr || in->within.empty()) return;
  const int stream = stream_of(op.b);
  const int which = in->within.back();
  for (auto& [key, each] : in->tensors) {
    if (each.scope != which || each.excluded) continue;
    order_for(each.used, stream);
    each.streams |= 1U << static_cast<unsigned>(stream);
  }
  auto allowed = may(in->side);
  if (settings(in->side).tight_host()) allowed |= budget;
  const auto threw = call(key_name(op.a) + ".leave(s" + std::to_string(stream) + ");", allowed,
                          [&] { in->pass->leave(ref(stream)); });
  give(in->side, stream);
  in->within.pop_back();
  auto& scope = in->scopes[static_cast<std::size_t>(which)];
  scope.left = threw == 0;
  scope.kept = threw != 0;
  if (!scope.left) return;
  for (auto& [key, each] : in->tensors) {  // an address from before ends with the scope
    if (each.scope == which && !each.excluded) each.at = nullptr, each.readers = 0;
  }
}

inline void player::key_drop(const operation& op) {
  auto* const in = keys_at(op.a);
  if (in == nullptr) return;
  const auto key = static_cast<std::uint64_t>(op.b) * 7919 + 5;
  const auto found = in->tensors.find(key);
  if (found == in->tensors.end()) return;
  auto& of = found->second;
  const int stream = stream_of(op.c);
  order_for(of.used, stream);
  const auto code =
      key_name(op.a) + ".drop(" + std::to_string(key) + ", s" + std::to_string(stream) + ");";
  const auto threw = call(code, may(in->side), [&] { in->pass->drop(key, ref(stream)); });
  give(in->side, stream);
  of.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  of.streams |= 1U << static_cast<unsigned>(stream);
  if (threw != 0) return;
  if (--of.references == 0) {
    const bool unread = !of.loaded;
    ++reached()[unread ? "dropped unread" : "dropped"];
    in->dropped.emplace_back(of.loan, of.excluded ? -1 : of.scope);
    in->tensors.erase(found);
  }
  if (in->pass->size() != in->tensors.size()) find("another number of keys", code);
}

inline void player::end_keys(key_pass& which) {
  which.open = false;
  which.tensors.clear();
  which.within.clear();
  for (const int each : which.kept) {
    code_.line("r" + std::to_string(each) + ".reset();");
    release_region(each);
  }
  which.kept.clear();
}

inline void player::key_finish(int number) {
  auto* const in = keys_at(number);
  if (in == nullptr || !in->within.empty()) return;
  bool must_throw = false, may_throw = false;
  for (const auto& [key, each] : in->tensors) {
    const auto& scope = in->scopes[static_cast<std::size_t>(each.scope)];
    if (each.loaded || each.excluded || in->forward_only) continue;
    may_throw = true;
    const auto& with = settings(in->side);
    const bool enabled = (with.modules >> static_cast<unsigned>(scope.module) & 1U) != 0;
    if (enabled && scope.left && !scope.restored && !scope.tried) must_throw = true;
  }
  const auto code = key_name(number) + ".finish();";
  if (must_throw) {
    if (side_at(in->side).dirty) return;
    return refused(code, [&] { in->pass->finish(); });
  }
  const auto threw = call(code, may(in->side) | (may_throw ? static_cast<unsigned>(misuse) : 0U),
                          [&] { in->pass->finish(); });
  ++side_at(in->side).eager_calls;
  if (threw != 0) return;
  if (!in->forward_only) ++side_at(in->side).passes;
  end_keys(*in);
}

inline void player::key_abandon(int number) {
  auto& in = key_passes_[static_cast<std::size_t>(number)];
  if (!in.open || capturing_) return;
  call(key_name(number) + " = {};", 0, [&] { in.pass.reset(); });
  ++side_at(in.side).eager_calls;
  if (!in.forward_only) side_at(in.side).spoiled = true;
  end_keys(in);
}

inline void player::key_misuse(const operation& op) {
  auto& closed = key_passes_[static_cast<std::size_t>(op.a)];
  if (!closed.open && closed.pass && !capturing_ && usable_side(closed.side)) {
    if (side_at(closed.side).dirty) return;
    return refused(key_name(op.a) + ".end_forward();", [&] { closed.pass->end_forward(); });
  }
  auto* const in = keys_at(op.a);
  if (in == nullptr || side_at(in->side).dirty) return;
  const int stream = stream_of(op.c);
  const auto s = "s" + std::to_string(stream);
  const auto start = key_name(op.a);
  switch (op.b % 5) {
    case 0: {  // outside of any scope
      if (!in->within.empty()) return;
      const int from = find_region(256, stream, 0);
      if (from < 0) return;
      write_region(from);
      const auto& of = regions_[static_cast<std::size_t>(from)];
      const int number = lend(from, in->side);
      refused(start + ".save(1, m" + std::to_string(from) + ", 256, " + s + ", " +
                  owner_text(from, callable) + ");",
              [&] {
                with_owner(number, callable, [&](tp::memory_owner&& owned) {
                  in->pass->save(1, of.at, of.bytes, ref(of.home), std::move(owned));
                });
              });
      if (loans_[static_cast<std::size_t>(number)].times_back != 1) {
        find("the owner of what was not kept has nothing back", start);
      }
      return;
    }
    case 1:
      return refused("static_cast<void>(" + start + ".load(1, " + s + "));",
                     [&] { static_cast<void>(in->pass->load(1, ref(stream))); });
    case 2:
      return refused(start + ".drop(1, " + s + ");", [&] { in->pass->drop(1, ref(stream)); });
    case 3: {
      if (in->scopes.empty()) return;
      const auto& again = in->scopes[static_cast<std::size_t>(op.c) % in->scopes.size()];
      return refused(
          start + ".enter(" + off_name(in->side) + "->module(\"" +
              module_names[static_cast<std::size_t>(again.module)] + "\"), " +
              std::to_string(again.layer) + ");",
          [&] { in->pass->enter(static_cast<tp::module_id>(again.module), again.layer); });
    }
    default:
      if (!in->within.empty()) return;
      return refused(start + ".leave(" + s + ");", [&] { in->pass->leave(ref(stream)); });
  }
}

}  // namespace stranger
