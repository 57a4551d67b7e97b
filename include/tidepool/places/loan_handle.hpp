/// The handle of a loan: names memory that a process lends, in plain bytes. The trainer of the
/// lender sends these bytes to the trainer of the borrower by any means.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "tidepool/error.hpp"
#include "tidepool/places/detail/loan_socket.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

class loan_pages;

}  // namespace detail

template <class Device>
class lent_memory;

/// Names memory that a process lends. A handle may be copied as bytes and sent to a process with
/// the same version of Tidepool. `offloader::borrow` checks whether bytes are a handle.
class loan_handle {
 public:
  /// A handle that names no memory.
  loan_handle() = default;
  [[nodiscard]] bool empty() const { return bytes_ == 0; }  ///< True if no memory is named.
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }  ///< Lent.
  /// The lender: its name and its process.
  [[nodiscard]] std::string lender() const {
    const auto process = "process " + std::to_string(process_);
    const auto name = read(name_);
    return name.empty() ? process : name + " (" + process + ")";
  }

 private:
  template <class Device>
  friend class lent_memory;
  friend class detail::loan_pages;

  static constexpr std::array<char, 8> mark_of_this_format{'t', 'p', 'l', 'o', 'a', 'n', '0', '2'};

  // A text that is too long is cut; the last character is always 0.
  template <std::size_t Size>
  static void write(std::array<char, Size>& into, std::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), Size - 1), into.data());
  }

  template <std::size_t Size>
  [[nodiscard]] static std::string read(const std::array<char, Size>& from) {
    return {from.begin(), std::find(from.begin(), from.end(), '\0')};
  }

  // The hash FNV-1a.
  [[nodiscard]] static std::uint64_t sum_of(const void* from, std::size_t bytes) {
    std::uint64_t sum = 14695981039346656037U;
    const auto* const at = static_cast<const unsigned char*>(from);
    for (std::size_t i = 0; i < bytes; ++i) sum = (sum ^ at[i]) * 1099511628211U;
    return sum;
  }
  // The checksum of all members before `check_`.
  [[nodiscard]] std::uint64_t expected_check() const {
    return sum_of(this, offsetof(loan_handle, check_));
  }
  void seal() { check_ = expected_check(); }

  // The handle itself. Throws `misuse_error` if it does not name memory that can be borrowed.
  [[nodiscard]] const loan_handle& checked() const {
    const auto refuse = [](const std::string& why) { throw misuse_error("borrow: " + why); };
    if (!std::equal(mark_.begin(), mark_.end() - 2, mark_of_this_format.begin())) {
      refuse("these bytes are not a handle; send those of lent_memory::handle, all " +
             std::to_string(sizeof *this) + " of them");
    }
    if (mark_ != mark_of_this_format) {
      refuse("this handle has the format '" + std::string(mark_.end() - 2, mark_.end()) +
             "' of another version of Tidepool, and here it is '" +
             std::string(mark_of_this_format.end() - 2, mark_of_this_format.end()) +
             "'; build lender and borrower with one version");
    }
    if (check_ != expected_check()) {
      refuse("this handle has been changed on its way; send all " + std::to_string(sizeof *this) +
             " bytes of lent_memory::handle as they are");
    }
    if (empty()) refuse("this handle names no memory; send that of a lent_memory");
    return *this;
  }

  std::array<char, 8> mark_ = mark_of_this_format;
  std::uint64_t bytes_ = 0;
  std::int64_t process_ = 0;
  std::uint64_t kind_ = 0;  // hash of the whole name of the device's kind
  std::array<char, 16> device_{};
  std::array<char, 32> name_{};
  detail::socket_name socket_{};
  std::uint64_t check_ = expected_check();
};
static_assert(std::is_trivially_copyable_v<loan_handle> &&
              std::has_unique_object_representations_v<loan_handle>);

}  // namespace tidepool
