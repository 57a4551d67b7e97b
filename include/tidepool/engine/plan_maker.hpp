// Keeps the plan that an offloader follows, and reports what it says after a step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "tidepool/core/decision.hpp"
#include "tidepool/decide/step_learner.hpp"

namespace tidepool::inline v0_3_0::detail {

class engine;

class plan_maker {
 public:
  plan_maker(engine& owner, std::unique_ptr<planner_base> source)
      : owner_(&owner), source_(std::move(source)) {}

  void after(stage over);

  // A pass is to begin: what the trainer forgets is told.
  void before_pass() const {
    auto& calls = owner_->steps().forgotten;
    while (calls.any_untold()) report_(calls.tell());
  }

  [[nodiscard]] const std::optional<plan::step_plan>& current() const { return plan_; }

  // `enabled` has a bit for each module that may leave.
  void follow(const plan::step_plan& made, const plan::profile& recorded, std::uint64_t enabled);

  [[noreturn]] static void throw_no_planner(const char* who);

  // An empty one stands for none.
  void on_report(std::function<void(std::string_view)> sink) {
    report_ = sink ? std::move(sink) : [](std::string_view) {};
  }
  void report(std::string_view line) const { report_(line); }

 private:
  void report_margin();

  engine* owner_;
  std::unique_ptr<planner_base> source_;
  std::optional<plan::step_plan> plan_;
  std::function<void(std::string_view)> report_ = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
};

// Throws `option_error` where an offloader of these options needs a planner and has none, or cannot
// have memory of the trainer's own.
void expect_parts(const options& opts, bool planner, bool memory);

}  // namespace tidepool::detail
