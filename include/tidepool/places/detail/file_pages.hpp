// Room in a file, handed out like memory.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/places/detail/file_worker.hpp"

namespace tidepool::inline v0_3_0::detail {

[[nodiscard]] inline constexpr std::size_t in_granules(std::size_t bytes) {
  constexpr auto most = std::numeric_limits<std::size_t>::max() / file_granule * file_granule;
  if (bytes > most) return most;
  return (bytes + file_granule - 1) / file_granule * file_granule;
}

// The budget is a multiple of a granule. Its addresses stand for offsets in the file: nobody may
// touch what is there, and nothing else is.
class file_pages final : public page_allocator {
 public:
  file_pages(file_worker& worker, std::string path, std::size_t budget)
      : worker_(&worker), path_(std::move(path)), bytes_(budget) {
    void* const got =
        ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) {
      const int code = errno;
      throw disk_error("places: file_budget: " + text::size_text(budget) +
                           " of addresses cannot be had: " + in_words(code) +
                           "; give a smaller --file-budget",
                       path_, code);
    }
    base_ = static_cast<std::byte*>(got);
  }
  ~file_pages() override { ::munmap(base_, bytes_); }

  [[nodiscard]] std::uint64_t offset_of(const void* page) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(page) - base_);
  }

  [[nodiscard]] void* at(std::uint64_t offset) const { return base_ + offset; }

  // Null when the disk is full; it is asked again the next time.
  [[nodiscard]] void* try_allocate(std::size_t bytes) override {
    // Of a request that took too long nobody knows how it ended.
    if (!worker_->wait(extend_)) throw_slow();
    extend_.ask(file_request_kind::extend, nullptr, bytes, used_);
    worker_->submit(extend_);
    if (!worker_->wait(extend_)) throw_slow();
    full_ = extend_.result.code;
    if (!extend_.failed()) {
      used_ += bytes;
      return base_ + extend_.offset;
    }
    if (full_ == ENOSPC || full_ == EDQUOT || full_ == EFBIG) return nullptr;
    throw disk_error("the file in " + path_ + " cannot grow by " + text::size_text(bytes) + ": " +
                         in_words(full_) +
                         ". Nothing is lost: make the call again, or give --places=host",
                     path_, full_);
  }
  void deallocate(void* /*pages*/) noexcept override {}  // the file goes as a whole
  [[nodiscard]] std::size_t free_bytes() const override { return bytes_ - used_; }

  // Why it did not grow when it was asked last; empty when it did.
  [[nodiscard]] std::string full() const { return full_ == 0 ? std::string() : in_words(full_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[noreturn]] void throw_slow() const {
    throw disk_error("the file in " + path_ +
                         " does not answer: it was asked for room. Nothing is lost: make the call"
                         " again once the disk answers, or give --places=host",
                     path_, ETIMEDOUT);
  }

  file_worker* worker_;
  std::string path_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  int full_ = 0;
  file_request extend_;
};

}  // namespace tidepool::detail
