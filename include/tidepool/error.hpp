/// Each kind of mistake has an exception type. Each message names Tidepool, the failed call and its
/// place, and the remedy.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace tidepool::inline v0_3_0 {

namespace detail {

// The message gets the library's name, because otherwise a trainer's log does not show whose
// "finish" or "commit" failed.
[[nodiscard]] inline std::string signed_message(const std::string& message) {
  constexpr const char* name = "tidepool: ";
  return message.starts_with(name) ? message : name + message;
}

}  // namespace detail

/// Base of all exceptions of Tidepool.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An option has a value that cannot work, or two options exclude each other. The message names the
/// option, its value and the remedy. A trainer may throw this type for its own options. The
/// constructor therefore adds no name to the message; the library's own messages begin with its
/// name.
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

/// A byte budget cannot hold what must be live; the message lists the live bytes by module.
class out_of_budget : public error {
 public:
  /// Takes the message, before which the library's name is put, and the bytes of request and
  /// budget.
  out_of_budget(const std::string& message, std::size_t requested_bytes, std::size_t budget_bytes)
      : error(detail::signed_message(message)), requested(requested_bytes), budget(budget_bytes) {}

  std::size_t requested;  ///< bytes of the request that failed
  std::size_t budget;     ///< bytes that the memory may hold in all; 0: no limit but the device
};

/// A call to the file that groups are offloaded to failed. No tensor is lost: the call that throws
/// changes nothing and may be made again.
class disk_error : public error {
 public:
  /// Takes the message, before which the library's name is put, the file, and the system's code.
  disk_error(const std::string& message, std::string of, int system_code)
      : error(detail::signed_message(message)), path(std::move(of)), code(system_code) {}
  std::string path;  ///< path of the file as in the options
  int code;          ///< `errno`; 0 if the system moved fewer bytes than were asked for
};

/// Memory of another process cannot be borrowed, or can no longer be used, because its lender has
/// ended or took it back. Tensors that were offloaded there come back all the same.
class lender_error : public error {
 public:
  /// Takes the message, before which the library's name is put, and the lender.
  lender_error(const std::string& message, std::string of)
      : error(detail::signed_message(message)), lender(std::move(of)) {}
  std::string lender;  ///< the lender as in `loan_handle::lender`
};

/// A call to the device failed. `code` is the device's own code (`cudaError_t` for CUDA).
class device_error : public error {
 public:
  /// Takes the message and the device's own code.
  device_error(const std::string& message, int device_code) : error(message), code(device_code) {}

  int code;  ///< the device's own code; `cudaError_t` for CUDA
};

}  // namespace tidepool
