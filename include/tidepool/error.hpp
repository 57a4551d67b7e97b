/// One exception type per kind of mistake; every message says what, where and what to do.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace tidepool {

/// Base of everything Tidepool throws.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An option has a value that cannot work, or two options exclude each other.
/// The message names the option, its value and the remedy.
class option_error : public error {
 public:
  using error::error;
};

/// A module name that this build or this offloader does not know.
/// The message lists the known names and the nearest match.
class unknown_module : public option_error {
 public:
  using option_error::option_error;
};

/// A handle, group or chunk was used in an order that its contract forbids.
class misuse_error : public error {
 public:
  using error::error;
};

/// A byte budget cannot hold what must be live; the message says what is, by module.
class out_of_budget : public error {
 public:
  out_of_budget(const std::string& message, std::size_t requested_bytes, std::size_t budget_bytes)
      : error(message), requested(requested_bytes), budget(budget_bytes) {}

  std::size_t requested;  ///< bytes of the request that failed
  std::size_t budget;     ///< bytes the memory may hold in all; 0: no limit but the device
};

/// A call to the device failed. `code` is the device's own code (`cudaError_t` for CUDA).
class device_error : public error {
 public:
  device_error(const std::string& message, int device_code) : error(message), code(device_code) {}

  int code;
};

}  // namespace tidepool
