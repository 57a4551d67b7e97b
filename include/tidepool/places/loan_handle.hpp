/// Memory that a process lends, named in plain bytes: the trainer of the lender sends them to that
/// of the borrower in whatever way the two talk.
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

/// Names memory that a process lends. It may be copied as bytes and sent, to a process that has the
/// same version of Tidepool. `offloader::borrow` finds out whether bytes are a handle.
class loan_handle {
 public:
  /// Of nothing.
  loan_handle() = default;
  [[nodiscard]] bool empty() const { return bytes_ == 0; }  ///< Of nothing.
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }  ///< Lent.
  /// Who lends: the name that it gave, and its process.
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

  // Cut where it is too long; there is always a 0 at the end.
  template <std::size_t Size>
  static void write(std::array<char, Size>& into, std::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), Size - 1), into.data());
  }

  template <std::size_t Size>
  [[nodiscard]] static std::string read(const std::array<char, Size>& from) {
    return {from.begin(), std::find(from.begin(), from.end(), '\0')};
  }

  // FNV-1a.
  [[nodiscard]] static std::uint64_t sum_of(const void* from, std::size_t bytes) {
    std::uint64_t sum = 14695981039346656037U;
    const auto* const at = static_cast<const unsigned char*>(from);
    for (std::size_t i = 0; i < bytes; ++i) sum = (sum ^ at[i]) * 1099511628211U;
    return sum;
  }
  // Of all that stands before it.
  [[nodiscard]] std::uint64_t expected_check() const {
    return sum_of(this, offsetof(loan_handle, check_));
  }
  void seal() { check_ = expected_check(); }

  // Itself; throws `misuse_error` where it names nothing that could be asked for.
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
  std::uint64_t kind_ = 0;  // of device: the sum of its whole name
  std::array<char, 16> device_{};
  std::array<char, 32> name_{};
  detail::socket_name socket_{};
  std::uint64_t check_ = expected_check();
};
static_assert(std::is_trivially_copyable_v<loan_handle> &&
              std::has_unique_object_representations_v<loan_handle>);

}  // namespace tidepool
