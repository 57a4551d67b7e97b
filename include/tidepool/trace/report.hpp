/// A traced step as one page (HTML) to open, keep and send: picture, tables, options.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_2_0::trace {

/// One figure of a plan beside what was measured.
struct planned_figure {
  /// What a figure counts.
  enum class unit {
    time,  ///< microseconds
    bytes  ///< bytes
  };

  std::string name;      ///< what it is about
  double planned = 0;    ///< by the plan
  double measured = 0;   ///< of the step that ran
  unit in = unit::time;  ///< the unit of both
};

/// What a page is about. All but the record may be left empty.
struct report {
  record step;                          ///< what the picture is drawn of
  counters totals;                      ///< the summary
  std::vector<planned_figure> planned;  ///< figures of a plan, beside those measured
  std::string options;                  ///< in force, as `to_text` writes them
  std::string where;                    ///< the device, or the model and machine of a plan
};

/// Writes a page of `what` that needs no other file and no network: the picture of the step with
/// zoom (wheel, buttons) and hover, copies and stalls by module, stalls by reason, plan against
/// measured, totals, and the options in force. A click on a reason marks its stalls in the picture.
/// Blocks nothing and needs no device. Look at the state of `out` for errors.
///
/// ```cpp
/// std::ofstream page("report.html");
/// tidepool::trace::write_report(page, {.step = off.finish_trace(),
///                                      .totals = off.counters(),
///                                      .options = tidepool::to_text(off.settings())});
/// ```
void write_report(std::ostream& out, const report& what);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/report_impl.hpp"
#endif
