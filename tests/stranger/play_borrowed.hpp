// Memory that the trainer lends, and memory of its own that it gives an offloader. Whoever gets
// memory back writes into it at once, on the stream in whose order it came: that shows a use which
// the stream has not joined.
#pragma once

#include "play_packing.hpp"

namespace stranger {

// A reference count as owners have it; the last of its copies to go is one call.
class owner_token {
 public:
  owner_token(player* of, int loan, void (*back)(player*, int))
      : of_(of), loan_(loan), back_(back) {}
  owner_token(owner_token&& other) noexcept
      : of_(std::exchange(other.of_, nullptr)), loan_(other.loan_), back_(other.back_) {}
  owner_token& operator=(owner_token&&) = delete;
  ~owner_token() {
    if (of_ != nullptr) back_(of_, loan_);
  }

 private:
  player* of_;
  int loan_;
  void (*back_)(player*, int);
};

inline void player::touch_words(std::byte* at, std::size_t bytes, std::uint64_t words,
                                std::uint64_t version, int stream, bool writes,
                                const std::string& what) {
  const auto place = what + ", operation " + std::to_string(at_operation_);
  std::function<void()> body;
  if (writes) {
    body = [=] { put_words(at, bytes, words, version); };
  } else {
    body = [=, this] {
      ++checks_;
      if (raced_) return;
      const auto c = wrong_word(at, bytes, words, version);
      if (c == bytes) return;
      const std::string found = found_there(at + c, bytes - c, words, c, version);
      note("wrong word: " + found + (version == 0 ? ", not zero" : ""),
           place + ", byte " + std::to_string(c) + ", version " + std::to_string(version) + ": " +
               found);
    };
  }
  compute(stream, 700, std::move(body), {device::touch_of(at, bytes, writes)},
          (writes ? "write of " : "read of ") + what);
  tick(stream);
}

// ---- what is lent ----

// `beside`: bytes from a multiple of 256.
inline int player::find_region(std::size_t bytes, int home, int beside) {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    auto& each = regions_[i];
    if (each.references == 0 && each.bytes == bytes && each.home == home) {
      return static_cast<int>(i);
    }
  }
  const device::mine quiet(device_);
  region made;
  made.whole = device_.try_allocate(bytes + 256);
  if (made.whole == nullptr) return -1;
  made.at = static_cast<std::byte*>(made.whole) + beside;
  made.bytes = bytes;
  made.home = home;
  regions_.push_back(made);
  code_.line("m" + std::to_string(regions_.size() - 1) + " = static_cast<bytes_at>(dev.allocate(" +
             std::to_string(bytes + 256) + ")) + " + std::to_string(beside) + ";");
  return static_cast<int>(regions_.size()) - 1;
}

inline void player::write_region(int which) {
  auto& on = regions_[static_cast<std::size_t>(which)];
  on.words = ++numbers_;
  on.version = ++versions_;
  const auto number = std::to_string(which);
  touch_words(on.at, on.bytes, on.words, on.version, on.home, true, "what is lent, " + number);
  code_.line("write_at(dev, s" + std::to_string(on.home) + ", m" + number + ", " +
             std::to_string(on.bytes) + ", " + std::to_string(on.words) + ", " +
             std::to_string(on.version) + ");");
  code_.line("r" + number + " = lent(dev, s" + std::to_string(on.home) + ", m" + number + ", " +
             std::to_string(on.bytes) + ");");
}

// One reference less; with the last its allocator hands it out again.
inline void player::release_region(int which) {
  auto& of = regions_[static_cast<std::size_t>(which)];
  if (--of.references > 0) return;
  compute(
      of.home, 300, [at = of.at, bytes = of.bytes] { std::memset(at, 0xAB, bytes); },
      {device::touch_of(of.at, of.bytes, true)}, "the owner's");
}

inline void player::came_back(int which) {
  if (over_) return;
  auto& of = loans_[static_cast<std::size_t>(which)];
  ++reached()["loans back"];
  if (++of.times_back > 1) note("memory went back twice", "loan " + std::to_string(which));
  if (capturing_) {
    if (!adopting_) note("memory went back inside a capture", "loan " + std::to_string(which));
    --regions_[static_cast<std::size_t>(of.region)].references;
    return;
  }
  release_region(of.region);
}

inline int player::lend(int of, int side) {
  ++regions_[static_cast<std::size_t>(of)].references;
  loans_.push_back({of, side, 0});
  return static_cast<int>(loans_.size()) - 1;
}

template <class Body>
void player::with_owner(int number, int kind, Body&& body) {
  switch (kind % 3) {
    case counted:
      return body(tp::memory_owner(
          owner_token(this, number, [](player* of, int which) { of->came_back(which); })));
    case calls_back:
      return body(tp::memory_owner([this, number] {
        came_back(number);
        auto& side = side_at(loans_[static_cast<std::size_t>(number)].side);
        if (over_ || !side.off || side.ending || capturing_) return;
        side.off->release_borrowed();
        static_cast<void>(side.off->counters());
      }));
    default:
      return body(tp::memory_owner([this, number] { came_back(number); }));
  }
}

inline std::string player::owner_text(int which, int kind) const {
  const auto r = "r" + std::to_string(which);
  return kind % 3 == counted ? r : "[r = " + r + "]() mutable { r.reset(); }";
}

inline bool player::lies_in_loan(const slot& of) const {
  if (!of.of || of.of->loan < 0 || !of.full()) return false;
  const auto& in =
      regions_[static_cast<std::size_t>(loans_[static_cast<std::size_t>(of.of->loan)].region)];
  const auto at = place_of(of);
  const auto first = reinterpret_cast<std::uintptr_t>(in.at);
  return first <= at && at < first + in.bytes;
}

inline void player::adopt(const operation& op) {
  if (!usable_side(op.e)) return;
  int stream = stream_of(op.c);
  int in = -1;
  if (!op.slots.empty()) {  // a second reference to what another handle has
    const auto& other = at(op.slots[0]);
    if (op.slots[0] == op.a || !lies_in_loan(other) || other.is_view) return;
    in = loans_[static_cast<std::size_t>(other.of->loan)].region;
    stream = regions_[static_cast<std::size_t>(in)].home;
    if (capturing_ && stream != stream_of(stream)) return;
  }
  if (!vacate(op.a, stream)) return;
  if (capturing_) {
    if (regions_.empty()) return;
    in = 0;  // is refused, so that nothing is done to it
  } else if (in < 0) {
    in = find_region(static_cast<std::size_t>(op.b), stream, op.b / 16 % 16 * 16 + op.f / 8);
    if (in < 0) return;
    write_region(in);
  }
  auto& from = regions_[static_cast<std::size_t>(in)];
  const int number = lend(in, op.e);
  auto& side = side_at(op.e);
  // Frameworks give an empty tensor no address, or that of something else.
  auto* const data = from.bytes == 0 && number % 2 == 0 ? nullptr : from.at;
  const bool even = (reinterpret_cast<std::uintptr_t>(data) | from.bytes) % 2 == 0;
  const int type = even ? op.f % 8 : int{as_bytes};
  at(op.a).is_view = false;
  buffer made;
  const auto r = std::to_string(in);
  unsigned threw = 0;
  const auto allowed = may(op.e) & ~static_cast<unsigned>(budget);
  adopting_ = true;
  try {
    threw = call(name(op.a) + " = " + off_name(op.e) + "->adopt" + type_text(type) + "(" +
                     (data == nullptr ? "nullptr" : "at(m" + r + ")") + ", " +
                     std::to_string(elements_of(type, from.bytes)) + ", s" +
                     std::to_string(stream) + ", " + owner_text(in, op.d) + ");",
                 allowed, [&] {
                   with_owner(number, op.d, [&](tp::memory_owner&& owner) {
                     made =
                         adopt_as(type, *side.off, data, from.bytes, ref(stream), std::move(owner));
                   });
                 });
  } catch (const body_ends&) {
    adopting_ = false;
    if (loans_[static_cast<std::size_t>(number)].times_back != 1) {
      find("adopt threw, and its owner has nothing back", name(op.a));
    }
    throw;
  }
  adopting_ = false;
  if (capturing_) find("adopted inside a capture", name(op.a));
  give(op.e, stream);
  if (threw != 0) {
    if (loans_[static_cast<std::size_t>(number)].times_back != 1) {
      find("adopt threw, and its owner has nothing back", name(op.a));
    }
    return;
  }
  auto of = std::make_shared<content>();
  of->id = ++numbers_;
  of->words = from.words;
  of->bytes = from.bytes;
  of->truth = from.version;
  of->side = op.e;
  of->loan = number;
  of->bfloat16 = type != as_bytes;
  contents_.push_back(of);
  at(op.a).elements = elements_of(type, from.bytes);
  fill(op.a, std::move(made), std::move(of), stream);
  if (from.bytes > 0 && at(op.a).b.data() != from.at) {
    find("adopted, and lies elsewhere", name(op.a));
  }
}

inline void player::release_borrowed(int side) {
  if (!usable_side(side)) return;
  call(off_name(side) + "->release_borrowed();", 0, [&] { side_at(side).off->release_borrowed(); });
  if (capturing_) return;
  side_at(side).late = false;
  check_loans();
  if (device_.failed()) return;  // a join that the device refused is made later
  for (const auto& each : contents_) {
    if (each->side != side || each->loan < 0 || each->handles > 0) continue;
    if (each->saves > 0 && each->ahead) continue;
    if (loans_[static_cast<std::size_t>(each->loan)].times_back == 0) {
      find("release_borrowed, and what nobody uses is not back",
           "loan " + std::to_string(each->loan));
    }
  }
  for (const auto& pass : key_passes_) {
    for (const auto& [loan, scope] : pass.dropped) {
      const auto of = scope < 0 ? key_scope{} : pass.scopes[static_cast<std::size_t>(scope)];
      bool waits = false;  // of a scope that the policy keeps it goes with the others
      for (const auto& [key, other] : pass.tensors) waits = waits || other.scope == scope;
      waits = waits && (side_at(side).held || settings(side).keeps());
      if (pass.side != side || (waits && of.left && !of.restored)) continue;
      if (loans_[static_cast<std::size_t>(loan)].times_back == 0) {
        find("release_borrowed, and what was dropped is not back", "loan " + std::to_string(loan));
      }
    }
  }
}

// After each call: what handles still hold is not back, and no more waits than may.
inline void player::check_loans() {
  if (capturing_) return;
  for (int i = 0; i < slot_count; ++i) {
    const auto& each = at(i);
    if (lies_in_loan(each) && loans_[static_cast<std::size_t>(each.of->loan)].times_back != 0) {
      find("memory went back while a handle holds it", name(i));
    }
  }
  for (std::size_t s = 0; s < sides_.size(); ++s) {
    auto& side = sides_[s];
    if (!side.blocks.wrong.empty()) find("own memory: " + side.blocks.wrong, side.blocks.wrong);
    const auto& with = settings(static_cast<int>(s));
    if (with.slack < 0 || !side.off || side.late || device_.failed()) continue;
    const auto waiting = side.off->counters().borrowed_waiting;
    if (waiting > static_cast<std::size_t>(with.slack)) {
      find("more waits than the slack", std::to_string(waiting) + " bytes");
    }
  }
}

inline bool player::pass_open(int side) const {
  for (const auto& each : passes_) {
    if (each.open && each.side == side) return true;
  }
  for (const auto& each : key_passes_) {
    if (each.open && each.side == side) return true;
  }
  for (const auto& each : layer_sets_) {
    if (each.open && each.side == side) return true;
  }
  return false;
}

inline bool player::others_alive(int side) const {
  for (const auto& each : key_passes_) {
    if (each.open && each.side == side) return true;
  }
  for (const auto& each : layer_sets_) {
    if (each.of && each.side == side) return true;
  }
  return false;
}

// Nothing of an offloader is alive.
inline bool player::idle(int side) const {
  for (const auto& each : contents_) {
    if (each->side == side && each->handles + each->saves > 0) return false;
  }
  for (const auto& each : states_) {
    if (each.state && each.side == side) return false;
  }
  for (const auto& each : graphs_) {
    if (each.graph && each.side == side) return false;
  }
  for (const auto& each : passes_) {
    if (each.open && each.side == side) return false;
  }
  for (const auto& each : key_passes_) {
    if (!each.open || each.side != side) continue;
    if (!each.within.empty() || !each.tensors.empty()) return false;
  }
  for (const auto& each : layer_sets_) {
    if (!each.of || each.side != side) continue;
    if (each.broken) return false;
    for (const auto& layer : each.cells) {
      for (const auto& cell : layer) {
        if (cell.now != layer_cell::phase::none || cell.kept) return false;
      }
    }
  }
  return true;
}

inline void player::check_idle(int side) {
  if (!usable_side(side) || capturing_) return;
  auto& of = side_at(side);
  if (of.forgiven || of.dirty || of.tracing || device_.failed() || !idle(side)) return;
  ++reached()["idle"];
  release_borrowed(side);
  if (device_.failed()) return;
  const auto all = of.off->counters();
  if (all.borrowed != 0) {
    find("nothing is alive, and memory is borrowed", std::to_string(all.borrowed) + " bytes");
  }
  const auto used = settings(side).own == blocks ? of.blocks.in_use() : of.in_use;
  if (used != 0)
    find("nothing is alive, and own memory is in use", std::to_string(used) + " bytes");
  for (std::size_t i = 0; i < loans_.size(); ++i) {
    if (loans_[i].side == side && loans_[i].times_back != 1) {
      find("nothing is alive, and a loan is not back", "loan " + std::to_string(i));
    }
  }
  check_whole(side);
}

inline void player::wait_handle(const operation& op) {
  const auto& on = at(op.a);
  if (!usable(op.a) || !usable_side(on.of->side)) return;
  const int stream = stream_of(op.b);
  const auto threw = call(
      off_name(on.of->side) + "->wait_for(" + name(op.a) + ", s" + std::to_string(stream) + ");",
      may(on.of->side), [&] { side_at(on.of->side).off->wait_for(at(op.a).h(), ref(stream)); });
  give(on.of->side, stream);
  if (threw != 0 || capturing_) return;
  auto& known = knows_[static_cast<std::size_t>(stream)];
  stranger::join(known, on.handed);
}

inline void player::forget(const operation& op) {
  auto& in = passes_[static_cast<std::size_t>(op.a)];
  if (!in.open || in.lost || in.forward_only || !usable_side(in.side)) return;
  auto* const which = group_at(in, op.b);
  if (which == nullptr) return;
  if (capturing_) body_passes_.insert(op.a);
  for (const auto& each : which->arguments) {
    touch(each.of);
    auto& here = at(each.slot);
    if (!here.full() || op.d != 0) continue;
    // A reset that throws leaves it full. It is kept then, and its group is forgotten all the same.
    const bool before = std::exchange(here.by_hand, true);
    static_cast<void>(reset(each.slot, op.c));
    here.by_hand = before;
  }
  const auto threw =
      call("c" + std::to_string(op.a) + ".forget<\"" +
               module_names[static_cast<std::size_t>(which->module)] + "\">(" +
               std::to_string(which->layer) + ");",
           may(in.side),
           [&] { in.chunk.forget(static_cast<tp::module_id>(which->module), which->layer); });
  ++side_at(in.side).eager_calls;
  if (threw != 0) return abandon(op.a);
  which->restored = true;
  for (auto& each : which->arguments) {
    auto& here = at(each.slot);
    if (each.saved) --each.of->saves;
    if (each.left && here.full()) find("forget filled a handle", name(each.slot));
    if (here.group == which->number) {
      here.group = -1;
      here.by_hand = false;
      if (!here.full()) here.of.reset();
    }
    given_up(each.of);
  }
}

// ---- memory of the trainer's own, for `parts` ----

inline void* player::memory_from(int side, std::size_t bytes) {
  auto& of = side_at(side);
  const auto& with = settings(side);
  if (with.own_bytes != 0 && of.in_use + bytes > with.own_bytes) return nullptr;
  void* got = nullptr;
  for (auto& each : of.at_home) {
    if (each.second != bytes) continue;
    got = each.first;
    each = of.at_home.back();
    of.at_home.pop_back();
    break;
  }
  if (got == nullptr) {
    const device::mine quiet(device_);
    got = device_.try_allocate(bytes);
    if (got == nullptr) return nullptr;
    of.memory.push_back(got);
  }
  of.handed[got] = bytes;
  of.in_use += bytes;
  compute(
      0, 200, [=] { std::memset(got, 0xCD, bytes); }, {device::touch_of(got, bytes, true)},
      "the allocator's");
  return got;
}

inline void player::memory_to(int side, void* pointer, std::size_t bytes) {
  if (over_) return;
  auto& of = side_at(side);
  const auto found = of.handed.find(pointer);
  if (found == of.handed.end() || (bytes != 0 && found->second != bytes)) {
    return note("own memory: deallocated twice, or with another size", std::to_string(bytes));
  }
  bytes = found->second;
  of.handed.erase(found);
  of.in_use -= bytes;
  of.at_home.emplace_back(pointer, bytes);
  if (capturing_) return note("memory went back inside a capture", "own memory");
  compute(
      0, 200, [=] { std::memset(pointer, 0xCE, bytes); }, {device::touch_of(pointer, bytes, true)},
      "the owner's");
}

inline std::unique_ptr<tp::block_source> player::make_memory(int side) {
  auto& of = side_at(side);
  const auto& with = settings(side);
  if (with.own == blocks) {
    const device::mine quiet(device_);
    for (const auto& [bytes, count] : with.rings) {
      for (std::size_t i = 0; i < count; ++i) {
        of.memory.push_back(device_.try_allocate(bytes));
        of.blocks.all.push_back({static_cast<std::byte*>(of.memory.back()), bytes, false, {}});
      }
    }
    return std::make_unique<own_blocks>(of.blocks);
  }
  const auto take = [this, side](std::size_t bytes) { return memory_from(side, bytes); };
  if (with.own == on_stream) {
    return tp::memory_on<device>(ref(0), take, [this, side](void* p) { memory_to(side, p, 0); });
  }
  return tp::memory_on<device>(
      ref(0), take, [this, side](void* p, std::size_t bytes) { memory_to(side, p, bytes); });
}

inline void player::free_regions() {
  for (std::size_t i = 0; i < loans_.size(); ++i) {
    if (loans_[i].times_back != 1) find("a loan is not back", "loan " + std::to_string(i));
  }
  for (auto& each : sides_) {
    // A source of its own has gone with it.
    if (each.in_use != 0) find("own memory is not back", std::to_string(each.in_use) + " bytes");
    for (auto* const pointer : each.memory) device_.deallocate(pointer);
  }
  for (auto& each : regions_) device_.deallocate(each.whole);
}

}  // namespace stranger
