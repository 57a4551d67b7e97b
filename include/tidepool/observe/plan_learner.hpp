// Makes plans of recorded steps with an offloader's planner, and lets the engine follow them.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tidepool/core/plan_source.hpp"
#include "tidepool/core/quiet.hpp"
#include "tidepool/device/link.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/observe/plan_watch.hpp"
#include "tidepool/observe/step_recorder.hpp"

namespace tidepool::inline v0_3_0 {
namespace detail {

class plan_learner final : public learning {
 public:
  plan_learner(engine& owner, plan_source& source)
      : owner_(&owner), source_(&source), watch_(owner.device()) {
    plan_learner::forget();
  }

  // No step is recorded while a plan is made.
  void on(const happening& what) noexcept override {
    if (!in_work()) recorder_->on(what);
  }
  void start(lane_id lane) noexcept override {
    if (!in_work()) recorder_->record.start(lane);
  }
  // Drops a plan that is being made; its thread comes to an end beside the next steps.
  void forget() noexcept override {
    if (in_work()) dropped_ = std::move(made_);
    recorder_.emplace(owner_->device(), owner_->steps(), owner_->settings());
  }
  [[nodiscard]] std::size_t wait_begins(const void* stream) noexcept override {
    return in_work() ? static_cast<std::size_t>(-1) : recorder_->record.wait_begins(stream);
  }
  void waited(std::size_t from, const void* stream, waits_for whom,
              std::uint32_t kind) noexcept override {
    recorder_->record.waited(from, stream, whom, kind);
  }

  [[nodiscard]] stage learn() override {
    auto& step = owner_->steps().step();
    auto over = in_work() ? adoption() : recorded(step);
    if (agrees() && !all_(over != stage::step)) over = stage::step;
    if (in_work() || over == stage::step) step.clear();
    return over;
  }

  // If planning throws, the steps recorded so far are dropped, so that the next step does not count
  // as a part of them.
  [[nodiscard]] std::optional<decision> plan(stage over) override {
    const bool last = over == stage::timed;
    try {
      if (!in_work()) {
        begin(over);
        owner_->steps().planning = beside();
        if (beside()) return std::nullopt;
      }
      auto [step, what] = made_.get();
      const auto computing_us = plan::compute_us(step);
      owner_->apply(std::move(step), what, last ? followed::planned : followed::trial);
      if (last) {
        if (std::exchange(first_, false)) planned_steps_ = 0;
        recorder_->kept.time_again();
        watch_steps(what, computing_us, true);
      }
      if (since_ > 0 && !what.words.empty()) {
        what.words += "; adopted " + std::to_string(since_) + (since_ == 1 ? " step" : " steps") +
                      " after the one that it was made of (--adopt-after)";
      }
      return std::move(what);
    } catch (...) {
      owner_->record_again();
      throw;
    }
  }

  void follow(const plan::step_plan& made, const plan::profile& recorded,
              std::uint64_t enabled) override {
    auto fit = source_->follow(made, recorded, owner_->names(), enabled, settings());
    const auto computing_us = plan::compute_us(fit.step);
    owner_->follow(std::move(fit.step), fit.what);
    forget();
    first_ = false;
    planned_steps_ = 0;
    watch_steps(fit.what, computing_us, false);
    // Keeps the recorded link: ranks that outgrow their plan must not wait in `meet` for ranks that
    // do not.
    link_ = recorded.packing ? recorded.packing->link : recorded.link;
    peer_link_ = recorded.peer_link;
    peer_shares_link_ = recorded.peer_shares_link;
  }

  // Each step is measured. Ranks vote whether another plan is made, since all must record the same
  // steps. A captured step has no time, and a question to the device would break its capture.
  [[nodiscard]] std::string watch() override {
    std::string news;
    if (owner_->capturing()) return news;
    if (watches()) {
      if (const auto us = watch_.step_ended(owner_->last_lane())) news = told(*us);
    }
    if (first_) return news;
    ++planned_steps_;
    if (all_ ? votes() && !all_(!drifts_) : drifts_) {
      first_ = true;
      watches() ? owner_->time_again() : owner_->warm_up_anew();
    }
    return news;
  }

  void on_measure(std::function<void()> meet) override {
    has_ranks_ = meet != nullptr;
    meet_ = meet ? std::move(meet) : [] {};
  }
  void on_ready(std::function<bool(bool)> all) override { all_ = std::move(all); }

 private:
  using planned_step = std::pair<plan::profile, decision>;

  // True from the begin of a plan until it is adopted or dropped.
  [[nodiscard]] bool in_work() const { return made_.valid(); }
  // Ranks agree until their first plan is followed. Each rank decides alone on later warm-ups.
  [[nodiscard]] bool agrees() const { return first_ && all_ != nullptr; }
  [[nodiscard]] bool beside() const {
    if (const auto after = owner_->settings().adopt_after) return *after > 0;
    return !owner_->device().can().simulates_time && (!has_ranks_ || agrees());
  }

  // Ends the record of a step, and returns the kind of plan to make of it.
  [[nodiscard]] stage recorded(plan::profile& step) {
    auto& record = recorder_->record;
    record.check();
    has_ranks_ = has_ranks_ || record.waited();
    if (has_ranks_ && !agrees()) recorder_->kept.among_ranks();
    if (!recorder_->kept.wants_record(record.waited_for_others())) return stage::step;
    auto drains = record.finish(step);
    step.modules = owner_->names();
    step.stream_ordered = owner_->memory().gives_back();
    return recorder_->kept.learn(step, owner_->steps().varied(), record.sizes(), std::move(drains));
  }

  void watch_steps(const decision& what, double computing_us, bool made_here) noexcept {
    computing_us_ = computing_us;
    watch_.stop();
    if (what.made.expected.runs && computing_us > 0) {
      watch_.begin(what.made.expected.step_us, owner_->last_lane());
    }
    made_here_ = made_here;
    drifts_ = false;
  }
  // True while a plan is followed that predicts a time and may be replaced.
  [[nodiscard]] bool watches() const {
    const auto& steps = owner_->steps();
    return watch_.runs() && steps.follows == followed::planned && steps.may_leave_plan();
  }
  // True at the steps under a plan at whose ends ranks vote: few, because a vote blocks the host.
  [[nodiscard]] bool votes() const {
    return planned_steps_ >= 64 && std::has_single_bit(planned_steps_);
  }

  // Judges the median of some steps. Returns a line where the trainer should know of it.
  [[nodiscard]] std::string told(double us) {
    const auto expected_us = watch_.expected_us();
    const bool first = watch_.first();
    // A plan from elsewhere, or of a step that the trainer named, is the trainer's choice. Ranks
    // that cannot agree keep their plans.
    const bool may = made_here_ && !owner_->settings().timed_step && (all_ || !has_ranks_);
    const bool anew = watch_.has_drifted(us) && may && !drifts_;  // told once before a vote
    drifts_ = drifts_ || anew;
    if (!first && !anew) return {};
    const auto above = [&](double base_us) { return 100 * (us / base_us - 1); };
    char text[200];
    std::snprintf(text, sizeof text,
                  "plan: steps take %.3f ms, %s %.3f (%+.2f %%); computing alone takes %.3f (%+.2f"
                  " %%)%s",
                  us / 1e3, first ? "predicted" : "before", expected_us / 1e3, above(expected_us),
                  computing_us_ / 1e3, above(computing_us_),
                  anew ? "; they are timed again, for another plan" : "");
    return text;
  }

  // Tells which plan is to be adopted now; `stage::step` where none is.
  [[nodiscard]] stage adoption() {
    ++since_;
    const auto after = owner_->settings().adopt_after;
    const bool now = after ? since_ >= *after
                           : made_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return now ? for_ : stage::step;
  }

  // Begins a plan of the step, on a thread that gets copies of all data, or within `made_.get()`. A
  // plan that was dropped is finished first, because a planner makes one plan at a time.
  void begin(stage over) {
    recorded_step recorded{owner_->steps().step(), over == stage::first};
    if (over != stage::timed) measure_links();
    recorded.step.link = link_in_tensors();
    recorded.step.packing = packing();
    recorded.step.peer_link = has_neighbour() ? peer_link_ : std::nullopt;
    recorded.step.peer_shares_link = peer_shares_link_;
    auto make = [source = source_, opts = settings(), before = std::move(dropped_),
                 step = std::move(recorded)]() mutable {
      if (before.valid()) before.wait();
      auto what = source->make(step, opts);
      return planned_step(std::move(step.step), std::move(what));
    };
    for_ = over;
    since_ = 0;
    const quiet started;
    made_ = std::async(beside() ? std::launch::async : std::launch::deferred, std::move(make));
    if (beside()) owner_->steps().step().clear();
  }

  // The loan in use; null for none.
  [[nodiscard]] const loan* lent() const { return owner_->memory().lent(); }

  // The options that a planner gets: borrowed memory is their nearest place, with its size as
  // budget.
  [[nodiscard]] options settings() const {
    auto opts = owner_->settings();
    if (const auto* from = lent()) {
      opts.places.insert(opts.places.begin(), place_kind::peer);
      opts.peer_budget = from->size();
    }
    return opts;
  }

  // The planner's simulator sees packing as a faster link; the engine then tries its plans.
  [[nodiscard]] plan::link_rates link_in_tensors() const {
    const auto& store = owner_->memory();
    return store.packing().rates(*link_, owner_->device().can().unpack_rate);
  }
  [[nodiscard]] std::optional<plan::packing_profile> packing() const {
    const auto& sizes = owner_->memory().packing();
    if (sizes.tensors == 0) return {};
    const auto& can = owner_->device().can();
    return plan::packing_profile{*link_, can.pack_rate, can.unpack_rate, can.packs_from,
                                 sizes.staging()};
  }

  [[nodiscard]] bool has_neighbour() const {
    const auto& places = owner_->settings().places;
    return lent() != nullptr || std::ranges::find(places, place_kind::peer) != places.end();
  }

  void measure_links() {
    if (!link_) {
      link_ = plan::measure_link(owner_->device(), lanes_to(place_kind::host), meet_,
                                 owner_->counters().host_reserved / 4);
    }
    if (!has_neighbour()) peer_link_.reset();  // the next lender may have another link
    if (!peer_link_) measure_peer();
  }

  [[nodiscard]] plan::link_lanes lanes_to(place_kind which) const {
    const auto& store = owner_->memory();
    return {store.offload_lane(which), store.reload_lane(which)};
  }

  // Measures the link to the neighbour without `meet`, so that ranks may measure at different
  // times.
  void measure_peer() {
    auto& dev = owner_->device();
    const auto& opts = owner_->settings();
    if (const auto* from = lent()) {
      if (owner_->memory().at(place_kind::peer).blocks->used() > 0) return;
      dev.synchronize();  // tensors may be on their way back
      peer_link_ = plan::measure_peer_link(dev, lanes_to(place_kind::peer), opts.peer_device,
                                           from->memory(), from->size());
    } else if (has_neighbour()) {
      peer_link_ = plan::measure_peer_link(dev, lanes_to(place_kind::peer), opts.peer_device);
    }
    peer_shares_link_ = peer_link_ && dev.peer_shares_link();
  }

  engine* owner_;
  plan_source* source_;
  std::optional<step_recorder> recorder_;
  std::future<planned_step> dropped_;  // the next plan and the destructor wait for it
  std::future<planned_step> made_;
  stage for_{};                           // stage of the plan in work
  std::size_t since_ = 0;                 // steps since the plan was begun
  std::optional<plan::link_rates> link_;  // set at the end of a first step
  std::optional<plan::link_rates> peer_link_;
  bool peer_shares_link_ = false;
  bool has_ranks_ = false;  // that wait for each other
  bool first_ = true;       // no plan has been followed, or ranks agreed to make another
  plan_watch watch_;
  double computing_us_ = 0;        // of the step that the plan was made of
  bool made_here_ = false;         // not a plan from elsewhere
  bool drifts_ = false;            // another plan should be made
  std::size_t planned_steps_ = 0;  // since ranks adopted plans together
  std::function<bool(bool)> all_;
  std::function<void()> meet_ = [] {};
};

}  // namespace detail

TIDEPOOL_INLINE std::unique_ptr<detail::learning> plan_source::learn(detail::engine& owner) {
  return std::make_unique<detail::plan_learner>(owner, *this);
}

}  // namespace tidepool
