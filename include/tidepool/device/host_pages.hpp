/// Makes host pages fast: huge pages, touched by many threads, on a chosen NUMA node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tidepool/core/system_file.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tidepool::inline v0_3_0 {

/// How host pages are made.
struct page_options {
  int node = -1;         ///< NUMA node of the pages; -1: the kernel chooses
  unsigned threads = 0;  ///< threads that touch the pages; 0: one per core, 16 at most
};

namespace detail {

inline constexpr std::size_t huge_page = std::size_t{2} << 20;

// Binds pages by the kernel's own call, so that libnuma is not needed. Returns false if the kernel
// refuses, as in some containers.
inline bool bind_to_node([[maybe_unused]] void* pages, [[maybe_unused]] std::size_t bytes,
                         [[maybe_unused]] int node) {
#if defined(__linux__) && defined(SYS_mbind)
  constexpr int prefer = 1;  // MPOL_PREFERRED: on a full node the call still succeeds
  constexpr unsigned long bits = sizeof(unsigned long) * 8;
  if (node < 0 || static_cast<unsigned long>(node) >= bits) return false;
  const unsigned long mask = 1UL << static_cast<unsigned>(node);
  return syscall(SYS_mbind, pages, bytes, prefer, &mask, bits, 0U) == 0;
#else
  return false;
#endif
}

}  // namespace detail

/// The NUMA node of a PCI device such as "0000:3b:00.0"; -1 if the system does not report it.
[[nodiscard]] inline int node_of_pci(std::string id) {
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  const auto text = detail::text_of("/sys/bus/pci/devices/" + id + "/numa_node");
  std::string_view rest = text;
  return detail::number_of<int>(detail::take_word(rest)).value_or(-1);
}

/// Pages of host memory, zeroed and resident, in huge pages where the kernel has them.
///
/// Several threads touch the pages, because that takes most of the time. They have ended when the
/// constructor returns. Move-only.
class host_pages {
 public:
  host_pages() = default;

  /// Makes pages for `bytes` bytes. Empty if the system has less memory.
  host_pages(std::size_t bytes, const page_options& how) {
#if defined(__linux__)
    const auto whole = (bytes + detail::huge_page - 1) / detail::huge_page * detail::huge_page;
    // An extra huge page is mapped, so that the start can be on a boundary of huge pages.
    const auto mapped = whole + detail::huge_page;
    auto* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return;
    const auto start = reinterpret_cast<std::uintptr_t>(raw);
    const auto aligned = (start + detail::huge_page - 1) / detail::huge_page * detail::huge_page;
    if (aligned > start) munmap(raw, aligned - start);
    data_ = reinterpret_cast<std::byte*>(aligned);
    bytes_ = whole;
    const auto tail = start + mapped - (aligned + whole);
    if (tail > 0) munmap(data_ + whole, tail);
    static_cast<void>(madvise(data_, bytes_, MADV_HUGEPAGE));  // a hint; small pages work, too
    bound_ = detail::bind_to_node(data_, bytes_, how.node);
    touch(how.threads);
#else
    static_cast<void>(how);
    data_ = static_cast<std::byte*>(std::calloc(bytes, 1));
    bytes_ = data_ == nullptr ? 0 : bytes;
#endif
  }
  host_pages(host_pages&& other) noexcept { swap(other); }  ///< Leaves `other` empty.
  /// Swaps the two.
  host_pages& operator=(host_pages&& other) noexcept {
    swap(other);
    return *this;
  }
  ~host_pages() {
    if (data_ == nullptr) return;
#if defined(__linux__)
    munmap(data_, bytes_);
#else
    std::free(data_);
#endif
  }

  explicit operator bool() const { return data_ != nullptr; }  ///< True when there is memory.
  /// Its first byte; null when there is none.
  [[nodiscard]] std::byte* data() const { return data_; }
  /// Bytes, a multiple of huge pages.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// True if the kernel accepted the node of the options.
  [[nodiscard]] bool bound() const { return bound_; }

 private:
  void swap(host_pages& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(bound_, other.bound_);
  }

  void touch(unsigned wanted) {
    const auto cores = std::max(1U, std::thread::hardware_concurrency());
    const auto pages = bytes_ / detail::huge_page;
    const auto count = std::min<std::size_t>(wanted == 0 ? std::min(cores, 16U) : wanted, pages);
    const auto part = [this, pages, count](std::size_t which) {
      constexpr std::size_t small_page = 4096;
      const auto from = pages * which / count * detail::huge_page;
      const auto to = pages * (which + 1) / count * detail::huge_page;
      for (auto at = from; at < to; at += small_page) {
        static_cast<volatile std::byte*>(data_)[at] = std::byte{0};
      }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(count);
    for (std::size_t i = 1; i < count; ++i) {
      try {
        helpers.emplace_back(part, i);
      } catch (const std::system_error&) {  // no more threads: this thread touches the part
        part(i);
      }
    }
    part(0);
    for (auto& helper : helpers) helper.join();
  }

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool bound_ = false;
};

}  // namespace tidepool
