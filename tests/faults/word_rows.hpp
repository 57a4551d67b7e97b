#pragma once

#include <cstddef>

namespace tidepool::test {

/// A rectangle of what was written, in words: `pitch` is that of memory now, `first` and `step` say
/// where a row began when it was written.
struct word_rows {
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t pitch = 0;
  std::size_t first = 0;
  std::size_t step = 0;
};

}  // namespace tidepool::test
