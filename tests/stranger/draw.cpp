// Draws programs: steps as trainers write them, with captures, plans and state among them, and
// anything else thrown in between.
#include <algorithm>
#include <deque>
#include <sstream>

#include "draw_edge.hpp"
#include "draw_empty.hpp"
#include "draw_lending.hpp"
#include "draw_long.hpp"
#include "draw_packing.hpp"
#include "draw_reads.hpp"
#include "draw_twice.hpp"
#include "program.hpp"

namespace stranger {

namespace {

struct tensor_spec {
  int bytes = 256;
  int stream = 0;
  int source = 0;
  int owner = -1;  // of what is lent; -1: it is not
  bool unwritten = false, shared = false, viewed = false, whole = false, keep = false;
  int shape = 0;
};
struct group_spec {
  int module = 0, layer = 0;
  int way = plain;
  bool discard = false;
  int stream = 0, back = 0;
  std::vector<tensor_spec> tensors;
};
struct chunk_spec {
  bool forward_only = false, release = false, no_end_forward = false;
  std::vector<group_spec> groups;
};
struct step_spec {
  std::vector<chunk_spec> chunks;
  int depth = 1;
  bool last_first = false, mixed = false;
};

class drawer {
 public:
  explicit drawer(std::uint64_t seed) : roll_(seed) { made_.seed = seed; }

  program draw() {
    sides();
    const int style = roll_.below(100);
    if (style >= 70 && roll_.chance(0.4)) {
      for (auto& each : made_.sides) each.automatic = true;
    }
    for (auto& each : made_.sides) {
      if (!each.automatic) continue;
      each.fraction = 1;
      each.delta = 0;
      automatic_ = true;
      // A plan is made where something has to leave.
      if (each.memory != 2 && roll_.chance(0.6))
        each.budget = static_cast<std::size_t>(roll_.from(3, 40)) * 1024;
    }
    // Programs differ in what they have much of, so that rare things meet.
    shares_ = often(0.12, 0.5);
    views_ = often(0.12, 0.5);
    by_hand_ = often(0.14, 0.6);
    offers_ = often(0.14, 0.5);
    lasts_ = often(0.05, 0.4);
    unwritten_ = often(0.03, 0.3);
    noise_ = roll_.chance(0.4) ? 0 : 0.01 * roll_.from(1, 14);
    borrowed_ = often(0.15, 0.7);
    forgets_ = often(0.04, 0.3);
    const int other = roll_.below(100);
    if (other >= 44 && style < 36 && roll_.chance(0.8)) borrowed_ = 0;  // a capture refuses it
    persistent();
    if (other < 22) {
      keys();
    } else if (other < 44) {
      layers();
    } else if (style >= 70) {
      soup();
    } else if (style < 36) {
      captures();
    } else if (style < 46 && made_.sides[0].automatic) {
      plans();
    } else {
      steps(roll_.from(1, 8));
    }
    if (roll_.chance(0.15)) {
      made_.fault_call = roll_.chance(0.75) ? roll_.below(3) : roll_.from(3, 11);
      made_.fault_at = made_.fault_call < 3    ? roll_.from(1, roll_.chance(0.5) ? 40 : 250)
                       : made_.fault_call == 9 ? roll_.from(1, 5000)
                                               : roll_.from(1, 8);
    }
    made_.offloader_first = roll_.chance(0.08);
    made_.poison = roll_.chance(0.2);
    made_.asks = roll_.chance(0.7);
    return std::move(made_);
  }

 private:
  double often(double usual, double much) {
    const int how = roll_.below(10);
    return how < 2 ? 0 : how < 7 ? usual : much;
  }

  void add(operation op) {
    made_.operations.push_back(std::move(op));
    if (quiet_ == 0 && roll_.chance(noise_)) {
      ++quiet_;
      anything();
      --quiet_;
    }
  }

  // ---- what it is made with ----

  void sides() {
    made_.streams = roll_.chance(0.45) ? 1 : roll_.from(2, 4);
    const int count = roll_.chance(0.1) ? 2 : 1;
    made_.sides.clear();
    for (int s = 0; s < count; ++s) {
      side with;
      with.memory = roll_.below(10) < 4 ? 0 : roll_.below(10) < 8 ? 1 : 2;
      if (roll_.chance(0.25)) with.budget = static_cast<std::size_t>(roll_.from(2, 24)) * 512;
      if (with.memory == 2) {
        with.budget = 0;
        with.rings = {{512, static_cast<std::size_t>(roll_.from(2, 24))}};
        if (roll_.chance(0.7))
          with.rings.emplace_back(2048, static_cast<std::size_t>(roll_.from(2, 24)));
      }
      with.step = static_cast<std::size_t>(roll_.from(1, 16)) * 1024;
      with.host_step = static_cast<std::size_t>(roll_.from(1, 16)) * 2048;
      if (roll_.chance(0.08)) with.host_budget = static_cast<std::size_t>(roll_.from(1, 12)) * 1024;
      if (roll_.chance(0.3))
        with.host_step = with.host_budget != 0 ? with.host_budget : roomy_host / 8;
      with.modules = roll_.chance(0.7) ? 0b1111U : 1U + static_cast<unsigned>(roll_.below(15));
      with.recompute = roll_.chance(0.5) ? 0U : 1U + static_cast<unsigned>(roll_.below(3));
      with.margin = roll_.chance(0.4);
      if (roll_.chance(0.15)) with.fraction = 0.25 * roll_.from(0, 3);
      if (roll_.chance(0.1)) with.delta = static_cast<std::size_t>(roll_.from(1, 4)) * 700;
      if (roll_.chance(0.3)) with.cap = roll_.from(0, 3);
      if (roll_.chance(0.15)) with.cap_bytes = roll_.from(0, 8) * 512;
      with.ahead = roll_.chance(0.3) ? roll_.from(0, 6) : 2;
      if (roll_.chance(0.15)) with.ahead_bytes = roll_.from(0, 8) * 512;
      with.min_elements = roll_.chance(0.2) ? 500 : 1;
      if (roll_.chance(0.15)) with.piece = static_cast<std::size_t>(roll_.from(1, 4)) * 256;
      with.automatic = roll_.chance(0.12);
      with.recompute_by_plan = roll_.chance(0.8);
      if (roll_.chance(0.2)) with.timed_step = roll_.from(2, 4);
      if (roll_.chance(0.1)) with.layers = 1U + static_cast<unsigned>(roll_.below(15));
      if (roll_.chance(0.4)) with.slack = roll_.chance(0.5) ? 0 : 512 * roll_.from(1, 8);
      if (roll_.chance(0.15)) own(with);
      // Undrawn, so that a seed stands for what it did. Four streams more are all that it serves.
      if (made_.seed % 3 == 2 && made_.streams < 4) {
        with.peer_budget = 512 * (1 + made_.seed / 3 % 40);
      }
      made_.sides.push_back(with);
    }
  }

  void own(side& with) {
    with.own = roll_.from(blocks, on_stream_sized);
    with.memory = 0;
    if (with.own == blocks) {
      with.rings = {{512, static_cast<std::size_t>(roll_.from(2, 24))},
                    {2048, static_cast<std::size_t>(roll_.from(2, 24))}};
    } else if (roll_.chance(0.4)) {
      with.own_bytes = static_cast<std::size_t>(roll_.from(3, 24)) * 1024;
    }
  }

  int a_stream() { return roll_.below(made_.streams); }
  int a_side() { return roll_.below(static_cast<int>(made_.sides.size())); }
  int a_size() {
    static constexpr int sizes[]{64, 256, 512, 768, 1024, 2048};
    return roll_.chance(0.6) ? sizes[roll_.below(6)] : 16 * roll_.from(1, 128);
  }
  int a_slot() { return roll_.below(slot_count); }
  // Mostly a slot that something was done to lately.
  int a_used_slot() {
    if (recent_.empty() || roll_.chance(0.15)) return a_slot();
    return recent_[recent_.size() - 1 -
                   static_cast<std::size_t>(
                       roll_.below(std::min<int>(12, static_cast<int>(recent_.size()))))];
  }
  int take_slot() {
    for (int tries = 0; tries < slot_count; ++tries) {
      next_ = (next_ + 1) % (slot_count - 8);
      if (!taken_[static_cast<std::size_t>(next_)]) break;
    }
    taken_[static_cast<std::size_t>(next_)] = true;
    recent_.push_back(next_);
    return next_;
  }
  void free_slot(int which) { taken_[static_cast<std::size_t>(which)] = false; }

  // ---- tensors that stay for long ----

  void persistent() {
    if (roll_.chance(0.55)) {
      const int count = roll_.from(1, 3);
      for (int i = 0; i < count; ++i) fresh_persistent(slot_count - 8 + i);
    }
    if (roll_.chance(0.4)) {
      const int count = roll_.from(1, 2);
      for (int i = 0; i < count; ++i) fresh_state(i);
    }
  }
  void fresh_persistent(int which) {
    const int stream = a_stream();
    auto& size = sizes_[static_cast<std::size_t>(which)];
    if (size == 0 || roll_.chance(0.2)) size = a_size();  // what replaces it is as large, mostly
    add({kind::allocate, which, size, stream, roll_.chance(0.08) ? roll_.from(1, 2) : 0, 0});
    add({kind::write, which, stream});
    recent_.push_back(which);
  }
  void fresh_state(int which) {
    const int stream = a_stream();
    const int here = slot_count - 4 + which;
    add({kind::make_state, which, a_size(), 0});
    add({kind::create_state, which, here, stream});
    add({kind::write, here, stream});
    add({kind::write_state, which, 0, stream});
  }
  void visit_state() {
    const int which = roll_.below(2);
    const int here = slot_count - 4 + which;
    const int stream = a_stream();
    if (roll_.chance(0.4)) {
      add({kind::prefetch_state, which});
      if (roll_.chance(0.3)) return;  // which nothing fetches
    }
    add({kind::fetch_state, which, here, stream});
    add({kind::read, here, stream});
    if (roll_.chance(0.6)) {
      add({kind::write, here, stream});
      add({kind::write_state, which, 0, stream});
    } else {
      add({kind::reset, here, stream});
    }
  }

  // ---- steps ----

  tensor_spec a_tensor() {
    tensor_spec t;
    t.bytes = a_size();
    t.stream = roll_.chance(0.6) ? 0 : a_stream();
    if (roll_.chance(0.04)) t.source = roll_.from(1, 2);
    t.unwritten = roll_.chance(unwritten_);
    t.shared = roll_.chance(shares_);
    t.viewed = roll_.chance(views_);
    t.whole = roll_.chance(0.4);
    t.keep = roll_.chance(0.04);
    t.shape = roll_.below(1 << 20);
    if (roll_.chance(borrowed_)) t.owner = roll_.below(3);
    return t;
  }
  group_spec a_group(int layer) {
    group_spec g;
    g.module = roll_.chance(0.05) ? 4 : roll_.below(4);
    g.layer = roll_.chance(0.9) ? layer : 0;
    g.way = roll_.chance(by_hand_) ? by_hand : roll_.chance(offers_) ? or_discard : plain;
    g.discard = roll_.chance(0.08);
    g.stream = roll_.chance(0.7) ? 0 : a_stream();
    g.back = roll_.chance(0.7) ? g.stream : a_stream();
    if (g.way == plain && roll_.chance(0.12)) g.way = listed;
    const int count = g.way == listed      ? roll_.from(1, 6)
                      : roll_.chance(0.65) ? 1
                                           : roll_.from(2, 3);
    for (int i = 0; i < count; ++i) g.tensors.push_back(a_tensor());
    return g;
  }
  step_spec a_step() {
    step_spec s;
    const int chunks = roll_.chance(0.5) ? 1 : roll_.from(2, 4);
    const bool alike = roll_.chance(0.7);
    for (int c = 0; c < chunks; ++c) {
      chunk_spec one;
      const int groups = roll_.from(1, 5);
      for (int g = 0; g < groups; ++g) one.groups.push_back(a_group(g));
      one.no_end_forward = roll_.chance(0.1);
      one.forward_only = roll_.chance(0.06);
      one.release = roll_.chance(0.5);
      s.chunks.push_back(alike && c > 0 ? s.chunks[0] : one);
    }
    s.depth = roll_.from(1, chunks);
    s.last_first = roll_.chance(0.2);
    s.mixed = roll_.chance(0.15);
    return s;
  }

  struct running {
    const chunk_spec* spec = nullptr;
    int chunk = 0;
    int side = 0;
    std::vector<int> slots;  // of tensors that backward has to reset
  };

  void forward(running& run, int number, int side) {
    run.side = side;
    add({kind::begin, run.chunk, side, number, 0,
         !run.spec->forward_only ? 0
         : run.spec->release     ? 3
                                 : 1});
    for (const auto& g : run.spec->groups) {
      operation save{g.discard ? kind::discard : kind::commit,
                     run.chunk,
                     g.discard ? roll_.below(2) : g.module,
                     g.layer,
                     g.stream,
                     g.way};
      for (const auto& t : g.tensors) {
        const int slot = take_slot();
        run.slots.push_back(slot);
        if (t.owner >= 0 && g.way != or_discard) {
          operation lent{kind::adopt, slot, t.bytes, t.stream, t.owner, side};
          if (!last_lent_.empty() && roll_.chance(0.15)) lent.slots = {last_lent_.back()};
          last_lent_.push_back(slot);
          add(std::move(lent));
        } else {
          add({kind::allocate, slot, t.bytes, t.stream, t.source, side});
          if (!t.unwritten) add({kind::write, slot, t.stream});
        }
        if (t.keep) add({kind::keep, slot});
        if (roll_.chance(0.3)) add({kind::read, slot, a_stream()});
        int given = slot;
        if (t.shared) {
          const int other = take_slot();
          run.slots.push_back(other);
          add({kind::share, slot, other});
          if (roll_.chance(0.5)) extra_.push_back(other);
        }
        if (t.viewed && !g.discard && g.way != or_discard) {
          const int other = take_slot();
          run.slots.push_back(other);
          add({kind::view, slot, other, t.shape, t.whole ? 1 : 0});
          given = other;
          if (roll_.chance(0.6)) add({kind::reset, slot, t.stream});
        }
        save.slots.push_back(given);
      }
      // What an earlier group or pass left in hand is saved again.
      while (!extra_.empty() && !g.discard && save.slots.size() < 3 && roll_.chance(0.4)) {
        const auto at = static_cast<std::size_t>(roll_.below(static_cast<int>(extra_.size())));
        save.slots.push_back(extra_[at]);
        extra_.erase(extra_.begin() + static_cast<std::ptrdiff_t>(at));
      }
      const auto slots = save.slots;
      add(std::move(save));
      if (!g.discard && g.way == by_hand) {
        for (const int each : slots) {
          if (roll_.chance(0.3)) add({kind::read, each, a_stream()});
          if (roll_.chance(0.7)) add({kind::reset, each, a_stream()});
        }
      }
    }
    if (!run.spec->no_end_forward) add({kind::end_forward, run.chunk});
  }

  void backward(running& run, bool ends) {
    if (run.spec->forward_only) {
      for (const int each : run.slots) add({kind::reset, each, a_stream()});
      add({kind::finish, run.chunk});
      for (const int each : run.slots) free_slot(each);
      return;
    }
    const auto groups = run.spec->groups.size();
    for (std::size_t g = groups; g-- > 0;) {
      const auto& spec = run.spec->groups[g];
      if (roll_.chance(0.08)) add({kind::start_reload, run.chunk, roll_.below(3)});
      const int stream = spec.back;
      if (spec.discard) {
        add({kind::recompute, run.chunk, 0, stream, 0, 0});
      } else {
        if (roll_.chance(forgets_)) {
          add({kind::forget, run.chunk, roll_.below(2), stream, roll_.chance(0.1) ? 1 : 0});
          continue;
        }
        const bool throws = spec.way == or_discard && roll_.chance(0.06);
        if (throws) add({kind::restore, run.chunk, 0, stream, 0, 1});
        add({kind::restore, run.chunk, roll_.chance(0.92) ? 0 : roll_.below(4), stream,
             roll_.chance(0.06)   ? 1
             : roll_.chance(0.06) ? 2
                                  : 0,
             0});
        if (roll_.chance(0.05)) add({kind::wait_handle, run.slots[0], a_stream()});
      }
      if (roll_.chance(0.7)) {
        for (const int each : run.slots) {
          if (roll_.chance(0.5)) add({kind::read, each, roll_.chance(0.75) ? stream : a_stream()});
        }
      }
      if (roll_.chance(0.2))
        add({kind::write,
             run.slots[static_cast<std::size_t>(roll_.below(static_cast<int>(run.slots.size())))],
             a_stream()});
      if (roll_.chance(0.6) && g > 0) continue;
      for (const int each : run.slots) {
        if (roll_.chance(lasts_)) {
          extra_.push_back(each);
          continue;
        }
        if (roll_.chance(0.85)) {
          add({kind::reset, each, roll_.chance(0.8) ? stream : a_stream()});
        } else {
          add({kind::destroy, each});
        }
      }
    }
    for (std::size_t g = 0; g < groups; ++g) {  // for what was shuffled
      if (roll_.chance(0.15)) add({kind::restore, run.chunk, 0, 0, 0, 0});
    }
    add({kind::finish, run.chunk});
    for (const int each : run.slots) {
      if (std::find(extra_.begin(), extra_.end(), each) == extra_.end()) {
        if (ends) add({kind::reset, each, a_stream()});
        free_slot(each);
      }
    }
  }

  void play_step(const step_spec& spec, int side) {
    std::deque<running> open;
    std::size_t next = 0;
    int number = 0;
    const auto begin_next = [&] {
      running run;
      run.spec = &spec.chunks[next++];
      run.chunk = chunk_turn_++ % (chunk_count - 1) + 1;
      forward(run, number++, side);
      open.push_back(std::move(run));
    };
    const auto end_one = [&] {
      const bool last = spec.last_first || (spec.mixed && roll_.chance(0.5));
      auto run = std::move(last ? open.back() : open.front());
      if (last) {
        open.pop_back();
      } else {
        open.pop_front();
      }
      backward(run, true);
    };
    while (next < spec.chunks.size() || !open.empty()) {
      if (next < spec.chunks.size() && static_cast<int>(open.size()) < spec.depth) {
        begin_next();
      } else {
        end_one();
      }
    }
    if (roll_.chance(0.3)) visit_state();
    if (roll_.chance(0.95)) add({kind::end_step, side});
  }

  // A step in which persistent tensors are used.
  void touch_persistent() {
    const int which = slot_count - 8 + roll_.below(3);
    const int how = roll_.below(6);
    if (how < 3) add({kind::read, which, a_stream()});
    if (how == 3) add({kind::write, which, a_stream()});
    if (how == 4) {
      add({kind::reset, which, a_stream()});
      fresh_persistent(which);
    }
  }

  void between_steps() {
    if (roll_.chance(0.2)) touch_persistent();
    if (roll_.chance(0.1)) add({kind::probe, a_side()});
    if (roll_.chance(0.1)) add({kind::check_counters, a_side()});
    if (roll_.chance(0.15)) add({kind::release_borrowed, a_side()});
    if (roll_.chance(0.1)) add({kind::check_idle, a_side()});
    if (roll_.chance(0.2)) add({kind::synchronize});
  }

  void steps(int count) {
    auto spec = a_step();
    if (automatic_ && roll_.chance(0.7)) {  // plans are made of steps that are alike
      const auto one = aside([&] { play_step(spec, 0); });
      for (int i = 0; i <= count; ++i) {
        made_.operations.insert(made_.operations.end(), one.begin(), one.end());
      }
      return;
    }
    const bool same = roll_.chance(0.65);
    for (int i = 0; i < count; ++i) {
      if (!same && roll_.chance(0.5)) spec = a_step();
      if (same && roll_.chance(0.1) && spec.chunks.size() > 1)
        spec.depth = roll_.from(1, static_cast<int>(spec.chunks.size()));
      play_step(spec, made_.sides.size() > 1 ? a_side() : 0);
      between_steps();
    }
  }

  // Few handles and passes, and calls in hardly any order: lives that no schedule has. What a slot
  // and a pass are is guessed, so that most calls do something.
  void soup() {
    const int slots = roll_.from(2, 8);
    const int chunks = roll_.from(1, 3);
    const int named = roll_.from(1, 3);
    enum class phase { closed, forward, backward };
    std::vector<phase> phases(static_cast<std::size_t>(chunks) + 1, phase::closed);
    std::vector<int> groups(phases.size(), 0);
    std::vector<bool> full(static_cast<std::size_t>(slots), false);
    const auto slot_like = [&](bool wanted) {
      int which = roll_.below(slots);
      for (int tries = 0; tries < slots && full[static_cast<std::size_t>(which)] != wanted;
           ++tries) {
        which = (which + 1) % slots;
      }
      return which;
    };
    const auto set = [&](int slot, bool to) { full[static_cast<std::size_t>(slot)] = to; };
    const auto tensor_call = [&] {
      switch (roll_.below(8)) {
        case 0:
        case 1: {
          const int slot = slot_like(false);
          const int stream = a_stream();
          if (roll_.chance(borrowed_)) {
            operation lent{kind::adopt, slot, a_size(), stream, roll_.below(3), 0};
            if (roll_.chance(0.2)) lent.slots = {slot_like(true)};
            add(std::move(lent));
            return set(slot, true);
          }
          add({kind::allocate, slot, a_size(), stream, 0, 0});
          if (!roll_.chance(unwritten_)) add({kind::write, slot, stream});
          return set(slot, true);
        }
        case 2:
          return add({roll_.chance(0.7) ? kind::read : kind::write, slot_like(true), a_stream()});
        case 3:
        case 4: {
          const int from = slot_like(true);
          const int to = slot_like(false);
          if (roll_.chance(0.7)) {
            add({kind::share, from, to});
          } else {
            add({kind::view, from, to, roll_.below(1 << 20), roll_.below(2)});
          }
          return set(to, true);
        }
        default: {
          const int slot = slot_like(true);
          add(roll_.chance(0.85) ? operation{kind::reset, slot, a_stream()}
                                 : operation{kind::destroy, slot});
          return set(slot, false);
        }
      }
    };
    const auto pass_call = [&](int c) {
      auto& now = phases[static_cast<std::size_t>(c)];
      auto& count = groups[static_cast<std::size_t>(c)];
      if (now == phase::closed) {
        add({kind::begin, c, 0, c, 0, roll_.chance(0.06) ? 3 : 2});
        now = phase::forward;
        count = 0;
      } else if (now == phase::forward && (count == 0 || roll_.chance(0.75))) {
        operation op{kind::commit,
                     c,
                     roll_.below(named),
                     roll_.below(2),
                     a_stream(),
                     roll_.chance(by_hand_) ? by_hand : roll_.chance(offers_) ? or_discard : plain};
        if (op.e == plain && roll_.chance(0.2)) op.e = listed;
        for (int n = roll_.from(1, op.e == listed ? 5 : 3); n > 0; --n)
          op.slots.push_back(slot_like(true));
        if (op.e != by_hand) {
          for (const int each : op.slots) set(each, false);
        }
        add(std::move(op));
        ++count;
      } else if (now == phase::forward) {
        if (roll_.chance(0.8)) add({kind::end_forward, c});
        now = phase::backward;
      } else if (count > 0) {
        if (roll_.chance(0.1)) add({kind::start_reload, c, roll_.below(3)});
        if (roll_.chance(forgets_)) {
          add({kind::forget, c, roll_.chance(0.8) ? 0 : 1, a_stream(), roll_.chance(0.1) ? 1 : 0});
        } else {
          add({kind::restore, c, roll_.chance(0.8) ? 0 : 1, a_stream(), 0, 0});
        }
        --count;
        for (int i = 0; i < slots; ++i) {
          if (roll_.chance(0.3)) set(i, true);
        }
      } else {
        add({kind::finish, c});
        now = phase::closed;
      }
    };
    const auto a_step = [&] {
      for (int i = roll_.from(8, 60); i > 0; --i) {
        if (roll_.chance(0.5)) {
          tensor_call();
        } else {
          pass_call(1 + roll_.below(chunks));
        }
      }
      for (int c = 1; c <= chunks; ++c) {
        for (int i = 0; i < 8; ++i) add({kind::restore, c, 0, a_stream(), 0, 0});
        add({kind::finish, c});
        if (roll_.chance(0.8)) add({kind::abandon, c});  // where that could not be
        phases[static_cast<std::size_t>(c)] = phase::closed;
      }
      add({kind::end_step, 0});
    };
    // Plans are made of steps that are alike.
    const bool same = roll_.chance(automatic_ ? 0.8 : 0.4);
    std::vector<operation> one;
    for (int step = roll_.from(same ? 2 : 1, 5); step > 0; --step) {
      if (!same) {
        a_step();
      } else {
        if (one.empty()) one = aside(a_step);
        made_.operations.insert(made_.operations.end(), one.begin(), one.end());
      }
      if (!automatic_) between_steps();
    }
  }

  // ---- tensors by key ----

  void keys() {
    const int passes = roll_.from(1, key_pass_count);
    const int steps = roll_.from(1, 6);
    const bool same = roll_.chance(automatic_ ? 0.8 : 0.4);
    std::vector<operation> one;
    const auto spec = a_step();
    for (int i = 0; i < steps; ++i) {
      if (one.empty() || !same) one = aside([&] { key_step(passes, 0); });
      made_.operations.insert(made_.operations.end(), one.begin(), one.end());
      if (roll_.chance(0.2)) play_step(spec, 0);
      between_steps();
    }
  }

  void key_step(int passes, int side) {
    std::array<std::vector<int>, key_pass_count> saved;
    const int depth = roll_.from(1, passes);
    int begun = 0, ended = 0;
    while (ended < passes) {
      if (begun < passes && begun - ended < depth) {
        key_forward(begun, side, saved[static_cast<std::size_t>(begun)]);
        ++begun;
      } else {
        key_backward(ended, side, saved[static_cast<std::size_t>(ended)]);
        ++ended;
      }
    }
    if (roll_.chance(0.3)) add({kind::release_borrowed, side});
    if (roll_.chance(0.3)) add({kind::check_idle, side});
    add({kind::end_step, side});
  }

  void key_one(int pass, int key) {
    add({kind::key_save, pass, key, a_stream(), a_size(),
         roll_.below(3) + (roll_.chance(0.15) ? 4 : 0)});
  }

  void key_forward(int pass, int side, std::vector<int>& saved) {
    add({kind::key_begin, pass, side, pass, 0,
         roll_.chance(0.1) ? (roll_.chance(0.5) ? 1 : 3) : 0});
    int key = 0;
    const auto saves = [&](int most) {
      for (int n = roll_.below(most + 1); n > 0 && key < key_count; --n) {
        if (!saved.empty() && roll_.chance(0.15)) {
          saved.push_back(
              saved[static_cast<std::size_t>(roll_.below(static_cast<int>(saved.size())))]);
          key_one(pass, saved.back());
          continue;
        }
        saved.push_back(key);
        key_one(pass, key++);
      }
    };
    for (int layer = roll_.from(1, 4); layer > 0; --layer) {
      const int stream = a_stream();
      const int module = roll_.below(5);
      add({kind::key_enter, pass, module, layer});
      saves(3);
      if (roll_.chance(0.25)) {
        add({kind::key_enter, pass, (module + 1) % 5, layer});
        saves(2);
        add({kind::key_leave, pass, a_stream()});
        saves(1);
      }
      if (roll_.chance(0.06)) add({kind::key_misuse, pass, roll_.below(5), a_stream()});
      if (!saved.empty() && roll_.chance(0.08)) {
        add({kind::key_drop, pass, saved.back(), a_stream()});
        saved.pop_back();
      }
      add({kind::key_leave, pass, roll_.chance(0.7) ? stream : a_stream()});
      if (key < key_count && roll_.chance(0.06)) {
        add({kind::key_enter, pass, (module + 2) % 5, layer, a_stream(), 1, {key}});
        saved.push_back(key++);
      }
    }
    if (roll_.chance(0.1)) add({kind::key_misuse, pass, roll_.below(5), a_stream()});
    if (roll_.chance(0.9)) add({kind::key_end_forward, pass});
  }

  void key_backward(int pass, int side, std::vector<int>& saved) {
    static_cast<void>(side);
    if (roll_.chance(0.05)) return add({kind::key_abandon, pass});
    const double unread = often(0.1, 0.6);
    if (roll_.chance(0.3)) {  // in any order
      for (std::size_t i = saved.size(); i > 1; --i) {
        std::swap(saved[i - 1], saved[static_cast<std::size_t>(roll_.below(static_cast<int>(i)))]);
      }
    }
    std::vector<int> late;
    while (!saved.empty()) {
      const int key = saved.back();
      saved.pop_back();
      if (!roll_.chance(unread)) {
        add({kind::key_load, pass, key, a_stream()});
        if (roll_.chance(0.2)) add({kind::key_load, pass, key, a_stream()});
      }
      if (roll_.chance(0.08)) add({kind::key_misuse, pass, roll_.below(5), a_stream()});
      if (roll_.chance(0.06)) continue;
      if (roll_.chance(0.15)) {
        late.push_back(key);
      } else {
        add({kind::key_drop, pass, key, a_stream()});
      }
      if (roll_.chance(0.05)) add({kind::release_borrowed, 0});
    }
    if (roll_.chance(0.1)) add({kind::key_finish, pass});
    for (const int each : late) add({kind::key_drop, pass, each, a_stream()});
    if (roll_.chance(0.2)) add({kind::check_idle, 0});
    add({kind::key_finish, pass});
    for (int key = 0; key < key_count; ++key) {
      if (roll_.chance(0.3)) add({kind::key_drop, pass, key, a_stream()});
    }
    add({kind::key_finish, pass});
    add({kind::key_abandon, pass});
    if (roll_.chance(0.1)) add({kind::key_misuse, pass, roll_.below(5), a_stream()});
  }

  // ---- arrays of layers ----

  void layers() {
    const int sets = roll_.from(1, layer_set_count);
    std::array<int, layer_set_count> arrays{};
    std::array<int, layer_set_count> sizes{};
    for (int s = 0; s < sets; ++s) {
      arrays[static_cast<std::size_t>(s)] = roll_.from(1, array_count);
      sizes[static_cast<std::size_t>(s)] = std::max(1, a_size() / 8);
      add({kind::layers_make, s, 0, roll_.below(5), arrays[static_cast<std::size_t>(s)]});
    }
    const int count = roll_.from(1, layer_count);
    const auto spec = a_step();
    const double zeros = often(0.4, 0.9);
    const bool same = roll_.chance(0.6);
    std::vector<operation> one;
    for (int i = roll_.from(1, 7); i > 0; --i) {
      if (one.empty() || !same) {
        one = aside([&] {
          std::vector<int> open;
          const auto end_one = [&] {
            layers_backward(open.front(), arrays[static_cast<std::size_t>(open.front())], count);
            open.erase(open.begin());
          };
          for (int s = 0; s < sets; ++s) {
            layers_forward(s, arrays[static_cast<std::size_t>(s)], count,
                           sizes[static_cast<std::size_t>(s)], 0, zeros);
            open.push_back(s);
            if (roll_.chance(0.5)) end_one();
          }
          while (!open.empty()) end_one();
          if (roll_.chance(0.3)) add({kind::check_idle, 0});
          add({kind::end_step, 0});
        });
      }
      made_.operations.insert(made_.operations.end(), one.begin(), one.end());
      if (roll_.chance(0.25)) {  // validation
        const int s = roll_.below(sets);
        const int way = roll_.chance(0.7) ? 3 : 1;
        layers_forward(s, arrays[static_cast<std::size_t>(s)], count,
                       sizes[static_cast<std::size_t>(s)], way, zeros);
        if (way == 1) layers_backward(s, arrays[static_cast<std::size_t>(s)], count);
        add({kind::layers_finish, s});
        if (roll_.chance(0.3)) add({kind::check_idle, 0});
      }
      if (roll_.chance(0.1)) {  // dropped, or another shape
        const int s = roll_.below(sets);
        if (roll_.chance(0.5)) {
          layers_forward(s, arrays[static_cast<std::size_t>(s)], count,
                         sizes[static_cast<std::size_t>(s)], 0, zeros);
          add({kind::layers_abandon, s});
        } else {
          sizes[static_cast<std::size_t>(s)] = std::max(1, a_size() / 8);
          one.clear();
        }
        add({kind::layers_reset, s, 0, a_stream()});
      }
      if (roll_.chance(0.04)) {
        const int s = roll_.below(sets);
        add({kind::layers_drop, s, 0, roll_.below(6)});
        add({kind::layers_make, s, 0, roll_.below(5), arrays[static_cast<std::size_t>(s)]});
      }
      if (roll_.chance(0.15)) play_step(spec, 0);
      between_steps();
    }
  }

  void layer_misuse(int set) {
    if (roll_.chance(0.08)) {
      add({kind::layers_misuse, set, roll_.below(layer_count), a_stream(), roll_.below(6)});
    }
  }

  void layers_forward(int set, int arrays, int count, int elements, int way, double zeros) {
    add({kind::layers_begin, set, 0, set, 0, way});
    for (int l = 0; l < count; ++l) {
      const int stream = a_stream();
      for (int a = 0; a < arrays; ++a) {
        add({kind::layer_fresh, set, l, stream, elements, roll_.chance(zeros) ? 1 : 0, {a}});
        if (roll_.chance(0.75)) add({kind::layer_write, set, l, a_stream(), 0, 0, {a}});
        if (roll_.chance(0.2)) add({kind::layer_read, set, l, a_stream(), 0, 0, {a}});
        layer_misuse(set);
      }
      if (roll_.chance(0.04)) {  // given up, and begun again
        add({kind::layer_release, set, l, stream, 0, 1});
        for (int a = 0; a < arrays; ++a) {
          add({kind::layer_fresh, set, l, stream, elements, roll_.chance(zeros) ? 1 : 0, {a}});
        }
      }
      add({kind::layer_done, set, l, roll_.chance(0.7) ? stream : a_stream()});
      layer_misuse(set);
    }
    if (way == 0) add({kind::layers_end_forward, set});
    if (way == 3) add({kind::layers_finish, set});
  }

  void layers_backward(int set, int arrays, int count) {
    for (int l = count; l-- > 0;) {
      const int stream = a_stream();
      layer_misuse(set);
      const int first = roll_.below(arrays);
      for (int i = 0; i < arrays; ++i) {
        const int a = (first + i) % arrays;
        if (i == 0 || roll_.chance(0.7))
          add({kind::layer_back, set, l, roll_.chance(0.8) ? stream : a_stream(), 0, 0, {a}});
        add({kind::layer_read, set, l, roll_.chance(0.8) ? stream : a_stream(), 0, 0, {a}});
        if (roll_.chance(0.3)) add({kind::layer_write, set, l, stream, 0, 0, {a}});
        if (roll_.chance(0.3)) add({kind::layer_read, set, l, a_stream(), 0, 0, {a}});
        if (roll_.chance(0.15)) add({kind::layer_release, set, l, a_stream(), a + 1});
      }
      if (roll_.chance(0.95)) add({kind::layer_release, set, l, a_stream(), 0});
    }
    add({kind::layers_finish, set});
    if (roll_.chance(0.2)) {
      for (int l = 0; l < count; ++l) add({kind::layer_release, set, l, a_stream(), 0});
    }
  }

  // ---- captures ----

  void captured(int graph, int stream, int side, bool all, bool throws,
                const std::vector<operation>& body) {
    add({kind::capture_begin, graph, stream, side, all ? 1 : 0, throws ? 1 : 0});
    for (const auto& each : body) made_.operations.push_back(each);
    add({kind::capture_end});
  }

  // The operations that a step would be, without doing them.
  template <class Body>
  std::vector<operation> aside(Body&& body) {
    auto kept = std::move(made_.operations);
    made_.operations.clear();
    body();
    std::swap(kept, made_.operations);
    return kept;
  }

  void captures() {
    auto spec = a_step();
    const int side = 0;
    const int before = roll_.from(1, 3) + (automatic_ ? made_.sides[0].timed_step : 0);
    const bool plain_body = roll_.chance(0.6);
    for (int i = 0; i < before; ++i) {
      play_step(spec, side);
      between_steps();
    }
    const int rounds = roll_.from(1, 4);
    for (int r = 0; r < rounds; ++r) {
      const bool all = roll_.chance(0.5);
      const int how = roll_.below(10);
      if (how < 4) {
        if (plain_body) ++quiet_;
        auto body = aside([&] {
          if (roll_.chance(0.4)) touch_persistent();
          play_step(spec, side);
          if (roll_.chance(0.3)) touch_persistent();
        });
        if (plain_body) --quiet_;
        const int graph = roll_.below(graph_count);
        if (roll_.chance(0.6)) {
          captured(graph, a_stream(), side, all, roll_.chance(0.06), body);
        } else {  // in parts
          auto cut = roll_.below(static_cast<int>(body.size()));
          if (roll_.chance(0.5)) {  // where the forward passes end
            for (std::size_t i = 0; i < body.size(); ++i) {
              if (body[i].what == kind::end_forward) cut = static_cast<int>(i) + 1;
            }
          }
          const auto middle = body.begin() + cut;
          const int second = (graph + 1) % graph_count;
          const int stream = a_stream();
          captured(graph, stream, side, all, false, {body.begin(), middle});
          if (roll_.chance(0.15)) anything();
          if (roll_.chance(0.8)) captured(second, stream, side, all, false, {middle, body.end()});
          const int launches = roll_.from(0, 3);
          for (int i = 0; i < launches; ++i) {
            add({kind::launch, graph, a_stream()});
            if (roll_.chance(0.9)) add({kind::launch, second, a_stream()});
          }
        }
      } else if (how < 7) {
        const auto body = aside([&] {
          const int count = roll_.from(1, 6);
          for (int i = 0; i < count; ++i) {
            if (roll_.chance(0.35)) {
              visit_state();
            } else if (roll_.chance(0.4)) {
              touch_persistent();
            } else {
              anything();
            }
          }
        });
        captured(roll_.below(graph_count), a_stream(), side, all, roll_.chance(0.06), body);
      } else {  // while a pass is open
        running run;
        run.spec = &spec.chunks[0];
        run.chunk = chunk_turn_++ % (chunk_count - 1) + 1;
        forward(run, 0, side);
        for (int i = roll_.from(1, 3); i > 0; --i) {
          if (roll_.chance(0.6)) add({kind::launch, roll_.below(graph_count), a_stream()});
          if (roll_.chance(0.3)) anything();
        }
        if (roll_.chance(0.3)) {
          add({kind::abandon, run.chunk});
          for (const int each : run.slots) free_slot(each);
        } else {
          backward(run, true);
        }
        add({kind::end_step, side});
      }
      const int launches = roll_.from(0, 3);
      for (int i = 0; i < launches; ++i) {
        add({kind::launch, roll_.below(graph_count), a_stream()});
        if (roll_.chance(0.25)) anything();
        if (roll_.chance(0.35)) touch_persistent();
      }
      if (roll_.chance(0.5)) play_step(spec, side);
      between_steps();
    }
  }

  // ---- plans that another offloader follows ----

  void plans() {
    const auto spec = a_step();
    const int count = made_.sides[0].timed_step + roll_.from(1, 3);
    for (int i = 0; i < count; ++i) play_step(spec, 0);
    add({kind::save_plan, 0});
    const int other = static_cast<int>(made_.sides.size()) - 1;
    if (other == 0 && roll_.chance(0.5)) add({kind::probe, 0});
    add({kind::follow, other});
    for (int i = roll_.from(1, 3); i > 0; --i) {
      play_step(roll_.chance(0.9) ? spec : a_step(), other);
      between_steps();
    }
  }

  // ---- anything at all ----

  void anything() {
    const int chunk = roll_.from(1, chunk_count - 1);
    switch (roll_.below(40)) {
      case 0:
      case 1:
        return add({kind::allocate, a_slot(), a_size(), a_stream(),
                    roll_.chance(0.1) ? roll_.from(1, 2) : 0, a_side()});
      case 2:
      case 3:
        return add({kind::write, a_used_slot(), a_stream()});
      case 4:
      case 5:
        return add({kind::read, a_used_slot(), a_stream()});
      case 6:
        return add({kind::share, a_used_slot(), a_slot()});
      case 7:
        return add({kind::view, a_used_slot(), a_slot(), roll_.below(1 << 20), roll_.below(2)});
      case 8:
        return add({kind::keep, a_used_slot()});
      case 9:
      case 10:
        return add({kind::reset, a_used_slot(), a_stream()});
      case 11:
        return add({kind::destroy, a_used_slot()});
      case 12:
        return add({kind::move_handle, a_used_slot(), a_slot()});
      case 13:
        return add({kind::begin, chunk, a_side(), roll_.below(4), roll_.below(2),
                    roll_.chance(0.2) ? (roll_.chance(0.5) ? 1 : 3) : 0});
      case 14:
      case 15: {
        operation op{kind::commit,   chunk,      roll_.below(5),
                     roll_.below(4), a_stream(), roll_.below(4)};
        for (int i = roll_.from(1, 3); i > 0; --i) op.slots.push_back(a_used_slot());
        return add(std::move(op));
      }
      case 16:
        return add({kind::end_forward, chunk});
      case 17:
        return add({kind::start_reload, chunk, roll_.below(4)});
      case 18:
      case 19:
        return add({kind::restore, chunk, roll_.below(4), a_stream(), roll_.below(2),
                    roll_.chance(0.3) ? 1 : 0});
      case 20: {
        operation op{kind::discard, chunk, roll_.below(2), roll_.below(4), a_stream()};
        op.slots.push_back(a_used_slot());
        return add(std::move(op));
      }
      case 21:
        return add(
            {kind::recompute, chunk, roll_.below(3), a_stream(), 0, roll_.chance(0.3) ? 1 : 0});
      case 22:
        return add({kind::finish, chunk});
      case 23:
      case 24:
        return add({kind::abandon, chunk});
      case 25:
        return add({kind::move_chunk, chunk, roll_.from(1, chunk_count - 1)});
      case 26:
        return add({kind::end_step, a_side()});
      case 27:
        return add(roll_.chance(0.5) ? operation{kind::trace, a_side()}
                                     : operation{kind::span, a_side(), a_stream()});
      case 28:
        return add(
            {kind::wait_for, a_side(), a_stream(), roll_.below(2), 0, roll_.chance(0.3) ? 1 : 0});
      case 29:
        return add(roll_.chance(0.3) ? operation{kind::throw_reports, a_side()}
                                     : operation{kind::probe, a_side()});
      case 30: {
        const int which = roll_.below(state_count);
        switch (roll_.below(6)) {
          case 0:
            return add({kind::make_state, which, a_size(), a_side()});
          case 1:
            return add({kind::create_state, which, a_slot(), a_stream()});
          case 2:
            return add({kind::prefetch_state, which});
          case 3:
            return add({kind::fetch_state, which, a_slot(), a_stream()});
          case 4:
            return add({kind::write_state, which, a_slot(), a_stream()});
          default:
            return add({kind::drop_state, which});
        }
      }
      case 31:
        return add({kind::launch, roll_.below(graph_count), a_stream()});
      case 32: {
        const int which = roll_.below(20);
        if (which == 0) return add({kind::drop_offloader, a_side()});
        if (which < 6) return add({kind::drop_graph, roll_.below(graph_count)});
        if (which < 12) return add({kind::join, a_stream(), a_stream()});
        return add({kind::synchronize});
      }
      case 33: {
        if (borrowed_ == 0 && roll_.chance(0.8)) return;
        operation lent{kind::adopt, a_slot(), a_size(), a_stream(), roll_.below(3), a_side()};
        if (roll_.chance(0.3)) lent.slots = {a_used_slot()};
        return add(std::move(lent));
      }
      case 34:
        return add(roll_.chance(0.5) ? operation{kind::release_borrowed, a_side()}
                                     : operation{kind::check_idle, a_side()});
      case 35:
        return add({kind::wait_handle, a_used_slot(), a_stream()});
      case 36:
        return add({kind::forget, chunk, roll_.below(4), a_stream(), roll_.chance(0.2) ? 1 : 0});
      case 37:
        return a_key_call();
      case 38:
        return a_layer_call();
      default:
        return add({kind::misuse, roll_.below(9), chunk, a_used_slot(), a_stream()});
    }
  }

  void a_key_call() {
    const int pass = roll_.below(key_pass_count);
    const int key = roll_.below(key_count);
    switch (roll_.below(9)) {
      case 0:
        return add({kind::key_begin, pass, a_side(), 0, 0, roll_.chance(0.2) ? 1 : 0});
      case 1:
        return add({kind::key_enter, pass, roll_.below(5), roll_.below(9)});
      case 2:
        return key_one(pass, key);
      case 3:
        return add({kind::key_leave, pass, a_stream()});
      case 4:
        return add({kind::key_load, pass, key, a_stream()});
      case 5:
        return add({kind::key_drop, pass, key, a_stream()});
      case 6:
        return add({kind::key_finish, pass});
      case 7:
        return add({kind::key_misuse, pass, roll_.below(5), a_stream()});
      default:
        return add({kind::key_abandon, pass});
    }
  }

  void a_layer_call() {
    const int set = roll_.below(layer_set_count);
    const int layer = roll_.below(layer_count);
    const int stream = a_stream();
    const int array = roll_.below(array_count);
    switch (roll_.below(10)) {
      case 0:
        return add({kind::layers_make, set, a_side(), roll_.below(5), roll_.from(1, array_count)});
      case 1:
        return add({kind::layers_begin, set, 0, 0, 0, roll_.chance(0.3) ? 3 : 0});
      case 2:
        return add({kind::layer_fresh,
                    set,
                    layer,
                    stream,
                    std::max(1, a_size() / 8),
                    roll_.below(2),
                    {array}});
      case 3:
        return add({kind::layer_write, set, layer, stream, 0, 0, {array}});
      case 4:
        return add({kind::layer_done, set, layer, stream});
      case 5:
        return add({kind::layer_back, set, layer, stream, 0, 0, {array}});
      case 6:
        return add({kind::layer_release, set, layer, stream, roll_.below(3)});
      case 7:
        return add({kind::layers_misuse, set, layer, stream, roll_.below(6)});
      case 8:
        return add(roll_.chance(0.5) ? operation{kind::layers_finish, set}
                                     : operation{kind::layers_abandon, set});
      default:
        return add(roll_.chance(0.5) ? operation{kind::layers_reset, set, 0, stream}
                                     : operation{kind::layers_drop, set, 0, roll_.below(6)});
    }
  }

  dice roll_;
  program made_;
  double noise_ = 0;
  double shares_ = 0, views_ = 0, by_hand_ = 0, offers_ = 0, lasts_ = 0, unwritten_ = 0;
  double borrowed_ = 0, forgets_ = 0;
  int quiet_ = 0;
  bool automatic_ = false;
  std::vector<int> recent_;
  std::vector<int> extra_;
  std::vector<int> last_lent_;
  std::array<bool, slot_count> taken_{};
  std::array<int, slot_count> sizes_{};
  int next_ = 0;
  int chunk_turn_ = 0;
};

}  // namespace

bool& strict() {
  static bool is = false;
  return is;
}

std::vector<std::string>& passed_over() {
  static std::vector<std::string> words;
  return words;
}

std::map<std::string, long>& reached() {
  static std::map<std::string, long> times;
  return times;
}

bool& long_only() {
  static bool is = false;
  return is;
}

program draw(std::uint64_t seed) {
  auto made = drawer(seed).draw();
  dice roll(seed + (std::uint64_t{1} << 41));
  const int other = roll.below(200);
  const bool is_long = other == 0 || long_only();
  if (is_long) {
    draw_long(made, roll);
  } else if (other < 13) {
    draw_edge(made, roll);
  } else if (other < 26) {
    draw_twice(made, roll);
  }
  const bool large = !is_long && other >= 26 && other < 29;
  if (large) draw_packing_large(made, roll);
  draw_lending(made);
  if (roll.chance(0.6)) draw_reads(made, roll);
  draw_key_kinds(made, roll);
  if (roll.chance(0.35) && !is_long && !large) draw_empty(made, roll);
  made.eager = roll.chance(0.08);
  const bool edge = !is_long && other < 13;
  if (roll.chance(0.5) && !large) draw_packing(made, roll, !is_long && !edge);
  return made;
}

std::string to_text(const program& what) {
  std::ostringstream text;
  text << "seed " << what.seed << ", " << what.streams << " streams, fault at "
       << device_calls[static_cast<std::size_t>(what.fault_call)] << ' ' << what.fault_at
       << (what.offloader_first ? ", offloader first" : "") << (what.eager ? ", eager" : "")
       << ", packs from " << what.packs_from << '\n';
  for (std::size_t i = 0; i < what.operations.size(); ++i) {
    const auto& op = what.operations[i];
    text << i << ": " << name_of(op.what) << ' ' << op.a << ' ' << op.b << ' ' << op.c << ' '
         << op.d << ' ' << op.e << ' ' << op.f;
    for (const int each : op.slots) text << " t" << each;
    text << '\n';
  }
  return text.str();
}

}  // namespace stranger
