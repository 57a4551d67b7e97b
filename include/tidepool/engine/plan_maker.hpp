// Asks an offloader's planner, between the steps that plans are made of and tried out in.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tidepool/core/plan_source.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/engine/step_learner.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::detail {

template <device Device>
class engine;

template <device Device>
class plan_maker {
 public:
  plan_maker(engine<Device>& owner, std::unique_ptr<plan_source> source)
      : owner_(&owner), source_(std::move(source)) {}

  void after(stage over);

  // A pass is to begin: what the trainer forgets is told.
  void before_pass() const {
    auto& calls = owner_->forgotten();
    while (calls.any_untold()) report_(calls.tell());
  }

  [[nodiscard]] const std::optional<plan::step_plan>& current() const { return plan_; }

  // `enabled` has a bit for each module that may leave.
  void follow(const plan::step_plan& made, const plan::profile& recorded, std::uint64_t enabled);

  [[noreturn]] static void throw_no_planner(const char* who);

  // Empty ones stand for none.
  void on_report(std::function<void(std::string_view)> sink);
  void on_measure(std::function<void()> meet);
  void report(std::string_view line) const { report_(line); }

 private:
  [[nodiscard]] const loan* lent() const;

  [[nodiscard]] options settings() const;

  [[nodiscard]] bool has_neighbour() const;

  void measure_links();

  void measure_peer();

  void enter_links(plan::profile& step) const;

  void try_plan(bool first);

  void settle_plan();

  // Where planning throws, the steps recorded so far are left aside, so that the next one does not
  // count as a part of them.
  template <class Make>
  void decided(Make make) {
    try {
      make();
    } catch (...) {
      owner_->record_again();
      throw;
    }
  }

  void report_margin();

  engine<Device>* owner_;
  std::unique_ptr<plan_source> source_;
  std::optional<plan::step_plan> plan_;
  plan::link_rates link_;
  std::optional<plan::link_rates> peer_link_;
  bool peer_shares_link_ = false;
  bool link_measured_ = false;
  std::function<void()> meet_ = [] {};
  std::function<void(std::string_view)> report_ = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
};

}  // namespace tidepool::detail
