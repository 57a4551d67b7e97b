// The one file that compiles the engine.
#include "player.hpp"

#include <tidepool/parse.hpp>

#include "play_borrowed.hpp"
#include "play_fits.hpp"
#include "play_graphs.hpp"
#include "play_kernels.hpp"
#include "play_key_reads.hpp"
#include "play_keys.hpp"
#include "play_layers.hpp"
#include "play_lending.hpp"
#include "play_packing.hpp"
#include "play_passes.hpp"
#include "play_steps.hpp"
#include "play_tensors.hpp"

namespace stranger {

namespace {

// The words of a message without what differs from program to program.
std::string gist(const std::string& message) {
  std::string words;
  for (const char c : message) {
    if (c >= '0' && c <= '9') {
      if (words.empty() || words.back() != '#') words += '#';
    } else {
      words += c;
    }
  }
  return words.substr(0, 110);
}

std::string call_of(const std::string& code) {
  const auto end = code.find_first_of("(<");
  const auto from = code.find_last_of(".>=", end == std::string::npos ? end : end - 1);
  auto word = code.substr(from == std::string::npos ? 0 : from + 1,
                          end - (from == std::string::npos ? 0 : from + 1));
  return word.substr(0, 40);
}

tp::machine machine_of(const program& what, std::uint64_t order) {
  tp::machine like;
  like.poison = !what.poison;
  like.device_bytes = what.memory;
  like.host_bytes = what.memory;
  like.order_seed = order;
  like.packs_from = what.packs_from;
  return like;
}

}  // namespace

player::player(const program& what, std::uint64_t order, bool write_code)
    : program_(what), code_(write_code), device_(machine_of(what, order)) {
  device_.answer(what.asks);
  device_.order().watch_by(what.grain);
}

void player::note(const std::string& key, const std::string& text) {
  for (const auto& each : passed_over()) {
    if (key.find(each) != std::string::npos) return;
  }
  if (failed_) return;
  failed_ = true;
  found_.push_back({key, text, at_operation_});
}

// The program goes on: what else there is shows as well.
void player::note_race(const std::string& key, const std::string& text) {
  raced_ = true;
  for (const auto& each : passed_over()) {
    if (key.find(each) != std::string::npos) return;
  }
  for (const auto& each : found_) {
    if (each.key == key) return;
  }
  found_.push_back({key, text, at_operation_});
}

void player::find(const std::string& key, const std::string& text) {
  note(key, text);
  if (failed_) throw stop{};
}

void player::look() {
  if (!failed_ && !device_.order().race().empty()) {
    const auto& race = device_.order().race();
    std::string sort = "race";
    for (const char* each : {"copy out", "copy in", "poison", "zeros", "read", "write", "owner",
                             "pack", "allocator", "graph"}) {
      if (race.find(each) != std::string::npos) sort += std::string(", ") + each;
    }
    note_race(sort, race);
    device_.order().forget_race();
  }
  if (const auto said = device_.said(); !said.empty() && !raced_ && !device_.failed()) {
    note_race("the checked device: " + gist(said).substr(0, 60), said);
  }
  if (failed_) throw stop{};
}

unsigned player::may(int which, unsigned more) const {
  const auto& of = side_at(which);
  if (of.dirty || of.held) more |= misuse;
  if (capturing_) more |= misuse | budget;
  if (of.forgiven) more |= budget;
  return more;
}

unsigned player::may_report(int which) const {
  return may(which) | (side_at(which).evil_reports ? static_cast<unsigned>(own) : 0U);
}

unsigned player::may_allocate(int which) const {
  const auto& with = settings(which);
  auto more = may(which);
  if (with.tight()) more |= budget;
  return more;
}

template <class F>
unsigned player::call(const std::string& code, unsigned allowed, F&& body) {
  const bool failed_before = device_.failed();
  unsigned threw = 0;
  std::string what;
  std::string type;
  try {
    body();
  } catch (const stop&) {
    throw;
  } catch (const body_ends&) {
    if (capturing_) throw;
    threw = misuse;  // of a capture, whose body was refused something
    type = "body";
    allowed |= misuse;
  } catch (const trainer_error& e) {
    threw = own, type = "trainer_error", what = e.what();
  } catch (const tp::misuse_error& e) {
    threw = misuse, type = "misuse_error", what = e.what();
  } catch (const tp::out_of_budget& e) {
    threw = budget, type = "out_of_budget", what = e.what();
  } catch (const tp::device_error& e) {
    threw = failure, type = "device_error", what = e.what();
  } catch (const tp::lender_error& e) {
    threw = gone, type = "lender_error", what = e.what();
  } catch (const tp::option_error& e) {
    threw = option, type = "option_error", what = e.what();
  } catch (const tp::error& e) {
    threw = profile, type = "profile_error", what = e.what();
  } catch (const std::exception& e) {
    threw = 1U << 20, type = "something else", what = e.what();
  }
  code_.statement(code, threw != 0);
  if (device_.failed() && !failed_before) {
    allowed |= failure | budget;
    for (auto& each : sides_) each.forgiven = true;
  }
  look();
  if (code.empty() || code[0] != '/') {
    ++reached()[std::string(name_of(operation_)) + (capturing_ ? ", captured" : "") +
                (threw == 0 ? "" : " threw " + type)];
  }
  if (threw == 0) return 0;
  if (!capturing_) code_.line("// " + what);
  if ((threw & allowed) == 0) {
    find(call_of(code) + " threw " + type + ": " + gist(what),
         code + " threw " + type + ": " + what);
  }
  if (capturing_) throw body_ends{};
  return threw;
}

template <class F>
void player::refused(const std::string& code, F&& body) {
  bool threw = false;
  std::string what = "nothing was thrown";
  const bool failed_before = device_.failed();
  try {
    body();
  } catch (const tp::misuse_error&) {
    threw = true;
  } catch (const std::exception& e) {
    what = e.what();
    if (device_.failed() && !failed_before) threw = true;
  }
  code_.statement(code, true);
  if (threw) ++reached()[std::string(name_of(operation_)) + " was refused"];
  if (device_.failed() && !failed_before) {
    for (auto& each : sides_) each.forgiven = true;
  }
  look();
  if (!threw) find("misuse was let through: " + call_of(code), code + ": " + what);
}

tp::options player::options_of(const side& with) {
  tp::options o;
  for (std::size_t m = 0; m < module_names.size(); ++m) {
    if ((with.modules >> m & 1U) != 0) o.offload_modules.emplace_back(module_names[m]);
  }
  for (std::size_t m = 0; m < discard_names.size(); ++m) {
    if ((with.recompute >> m & 1U) != 0) o.recompute_modules.emplace_back(discard_names[m]);
  }
  o.min_tensor_elements = with.min_elements;
  o.margin = with.margin;
  o.fraction = with.fraction;
  if (with.delta != 0) {
    o.pipeline_rank = 1;
    o.delta_bytes_per_rank = with.delta;
  }
  if (with.cap >= 0) o.max_inflight = static_cast<std::size_t>(with.cap);
  if (with.cap_bytes >= 0) o.max_inflight_bytes = static_cast<std::size_t>(with.cap_bytes);
  o.reload_ahead = static_cast<std::size_t>(with.ahead);
  if (with.ahead_bytes >= 0) o.reload_ahead_bytes = static_cast<std::size_t>(with.ahead_bytes);
  if (with.automatic) o.policy = tp::policy_kind::automatic;
  o.recompute_by_plan = with.recompute_by_plan;
  o.timed_step = with.timed_step;
  if (with.memory == 1) o.memory = tp::memory_kind::arena;
  if (with.memory == 2) {
    o.memory = tp::memory_kind::slots;
    for (const auto& [bytes, count] : with.rings) o.slots.push_back({bytes, count});
  } else if (with.budget != 0 || with.memory == 1) {
    o.device_budget = with.budget != 0 ? with.budget : roomy_device;
  }
  o.device_step = with.step;
  o.copy_piece = with.piece;
  o.host_budget = with.host_budget != 0 ? with.host_budget : roomy_host;
  o.host_step = with.host_step;
  if (with.peer_budget != 0) {
    o.places = {tp::place_kind::peer, tp::place_kind::host};
    o.peer_budget = with.peer_budget;
  }
  for (int l = 0; l < 8; ++l) {
    if ((with.layers >> static_cast<unsigned>(l) & 1U) != 0) o.offload_layers.push_back(l);
  }
  const auto* const words =
      with.pack == pack_all ? "--offload-modules=all --pack=all" : "--pack=none";
  o.pack = tp::parse_options(words).pack;
  for (std::size_t m = 0; m < module_names.size(); ++m) {
    if ((with.pack >> m & 1U) != 0) o.pack.emplace_back(module_names[m]);
  }
  if (with.slack >= 0) o.borrowed_slack = static_cast<std::size_t>(with.slack);
  return o;
}

void player::make_sides() {
  {
    const device::mine quiet(device_);
    for (int s = 0; s < program_.streams; ++s) streams_.push_back(device_.make_stream());
    for (const auto& each : streams_) {
      if (program_.eager) device_.execute(each.ref());
    }
    for (std::size_t f = 1; f < source_count; ++f) {
      source_memory_[f] = device_.try_allocate(source_bytes);
      sources_[f] = std::make_unique<tp::fixed_block>(source_memory_[f], source_bytes);
      code_.line("f" + std::to_string(f) + ".emplace(dev.allocate(" + std::to_string(source_bytes) +
                 "), " + std::to_string(source_bytes) + ");");
    }
  }
  source_side_.fill(-1);
  device_.fail_at(device_calls[static_cast<std::size_t>(program_.fault_call)], program_.fault_at);
  while (sides_.size() < program_.sides.size()) sides_.emplace_back();
  for (std::size_t s = 0; s < sides_.size(); ++s) {
    const bool makes_it = makes(static_cast<int>(s));
    const auto threw = call("", makes_it ? 0U : static_cast<unsigned>(option), [&] {
      auto with = options_of(program_.sides[s]);
      with.poison = program_.poison;
      tp::parts parts{.planner = tp::planner()};
      if (program_.sides[s].own != none) parts.memory = make_memory(static_cast<int>(s));
      sides_[s].off.emplace(device_, with, std::move(parts));
    });
    if (!makes_it && threw == 0) find("--pack was let through on a device that cannot", "");
    if (!sides_[s].off) continue;
    auto* const of = &sides_[s];
    of->off->on_report([of](std::string_view) {
      if (std::exchange(of->evil_reports, false)) throw trainer_error();
    });
  }
}

std::size_t player::run_from(std::size_t first, bool inside) {
  for (auto i = first; i < program_.operations.size(); ++i) {
    const auto& op = program_.operations[i];
    at_operation_ = static_cast<int>(i);
    device_.order().at_operation(at_operation_);
    operation_ = op.what;
    if (op.what == kind::capture_end) {
      if (inside) return i + 1;
      continue;
    }
    if (op.what == kind::capture_begin) {
      if (inside) continue;
      i = capture(op, i + 1) - 1;
      continue;
    }
    step(op);
    check_loans();
    look();
  }
  return program_.operations.size();
}

void player::step(const operation& op) {
  switch (op.what) {
    case kind::allocate:
      return allocate(op);
    case kind::write:
      return write(op.a, op.b);
    case kind::read:
      return read(op.a, op.b);
    case kind::share:
      return share(op.a, op.b);
    case kind::view:
      return make_view(op.a, op.b, op.c, op.d != 0);
    case kind::keep:
      if (at(op.a).full() && at(op.a).of && at(op.a).visits < 0 && !capturing_) {
        call(name(op.a) + ".keep_resident();", 0, [&] { at(op.a).h().keep_resident(); });
        at(op.a).of->keep = true;
        at(op.a).of->kept_at.insert(place_of(at(op.a)));
      }
      return;
    case kind::bfloat16:
      return holds_bfloat16(op.a);
    case kind::reset:
      static_cast<void>(reset(op.a, op.b));
      return;
    case kind::destroy:
      return destroy(op.a);
    case kind::move_handle:
      return move_handle(op.a, op.b);
    case kind::begin:
      return begin(op);
    case kind::commit:
      return commit(op);
    case kind::end_forward:
      return end_forward(op.a);
    case kind::start_reload:
      return start_reload(op);
    case kind::restore:
      return restore(op);
    case kind::discard:
      return discard(op);
    case kind::recompute:
      return recompute(op);
    case kind::finish:
      return finish_pass(op.a);
    case kind::abandon:
      return abandon(op.a);
    case kind::move_chunk: {
      auto& from = passes_[static_cast<std::size_t>(op.a)];
      auto& to = passes_[static_cast<std::size_t>(op.b)];
      if (op.a == op.b || !from.open || to.open || capturing_) return;
      call("c" + std::to_string(op.b) + " = std::move(c" + std::to_string(op.a) + ");", 0,
           [&] { to = std::move(from); });
      from = {};
      return;
    }
    case kind::end_step:
      return end_step(op.a);
    case kind::save_plan:
      return save_plan(op.a);
    case kind::follow:
      return follow(op.a);
    case kind::probe:
      return capturing_ ? void() : probe(op.a);
    case kind::drop_offloader:
      return capturing_ ? void() : drop_side(op.a);
    case kind::check_counters:
      return check_counters(op.a);
    case kind::check_growth:
      return check_growth(op);
    case kind::trace:
      return trace(op.a);
    case kind::span:
      return span(op);
    case kind::wait_for:
      return wait_for(op);
    case kind::throw_reports:
      if (usable_side(op.a) && !capturing_) {
        side_at(op.a).evil_reports = true;
        code_.line(off_name(op.a) +
                   "->on_report([](std::string_view) { throw std::runtime_error(\"the trainer's "
                   "own error\"); });");
      }
      return;
    case kind::make_state:
      return capturing_ ? void() : make_state(op);
    case kind::create_state:
      return create_state(op);
    case kind::prefetch_state:
      return prefetch_state(op.a);
    case kind::fetch_state:
      return fetch_state(op);
    case kind::write_state:
      return write_state(op);
    case kind::drop_state:
      return drop_state(op.a);
    case kind::launch:
      return launch(op);
    case kind::drop_graph:
      return drop_graph(op.a);
    case kind::adopt:
      return adopt(op);
    case kind::release_borrowed:
      return release_borrowed(op.a);
    case kind::check_idle:
      return check_idle(op.a);
    case kind::wait_handle:
      return wait_handle(op);
    case kind::forget:
      return forget(op);
    case kind::join:
      return join(op.a, op.b);
    case kind::synchronize:
      if (!capturing_) {
        const device::mine quiet(device_);
        device_.synchronize();
        code_.line("dev.synchronize();");
        look();
      }
      return;
    case kind::misuse:
      return misuse_pass(op);
    default:
      return step_other(op);
  }
}

// Of keys and layers.
void player::step_other(const operation& op) {
  switch (op.what) {
    case kind::borrow_memory:
      return borrow_memory(op);
    case kind::return_memory:
      return return_memory(op.a);
    case kind::lender_goes:
      return lender_goes(op);
    case kind::key_begin:
      return key_begin(op);
    case kind::key_enter:
      return key_enter(op);
    case kind::key_save:
      return key_save(op);
    case kind::key_leave:
      return key_leave(op);
    case kind::key_end_forward:
      return key_end_forward(op.a);
    case kind::key_load:
      return key_load(op);
    case kind::key_read:
      return key_read(op);
    case kind::key_drop:
      return key_drop(op);
    case kind::key_finish:
      return key_finish(op.a);
    case kind::key_abandon:
      return key_abandon(op.a);
    case kind::key_misuse:
      return key_misuse(op);
    case kind::layers_make:
      return layers_make(op);
    case kind::layers_begin:
      return layers_begin(op);
    case kind::layer_fresh:
      return layer_fresh(op);
    case kind::layer_write:
      return layer_use(op, true);
    case kind::layer_read:
      return layer_use(op, false);
    case kind::layer_done:
      return layer_done(op);
    case kind::layers_end_forward:
      if (auto* const in = layers_at(op.a); in != nullptr && in->open && !in->ended) {
        call(set_name(op.a) + "->pass.end_forward();", may(in->side),
             [&] { in->of->pass.end_forward(); });
        in->ended = true;
      }
      return;
    case kind::layer_back:
      return layer_back(op);
    case kind::layer_release:
      return layer_release(op);
    case kind::layers_finish:
      return layers_finish(op.a);
    case kind::layers_abandon:
      return layers_abandon(op.a);
    case kind::layers_reset:
      return layers_reset(op.a, op.c);
    case kind::layers_drop:
      return layers_drop(op.a, op.c);
    case kind::layers_misuse:
      return layers_misuse(op);
    default:
      return;
  }
}

// Hands, passes, graphs: nothing is left afterwards but the offloaders.
void player::give_up_all(bool graphs_first) {
  const auto graphs = [&] {
    for (int g = 0; g < graph_count; ++g) drop_graph(g);
  };
  if (graphs_first) graphs();
  for (int c = 0; c < chunk_count; ++c) abandon(c);
  for (int k = 0; k < key_pass_count; ++k) key_abandon(k);
  for (int l = 0; l < layer_set_count; ++l) layers_drop(l, l + at_operation_);
  for (int i = 0; i < slot_count; ++i) {
    if (at(i).full()) destroy(i);
  }
  for (int s = 0; s < state_count; ++s) drop_state(s);
  if (!graphs_first) graphs();
  for (auto& each : sides_) {
    each.dirty = false;
    each.on_device.clear();
  }
  std::erase_if(contents_,
                [](const content_ref& each) { return each->handles + each->saves == 0; });
  flights_.clear();
}

void player::canonical_step(int which) {
  auto& of = side_at(which);
  unsigned module = 0;
  while (module < 4 && (settings(which).modules >> module & 1U) == 0) ++module;
  step({kind::begin, 0, which, 0, 0, 0});
  step({kind::allocate, 0, 256, 0, 0, which});
  step({kind::write, 0, 0});
  step({kind::commit, 0, static_cast<int>(module), 0, 0, plain, {0}});
  step({kind::end_forward, 0});
  step({kind::restore, 0, 0, 0});
  step({kind::read, 0, 0});
  step({kind::reset, 0, 0});
  step({kind::finish, 0});
  step({kind::end_step, which});
  static_cast<void>(of);
}

// Invariant: after any error and any pass that was given up the next step runs.
void player::probe(int which) {
  if (!usable_side(which)) return;
  code_.line("// everything is given up, and a plain step has to run");
  give_up_all((program_.seed + static_cast<std::uint64_t>(at_operation_)) % 2 == 0);
  auto& of = side_at(which);
  if (of.tracing) trace(which);
  if (of.tracing) return;
  of.evil_reports = false;
  if (!without_lender(which)) return;
  canonical_step(which);
  if (passes_[0].open) abandon(0);  // held to a plan that has it otherwise
  {
    const device::mine quiet(device_);
    device_.synchronize();
    code_.line("dev.synchronize();");
  }
  look();
  check_idle(which);
}

// Everything was given back, so that an arena can be had whole, and all slots.
void player::check_whole(int which) {
  if (!usable_side(which) || side_at(which).forgiven || side_at(which).tracing) return;
  if (device_.failed()) return;
  auto& off = *side_at(which).off;
  const auto& with = settings(which);
  const auto name = off_name(which);
  if (with.memory == 1 && with.own == none) {
    const auto all = (with.budget != 0 ? with.budget : roomy_device) / 256 * 256;
    call("static_cast<void>(" + name + "->allocate(" + std::to_string(all) +
             ", s0));  // the whole arena",
         0, [&] { static_cast<void>(off.allocate(all, ref(0))); });
  }
  if (with.memory == 2 && with.own == none) {
    std::vector<buffer> taken;
    for (auto ring = with.rings.rbegin(); ring != with.rings.rend(); ++ring) {
      for (std::size_t i = 0; i < ring->second; ++i) {
        call("// every slot", 0, [&] { taken.push_back(off.allocate(ring->first, ref(0))); });
      }
    }
  }
  const auto host = with.host_budget != 0 ? with.host_budget : roomy_host;
  if (with.host_step >= host) {
    call("static_cast<void>(" + name + "->state_on_host(" + std::to_string(host) +
             ", \"all\"));  // all of the host's",
         0, [&] { static_cast<void>(off.state_on_host(host, "all")); });
  }
}

void player::drop_side(int which) {
  if (!usable_side(which)) return;
  auto& of = side_at(which);
  for (int k = 0; k < key_pass_count; ++k) {
    if (key_passes_[static_cast<std::size_t>(k)].side == which) {
      key_abandon(k);
      key_passes_[static_cast<std::size_t>(k)].pass.reset();
    }
  }
  for (int l = 0; l < layer_set_count; ++l) {
    if (layer_sets_[static_cast<std::size_t>(l)].side == which) layers_drop(l, l);
  }
  if (of.keys) {
    of.keys.reset();
    code_.line("keys" + std::to_string(which) + ".reset();");
  }
  of.ending = true;
  call(off_name(which) + ".reset();", 0, [&] { of.off.reset(); });
  check_loans();
  of.gone = true;
}

void player::finish() {
  at_operation_ = static_cast<int>(program_.operations.size());
  device_.order().at_operation(at_operation_);
  if (program_.offloader_first) {
    for (int s = 0; s < static_cast<int>(sides_.size()); ++s) drop_side(s);
    for (int i = 0; i < slot_count; ++i) read(i, i);
    give_up_all(program_.seed % 2 == 0);
  } else {
    for (int s = 0; s < static_cast<int>(sides_.size()); ++s) probe(s);
    for (int s = 0; s < static_cast<int>(sides_.size()); ++s) check_whole(s);
    for (int s = 0; s < static_cast<int>(sides_.size()); ++s) check_counters(s);
    give_up_all(true);
    for (int s = 0; s < static_cast<int>(sides_.size()); ++s) drop_side(s);
  }
  const device::mine quiet(device_);
  device_.synchronize();
  look();
  free_regions();
  check_lenders();
  for (std::size_t f = 1; f < source_count; ++f) device_.deallocate(source_memory_[f]);
  if (device_.device_blocks() + device_.host_blocks() + device_.peer_blocks() + device_.imports() !=
          0 ||
      device_.events_alive() != 0) {
    find("memory or events are left",
         std::to_string(device_.device_blocks()) + " device blocks, " +
             std::to_string(device_.host_blocks()) + " host blocks, " +
             std::to_string(device_.peer_blocks()) + " of a neighbour, " +
             std::to_string(device_.events_alive()) + " events when all is gone");
  }
}

played player::play() {
  played result;
  try {
    make_sides();
    static_cast<void>(run_from(0, false));
    finish();
  } catch (const stop&) {
  } catch (const body_ends&) {
  }
  over_ = true;
  result.found = found_;
  result.device_calls = static_cast<std::size_t>(device_.calls());
  result.checks = checks_;
  if (code_.on())
    result.code = code_.whole(program_, found_.empty() ? "nothing was found" : found_.back().text);
  return result;
}

played play(const program& what, std::uint64_t order, bool write_code) {
  player all(what, order, write_code);
  return all.play();
}

}  // namespace stranger
