/// Writes a traced step as one page (HTML) to open, keep and send: picture, tables, options.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace {

/// A figure of a plan, and its measurement.
struct planned_figure {
  /// The unit of a figure.
  enum class unit {
    time,  ///< microseconds
    bytes  ///< bytes
  };

  std::string name;      ///< subject of the figure
  double planned = 0;    ///< value by the plan
  double measured = 0;   ///< value in the step that ran
  unit in = unit::time;  ///< unit of both values
};

/// The contents of a page. All members but the record may be left empty.
struct report {
  record step;                          ///< the step of the picture
  counters totals;                      ///< the totals of the summary
  std::vector<planned_figure> planned;  ///< figures of a plan, beside their measurements
  std::string options;                  ///< options of the offloader, as `to_text` writes them
  std::string where;                    ///< the device, or the model and machine of a plan
};

/// Writes a page of `what` that needs no other file and no network. The page has the picture of the
/// step with zoom (wheel, buttons) and hover, copies and stalls by module, stalls by reason, plan
/// against measured, totals, and the options. A click on a reason marks its stalls in the picture.
/// Blocks nothing and needs no device. Check the state of `out` for errors.
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
