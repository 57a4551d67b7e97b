/// One error in a training, the step after it, and what was counted.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/trainer.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan/check.hpp"

namespace tidepool::test {

/// Thrown by a trainer's own code, which the library knows nothing of.
struct trainers_own {};

/// Every type that can come out of a call of the library, or be thrown through it.
enum class kind_of_error : std::uint8_t {
  none,
  option,
  unknown_module,
  misuse,
  budget,
  device,
  profile,
  heap,
  own,
  count
};
inline constexpr auto kinds_of_error = static_cast<std::size_t>(kind_of_error::count);

[[nodiscard]] constexpr std::string_view name_of(kind_of_error kind) {
  constexpr std::string_view names[]{"none",          "option_error",  "unknown_module",
                                     "misuse_error",  "out_of_budget", "device_error",
                                     "profile_error", "bad_alloc",     "trainer's own"};
  static_assert(std::size(names) == kinds_of_error);
  return names[static_cast<std::size_t>(kind)];
}

/// The type of what `run` throws.
template <class Run>
[[nodiscard]] kind_of_error outcome_of(const Run& run, std::string* words = nullptr) {
  try {
    run();
    return kind_of_error::none;
  } catch (const trainers_own&) {
    return kind_of_error::own;
  } catch (const std::exception& problem) {
    if (words != nullptr) *words = problem.what();
    if (dynamic_cast<const unknown_module*>(&problem)) return kind_of_error::unknown_module;
    if (dynamic_cast<const option_error*>(&problem)) return kind_of_error::option;
    if (dynamic_cast<const misuse_error*>(&problem)) return kind_of_error::misuse;
    if (dynamic_cast<const out_of_budget*>(&problem)) return kind_of_error::budget;
    if (dynamic_cast<const device_error*>(&problem)) return kind_of_error::device;
    if (dynamic_cast<const plan::profile_error*>(&problem)) return kind_of_error::profile;
    if (dynamic_cast<const std::bad_alloc*>(&problem)) return kind_of_error::heap;
    throw;
  }
}

inline void throw_one(kind_of_error kind) {
  switch (kind) {
    case kind_of_error::option:
      throw option_error("planted");
    case kind_of_error::unknown_module:
      throw unknown_module("planted");
    case kind_of_error::misuse:
      throw misuse_error("planted");
    case kind_of_error::budget:
      throw out_of_budget("planted", 1, 1);
    case kind_of_error::device:
      throw device_error("planted", 1);
    case kind_of_error::profile:
      throw plan::profile_error("planted");
    case kind_of_error::heap:
      throw std::bad_alloc();
    case kind_of_error::own:
      throw trainers_own{};
    case kind_of_error::none:
    case kind_of_error::count:
      break;
  }
}

/// The gradients of a batch where nothing leaves and nothing fails.
[[nodiscard]] inline recovery_trainer::gradients expected(int batch) {
  static std::map<int, recovery_trainer::gradients> known;
  const auto found = known.find(batch);
  if (found != known.end()) return found->second;
  recovery_trainer plain({.name = "plain", .opts = {}});
  plain.step(batch);
  return known[batch] = plain.result();
}

/// Errors by where they came from and what type they had.
struct recovery_count {
  std::map<std::string, std::map<kind_of_error, std::size_t>> seen;  ///< by trainer
  std::size_t injected = 0;
  std::size_t went_on = 0;
  std::size_t stuck = 0;

  void print(std::string_view what) const {
    std::string text(what);
    text += ": " + std::to_string(injected) + " errors, " + std::to_string(went_on) +
            " went on by themselves, " + std::to_string(stuck) + " stuck";
    for (const auto& [trainer, kinds] : seen) {
      text += "\n  " + trainer + ":";
      for (const auto& [kind, times] : kinds) {
        text += " " + std::string(name_of(kind)) + " " + std::to_string(times);
      }
    }
    MESSAGE(text);
  }
};

/// A training that errors are injected into, one after the other.
class recovery_run {
 public:
  explicit recovery_run(const training_plan& plan) : trainer(plan) {}

  recovery_trainer trainer;

  /// A step without an error; what is wrong with it.
  [[nodiscard]] std::string clean() {
    ++batch_;
    std::string words;
    const auto end = outcome_of([&] { trainer.step(batch_); }, &words);
    if (end != kind_of_error::none) return "it throws " + std::string(name_of(end)) + ": " + words;
    if (trainer.result() != expected(batch_)) return "other gradients";
    trainer.off.release_borrowed();
    trainer.base().synchronize();
    if (trainer.dev.flying() != 0) return "copies in flight";
    if (trainer.own.in_use() != 0) return "an owner has not had its memory back";
    return {};
  }

  /// A step that `arm` prepares an error for, and the step after it. `wanted`: the type that has to
  /// come out, where the step does not go on.
  void inject(const std::function<void()>& arm, const std::function<void()>& disarm,
              const std::vector<kind_of_error>& wanted, bool ends_step, std::string_view where,
              recovery_count& counts) {
    ++batch_;
    std::string words;
    arm();
    const auto end = outcome_of([&] { trainer.step(batch_); }, &words);
    disarm();
    std::string complaint;
    if (end == kind_of_error::none) {
      if (trainer.result() != expected(batch_)) complaint = "it went on with other gradients";
      ++counts.went_on;
    } else if (std::find(wanted.begin(), wanted.end(), end) == wanted.end()) {
      complaint = "an error of another type, " + std::string(name_of(end)) + ": " + words;
    }
    if (end != kind_of_error::none) {
      const auto again =
          outcome_of([&] { trainer.give_up(ends_step || !trainer.in_a_pass()); }, &words);
      if (again != kind_of_error::none) {
        complaint += " giving up throws " + std::string(name_of(again)) + ": " + words;
      }
    }
    auto next = clean();
    // What the recorder met at the end of a step is said at the end of the next.
    const bool late = end == kind_of_error::none && next.find("device_error") != std::string::npos;
    if (late) next = clean();
    if (!next.empty()) complaint += " the next step: " + next;
    count(end, complaint, std::string(where) + (ends_step ? ", step ended" : ""), counts);
  }

  void count(kind_of_error found, const std::string& complaint, const std::string& where,
             recovery_count& counts) {
    ++counts.injected;
    ++counts.seen[trainer.plan.name][found];
    if (complaint.empty()) return;
    ++counts.stuck;
    broken_ = true;
    FAIL_CHECK(trainer.plan.name << ", " << where << ": " << complaint);
  }

  /// It cannot be believed any more.
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  int batch_ = 0;
  bool broken_ = false;
};

}  // namespace tidepool::test
