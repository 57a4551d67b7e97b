// Writes what was called as a C++ program that stands alone.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "program.hpp"

namespace stranger {

class writer {
 public:
  explicit writer(bool on) : on_(on) {}
  [[nodiscard]] bool on() const { return on_; }

  void line(const std::string& text) {
    if (on_) lines_.push_back(std::string(depth_ * 2 + 2, ' ') + text);
  }
  // A call that threw is caught.
  void statement(const std::string& text, bool threw) {
    if (!on_ || text.empty()) return;
    line(threw && !text.starts_with("//") ? "attempt([&] { " + text + " });" : text);
  }
  void open(const std::string& text) {
    line(text);
    ++depth_;
  }
  void close(const std::string& text) {
    --depth_;
    line(text);
  }

  [[nodiscard]] std::string whole(const program& what, const std::string& why) const;

 private:
  bool on_;
  std::size_t depth_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace stranger
