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

#include "tidepool/core/linkage.hpp"
#include "tidepool/core/plan_source.hpp"
#include "tidepool/engine/step_learner.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::detail {

class engine;
class loan;

class plan_maker {
 public:
  plan_maker(engine& owner, std::unique_ptr<plan_source> source)
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
  void decided(const Make& make);

  void report_margin();

  engine* owner_;
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

// Throws `option_error` where an offloader of these options needs a planner and has none, or cannot
// have memory of the trainer's own.
void expect_parts(const options& opts, bool planner, bool memory);

}  // namespace tidepool::detail
