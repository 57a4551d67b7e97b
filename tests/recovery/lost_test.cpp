// After an error that the device does not get over every public call says so, with the device's own
// error; nothing hangs, and what goes goes quietly.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recovery/sweep.hpp"
#include "sanitizers.hpp"
#include "tidepool/memory/fixed.hpp"

namespace {

using namespace tidepool::test;
using trainer = recovery_trainer;
using device = trainer::device_type;

constexpr std::size_t bytes = 1024;

tidepool::options lost_options() {
  auto opts = small_options();
  opts.recompute_modules = {"layernorm"};
  return opts;
}

/// One of everything, in the middle of a step.
struct stage {
  device dev{};
  tidepool::virtual_device::stream compute = dev.virtual_device::make_stream();
  trainer::stream_ref on = compute.ref();
  std::optional<trainer::offloader> off{std::in_place, dev, lost_options(),
                                        tidepool::parts{.planner = tidepool::planner()}};
  tidepool::module_id fc1 = off->module("expert_fc1");
  tidepool::module_id attn = off->module("core_attn");
  trainer::buffer full, saved, hand, dropped, offered;
  tidepool::host_state<device> state, fresh;
  trainer::buffer visiting;
  trainer::offloader::chunk ended, open;
  std::optional<tidepool::graph<device>> made;  // launched in the other test
  std::optional<tidepool::keyed<device>> by_key;
  tidepool::keyed_pass<device> keys, loads;
  std::optional<trainer::layers_of> group, back;
  std::optional<trainer::floats> array, array_back;
  std::vector<std::uint32_t> memory = std::vector<std::uint32_t>(bytes / 4);

  stage() {
    off->on_report([](std::string_view) {});
    for (int i = 0; i < 3; ++i) step();
    made.emplace(off->capture(on, [&] { step(); }));
    made->launch(on);
    step();
    state = off->state_on_host(bytes, "moments");
    fresh = off->state_on_host(bytes, "fresh");
    visiting = state.create(on);
    state.write_back(visiting, on);
    visiting = fresh.create(on);
    ended = off->begin({0});
    saved = off->allocate(bytes, on);
    ended.commit(fc1, 0, on, saved);
    hand = off->allocate(bytes, on);
    ended.start_offload(attn, 0, on, hand);
    hand.reset(on);
    dropped = off->allocate(bytes, on);
    ended.commit_or_discard("layernorm", 0, on, dropped);
    offered = off->allocate(bytes, on);
    ended.commit_or_discard(fc1, 1, on, offered);
    by_key.emplace(*off);
    loads = by_key->begin({1});
    loads.enter(fc1, 0);
    loads.save(7, memory.data(), bytes, on, {});
    loads.leave(on);
    keys = by_key->begin({2});
    keys.enter(fc1, 0);
    keys.save(8, memory.data(), bytes, on, {});
    open = off->begin({3});
    group.emplace(*off, open, "expert_fc1");
    array.emplace(*group);
    back.emplace(*off, open, "core_attn");
    array_back.emplace(*back);
    static_cast<void>(array->fresh(0, bytes / 4, on));
    static_cast<void>(array_back->fresh(0, bytes / 4, on));
    back->done(0, on);
    full = off->allocate(bytes, on);
    dev.synchronize();
  }
  stage(const stage&) = delete;
  stage& operator=(const stage&) = delete;

  void step() {
    auto pass = off->begin({0});
    auto x = off->allocate(bytes, on);
    pass.commit(fc1, 0, on, x);
    pass.end_forward();
    pass.restore(fc1, 0, on, x);
    x.reset(on);
    pass.finish();
    off->end_step();
  }

  [[nodiscard]] std::uint64_t calls() const {
    std::uint64_t sum = 0;
    for (std::size_t k = 0; k < call_kinds; ++k) sum += dev.calls(static_cast<call_kind>(k));
    return sum;
  }
};

struct public_call {
  std::string name;
  std::function<void(stage&)> make;
  bool quiet = false;  ///< its own error would come too early, or it is not allowed any
};

std::vector<public_call> public_calls() {
  return {
      {"offloader", [](stage& s) { trainer::offloader other(s.dev, lost_options()); }},
      {"allocate", [](stage& s) { auto x = s.off->allocate(bytes * 64, s.on); }},
      {"wait_for",
       [](stage& s) { s.off->wait_for(s.full, s.dev.virtual_device::make_stream().ref()); }},
      {"state_on_host", [](stage& s) { auto x = s.off->state_on_host(bytes * 64, "more"); }},
      {"capture", [](stage& s) { auto x = s.off->capture(s.on, [&] { s.step(); }); }},
      {"commit", [](stage& s) { s.open.commit(s.fc1, 5, s.on, s.full); }},
      {"commit_or_discard", [](stage& s) { s.open.commit_or_discard(s.fc1, 5, s.on, s.full); }},
      {"start_offload", [](stage& s) { s.open.start_offload(s.fc1, 5, s.on, s.full); }},
      {"discard", [](stage& s) { s.open.commit_or_discard("layernorm", 5, s.on, s.full); }},
      {"restore", [](stage& s) { s.ended.restore(s.fc1, 0, s.on, s.saved); }},
      {"restore_or_recompute",
       [](stage& s) {
         s.ended.restore_or_recompute(
             s.fc1, 1, s.on, [] {}, s.offered);
       }},
      {"start_reload", [](stage& s) { s.ended.start_reload(s.attn, 0); }},
      {"recompute",
       [](stage& s) {
         s.ended.restore_or_recompute(
             "layernorm", 0, s.on, [] {}, s.dropped);
       }},
      {"create", [](stage& s) { auto x = s.state.create(s.on); }},
      {"fetch", [](stage& s) { auto x = s.state.fetch(s.on); }},
      {"write_back", [](stage& s) { s.fresh.write_back(s.visiting, s.on); }},
      {"start_trace", [](stage& s) { s.off->start_trace("lost", s.on); }},
      {"reset", [](stage& s) { s.full.reset(s.on); }},
      {"keyed_pass::leave", [](stage& s) { s.keys.leave(s.on); }},
      {"keyed_pass::load", [](stage& s) { static_cast<void>(s.loads.load(7, s.on)); }},
      {"saved_layers::fresh",
       [](stage& s) { static_cast<void>(s.array->fresh(1, bytes * 16, s.on)); }},
      {"layer_group::done", [](stage& s) { s.group->done(0, s.on); }},
      {"saved_layers::back", [](stage& s) { static_cast<void>(s.array_back->back(0, s.on)); }},
      {"layer_group::reset", [](stage& s) { s.group->reset(s.on); }},
      {"wait_for_others", [](stage& s) { s.off->wait_for_others(s.on, [] {}); }},
      {"begin", [](stage& s) { s.open = s.off->begin({9}); }},
      {"adopt", [](stage& s) { auto x = s.off->adopt(s.memory.data(), bytes, s.on, {}); }},
      {"forget", [](stage& s) { s.ended.forget(s.fc1, 0); }},
      {"counters", [](stage& s) { static_cast<void>(s.off->counters()); }},
      {"prefetch", [](stage& s) { static_cast<void>(s.state.prefetch()); }},
      {"end_forward", [](stage& s) { s.ended.end_forward(); }, true},
      {"release_borrowed", [](stage& s) { s.off->release_borrowed(); }, true},
      {"a chunk that is given up", [](stage& s) { s.ended = {}; }, true},
      {"a keyed pass that is given up", [](stage& s) { s.loads = {}; }, true},
      {"a state that goes", [](stage& s) { s.state = {}; }, true},
      {"a graph that goes", [](stage& s) { s.made.reset(); }, true},
      {"an offloader that goes first", [](stage& s) { s.off.reset(); }, true},
  };
}

}  // namespace

TEST_CASE("lost device: every public call says so, or does not need it") {
  std::string silent;
  std::size_t says = 0;
  for (const auto& each : public_calls()) {
    auto at = std::make_unique<stage>();
    at->dev.lose();
    std::string words;
    const auto end = outcome_of([&] { each.make(*at); }, &words);
    const bool asked = at->calls() > 0;
    const auto wanted = asked && !each.quiet ? kind_of_error::device : kind_of_error::none;
    CHECK_MESSAGE(end == wanted, each.name << ": " << std::string(name_of(end)) << " " << words);
    (end == kind_of_error::none ? silent : words) += " " + each.name + ",";
    says += end == kind_of_error::device ? 1 : 0;
    at.reset();  // quietly
  }
  CHECK(says >= 20);
  MESSAGE(says << " calls say that the device is lost; without a word:" << silent);
}

TEST_CASE("lost device: whichever call of a step loses it, the steps after it say so as well") {
  recovery_count counts;
  for (const auto& plan : training_plans()) {
    for (std::size_t k = 0; k < call_kinds; ++k) {
      const auto kind = static_cast<call_kind>(k);
      bool came = true;
      for (std::uint64_t number = 1; came; number += 5 * thinned) {
        trainer lost(plan);
        for (int i = 1; i <= 4; ++i) lost.step(i);
        lost.dev.arm({kind, number, manner::sticky});
        std::string complaint;
        std::string words;
        const auto first = outcome_of([&] { lost.step(5); }, &words);
        came = lost.dev.tripped();
        if (!came) break;
        lost.dev.lose();
        for (int i = 0; i < 3; ++i) {
          const auto given_up = outcome_of([&] { lost.give_up(i == 1); }, &words);
          const auto next = outcome_of([&] { lost.step(6 + i); }, &words);
          if (given_up != kind_of_error::none && given_up != kind_of_error::device) {
            complaint += " giving up: " + std::string(name_of(given_up)) + " " + words;
          }
          if (next != kind_of_error::device) {
            complaint += " a step: " + std::string(name_of(next)) + " " + words;
          }
        }
        ++counts.injected;
        ++counts.seen[plan.name][first];
        counts.stuck += complaint.empty() ? 0 : 1;
        CHECK_MESSAGE(complaint.empty(), plan.name << ", " << std::string(name_of(kind)) << " "
                                                   << number << ":" << complaint);
      }
    }
  }
  CHECK(counts.injected > (thinned == 1 ? 100 : 50));
  counts.print("lost devices");
}
