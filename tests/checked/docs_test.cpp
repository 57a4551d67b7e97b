// What docs/checking.md shows of its example stands in the example.
#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace {

std::string read(const std::string& name) {
  std::ifstream file(std::string(TIDEPOOL_SOURCE_DIR) + "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("docs: the code of checking.md is that of examples/check_order.cpp") {
  const auto page = read("docs/checking.md");
  const auto example = read("examples/check_order.cpp");
  const std::string fence = "\n```cpp\n";
  int blocks = 0;
  for (auto at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1)) {
    const auto begin = at + fence.size();
    const auto code = page.substr(begin, page.find("```", begin) - begin);
    CAPTURE(code);
    CHECK(example.find(code) != std::string::npos);
    ++blocks;
  }
  CHECK(blocks == 3);
}
