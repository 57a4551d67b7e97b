#include "tidepool/trace/profiler.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

#include "gpu.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::trace::capture_window;
using tidepool::trace::profiler_calls;

profiler_calls noted_in(std::string& log) {
  return {[&log] { log += "+"; }, [&log] { log += "-"; }};
}

}  // namespace

TEST_CASE("a capture window is open from its first step to its last") {
  std::string log;
  {
    capture_window window(2, 3, noted_in(log));
    for (std::uint64_t step = 0; step < 6; ++step) {
      window.step_begins(step);
      log += std::to_string(step);
      CHECK(window.open() == (step == 2 || step == 3));
    }
  }
  CHECK(log == "01+23-45");
}

TEST_CASE("a capture window that is still open stops when it goes, also by an exception") {
  std::string log;
  { capture_window(0, 9, noted_in(log)).step_begins(0); }
  CHECK(log == "+-");

  log.clear();
  const auto fail = [&] {
    capture_window window(0, 9, noted_in(log));
    window.step_begins(0);
    throw std::runtime_error("a step failed");
  };
  CHECK_THROWS(fail());
  CHECK(log == "+-");
}

TEST_CASE("a capture window stops once") {
  std::string log;
  {
    capture_window window(1, 1, noted_in(log));
    window.step_begins(1);
    window.stop();
    window.stop();
    window.step_begins(2);
  }
  CHECK(log == "+-");
}

TEST_CASE("a run that resumes within the window is captured; one after it is not") {
  std::string log;
  capture_window(2, 5, noted_in(log)).step_begins(4);
  CHECK(log == "+-");
  log.clear();
  capture_window(2, 5, noted_in(log)).step_begins(6);
  CHECK(log.empty());
}

TEST_CASE("a window without steps never opens, one that ends before it begins is refused") {
  capture_window none;
  none.step_begins(0);
  CHECK_FALSE(none.open());
  CHECK_THROWS_WITH_AS(capture_window(5, 4),
                       "tidepool: the capture window ends at step 4, before it begins at step 5; "
                       "give the earlier step first",
                       tidepool::option_error);
}

TEST_CASE("failing profiler calls reach the trainer, except from the destructor") {
  int stops = 0;
  const auto ignore = [] {};
  const auto fail = [] { throw tidepool::device_error("no profiler", 1); };
  const auto fail_to_stop = [&] {
    ++stops;
    fail();
  };
  {
    capture_window window(0, 0, {fail, fail_to_stop});
    CHECK_THROWS_AS(window.step_begins(0), tidepool::device_error);
    CHECK_FALSE(window.open());
  }
  CHECK(stops == 0);
  {
    capture_window window(0, 0, {ignore, fail_to_stop});
    window.step_begins(0);
    CHECK_THROWS_AS(window.step_begins(1), tidepool::device_error);
    CHECK_FALSE(window.open());
  }
  CHECK(stops == 1);
  {
    capture_window window(0, 0, {ignore, fail_to_stop});
    window.step_begins(0);
  }
  CHECK(stops == 2);
}

TIDEPOOL_GPU_TEST("the CUDA profiler starts and stops, whether a tool listens or not") {
  capture_window window(0, 0);
  window.step_begins(0);
  CHECK(window.open());
  window.step_begins(1);
  CHECK_FALSE(window.open());
}
