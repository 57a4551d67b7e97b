/// Memory of a device that one process lends to another of the same host and user: `lend`, and
/// `offloader::borrow`.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tidepool/core/text.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/error.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/places/detail/loan_socket.hpp"
#include "tidepool/places/loan_handle.hpp"

namespace tidepool::inline v0_3_0 {

/// Memory that this process lends; see `lend`. The destructor takes the memory back. If a borrower
/// still has it, the borrower is told at its next step; the memory is free when the borrower has
/// let it go or has ended. The device must outlive the object. Thread safety: none.
template <class Device>
class [[nodiscard]] lent_memory {
  static_assert(lending_device<Device>, "memory of this kind of device cannot be lent");

 public:
  /// Lends memory as `lend` does.
  lent_memory(Device& dev, std::size_t bytes, std::string_view name) : dev_(&dev) {
    auto made = dev.try_export(bytes);
    if (!made) {
      throw out_of_budget("lend: device memory for " + detail::text::size_text(bytes) +
                              " is not there; " + detail::text::size_text(dev.memory().free) +
                              " are free. Lend less",
                          bytes, 0);
    }
    detail::descriptor memory(made->descriptor);
    id_ = made->id;
    handle_.process_ = ::getpid();
    loan_handle::write(handle_.device_, Device::name);
    handle_.kind_ = loan_handle::sum_of(Device::name.data(), Device::name.size());
    loan_handle::write(handle_.name_, name);
    try {
      if (made->bytes == 0) {
        throw misuse_error("lend: " + detail::text::size_text(bytes) +
                           " are less than a page of the device (2 MiB on most GPUs); lend more");
      }
      handle_.socket_ = detail::new_socket_name();
      handle_.bytes_ = made->bytes;
      handle_.seal();
      desk_ = std::make_unique<detail::loan_desk>(handle_.socket_, std::move(memory));
    } catch (const std::system_error& problem) {
      dev.drop_export(id_);
      throw lender_error(std::string("lend: no borrower could be served: ") + problem.what() +
                             "; see how many descriptors and threads a process may have (ulimit)",
                         handle_.lender());
    } catch (...) {
      dev.drop_export(id_);
      throw;
    }
  }
  /// The other object lends nothing afterwards.
  lent_memory(lent_memory&& other) noexcept
      : dev_(other.dev_), id_(other.id_), handle_(other.handle_), desk_(std::move(other.desk_)) {}
  /// The other object gets the loan that this one had.
  lent_memory& operator=(lent_memory&& other) noexcept {
    std::swap(dev_, other.dev_);
    std::swap(id_, other.id_);
    std::swap(handle_, other.handle_);
    std::swap(desk_, other.desk_);
    return *this;
  }
  ~lent_memory() {
    if (desk_ == nullptr) return;
    desk_.reset();
    dev_->drop_export(id_);
  }

  /// The handle, to be sent to the borrower.
  [[nodiscard]] const loan_handle& handle() const { return handle_; }
  [[nodiscard]] std::size_t bytes() const { return handle_.bytes(); }  ///< Bytes that are lent.
  /// True while a borrower has the memory.
  [[nodiscard]] bool in_use() const { return desk_ != nullptr && desk_->in_use(); }
  /// Asks for the memory back: the borrower is told at its next step. `in_use` is false once it has
  /// let it go.
  void take_back() noexcept {
    if (desk_ != nullptr) desk_->take_back();
  }

 private:
  Device* dev_;
  std::uint64_t id_ = 0;
  loan_handle handle_;
  std::unique_ptr<detail::loan_desk> desk_;
};

/// Lends memory of `dev` to one other process of this host and user: the first that borrows with
/// the handle. The loan is `bytes`, rounded down to whole pages. `name` appears in messages of the
/// borrower.
///
///     auto lent = tidepool::lend(dev, std::size_t{8} << 30, "rank 1");
///     send(0, lent.handle());
///
/// A thread waits until the borrower has come. The lender does not touch the memory. Throws
/// `out_of_budget` if the device has too little memory, `misuse_error` for less than a page,
/// `lender_error` if the system gives no socket or thread, and `device_error`.
template <lending_device Device>
[[nodiscard]] lent_memory<Device> lend(Device& dev, std::size_t bytes, std::string_view name = {}) {
  return {dev, bytes, name};
}

/// The reaction of a borrower to a lender that has ended or wants its memory back.
enum class lender_gone : std::uint8_t {
  fails,    ///< the next step throws `lender_error`
  moves_on  ///< groups go to the next places from then on, and a report says so
};

namespace detail {

void borrow_for(engine& owner, const loan_handle& from, lender_gone then);

}  // namespace detail

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/places/detail/loan.hpp"
#endif
