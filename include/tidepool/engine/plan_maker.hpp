// Keeps the plan that an offloader follows, and reports after a step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "tidepool/core/decision.hpp"
#include "tidepool/core/step_output.hpp"
#include "tidepool/decide/step_learner.hpp"

namespace tidepool::inline v0_3_0::detail {

class engine;

class plan_maker {
 public:
  // `output` may be null.
  plan_maker(engine& owner, std::unique_ptr<planner_base> source,
             std::unique_ptr<step_output> output)
      : owner_(&owner), source_(std::move(source)), output_(std::move(output)) {
    if (output_ != nullptr) output_->begin(owner);
  }

  // Plans, or adopts a plan, as `over` asks; then writes the outputs of the step that ended.
  void step_ended(stage over) {
    learn_of(over);
    if (output_ != nullptr) output_->after_step(*owner_, report_);
  }
  void close() noexcept {
    if (output_ != nullptr) output_->close(*owner_);
  }

  // Called before a pass begins: reports calls that the trainer forgets.
  void before_pass() const {
    auto& calls = owner_->steps().forgotten;
    while (calls.any_untold()) report_(calls.tell());
  }

  [[nodiscard]] const std::optional<plan::step_plan>& current() const { return plan_; }

  // `enabled` has a bit for each module that may leave.
  void follow(const plan::step_plan& made, const plan::profile& recorded, std::uint64_t enabled);

  [[noreturn]] static void throw_no_planner(const char* who);

  // Sets the function that gets reports. An empty function turns reports off.
  void on_report(std::function<void(std::string_view)> sink) {
    report_ = sink ? std::move(sink) : [](std::string_view) {};
  }
  void report(std::string_view line) const { report_(line); }

 private:
  void learn_of(stage over);
  void report_margin();

  engine* owner_;
  std::unique_ptr<planner_base> source_;
  std::unique_ptr<step_output> output_;
  std::optional<plan::step_plan> plan_;
  std::function<void(std::string_view)> report_ = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
};

}  // namespace tidepool::detail
