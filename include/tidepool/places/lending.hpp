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

/// Memory that this process lends: see `lend`. The destructor takes it back. A borrower that still
/// has it is told at its next step; the memory is free once that has let it go, or has ended.
/// Thread safety: none. The device must outlive it.
template <class Device>
class [[nodiscard]] lent_memory {
  static_assert(lending_device<Device>, "memory of this kind of device cannot be lent");

 public:
  /// As `lend`.
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
                           " are less than a page of the device's; lend more");
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
  /// The other lends nothing afterwards.
  lent_memory(lent_memory&& other) noexcept
      : dev_(other.dev_), id_(other.id_), handle_(other.handle_), desk_(std::move(other.desk_)) {}
  /// The other gets what this one had.
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

  [[nodiscard]] const loan_handle& handle() const { return handle_; }  ///< To be sent.
  [[nodiscard]] std::size_t bytes() const { return handle_.bytes(); }  ///< That are lent.
  /// Whether a borrower has it now.
  [[nodiscard]] bool in_use() const { return desk_ != nullptr && desk_->in_use(); }
  /// Asks for it back: the borrower is told at its next step. `in_use` says when it has let it go.
  void take_back() noexcept {
    if (desk_ != nullptr) desk_->take_back();
  }

 private:
  Device* dev_;
  std::uint64_t id_ = 0;
  loan_handle handle_;
  std::unique_ptr<detail::loan_desk> desk_;
};

/// Lends memory of `dev`, `bytes` or less by a part of a page, to another process of this host and
/// user: the one that is given the handle and borrows first. `name` is for messages there.
///
///     auto lent = tidepool::lend(dev, std::size_t{8} << 30, "rank 1");
///     send(0, lent.handle());
///
/// Until the borrower has come, a thread waits for it. The lender touches nothing of the memory.
/// Throws `out_of_budget` when the device has no such memory, `misuse_error` for less than a page,
/// `lender_error` when the system has no socket or thread, `device_error`.
template <lending_device Device>
[[nodiscard]] lent_memory<Device> lend(Device& dev, std::size_t bytes, std::string_view name = {}) {
  return {dev, bytes, name};
}

/// What a borrower does when it finds its lender gone, or is asked for the memory.
enum class lender_gone : std::uint8_t {
  fails,    ///< the next step begins with `lender_error`
  moves_on  ///< groups go to the places after it from then on, which is reported
};

namespace detail {

void borrow_for(engine& owner, const loan_handle& from, lender_gone then);

}  // namespace detail

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/places/detail/loan.hpp"
#endif
