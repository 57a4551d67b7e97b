/// One exception type per kind of mistake; every message of the library says that it is Tidepool's,
/// what, where and what to do.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace tidepool::inline v0_2_0 {

namespace detail {

// In a trainer's log nobody knows otherwise whose "finish" or "commit" it is.
[[nodiscard]] inline std::string signed_message(const std::string& message) {
  constexpr const char* name = "tidepool: ";
  return message.starts_with(name) ? message : name + message;
}

}  // namespace detail

/// Base of everything Tidepool throws.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An option has a value that cannot work, or two options exclude each other.
/// The message names the option, its value and the remedy. A trainer may throw it of options of its
/// own, so that the library's say themselves whose they are.
class option_error : public error {
 public:
  using error::error;
};

/// A module name that this build or this offloader does not know.
/// The message lists the known names and the nearest match.
class unknown_module : public option_error {
 public:
  /// Puts the library's name before the message.
  explicit unknown_module(const std::string& message)
      : option_error(detail::signed_message(message)) {}
};

/// A handle, group or chunk was used in an order that its contract forbids.
class misuse_error : public error {
 public:
  /// Puts the library's name before the message.
  explicit misuse_error(const std::string& message) : error(detail::signed_message(message)) {}
};

/// A byte budget cannot hold what must be live; the message says what is, by module.
class out_of_budget : public error {
 public:
  /// A message, before which the library's name is put, and the bytes that it is about.
  out_of_budget(const std::string& message, std::size_t requested_bytes, std::size_t budget_bytes)
      : error(detail::signed_message(message)), requested(requested_bytes), budget(budget_bytes) {}

  std::size_t requested;  ///< bytes of the request that failed
  std::size_t budget;     ///< bytes the memory may hold in all; 0: no limit but the device
};

/// A call to the file that groups are offloaded to failed. What it was about is not lost: the call
/// that throws it leaves nothing and may be made again.
class disk_error : public error {
 public:
  /// A message, before which the library's name is put, the file, and the system's code.
  disk_error(const std::string& message, std::string of, int system_code)
      : error(detail::signed_message(message)), path(std::move(of)), code(system_code) {}
  std::string path;  ///< as the options have it
  int code;          ///< the system's (`errno`); 0 where fewer bytes came than were asked for
};

/// Memory that another process lends cannot be had, or can be had no longer: its lender has ended,
/// or took it back. What was offloaded there before has come back all the same.
class lender_error : public error {
 public:
  /// A message, before which the library's name is put, and who lends.
  lender_error(const std::string& message, std::string of)
      : error(detail::signed_message(message)), lender(std::move(of)) {}
  std::string lender;  ///< as `loan_handle::lender` has it
};

/// A call to the device failed. `code` is the device's own code (`cudaError_t` for CUDA).
class device_error : public error {
 public:
  /// A message, and the device's own code.
  device_error(const std::string& message, int device_code) : error(message), code(device_code) {}

  int code;  ///< the device's own; `cudaError_t` for CUDA
};

}  // namespace tidepool
