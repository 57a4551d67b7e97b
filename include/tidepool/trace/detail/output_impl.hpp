// The bodies of output.hpp.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tidepool/core/step_output.hpp"
#include "tidepool/core/system_file.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/error.hpp"
#include "tidepool/observe/tracing.hpp"
#include "tidepool/options.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/trace/detail/summary_tables.hpp"
#include "tidepool/trace/output.hpp"
#include "tidepool/trace/report.hpp"
#include "tidepool/trace/summary.hpp"
#include "tidepool/trace/timeline.hpp"

namespace tidepool::inline v0_3_0::detail {

// The rank of this process in its job, as the launcher tells it; empty without a launcher.
inline std::string rank_of_process() {
  for (const auto* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                           "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    const auto* const text = std::getenv(name);
    if (text != nullptr && number_of(text)) return text;
  }
  return {};
}

// Writes the options' output about one offloader.
class asked_output final : public step_output {
 public:
  using sink = std::function<void(const trace::record&)>;

  asked_output(std::ostream& to, sink seen) : to_(&to), seen_(std::move(seen)) {}
  asked_output(const asked_output&) = delete;
  asked_output& operator=(const asked_output&) = delete;
  ~asked_output() override {
    if (lock_ < 0) return;
    ::unlink(lock_name().c_str());
    ::close(lock_);
  }

  void check(const options& opts) override {
    const auto steps = text::steps_format::write(opts.trace_step);
    if (std::ranges::any_of(opts.trace_step, [](int step) { return step < 1; })) {
      refuse("--trace-step=" + steps, "steps count from 1", "give steps such as 12 or 12,40,77");
    }
    if (!opts.trace_to.empty() && opts.trace_step.empty()) {
      refuse("--trace-to=" + opts.trace_to, "no step is chosen", "add --trace-step=12");
    }
    if (opts.trace_to.empty() && !opts.trace_step.empty() && !seen_) {
      refuse("--trace-step=" + steps, "its files have no name", "add --trace-to=PREFIX");
    }
    if (opts.trace_to.empty()) return;
    const auto base = opts.trace_to + (rank_.empty() ? "" : "-rank" + rank_);
    base_ = base;
    for (int number = 2; !takes_names(opts); ++number) {
      base_ = base + "-offloader" + std::to_string(number);
    }
  }

  void begin(engine& of) noexcept override {
    try {
      record_next(of);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
      // The device failed, and the first call to it will say so.
    }
  }

  void after_step(engine& of, const std::function<void(std::string_view)>& report) override {
    ++steps_;
    if (std::exchange(recording_, false)) {
      last_ = end_trace(of);
      if (seen_) seen_(last_);
      if (!of.settings().trace_to.empty()) write_files(of, report);
    }
    if (!of.capturing()) return record_next(of);
    if (wants_next(of)) {
      report("tidepool: --trace-step: step " + std::to_string(steps_ + 1) +
             " is not recorded, because it begins inside a capture");
    }
  }

  void close(engine& of) noexcept override {
    try {
      for (const int step : of.settings().trace_step) {
        if (step <= steps_) continue;
        *to_ << "tidepool: --trace-step: step " << step << " was not recorded, because the training"
             << " ended after " << text::count_of(static_cast<std::size_t>(steps_), "step") << '\n';
      }
      if (!of.settings().summary) return;
      trace::write_summary(*to_, of.counters(), rank_);
      if (!last_.title.empty()) *to_ << '\n' << trace::detail::stall_table(last_);
      to_->flush();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& option, const char* why, const char* remedy) {
    throw option_error("tidepool: option " + option + ": " + why + "; " + remedy);
  }
  [[nodiscard]] std::string lock_name() const { return base_ + ".lock"; }

  // Returns false if another offloader has these names, in this process or in another. Throws for a
  // folder that does not exist, which should not cost the training.
  [[nodiscard]] bool takes_names(const options& opts) {
    lock_ = ::open(lock_name().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (lock_ < 0) {
      refuse("--trace-to=" + opts.trace_to, "its folder cannot be written to",
             "give the path of a folder that exists, and a name, as in /tmp/step");
    }
    // Some file systems have no locks. A lock on a file that was removed meanwhile keeps nobody
    // out.
    const bool locked = ::flock(lock_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    struct stat file {};
    if (locked && ::fstat(lock_, &file) == 0 && file.st_nlink > 0) return true;
    ::close(std::exchange(lock_, -1));
    return false;
  }

  [[nodiscard]] bool wants_next(engine& of) const {
    const auto& wanted = of.settings().trace_step;
    return std::ranges::find(wanted, steps_ + 1) != wanted.end();
  }
  void record_next(engine& of) {
    if (!wants_next(of)) return;
    begin_trace(of, "step " + std::to_string(steps_ + 1), nullptr);
    recording_ = true;
  }

  void write_files(engine& of, const std::function<void(std::string_view)>& report) const {
    const auto base = base_ + "-" + std::to_string(steps_);
    write_file(base + ".json", report,
               [&](std::ostream& out) { trace::write_chrome_trace(out, last_); });
    write_file(base + ".html", report, [&](std::ostream& out) {
      trace::write_report(out, {.step = last_,
                                .totals = of.counters(),
                                .planned = {},
                                .options = to_text(of.settings()),
                                .where = last_.device});
    });
  }

  // The file takes its name when it is whole.
  template <class Write>
  static void write_file(const std::string& name,
                         const std::function<void(std::string_view)>& report, const Write& write) {
    const auto part = name + ".part";
    std::ofstream out(part);
    write(out);
    out.close();
    if (!out.fail() && std::rename(part.c_str(), name.c_str()) == 0) {
      return report("tidepool: wrote " + name);
    }
    std::remove(part.c_str());
    report("tidepool: " + name + " could not be written; see whether its disk is full");
  }

  std::ostream* to_;
  sink seen_;
  std::string rank_ = rank_of_process();
  std::string base_;  // the names begin with it
  int lock_ = -1;
  int steps_ = 0;
  bool recording_ = false;
  trace::record last_;
};

}  // namespace tidepool::detail

namespace tidepool::inline v0_3_0 {

TIDEPOOL_INLINE std::unique_ptr<detail::step_output> trace_output(
    std::ostream& to, std::function<void(const trace::record&)> seen) {
  return std::make_unique<detail::asked_output>(to, std::move(seen));
}

TIDEPOOL_INLINE std::unique_ptr<detail::step_output> trace_output(
    std::function<void(const trace::record&)> seen) {
  return trace_output(std::cout, std::move(seen));
}

}  // namespace tidepool
