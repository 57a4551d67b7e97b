/// The file behind a place, and what may go wrong with it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>

#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0 {

/// What came of a read or a write.
struct file_result {
  std::size_t bytes = 0;  ///< that went through, from the first on
  int code = 0;           ///< the system's (`errno`) where that is why they are fewer; else 0
};

/// A file that tensors are written to and read from, by one thread. Sizes, offsets and addresses
/// are multiples of `file_granule`.
///
/// A device may have `open_file(path)`, which returns one; without it `open_backing_file` does. So
/// tests put one in between that fails.
class backing_file {
 public:
  backing_file() = default;
  backing_file(const backing_file&) = delete;
  backing_file& operator=(const backing_file&) = delete;
  virtual ~backing_file() = default;
  /// Writes bytes at an offset; fewer than asked for are asked for again.
  virtual file_result write(const void* from, std::size_t bytes, std::uint64_t at) = 0;
  /// Reads bytes from an offset; fewer than asked for are asked for again.
  virtual file_result read(void* into, std::size_t bytes, std::uint64_t at) = 0;
  /// Makes sure of room up to an offset; the system's code where there is none, else 0.
  virtual int extend(std::uint64_t from, std::size_t bytes) = 0;
  /// How long a call of the trainer waits for one of these before it gives up.
  [[nodiscard]] virtual std::chrono::milliseconds patience() const {
    return std::chrono::minutes(2);
  }
};

/// What direct I/O wants sizes, offsets and addresses to be multiples of.
inline constexpr std::size_t file_granule = 4096;

namespace detail {

/// A file of the system, without a name. It ends with its last descriptor, whatever becomes of the
/// process.
class system_file final : public backing_file {
 public:
  explicit system_file(int descriptor) : descriptor_(descriptor) {}
  ~system_file() override { ::close(descriptor_); }

  file_result write(const void* from, std::size_t bytes, std::uint64_t at) override {
    return result_of(::pwrite(descriptor_, from, bytes, static_cast<off_t>(at)));
  }
  file_result read(void* into, std::size_t bytes, std::uint64_t at) override {
    return result_of(::pread(descriptor_, into, bytes, static_cast<off_t>(at)));
  }
  int extend(std::uint64_t from, std::size_t bytes) override {
    if (::fallocate(descriptor_, 0, static_cast<off_t>(from), static_cast<off_t>(bytes)) == 0) {
      return 0;
    }
    // A file system that cannot promise room says so when it is written to.
    return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
  }

 private:
  static file_result result_of(ssize_t got) {
    if (got >= 0) return {static_cast<std::size_t>(got), 0};
    return {0, errno};
  }

  int descriptor_;
};

[[nodiscard]] inline std::string in_words(int code) {
  return std::system_category().message(code) + " (" + std::to_string(code) + ")";
}

// Made new, or not at all: what is there belongs to somebody.
[[nodiscard]] inline int create_file(const std::string& name) {
  constexpr int how = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  const int direct = ::open(name.c_str(), how | O_DIRECT, S_IRUSR | S_IWUSR);
  if (direct >= 0 || errno != EINVAL) return direct;
  // Without direct I/O. Some file systems have made the file before they refused it.
  static_cast<void>(::unlink(name.c_str()));
  return ::open(name.c_str(), how, S_IRUSR | S_IWUSR);
}

}  // namespace detail

/// Makes a file under a path that nothing has yet, or without a name of its own in a directory.
/// Its name is gone when this returns; its bytes are when the object goes, or the process ends.
/// Throws `disk_error`.
[[nodiscard]] inline std::unique_ptr<backing_file> open_backing_file(const std::string& path) {
  static std::atomic<unsigned> made{0};
  std::string name = path;
  struct stat found {};
  const bool exists = ::stat(path.c_str(), &found) == 0;
  const bool folder = exists && S_ISDIR(found.st_mode);
  if (folder) {
    name += "/tidepool." + std::to_string(::getpid()) + "." + std::to_string(++made);
  }
  const int descriptor = detail::create_file(name);
  if (descriptor < 0) {
    const int code = errno;
    throw disk_error("places: the file " + name + " cannot be made: " + detail::in_words(code) +
                         (code == EEXIST ? "; a file that is there is not overwritten: name a new"
                                           " one, or a directory"
                                         : "; name a directory that may be written to, as in"
                                           " --places=host,file:/mnt/nvme, or give --places=host"),
                     path, code);
  }
  static_cast<void>(::unlink(name.c_str()));
  try {
    return std::make_unique<detail::system_file>(descriptor);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

}  // namespace tidepool
