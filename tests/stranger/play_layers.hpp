// Arrays of layers.
#pragma once

#include "player.hpp"

namespace stranger {

using cell_phase = layer_cell::phase;

inline layer_set* player::layers_at(int which) {
  auto& in = layer_sets_[static_cast<std::size_t>(which)];
  return in.of && !capturing_ && usable_side(in.side) ? &in : nullptr;
}

// Its module is not enabled, so that each layer keeps its memory.
inline bool player::leaves_out(const layer_set& which) const {
  return (settings(which.side).modules >> static_cast<unsigned>(which.module) & 1U) == 0;
}

inline layer_cell* player::cell_at(layer_set& in, const operation& op) {
  const auto array = op.slots.empty() ? 0U : static_cast<std::size_t>(op.slots[0]);
  return &in.cells[static_cast<std::size_t>(op.b)][array % in.of->all.size()];
}

inline void player::order_for_layer(layer_set& in, int layer, int stream) {
  for (const auto& each : in.cells[static_cast<std::size_t>(layer)]) {
    order_for(each.ready, stream);
    order_for(each.used, stream);
  }
}

inline void player::layers_make(const operation& op) {
  auto& in = layer_sets_[static_cast<std::size_t>(op.a)];
  if (in.of || capturing_ || !usable_side(op.b)) return;
  const auto* const module = module_names[static_cast<std::size_t>(op.c)];
  in.of.emplace(*side_at(op.b).off, module, op.d);
  code_.line(set_name(op.a) + ".emplace(*" + off_name(op.b) + ", \"" + module + "\", " +
             std::to_string(op.d) + ");");
  in.side = op.b;
  in.module = op.c;
  in.open = in.broken = false;
  in.cells = {};
}

inline void player::layers_begin(const operation& op) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || in->open || in->broken) return;
  tp::chunk_info info;
  info.microbatch = op.c;
  info.forward_only = op.e != 0;
  info.release = op.e == 3;
  const auto code = set_name(op.a) + "->pass = " + off_name(in->side) +
                    "->begin({.microbatch = " + std::to_string(op.c) +
                    (op.e != 0 ? ", .forward_only = true" : "") +
                    (op.e == 3 ? ", .release = true" : "") + "});";
  const auto lender = info.forward_only ? 0U : may_miss_lender(in->side);
  if (call(code, may_report(in->side) | lender,
           [&] { in->of->pass = side_at(in->side).off->begin(info); }) != 0) {
    return;
  }
  if (!info.forward_only) begun_without_lender(in->side, code);
  side_at(in->side).begun = true;
  in->open = true;
  in->forward_only = op.e != 0;
  in->release = op.e == 3;
  in->ended = in->restored = false;
}

inline void player::layer_fresh(const operation& op) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || !in->open || in->broken || in->ended || in->restored) return;
  auto& cell = *cell_at(*in, op);
  for (const auto& each : in->cells[static_cast<std::size_t>(op.b)]) {
    if (each.now != cell_phase::none && each.now != cell_phase::fresh) return;
  }
  if (cell.now != cell_phase::none) return;
  const auto array =
      static_cast<std::size_t>(&cell - in->cells[static_cast<std::size_t>(op.b)].data());
  const int stream = stream_of(op.c);
  order_for(cell.ready, stream);
  order_for(cell.used, stream);
  const bool same = cell.kept;
  const auto elements = same ? cell.elements : static_cast<std::size_t>(op.d);
  const bool zero = op.e != 0;
  quad* got = nullptr;
  const auto name = set_name(op.a) + "->all[" + std::to_string(array) + "]->";
  const auto code = "static_cast<void>(" + name + "fresh(" + std::to_string(op.b) + ", " +
                    std::to_string(elements) + ", s" + std::to_string(stream) +
                    (zero ? ", tp::fill::zero" : "") + "));";
  const auto threw = call(code, may_allocate(in->side), [&] {
    got = in->of->all[array]->fresh(op.b, elements, ref(stream),
                                    zero ? tp::fill::zero : tp::fill::none);
  });
  give(in->side, stream);
  if (threw != 0) return;
  if ((got == nullptr && elements > 0) || got != in->of->all[array]->at(op.b)) {
    find("fresh and at differ", code);
  }
  auto* const at = reinterpret_cast<std::byte*>(got);
  const bool check_old = cell.kept && (cell.version != 0 || cell.zeros);
  if (!cell.kept) {
    cell.version = 0;
    cell.zeros = zero;
    cell.words = ++numbers_;
  }
  cell.elements = elements;
  cell.now = cell_phase::fresh;
  cell.asked = 0;
  cell.ready = {};
  cell.used = {};
  cell.ready[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  if ((zero && cell.zeros) || check_old) {
    ++reached()[check_old ? "layers kept" : "zeros looked at"];
    const auto what = std::string(check_old ? "a layer that stayed" : "fresh zeros") + ", layer " +
                      std::to_string(op.b);
    touch_words(at, elements * 8, cell.words, cell.version, stream, false, what);
    code_.line("read_at(dev, s" + std::to_string(stream) + ", " + name + "at(" +
               std::to_string(op.b) + "), " + std::to_string(elements * 8) + ", " +
               std::to_string(cell.words) + ", " + std::to_string(cell.version) + ", \"" + what +
               "\");");
    cell.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  }
  look();
}

inline void player::layer_use(const operation& op, bool writes) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || in->broken) return;
  auto& cell = *cell_at(*in, op);
  if (cell.now != cell_phase::fresh && cell.now != cell_phase::back) return;
  if (side_at(in->side).dirty) return;
  if (!writes && cell.version == 0 && !cell.zeros) return;
  const auto array =
      static_cast<std::size_t>(&cell - in->cells[static_cast<std::size_t>(op.b)].data());
  const int stream = stream_of(op.c);
  const auto bit = 1U << static_cast<unsigned>(stream);
  if ((cell.asked & bit) == 0) order_for(cell.ready, stream);
  if (writes) order_for(cell.used, stream);
  auto* const at = reinterpret_cast<std::byte*>(in->of->all[array]->at(op.b));
  if (writes) {
    cell.version = ++versions_;
    cell.zeros = false;
  }
  const auto what = "layer " + std::to_string(op.b) + " of array " + std::to_string(array);
  touch_words(at, cell.elements * 8, cell.words, cell.version, stream, writes, what);
  code_.line(std::string(writes ? "write_at" : "read_at") + "(dev, s" + std::to_string(stream) +
             ", " + set_name(op.a) + "->all[" + std::to_string(array) + "]->at(" +
             std::to_string(op.b) + "), " + std::to_string(cell.elements * 8) + ", " +
             std::to_string(cell.words) + ", " + std::to_string(cell.version) +
             (writes ? ");" : ", \"" + what + "\");"));
  cell.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  if (writes) {
    cell.asked = 0;
    cell.written = true;
    cell.ready = {};
    cell.ready[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  }
  look();
}

inline void player::layer_done(const operation& op) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || !in->open || in->broken || in->ended || in->restored) return;
  auto& layer = in->cells[static_cast<std::size_t>(op.b)];
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < in->of->all.size(); ++i) fresh += layer[i].now == cell_phase::fresh;
  if (fresh != in->of->all.size()) return;
  const int stream = stream_of(op.c);
  order_for_layer(*in, op.b, stream);
  auto allowed = may(in->side);
  if (settings(in->side).tight_host()) allowed |= budget;
  const auto threw = call(set_name(op.a) + "->group.done(" + std::to_string(op.b) + ", s" +
                              std::to_string(stream) + ");",
                          allowed, [&] { in->of->group.done(op.b, ref(stream)); });
  give(in->side, stream);
  if (threw != 0) return;
  for (std::size_t i = 0; i < in->of->all.size(); ++i) {
    auto& cell = layer[i];
    cell.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
    if (!in->release) {
      cell.now = cell_phase::done;
      continue;
    }
    end_cell(cell, leaves_out(*in));
  }
}

inline void player::layer_back(const operation& op) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || !in->open || in->broken) return;
  auto& cell = *cell_at(*in, op);
  auto& layer = in->cells[static_cast<std::size_t>(op.b)];
  if (cell.now != cell_phase::done && cell.now != cell_phase::back) return;
  const auto array = static_cast<std::size_t>(&cell - layer.data());
  const int stream = stream_of(op.c);
  const auto allowed = cell.now == cell_phase::done ? may_allocate(in->side) : may(in->side);
  quad* got = nullptr;
  const auto code = "static_cast<void>(" + set_name(op.a) + "->all[" + std::to_string(array) +
                    "]->back(" + std::to_string(op.b) + ", s" + std::to_string(stream) + "));";
  // Where nothing leaves, nothing orders the streams but the trainer.
  const bool by_trainer = leaves_out(*in) || in->forward_only;
  if (by_trainer) order_for_layer(*in, op.b, stream);
  const auto threw =
      call(code, allowed, [&] { got = in->of->all[array]->back(op.b, ref(stream)); });
  give(in->side, stream);
  if (!in->forward_only) in->restored = true;
  if (threw != 0) return;
  if ((got == nullptr && cell.elements > 0) || got != in->of->all[array]->at(op.b)) {
    find("back and at differ", code);
  }
  for (auto& each : layer) {
    if (each.now != cell_phase::done) continue;
    each.now = cell_phase::back;
    each.asked = 0;
    each.written = false;
    each.ready = {};
    each.ready[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
    each.used = each.ready;
  }
  // It comes behind the reload. To order what the trainer wrote since is the trainer's.
  if (!by_trainer && !cell.written) cell.asked |= 1U << static_cast<unsigned>(stream);
  look();
}

inline void player::end_cell(layer_cell& cell, bool keeps) {
  cell.now = cell_phase::none;
  cell.asked = 0;
  cell.kept = keeps;
}

inline void player::layer_release(const operation& op) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || in->broken) return;
  auto& layer = in->cells[static_cast<std::size_t>(op.b)];
  const auto only = op.d == 0 ? std::size_t{array_count}
                              : static_cast<std::size_t>(op.d - 1) % in->of->all.size();
  bool any = false;
  for (std::size_t i = 0; i < array_count; ++i) {
    if (only != array_count && i != only) continue;
    const bool given_up = op.e != 0 && layer[i].now == cell_phase::fresh;
    any = any || layer[i].now == cell_phase::back || given_up;
    if ((layer[i].now == cell_phase::fresh && !given_up) || layer[i].now == cell_phase::done)
      return;
  }
  if (!any) return;
  const int stream = stream_of(op.c);
  std::string code = set_name(op.a);
  if (only == array_count) {
    order_for_layer(*in, op.b, stream);
    code += "->group.release(";
  } else {
    order_for(layer[only].ready, stream);
    order_for(layer[only].used, stream);
    code += "->all[" + std::to_string(only) + "]->release(";
  }
  code += std::to_string(op.b) + ", s" + std::to_string(stream) + ");";
  const auto threw = call(code, may(in->side), [&] {
    if (only == array_count) {
      in->of->group.release(op.b, ref(stream));
    } else {
      in->of->all[only]->release(op.b, ref(stream));
    }
  });
  give(in->side, stream);
  if (threw != 0) {
    in->broken = true;
    return;
  }
  for (std::size_t i = 0; i < array_count; ++i) {
    if ((only != array_count && i != only) || layer[i].now == cell_phase::none) continue;
    layer[i].used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
    end_cell(layer[i], leaves_out(*in));
  }
}

inline void player::layers_finish(int which) {
  auto* const in = layers_at(which);
  if (in == nullptr || !in->open) return;
  bool whole = true;
  for (const auto& layer : in->cells) {
    for (const auto& cell : layer) whole = whole && cell.now != cell_phase::done;
  }
  const bool may_throw = !whole && !in->forward_only && !leaves_out(*in);
  const auto threw = call(set_name(which) + "->pass.finish();",
                          may(in->side) | (may_throw ? static_cast<unsigned>(misuse) : 0U),
                          [&] { in->of->pass.finish(); });
  ++side_at(in->side).eager_calls;
  if (threw != 0) return;
  if (!in->forward_only) ++side_at(in->side).passes;
  in->open = false;
  if (!whole) in->broken = true;  // what the pass left saved nobody can bring back
}

inline void player::layers_abandon(int which) {
  auto& in = layer_sets_[static_cast<std::size_t>(which)];
  if (!in.of || !in.open || capturing_) return;
  call(set_name(which) + "->pass = {};", 0, [&] { in.of->pass = {}; });
  ++side_at(in.side).eager_calls;
  if (!in.forward_only) side_at(in.side).spoiled = true;
  in.open = false;
  in.broken = true;
}

inline void player::layers_reset(int which, int wanted) {
  auto* const in = layers_at(which);
  if (in == nullptr || in->open) return;
  const int stream = stream_of(wanted);
  for (int l = 0; l < layer_count; ++l) order_for_layer(*in, l, stream);
  const auto threw = call(set_name(which) + "->group.reset(s" + std::to_string(stream) + ");",
                          may(in->side), [&] { in->of->group.reset(ref(stream)); });
  give(in->side, stream);
  in->broken = threw != 0;
  if (threw == 0) in->cells = {};
}

inline void player::layers_drop(int which, int wanted) {
  auto& in = layer_sets_[static_cast<std::size_t>(which)];
  if (!in.of || capturing_) return;
  layers_abandon(which);
  if (wanted % 3 != 0) layers_reset(which, wanted);
  for (int l = 0; l < layer_count; ++l) {
    for (int s = 0; s < program_.streams; ++s) order_for_layer(in, l, s);
  }
  call(set_name(which) + ".reset();", 0, [&] { in.of.reset(); });
  in.cells = {};
  in.broken = false;
  ++side_at(in.side).eager_calls;
}

inline void player::layers_misuse(const operation& op) {
  auto* const in = layers_at(op.a);
  if (in == nullptr || in->broken || !in->open || side_at(in->side).dirty) return;
  auto& layer = in->cells[static_cast<std::size_t>(op.b)];
  const auto now = layer[0].now;
  for (std::size_t i = 0; i < in->of->all.size(); ++i) {
    if (layer[i].now != now) return;
  }
  const int stream = stream_of(op.c);
  const auto s = "s" + std::to_string(stream);
  const auto l = std::to_string(op.b);
  const auto start = set_name(op.a);
  auto& first = *in->of->all[0];
  switch (op.d % 6) {
    case 0:
      if (now == cell_phase::fresh) return;
      return refused(start + "->group.done(" + l + ", " + s + ");",
                     [&] { in->of->group.done(op.b, ref(stream)); });
    case 1:
      if (now != cell_phase::none && now != cell_phase::fresh) return;
      return refused("static_cast<void>(" + start + "->all[0]->back(" + l + ", " + s + "));",
                     [&] { static_cast<void>(first.back(op.b, ref(stream))); });
    case 2:
      if (now == cell_phase::back || now == cell_phase::fresh) return;
      return refused(start + "->group.release(" + l + ", " + s + ");",
                     [&] { in->of->group.release(op.b, ref(stream)); });
    case 3:
      if (now == cell_phase::none) return;
      return refused("static_cast<void>(" + start + "->all[0]->fresh(" + l + ", 32, " + s + "));",
                     [&] { static_cast<void>(first.fresh(op.b, 32, ref(stream))); });
    case 4:
      if (now != cell_phase::none && now != cell_phase::done) return;
      return refused("static_cast<void>(" + start + "->all[0]->at(" + l + "));",
                     [&] { static_cast<void>(first.at(op.b)); });
    default:
      if (now == cell_phase::back || now == cell_phase::fresh) return;
      return refused(start + "->all[0]->release(" + l + ", " + s + ");",
                     [&] { first.release(op.b, ref(stream)); });
  }
}

}  // namespace stranger
