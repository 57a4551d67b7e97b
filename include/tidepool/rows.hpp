/// Tensors whose number of valid rows only the device knows, such as those of dropless experts.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tidepool/core/linkage.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/row_counter.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0 {

/// The address of a count on the device, of 4 or 8 bytes.
class device_count {
 public:
  /// Takes the address; the count is read in the order of the stream that commits.
  template <std::integral Count>
    requires(sizeof(Count) == 4 || sizeof(Count) == 8)
  device_count(const Count* at)  // NOLINT(google-explicit-constructor)
      : at_(at), width_(sizeof(Count)) {}

  [[nodiscard]] const void* at() const { return at_; }          ///< On the device.
  [[nodiscard]] std::uint32_t width() const { return width_; }  ///< Bytes of the count.

 private:
  const void* at_;
  std::uint32_t width_;
};

/// How `buffer::counts_rows` moves a tensor: its valid rows come first, without gaps.
struct counted_rows {
  device_count count;        ///< how many rows are valid; must be alive until the commit has run
  std::size_t row_bytes;     ///< bytes of one row
  std::size_t planned_rows;  ///< rows that each copy moves, at least one
};

/// A commit whose count was larger than the rows that its copies moved.
struct row_overflow {
  std::string module;         ///< its name
  int layer = -1;             ///< as in the commit
  int microbatch = 0;         ///< as in `chunk_info`
  std::uint64_t rows = 0;     ///< the count
  std::uint64_t planned = 0;  ///< rows that were moved
};

/// A step had more valid rows than it moved, and another began before `rows_overflowed` was asked.
/// The gradients of that step are wrong. The call that throws changes nothing and may be made
/// again.
class unasked_overflow : public error {
 public:
  /// Takes the name of the call, and the commit that overflowed.
  unasked_overflow(const std::string& call, row_overflow of);
  row_overflow where;  ///< the commit with the most rows beyond the plan
};

namespace detail {

// `buffer::counts_rows` and `offloader::rows_overflowed` find these functions by the engine's
// namespace.
void count_rows(engine& of, storage& store, const counted_rows& how);
[[nodiscard]] std::optional<row_overflow> overflowed_rows(engine& of);

}  // namespace detail
}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/rows/row_counts.hpp"
#endif
