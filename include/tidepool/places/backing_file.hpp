/// The file behind a place: the interface for reads and writes (bytes at offsets), and the file of
/// the operating system that implements it. Tests and devices can implement it, too, for example
/// with a file that fails.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

/// The result of a read or a write.
struct file_result {
  std::size_t bytes = 0;  ///< bytes done, counted from the first
  int code = 0;           ///< error of the system (`errno`) if bytes are missing; else 0
};

/// A file that one thread writes tensors to and reads them from. Sizes, offsets and addresses are
/// multiples of `file_granule`.
///
/// A device may have a function `open_file(path)` that returns such a file. Otherwise
/// `open_backing_file` opens one. Tests use this to pass a file that fails.
class backing_file {
 public:
  backing_file() = default;
  backing_file(const backing_file&) = delete;
  backing_file& operator=(const backing_file&) = delete;
  virtual ~backing_file() = default;
  /// Writes bytes at an offset. If fewer bytes are written, the caller asks for the others again.
  virtual file_result write(const void* from, std::size_t bytes, std::uint64_t at) = 0;
  /// Reads bytes from an offset. If fewer bytes are read, the caller asks for the others again.
  virtual file_result read(void* into, std::size_t bytes, std::uint64_t at) = 0;
  /// Reserves room for bytes from an offset on. Returns 0, or the system's error code if there is
  /// no room.
  virtual int extend(std::uint64_t from, std::size_t bytes) = 0;
  /// The time that a call of the trainer waits for a request before it gives up.
  [[nodiscard]] virtual std::chrono::milliseconds patience() const {
    return std::chrono::minutes(2);
  }
};

/// Direct I/O needs sizes, offsets and addresses that are multiples of this.
inline constexpr std::size_t file_granule = 4096;

namespace detail {

/// A file of the system without a name. The system deletes it with its last descriptor, even if the
/// process crashes.
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
    // Some file systems cannot reserve room; they report a full disk at the write.
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

// Creates a new file, and fails if the name exists, because an existing file belongs to somebody.
[[nodiscard]] inline int create_file(const std::string& name) {
  constexpr int how = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  const int direct = ::open(name.c_str(), how | O_DIRECT, S_IRUSR | S_IWUSR);
  if (direct >= 0 || errno != EINVAL) return direct;
  // The file system has no direct I/O. Some create the file before they refuse, so it is removed
  // first.
  static_cast<void>(::unlink(name.c_str()));
  return ::open(name.c_str(), how, S_IRUSR | S_IWUSR);
}

}  // namespace detail

/// Creates a file at a path where nothing is yet, or one without a name of its own in a directory.
/// The name is removed before the function returns; the bytes are freed with the object or the
/// process. Throws `disk_error`.
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
