/// A file that an option names, written whole or not at all.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <tidepool/error.hpp>
#include <utility>

namespace tools {

/// Without a name there is no file. A file of the same name with `.part` behind it is opened at
/// once, since a folder that does not exist should not cost the work; it takes the name when it is
/// whole. After an error no file is left, and one of an earlier run stays as it was. What is no
/// plain file, such as `/dev/stdout`, is written as it is. Throws `tidepool::option_error`.
class output_file {
 public:
  output_file(std::string option, std::string name)
      : option_(std::move(option)), name_(std::move(name)) {
    if (name_.empty()) return;
    std::error_code ignored;
    const auto kind = std::filesystem::status(name_, ignored).type();
    const bool plain = kind == std::filesystem::file_type::regular ||
                       kind == std::filesystem::file_type::not_found;
    part_ = plain ? name_ + ".part" : name_;
    out_.open(part_);
    check(out_.is_open());
  }
  output_file(output_file&& other) noexcept
      : option_(std::move(other.option_)),
        name_(std::exchange(other.name_, {})),
        part_(std::exchange(other.part_, {})),
        out_(std::move(other.out_)) {}
  output_file& operator=(output_file&&) = delete;
  ~output_file() {
    out_.close();
    if (part_ != name_) std::remove(part_.c_str());
  }

  [[nodiscard]] bool wanted() const { return !name_.empty(); }

  /// Calls `write(stream)` if there is a file, and says so on standard output.
  template <class Write>
  void fill(const Write& write) {
    if (name_.empty()) return;
    write(out_);
    out_.close();
    check(!out_.fail());
    if (part_ != name_) check(std::rename(part_.c_str(), name_.c_str()) == 0);
    part_ = name_;
    std::printf("wrote %s\n", name_.c_str());
  }

 private:
  void check(bool good) const {
    if (good) return;
    throw tidepool::option_error("tidepool: option " + option_ + " is '" + name_ +
                                 "': it cannot be written; name a file in a folder that exists and "
                                 "has room");
  }

  std::string option_;
  std::string name_;
  std::string part_;
  std::ofstream out_;
};

}  // namespace tools
