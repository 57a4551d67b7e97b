/// The file that `--json` names, with results for other programs.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tidepool/error.hpp>

#include "output_file.hpp"

namespace tools {

/// A file as `output_file` has it, or `-`: standard output, which then gets the JSON alone, because
/// whatever else the program prints goes to standard error from the constructor on.
class json_file {
 public:
  explicit json_file(const std::string& name) : file_("--json", name == "-" ? "" : name) {
    if (name != "-") return;
    std::cout.flush();
    std::fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    if (kept >= 0) out_.reset(fdopen(kept, "w"));
    check(out_ != nullptr && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0);
  }

  void fill(const nlohmann::ordered_json& json) {
    const auto text = json.dump(2) + "\n";
    file_.fill([&](auto& out) { out << text; });
    if (out_ == nullptr) return;
    check(std::fputs(text.c_str(), out_.get()) >= 0 && std::fflush(out_.get()) == 0);
  }

 private:
  struct closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  static void check(bool good) {
    if (good) return;
    throw tidepool::option_error(
        "option --json is '-': standard output cannot be written; name a "
        "file");
  }

  output_file file_;
  std::unique_ptr<std::FILE, closer> out_;
};

}  // namespace tools
