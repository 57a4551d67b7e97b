/// A table of text with aligned columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/escape.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// The first `left` columns hold names, the others numbers, which stand on the right.
class text_table {
 public:
  explicit text_table(std::vector<std::string> head, std::size_t left = 1)
      : left_(left), rows_{std::move(head)} {}

  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  void rule() { rules_.push_back(rows_.size()); }

  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> widths;
    for (const auto& cells : rows_) {
      widths.resize(std::max(widths.size(), cells.size()));
      for (std::size_t i = 0; i < cells.size(); ++i) {
        widths[i] = std::max(widths[i], count_characters(cells[i]));
      }
    }
    std::size_t total = widths.empty() ? 0 : 2 * (widths.size() - 1);
    for (const std::size_t width : widths) total += width;

    std::string result;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (std::find(rules_.begin(), rules_.end(), r) != rules_.end()) {
        result.append(total, '-').append("\n");
      }
      std::string line;
      for (std::size_t i = 0; i < rows_[r].size(); ++i) {
        if (i > 0) line += "  ";
        const std::string gap(widths[i] - count_characters(rows_[r][i]), ' ');
        line += i < left_ ? rows_[r][i] + gap : gap + rows_[r][i];
      }
      line.erase(line.find_last_not_of(' ') + 1);
      result += line + "\n";
    }
    return result;
  }

 private:
  std::size_t left_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> rules_;
};

}  // namespace tidepool::trace::detail
