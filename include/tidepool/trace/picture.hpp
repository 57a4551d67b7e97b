/// A traced step as a picture (SVG): streams as lanes, device bytes as a curve below them.
#pragma once

#include <iosfwd>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace {

/// Sizes of a picture, in pixels. Sizes too small for any content are raised.
struct picture_options {
  double width = 1200;        ///< width of the whole picture
  double lane_height = 28;    ///< height of one lane
  double curve_height = 130;  ///< height of the curve of device bytes; 0 leaves it out
};

/// Writes one step as an SVG file that stands alone, in the sizes of `options`.
///
/// - Lanes are rows. Copies have the colour of their module, the same in every picture; compute is
///   grey; stalls are hatched red. At the right end: the shares of the time in which the lane was
///   busy and stalled.
/// - Close spans narrower than a pixel are drawn together: the heights in such a bar are shares of
///   its time. So the file of 100 000 spans stays below 1 MB.
/// - Below: device bytes over time, and their peak.
///
/// A browser shows details when the pointer rests on a bar. Spans for which `placed` is false are
/// left out. Look at the state of `out` for errors.
void write_svg(std::ostream& out, const record& step, const picture_options& options = {});

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/picture_impl.hpp"
#endif
