/// Writes what the options `--summary`, `--trace-step` and `--trace-to` ask for.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>

#include "tidepool/core/linkage.hpp"
#include "tidepool/core/step_output.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0 {

/// The part `parts::output` of an offloader, for the options `summary`, `trace_step` and
/// `trace_to`.
///
/// A recorded step lasts from one `end_step` to the end of the next, and step 1 from the
/// constructor; the host is blocked at both ends until the device is idle. `end_step` then writes
/// `PREFIX-12.json`, for ui.perfetto.dev, and `PREFIX-12.html`, the page of `write_report`. In a
/// job of several ranks the rank stands in the names, as in `PREFIX-rank3-12.json`. A second
/// offloader that lives beside the first writes `PREFIX-offloader2-12.json`; a file `PREFIX.lock`
/// stands as long as an offloader has the names. A file that cannot be written is reported, and the
/// training goes on. The end of the offloader prints the
/// summary, with the stalls of the last recorded step, and the steps that were not reached, to
/// standard output.
///
/// `seen` is called by `end_step` with each recorded step, and may be empty. With it, `trace_to`
/// may be left empty. The constructor of the offloader throws `option_error` for a step below 1,
/// for one of the two trace options alone, and for a folder that cannot be written to.
///
///     tidepool::offloader<device> off(dev, options, {.output = tidepool::trace_output()});
[[nodiscard]] std::unique_ptr<detail::step_output> trace_output(
    std::function<void(const trace::record&)> seen = {});

/// Like `trace_output` with `seen`, but prints to `to`, which must outlive the offloader.
[[nodiscard]] std::unique_ptr<detail::step_output> trace_output(
    std::ostream& to, std::function<void(const trace::record&)> seen = {});

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/output_impl.hpp"
#endif
