// Makes an offloader's plans, between the steps that they are made of and tried out in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "tidepool/detail/stage.hpp"
#include "tidepool/engine.hpp"
#include "tidepool/plan/automatic.hpp"
#include "tidepool/plan/follow.hpp"
#include "tidepool/plan/link.hpp"
#include "tidepool/trace/summary.hpp"

namespace tidepool::detail {

template <device Device>
class plan_maker {
 public:
  explicit plan_maker(engine<Device>& owner) : owner_(&owner) {}

  void after(stage over) {
    switch (over) {
      case stage::step:
        return;
      case stage::first:
      case stage::recorded:
        return try_plan(over == stage::first);
      case stage::given_up:
        return report_(
            "plan: nothing is learnt of this step, since a chunk was dropped before its backward"
            " pass was over; the next step takes its place. Finish each chunk, and begin those of"
            " evaluations forward_only");
      case stage::short_step:
        return report_(
            "plan: nothing is learnt of this step, since it had fewer chunks or groups than one"
            " before it; a later one takes its place");
      case stage::starved:
        plan_.reset();
        return report_(
            "plan: the step ran out of device memory under the plan, which is given up; the next"
            " step is the first of the warm-up again, in which everything leaves");
      case stage::outgrown:
        plan_.reset();
        return report_(
            "plan: the step had chunks or groups that were not planned for, more than any before"
            " it; they left, and the next step is the first of the warm-up again");
      case stage::timed:
        settle_plan();
        break;
      case stage::warm_up:
        break;
    }
    for (const auto& message : trace::silent_messages(owner_->counters())) report_(message);
  }

  [[nodiscard]] const std::optional<plan::step_plan>& current() const { return plan_; }

  // `enabled` has a bit for each module that may leave.
  void follow(const plan::step_plan& made, const plan::profile& recorded, std::uint64_t enabled) {
    const auto& opts = owner_->settings();
    auto fit = plan::fitted(made, recorded, owner_->names(), enabled, opts.device_budget,
                            opts.recompute_by_plan);
    auto where = places_of(made, recorded);
    owner_->follow(std::move(fit), made.what, std::move(where));
    adopt(made, recorded);
    // Not all ranks may outgrow theirs, and those that do must not wait for the others.
    link_ = recorded.link;
    link_measured_ = true;
  }

  // Empty ones stand for none.
  void on_report(std::function<void(std::string_view)> sink) {
    report_ = sink ? std::move(sink) : [](std::string_view) {};
  }
  void on_measure(std::function<void()> meet) {
    meet_ = meet ? std::move(meet) : [] {};
  }

 private:
  void try_plan(bool first) {
    auto recorded = owner_->profile();
    const auto made = planned([&] {
      if (!link_measured_) {
        link_ = plan::measure_link(owner_->device(), meet_, owner_->counters().host_reserved / 4);
      }
      link_measured_ = true;
      recorded.link = link_;
      auto found = plan::automatic(recorded, owner_->settings());
      if (!first || found.expected.runs) return found;
      auto repeated = recorded;  // it may be too much that is left free for shapes that vary
      repeated.shapes_vary = false;
      return plan::automatic(repeated, owner_->settings());
    });
    limit_kept(recorded, made);
    reload_as(made);
    // One step cannot tell. The plan leaves room for shapes that vary, and less stays once they do;
    // but what stays lies for long, and those that repeat find memory in pieces without places.
    if (first) recorded.shapes_vary = false;
    auto where = places_of(made, recorded);
    owner_->try_out(std::move(recorded), made.what, std::move(where));
    if (!made.expected.runs) owner_->without_a_plan();
  }

  void settle_plan() {
    auto recorded = owner_->profile();
    recorded.link = link_;
    const auto made = planned([&] { return plan::automatic(recorded, owner_->settings()); });
    owner_->adopt(recorded, made.what, places_of(made, recorded));
    if (!made.expected.runs) owner_->without_a_plan();
    adopt(made, recorded);
    report_(plan::in_words(made));
  }

  // What the warm-up did at least runs. Where planning throws, the steps recorded so far are left
  // aside, so that the next one does not count as a part of them.
  template <class Make>
  [[nodiscard]] plan::step_plan planned(Make make) {
    try {
      plan::step_plan made = make();
      if (!made.expected.runs) {
        for (auto& row : made.what) std::fill(row.begin(), row.end(), plan::action::offload);
      }
      return made;
    } catch (...) {
      owner_->record_again();
      throw;
    }
  }

  void limit_kept(const plan::profile& recorded, const plan::step_plan& made) {
    if (recorded.shapes_vary && owner_->settings().device_budget) {
      // What was left free of the budget stays so, whatever the plan could keep in that one step.
      const auto most = made.device_budget > 0 ? made.device_budget : residence::unlimited;
      owner_->keep_at_most(std::min(plan::kept_at_once(recorded, made), most),
                           free_piece(recorded));
    } else {
      owner_->keep_at_most(residence::unlimited, 0);
    }
  }

  void adopt(const plan::step_plan& made, const plan::profile& recorded) {
    limit_kept(recorded, made);
    reload_as(made);
    plan_ = made;
  }

  [[nodiscard]] plan::placement places_of(const plan::step_plan& made,
                                          const plan::profile& recorded) const {
    auto opts = owner_->settings();
    opts.reload_ahead = made.reload_ahead;
    opts.reload_ahead_bytes.reset();
    if (made.reload_ahead_bytes > 0) opts.reload_ahead_bytes = made.reload_ahead_bytes;
    return plan::best_places(recorded, made.what, opts);
  }

  void reload_as(const plan::step_plan& made) {
    owner_->reload_at_most(made.reload_ahead, made.reload_ahead_bytes > 0
                                                  ? std::optional(made.reload_ahead_bytes)
                                                  : std::nullopt);
  }

  // Room for all that the step works with at once, wherever the pieces of it fall. With less,
  // models of many small tensors ran out of memory in pieces.
  [[nodiscard]] static std::size_t free_piece(const plan::profile& recorded) {
    return plan::handed_out_at_once(recorded) * 2;
  }

  engine<Device>* owner_;
  std::optional<plan::step_plan> plan_;
  plan::link_rates link_;
  bool link_measured_ = false;
  std::function<void()> meet_ = [] {};
  std::function<void(std::string_view)> report_ = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
};

}  // namespace tidepool::detail
