// What train_moe says of its steps.
#include "../../examples/train_moe/cli/report.hpp"

#include <doctest/doctest.h>

TEST_CASE("report: the middle step time is that of steps after the warm-up, where there are any") {
  moe::run_result run;
  run.step_ms = {90, 80, 70, 60, 5, 4, 6};
  CHECK(moe::median_ms(run, 4) == 5);
  CHECK(moe::median_ms(run) == 6);  // two steps are left out
  run.warm_up_steps = 4;
  CHECK(moe::median_ms(run) == 5);
  run.step_ms.resize(2);
  CHECK(moe::median_ms(run) == 90);
  run.step_ms.clear();
  CHECK(moe::median_ms(run) == 0);
}
