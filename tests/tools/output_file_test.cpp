// Files that programs write: whole or not at all.
#include "../../examples/tools/output_file.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

namespace fs = std::filesystem;

struct folder {
  fs::path path = fs::temp_directory_path() / "tidepool_output_file_test";
  folder() {
    fs::remove_all(path);
    fs::create_directory(path);
  }
  ~folder() { fs::remove_all(path); }
  [[nodiscard]] std::string file() const { return (path / "picture.svg").string(); }
  [[nodiscard]] std::size_t count() const {
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& each : fs::directory_iterator(path)) ++files;
    return files;
  }
};

std::string content(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(name).rdbuf();
  return text.str();
}

void fail_in_the_middle(const std::string& name) {
  tools::output_file out("--picture", name);
  out.fill([](auto& stream) {
    stream << "half";
    throw std::runtime_error("no");
  });
}

}  // namespace

TEST_CASE("output file: after an error there is none, and the one before stays") {
  const folder in;
  { const tools::output_file never_filled("--picture", in.file()); }
  CHECK(in.count() == 0);
  CHECK_THROWS_AS(fail_in_the_middle(in.file()), std::runtime_error);
  CHECK(in.count() == 0);

  tools::output_file("--picture", in.file()).fill([](auto& stream) { stream << "whole"; });
  CHECK(in.count() == 1);
  CHECK(content(in.file()) == "whole");
  CHECK_THROWS_AS(fail_in_the_middle(in.file()), std::runtime_error);
  CHECK(in.count() == 1);
  CHECK(content(in.file()) == "whole");
}

TEST_CASE("output file: a folder that is not there is told before the work; no name is no file") {
  const folder in;
  CHECK_THROWS_WITH_AS(tools::output_file("--picture", (in.path / "no" / "x.svg").string()),
                       doctest::Contains("option --picture"), tidepool::option_error);
  bool called = false;
  tools::output_file("--picture", "").fill([&](auto&) { called = true; });
  CHECK(!called);
  tools::output_file("--picture", "/dev/null").fill([](auto& stream) { stream << "away"; });
  CHECK(fs::exists("/dev/null"));
}
