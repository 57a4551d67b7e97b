/// All cases against each other: built, warmed up, and measured in turns.
#pragma once

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <tidepool/memory/pinned.hpp>
#include <tidepool/observe/tracing.hpp>
#include <tidepool/trace/picture.hpp>
#include <tidepool/trace/timeline.hpp>

#include "bounds.hpp"
#include "floors.hpp"
#include "lender.hpp"
#include "measure.hpp"
#include "predictions.hpp"
#include "turns.hpp"

namespace bench {

static_assert(out_of_memory == static_cast<int>(cudaErrorMemoryAllocation));

/// What goes on beside a step, where it does.
struct surroundings {
  side_traffic* host = nullptr;
  side_traffic* peer = nullptr;
  lender_work* lender = nullptr;
};

class contest {
 public:
  contest(cuda_device& dev, stream_ref stream, model& m, const surroundings& beside, results& into)
      : dev_(&dev), stream_(stream), model_(&m), beside_(beside), all_(&into), run_(into.run) {
    for (int i = 0; i < run_.steps; ++i) clocks_.emplace_back(dev, run_);
  }
  contest(const contest&) = delete;
  contest& operator=(const contest&) = delete;
  ~contest() { model_->abandon(); }

  /// Fills the results, and calls `keep` whenever they have grown: after each turn of a case.
  template <class Keep>
  void run(const Keep& keep) {
    const auto take = [&](bool backwards, const auto& work) {
      take_turns(
          entries_, backwards, *all_, work, [&](entry& each) { give_up(each); }, keep);
    };
    for (auto& plan : plan_cases(run_)) add(std::move(plan));
    all_->alive = stays_alive();
    std::printf("cases stay built: %s\n", all_->alive ? "yes" : "no, each turn builds its own");
    take(false, [&](entry& each) { first_build(each); });
    if (run_.floor) add_floors();
    if (run_.floor && run_.by_hand) add_by_hand();
    if (beside_.lender != nullptr) {
      beside_.lender->set_length(0.9 * run_.microbatches * run_.steps *
                                 entries_[0]->result.warm_ms.back());
    }
    for (int round = 0; round < 2 * run_.pairs; ++round) {
      take(round % 2 != 0, [&](entry& each) { turn(each, round); });
    }
    if (!run_.graph) return;
    take(false, [&](entry& each) {
      if (each.result.plan.kind == case_kind::offload) graph_turns(each);
    });
  }

 private:
  struct entry {
    case_result result;
    std::unique_ptr<session> own;
    std::size_t free_before = 0;    // of the device, before it was built
    std::uint64_t allocations = 0;  // when warm
  };

  /// What a guest brings goes with it, also where its turn fails.
  struct visit {
    session& off;

    void end() const {
      off.set_traffic(nullptr, nullptr);
      off.set_by_hand(nullptr);
    }
    explicit visit(session& home) : off(home) {}
    visit(const visit&) = delete;
    visit& operator=(const visit&) = delete;
    ~visit() { end(); }
  };

  void add(planned_case plan) {
    entries_.push_back(std::make_unique<entry>());
    entries_.back()->result.plan = std::move(plan);
  }

  /// Whether device and host hold all cases at once, with room to spare.
  [[nodiscard]] bool stays_alive() const {
    if (run_.alive != "auto") return run_.alive == "on";
    double device = 2 * gibibyte;
    double host = 0;
    for (const auto& each : entries_) {
      const auto& plan = each->result.plan;
      const bool offloads = plan.kind == case_kind::offload;
      const bool one_layer = plan.kind == case_kind::recompute;
      const auto held = plan.held_bytes * (one_layer ? 1 : run_.depth);
      const auto budget = plan.options.device_budget;
      device += offloads && budget ? static_cast<double>(*budget) : held;
      if (offloads) host += held + static_cast<double>(plan.options.host_step);
    }
    return device < static_cast<double>(dev_->memory().free) &&
           host < 0.8 * static_cast<double>(tidepool::available_host_memory());
  }

  /// Does the case run at all, and how much does it move?
  void first_build(entry& each) {
    build(each);
    auto& result = each.result;
    std::printf("%-24s warm: %6.2f GiB of the device, %6.2f GiB pinned, moves %5.2f GiB each way\n",
                result.plan.name.c_str(), result.driver_bytes / gibibyte,
                static_cast<double>(result.counters.host_reserved) / gibibyte,
                result.moved_bytes / gibibyte);
    if (!all_->alive) take_down(each);
  }

  void build(entry& each) {
    auto& result = each.result;
    each.free_before = dev_->memory().free;
    each.own = std::make_unique<session>(*dev_, result.plan.options,
                                         result.plan.kind == case_kind::recompute);
    each.own->off().on_report([name = result.plan.name](std::string_view line) {
      std::printf("%s: %.*s\n", name.c_str(), static_cast<int>(line.size()), line.data());
    });
    // Two steps follow the plan, which takes as long as computing takes to settle.
    const bool planned = result.plan.options.policy == tidepool::policy_kind::automatic;
    double bytes_before = 0;
    for (int left = planned ? 3 : 2; left > 0;
         left -= !planned || each.own->off().current_plan() ? 1 : 0) {
      bytes_before = bytes_to_peer(each);
      const auto begin = std::chrono::steady_clock::now();
      run_step(*model_, *each.own, run_, stream_);
      dev_->synchronize();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      result.warm_ms.push_back(took.count() / run_.microbatches);
    }
    if (const auto& made = each.own->off().current_plan(); made && made->expected.runs) {
      result.forecast_ms = made->expected.step_us / 1e3 / run_.microbatches;
      result.forecast_stall_ms = made->expected.stall_us / 1e3 / run_.microbatches;
      result.forecast_gap = made->gap();
      result.waits_of_host = waits_in(each.own->off().profile());
    }
    weigh(each);
    each.allocations = result.counters.device_allocations + result.counters.host_allocations;
    double bytes = 0;
    for (const auto& module : result.counters.modules) {
      bytes += static_cast<double>(module.step_bytes);
    }
    result.moved_bytes = bytes / run_.microbatches;
    result.peer_bytes = (bytes_to_peer(each) - bytes_before) / run_.microbatches;
  }

  [[nodiscard]] static double bytes_to_peer(const entry& each) {
    double bytes = 0;
    for (const auto& place : each.own->off().counters().places) {
      if (place.name.starts_with("peer")) bytes += static_cast<double>(place.bytes_offloaded);
    }
    return bytes;
  }

  // The device is idle.
  void weigh(entry& each) {
    const auto now = dev_->memory().free;
    const auto taken = each.free_before > now ? each.free_before - now : 0;
    each.result.driver_bytes = std::max(each.result.driver_bytes, static_cast<double>(taken));
    each.result.counters = each.own->off().counters();
  }

  void take_down(entry& each) {
    model_->abandon();
    dev_->synchronize();
    each.own.reset();
  }

  void add_floors() {
    for (auto& each : plan_floors(run_, entries_)) {
      add({});
      entries_.back()->result = std::move(each);
    }
  }

  void add_by_hand() {
    add(plan_without(run_, case_kind::by_hand, "by hand"));
    entries_.back()->result.moved_bytes = static_cast<double>(run_.sizes.expert_bytes());
  }

  [[nodiscard]] static bool is_guest(const entry& each) {
    const auto kind = each.result.plan.kind;
    return kind == case_kind::by_hand || kind == case_kind::floor;
  }
  /// Among cases that stay built, guests run in the session of `none`.
  [[nodiscard]] entry& home_of(entry& each) {
    return all_->alive && is_guest(each) ? *entries_[0] : each;
  }

  void turn(entry& each, int round) {
    const bool by_hand = each.result.plan.kind == case_kind::by_hand;
    const bool guest = is_guest(each);
    auto& home = home_of(each);
    const auto moved = each.result.moved_bytes;
    const auto to_peer = each.result.peer_bytes;
    const bool fresh = !home.own;
    if (fresh) build(home);
    auto& off = *home.own;
    std::unique_ptr<hand_written> hands;
    const visit guests(off);
    if (guest) {
      each.result.moved_bytes = moved;
      each.result.peer_bytes = to_peer;
    }
    if (by_hand) {
      hands = write_by_hand();
      off.set_by_hand(hands.get());
    } else if (guest) {
      set_floor(off, each.result.plan);
    }
    const auto free_then = dev_->memory().free;
    for (int i = 0; i < run_.settle; ++i) run_step(*model_, off, run_, stream_);
    off.reset_times();
    if (beside_.lender != nullptr) beside_.lender->start();
    for (auto& clock : clocks_) run_step(*model_, off, run_, stream_, &clock);
    each.result.host.ahead = off.us_per_pair(false);
    if (beside_.lender != nullptr) each.result.lender_ms.push_back(beside_.lender->finish());
    if (by_hand) look_at_host(off, each.result.host);
    if (round + 1 == 2 * run_.pairs && each.result.plan.peer_share > 0) look_at_copies(each, off);
    guests.end();
    dev_->synchronize();
    hands.reset();
    for (auto& clock : clocks_) each.result.steps.push_back(clock.read());
    note_memory(each, home, free_then);

    const auto& last = each.result.steps.back();
    std::printf("round %2d/%d  %-24s %8.2f ms a microbatch\n", round + 1, 2 * run_.pairs,
                each.result.plan.name.c_str(), headline(run_, last));
    if (!guest && each.result.plan.kind == case_kind::offload) look_at_host(off, each.result.host);
    if (round + 1 == 2 * run_.pairs && !guest) look_inside(each);
    if (!all_->alive) take_down(home);
  }

  void set_floor(session& off, const planned_case& plan) {
    beside_.host->set_share(plan.share);
    if (beside_.peer != nullptr) beside_.peer->set_share(plan.peer_share);
    off.set_traffic(plan.share > 0 ? beside_.host : nullptr,
                    plan.peer_share > 0 ? beside_.peer : nullptr);
  }

  /// One step more, for the rate of raw copies to the neighbour beside it.
  void look_at_copies(entry& each, session& off) {
    beside_.peer->watch(true);
    run_step(*model_, off, run_, stream_);
    beside_.peer->watch(false);
    dev_->synchronize();
    each.result.peer_rates = beside_.peer->seen();
  }

  [[nodiscard]] std::unique_ptr<hand_written> write_by_hand() {
    const auto depth = static_cast<std::size_t>(run_.depth);
    const auto groups = 2 * depth * static_cast<std::size_t>(run_.sizes.layers);
    return std::make_unique<hand_written>(*dev_, stream_, depth * run_.sizes.expert_bytes(),
                                          run_.sizes.fc1_bytes(), groups,
                                          tidepool::options{}.copy_piece);
  }

  /// The peak is that of all turns. Among cases that stay built, what was taken in this one's turn
  /// is its own.
  void note_memory(entry& each, entry& home, std::size_t free_then) {
    if (all_->alive) {
      const auto now = dev_->memory().free;
      if (free_then > now) home.result.driver_bytes += static_cast<double>(free_then - now);
      home.result.counters = home.own->off().counters();
    } else {
      weigh(home);
    }
    const auto& counters = home.result.counters;
    home.result.late_allocations =
        std::max(home.result.late_allocations,
                 static_cast<std::size_t>(counters.device_allocations + counters.host_allocations -
                                          home.allocations));
    if (&home != &each) {
      each.result.driver_bytes = home.result.driver_bytes;
      each.result.counters = counters;
    }
  }

  /// One step with the host close by, for its own time. The least of all turns counts: what comes
  /// on top of it is the machine's.
  void look_at_host(session& off, host_cost& host) {
    off.pace_host(true);
    off.reset_times();
    run_step(*model_, off, run_, stream_);
    off.pace_host(false);
    const auto least = [](double& into, double now) {
      into = into > 0 ? std::min(into, now) : now;
    };
    least(host.pair, off.us_per_pair(false));
    least(host.total, off.us_per_pair(true));
  }

  /// One step traced, for the link.
  void look_inside(entry& each) {
    auto& off = *each.own;
    auto& result = each.result;
    off.off().start_trace(result.plan.name, stream_);
    run_step(*model_, off, run_, stream_);
    const auto record = off.off().finish_trace();
    result.link = use_of(record, run_.microbatches);
    result.peer_rates = peer_rates_of(record);
    if (result.plan.kind == case_kind::none) result.held = last_hill(record);
    if (run_.pictures.empty()) return;
    std::string name = result.plan.name + "-depth" + std::to_string(run_.depth);
    std::replace_if(
        name.begin(), name.end(),
        [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
    const auto path = run_.pictures + "/" + name;
    std::ofstream svg(path + ".svg");
    tidepool::trace::write_svg(svg, record);
    std::ofstream json(path + ".json");
    tidepool::trace::write_chrome_trace(json, record);
    if (!svg.flush() || !json.flush()) std::printf("%s.*: could not be written\n", path.c_str());
  }

  /// The case once more with whole steps captured, in turns with steps by calls: ABBA.
  void graph_turns(entry& each) {
    const bool fresh = !each.own;
    if (fresh) build(each);
    auto& off = *each.own;
    auto start = dev_->make_event(true);
    auto stop = dev_->make_event(true);
    auto graph = off.off().capture(stream_, [&] { run_step(*model_, off, run_, stream_); });
    const auto timed = [&](auto& into, auto step) {
      step();  // settles
      dev_->record(start, stream_);
      step();
      dev_->record(stop, stream_);
      dev_->synchronize(stream_);
      into.push_back(dev_->elapsed_us(start, stop) / 1e3 / run_.microbatches);
    };
    const auto by_calls = [&] { run_step(*model_, off, run_, stream_); };
    auto& times = each.result.graph;
    const auto launch_into = [&](std::vector<double>& into) {
      const auto before = std::chrono::steady_clock::now();
      graph.launch(stream_);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - before;
      into.push_back(took.count());
    };
    // Behind another launch the call may wait for it, in the driver; that is no work of the host's.
    const auto launch = [&] { launch_into(times.launch_behind_us); };
    dev_->synchronize();
    launch_into(times.launch_behind_us);  // the first one uploads
    for (int i = 0; i < 3; ++i) {
      dev_->synchronize();
      launch_into(times.launch_us);
    }
    dev_->synchronize();
    for (int round = 0; round < 2 * run_.pairs; ++round) {
      if (round % 2 == 0) timed(times.eager, by_calls);
      timed(times.graph, launch);
      if (round % 2 == 1) timed(times.eager, by_calls);
    }
    std::printf("%-24s as a graph %8.2f ms a microbatch, by calls %8.2f\n",
                each.result.plan.name.c_str(), median(times.graph), median(times.eager));
    if (fresh) take_down(each);
  }

  /// A case that does not fit is out of the contest; the others go on, and one that had it for a
  /// guest is built again.
  void give_up(entry& each) {
    std::printf("%s does not run: %s\n", each.result.plan.name.c_str(),
                each.result.failure.c_str());
    take_down(home_of(each));
  }

  cuda_device* dev_;
  stream_ref stream_;
  model* model_;
  surroundings beside_;
  results* all_;
  settings run_;
  std::vector<step_clock> clocks_;
  std::vector<std::unique_ptr<entry>> entries_;
};

}  // namespace bench
