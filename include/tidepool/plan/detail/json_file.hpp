// Whole files, read and replaced.
#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "tidepool/core/system_file.hpp"
#include "tidepool/plan/detail/json_text.hpp"
#include "tidepool/plan/refusal.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

using file_handle = std::unique_ptr<std::FILE, tidepool::detail::close_file>;

[[noreturn]] inline void refuse_file(const subject& source, std::string_view problem, int number,
                                     std::string_view remedy) {
  source.refuse({}, std::string(problem) + ": " + std::generic_category().message(number), remedy);
}

[[nodiscard]] inline std::string read_file(const subject& source) {
  const auto refuse = [&] {
    refuse_file(source, "it cannot be read", errno, "give a file that save() wrote");
  };
  const file_handle file(std::fopen(std::string(*source.file).c_str(), "rb"));
  if (file == nullptr) refuse();
  std::string text;
  std::array<char, std::size_t{1} << 16> part{};
  // One byte more is enough to know that it is too large.
  while (text.size() <= most_json_bytes) {
    const auto bytes = std::fread(part.data(), 1, part.size(), file.get());
    if (std::ferror(file.get()) != 0) refuse();
    text.append(part.data(), bytes);
    if (bytes < part.size()) break;
  }
  return text;
}

// A reader sees the old file or the new one, never half of it.
inline void write_file(const subject& source, std::string_view text) {
  const std::string path(*source.file);
  // Of another name for every writer, also of several ranks that save the same file.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const auto beside = path + "." + std::to_string(::getpid()) + "-" + std::to_string(now) + ".tmp";
  file_handle file(std::fopen(beside.c_str(), "wbx"));
  const bool made = file != nullptr;
  bool done = made && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (made) done = std::fclose(file.release()) == 0 && done;
  done = done && std::rename(beside.c_str(), path.c_str()) == 0;
  if (done) return;
  const auto problem = errno;
  if (made) static_cast<void>(std::remove(beside.c_str()));
  refuse_file(source, "it cannot be written", problem, "give a path in a folder with room");
}

}  // namespace tidepool::plan::detail
