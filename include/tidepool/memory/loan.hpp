/// What a borrower has of another process's memory, and how it learns that its lender is gone.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <system_error>
#include <utility>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/detail/loan_socket.hpp"
#include "tidepool/memory/loan_handle.hpp"

namespace tidepool::inline v0_2_0 {

/// What a borrower does when it finds its lender gone, or is asked for the memory.
enum class lender_gone : std::uint8_t {
  fails,    ///< the next step begins with `lender_error`
  moves_on  ///< groups go to the places after it from then on, which is reported
};

namespace detail {

// Between a lender and a borrower.
class loan {
 public:
  [[nodiscard]] const std::string& lender() const { return lender_; }
  [[nodiscard]] bool here() const noexcept { return look_at(link_.get()) == far_end::there; }
  [[nodiscard]] std::string what_happened() const {
    return lender_ + (look_at(link_.get()) == far_end::said_so ? " wants its memory back"
                                                               : ", which lent memory, has ended");
  }
  [[nodiscard]] std::byte* memory() const noexcept { return begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool holds(const void* pointer) const noexcept {
    const auto* const at = static_cast<const std::byte*>(pointer);
    return at != nullptr && std::less_equal<>()(begin_, at) && std::less<>()(at, begin_ + size_);
  }
  // Until then the lender serves the next who asks, if this borrower goes.
  void confirm() const noexcept { say(link_.get(), has_it); }

 protected:
  explicit loan(std::string lender) : lender_(std::move(lender)) {}
  ~loan() {
    // For copies of the link too, which children that were forked hold.
    if (link_ && ::getpid() == owner_) ::shutdown(link_.get(), SHUT_RDWR);
  }
  void linked(descriptor link, void* memory, std::size_t bytes) {
    link_ = std::move(link);
    begin_ = static_cast<std::byte*>(memory);
    size_ = bytes;
  }

 private:
  std::string lender_;
  descriptor link_;
  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
  pid_t owner_ = ::getpid();
};

// What a borrower has, in one piece.
class loan_pages final : public page_allocator, public loan {
 public:
  loan_pages(hardware& dev, const loan_handle& from)
      : loan(from.checked().lender()), dev_(&dev), bytes_(from.bytes()) {
    const auto kind = loan_handle::read(from.device_);
    if (from.kind_ != loan_handle::sum_of(dev.name().data(), dev.name().size())) {
      throw lender_error("borrow: " + lender() + " lends memory of a device of the kind '" + kind +
                             "', and this one is of the kind '" + std::string(dev.name()) +
                             "'; lend and borrow on devices of one kind",
                         lender());
    }
    auto link = ask(from);
    memory_ = dev.import_memory(link.memory.get(), bytes_);
    linked(std::move(link.lender), memory_, bytes_);
  }
  ~loan_pages() override { dev_->drop_import(memory_); }

  [[nodiscard]] void* try_allocate(std::size_t bytes) override {
    if (taken_ || bytes > bytes_) return nullptr;
    taken_ = true;
    return memory_;
  }
  void deallocate(void* /*pages*/) noexcept override { taken_ = false; }
  [[nodiscard]] std::size_t free_bytes() const override { return taken_ ? 0 : bytes_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] loan_link ask(const loan_handle& from) const {
    try {
      if (auto link = ask_lender(from.socket_); link.memory) return link;
    } catch (const std::system_error& problem) {
      throw lender_error("borrow: " + lender() + " cannot be asked: " + problem.what() +
                             "; see how many descriptors a process may have (ulimit -n)",
                         lender());
    }
    throw lender_error(
        "borrow: " + lender() +
            " does not lend: it has ended or does not answer, has taken its memory back or lent it"
            " to another, or is on another host or in a container with a network of "
            "its own; have it"
            " lend again, or go on without",
        lender());
  }

  hardware* dev_;
  std::size_t bytes_;
  void* memory_ = nullptr;
  bool taken_ = false;
};

}  // namespace detail

}  // namespace tidepool
