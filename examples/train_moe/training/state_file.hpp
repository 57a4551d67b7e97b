/// A file that is read in place, or written beside its name and renamed when it is whole.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <tidepool/error.hpp>
#include <utility>

namespace moe {

/// Throws `tidepool::option_error`, naming the option and the file, from every call that fails.
class state_file {
 public:
  /// `join` writes to the unfinished file of somebody else, who gives it its name.
  enum class use { read, write, join };

  state_file(std::string option, std::string name, use how)
      : option_(std::move(option)),
        name_(std::move(name)),
        writes_(how != use::read),
        owns_(how == use::write) {
    // The rename would fail after the training on a folder, and replace a device or a pipe.
    if (owns_) check_name();
    // The rename must not cross file systems, so the unfinished file lies in the same folder.
    const std::string path = writes_ ? partial() : name_;
    const int flags = !writes_ ? O_RDONLY : owns_ ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY;
    descriptor_ = ::open(path.c_str(), flags, 0666);
    if (descriptor_ < 0) fail_by_system();
    struct stat what {};
    if (::fstat(descriptor_, &what) != 0 || !S_ISREG(what.st_mode)) {
      close();
      fail_as_no_file();
    }
    size_ = static_cast<std::size_t>(what.st_size);
  }
  state_file(const state_file&) = delete;
  state_file& operator=(const state_file&) = delete;
  ~state_file() {
    if (owns_ && descriptor_ >= 0) ::unlink(partial().c_str());
    close();
  }

  /// Bytes at the time of opening.
  [[nodiscard]] std::size_t size() const { return size_; }

  void read(std::size_t at, void* data, std::size_t bytes) const {
    transfer(at, static_cast<char*>(data), bytes, ::pread);
  }
  void write(std::size_t at, const void* data, std::size_t bytes) const {
    transfer(at, static_cast<const char*>(data), bytes, ::pwrite);
  }

  /// Waits until what was written will outlast the machine.
  void flush() const {
    if (::fsync(descriptor_) != 0) fail_by_system();
  }
  /// Gives the file its name. Without it nothing is left behind, and what had the name keeps it.
  void commit() {
    if (std::rename(partial().c_str(), name_.c_str()) != 0) fail_by_system();
    close();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw tidepool::option_error(option_ + "=" + name_ + ": " + what);
  }
  [[noreturn]] void fail_damaged(const std::string& where) const {
    fail("is damaged " + where + "; take another copy, or leave " + option_ + " out to start anew");
  }

 private:
  template <class Byte, class Call>
  void transfer(std::size_t at, Byte* data, std::size_t bytes, Call call) const {
    while (bytes > 0) {
      const auto done = call(descriptor_, data, bytes, static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail_by_system();
      if (done == 0) fail_damaged("at byte " + std::to_string(at) + ", where it ends");
      at += static_cast<std::size_t>(done);
      data += done;
      bytes -= static_cast<std::size_t>(done);
    }
  }

  /// What has the name already, if anything has.
  void check_name() const {
    struct stat what {};
    if (::stat(name_.c_str(), &what) == 0 && !S_ISREG(what.st_mode)) fail_as_no_file();
  }

  [[noreturn]] void fail_as_no_file() const { fail("is no regular file; " + remedy()); }
  [[noreturn]] void fail_by_system() const {
    fail(std::string("cannot be ") + (writes_ ? "written (" : "read (") + std::strerror(errno) +
         "); " + remedy());
  }
  [[nodiscard]] std::string remedy() const {
    return writes_ ? "name a file in a folder that exists and has room"
                   : "name a file that --save wrote";
  }
  [[nodiscard]] std::string partial() const { return name_ + ".partial"; }
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }

  std::string option_, name_;
  bool writes_, owns_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
};

}  // namespace moe
