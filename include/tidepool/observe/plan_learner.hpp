// Makes plans of recorded steps, by an offloader's planner, and has the engine follow them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
#include "tidepool/observe/step_recorder.hpp"

namespace tidepool::inline v0_3_0 {
namespace detail {

class plan_learner final : public learning {
 public:
  plan_learner(engine& owner, plan_source& source) : owner_(&owner), source_(&source) {
    plan_learner::forget();
  }

  // Nothing is recorded while a plan is made.
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

  // Where planning throws, the steps recorded so far are dropped, so that the next step does not
  // count as a part of them.
  [[nodiscard]] std::optional<decision> plan(stage over) override {
    const bool last = over == stage::timed;
    try {
      if (!in_work()) {
        begin(over);
        owner_->steps().planning = beside();
        if (beside()) return std::nullopt;
      }
      auto [step, what] = made_.get();
      owner_->apply(std::move(step), what, last ? followed::planned : followed::trial);
      first_ = first_ && !last;
      if (since_ > 0 && !what.words.empty()) {
        what.words += "; adopted " + std::to_string(since_) +
                      " steps after the one that it was made of (--adopt-after)";
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
    owner_->follow(std::move(fit.step), fit.what);
    first_ = false;
    // Keeps the recorded link: ranks that outgrow their plan must not wait in `meet` for ranks that
    // do not.
    link_ = recorded.link;
    peer_link_ = recorded.peer_link;
    peer_shares_link_ = recorded.peer_shares_link;
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
  // Ranks agree until their first plan is followed; warm-ups that begin anew are each rank's own.
  [[nodiscard]] bool agrees() const { return first_ && all_ != nullptr; }
  [[nodiscard]] bool beside() const {
    if (const auto after = owner_->settings().adopt_after) return *after > 0;
    return !owner_->device().can().simulates_time && (!has_ranks_ || agrees());
  }

  // Ends the record of a step, and tells which plan is to be made of it.
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

  // Tells which plan is to be adopted now; `stage::step` where none is.
  [[nodiscard]] stage adoption() {
    ++since_;
    const auto after = owner_->settings().adopt_after;
    const bool now = after ? since_ >= *after
                           : made_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return now ? for_ : stage::step;
  }

  // Begins a plan of the step: on a thread, which sees copies alone, or within `made_.get()`. One
  // that was dropped comes to its end before.
  void begin(stage over) {
    recorded_step recorded{owner_->profile(), over == stage::first};
    if (over != stage::timed) measure_links();
    recorded.step.link = *link_;
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

  // The options for a planner: borrowed memory is the nearest place, with a budget.
  [[nodiscard]] options settings() const {
    auto opts = owner_->settings();
    if (const auto* from = lent()) {
      opts.places.insert(opts.places.begin(), place_kind::peer);
      opts.peer_budget = from->size();
    }
    return opts;
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

  // Measures without `meet`, so it may come later than on other ranks.
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
  std::future<planned_step> dropped_;  // nobody waits for it but the next one and the destructor
  std::future<planned_step> made_;
  stage for_{};                           // of the step that the plan in work is made of
  std::size_t since_ = 0;                 // steps since that one
  std::optional<plan::link_rates> link_;  // set at the end of a first step
  std::optional<plan::link_rates> peer_link_;
  bool peer_shares_link_ = false;
  bool has_ranks_ = false;  // that wait for each other
  bool first_ = true;       // no plan has been followed
  std::function<bool(bool)> all_;
  std::function<void()> meet_ = [] {};
};

}  // namespace detail

TIDEPOOL_INLINE std::unique_ptr<detail::learning> plan_source::learn(detail::engine& owner) {
  return std::make_unique<detail::plan_learner>(owner, *this);
}

}  // namespace tidepool
