/// Runs a program that may fail, and says what is wrong with the way in which it ended.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "faults/programs.hpp"
#include "messages.hpp"

namespace tidepool::test {

/// What a run came to.
struct ending {
  std::string complaint;  ///< empty when all is as it should be
  bool success = false;
  bool out_of_memory = false;
};

/// One run on a device that nobody else uses; `armed` is the fault that waits there.
template <class Desk>
[[nodiscard]] ending run_once(Desk& desk, const program_plan& plan, bool retries,
                              const std::optional<fault>& armed = std::nullopt) {
  ending end;
  std::uint32_t rounds = 0;
  const auto round_before = desk.round();
  try {
    faulty_run<Desk> run(desk, plan, retries);
    run.run();
    rounds = run.rounds();
    end.success = true;
  } catch (const device_error& problem) {
    if (!armed || problem.code != Desk::device_type::code) {
      end.complaint = std::string("a device_error of somebody else: ") + problem.what();
    } else if (!says(problem.what(), name_of(armed->kind)) && armed->how == manner::once) {
      end.complaint = std::string("the message does not name the call: ") + problem.what();
    }
  } catch (const out_of_budget& problem) {
    end.out_of_memory = true;
    if (!says(problem.what(), " bytes") || problem.requested == 0) {
      end.complaint = std::string("the message does not say what did not fit: ") + problem.what();
    }
  } catch (const std::exception& problem) {
    end.complaint = std::string("an error of the wrong kind: ") + problem.what();
  }
  const auto freed_in_use = desk.dev.freed_in_use();
  desk.synchronize();
  const auto wrong = desk.take_wrong();
  if (wrong != 0) end.complaint += " " + std::to_string(wrong) + " wrong words";
  if (end.success && desk.round() - round_before != rounds) end.complaint += " a step did not run";
  if (desk.dev.held() != typename Desk::device_type::holdings{}) end.complaint += " leaks";
  if constexpr (requires { desk.taken(); }) {
    if (desk.taken() != 0) end.complaint += " leaks: an owner has not had its memory back";
  }
  if (desk.capturing()) end.complaint += " open capture";
  // Without `synchronize` nobody can know when memory is out of use.
  const bool blind =
      armed && (armed->how == manner::sticky || armed->kind == call_kind::synchronize);
  if (freed_in_use != 0 && !blind) end.complaint += " memory freed under a copy";
  return end;
}

}  // namespace tidepool::test
