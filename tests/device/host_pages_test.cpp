#include "tidepool/device/host_pages.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace {

using tidepool::host_pages;

constexpr std::size_t huge_page = tidepool::detail::huge_page;

bool zero(const host_pages& pages) {
  return std::all_of(pages.data(), pages.data() + pages.bytes(),
                     [](std::byte each) { return each == std::byte{0}; });
}

}  // namespace

TEST_CASE("host pages: as many as asked for, zeroed, aligned, for any number of threads") {
  for (const unsigned threads : {0U, 1U, 3U, 100U}) {
    CAPTURE(threads);
    for (const std::size_t bytes : {std::size_t{1}, huge_page, 3 * huge_page + 5}) {
      CAPTURE(bytes);
      const host_pages pages(bytes, {.threads = threads});
      REQUIRE(pages);
      CHECK(pages.bytes() >= bytes);
      CHECK(pages.bytes() < bytes + huge_page);
      CHECK(reinterpret_cast<std::uintptr_t>(pages.data()) % huge_page == 0);
      CHECK(zero(pages));
      CHECK_FALSE(pages.bound());
      pages.data()[bytes - 1] = std::byte{7};
    }
  }
}

TEST_CASE("host pages: empty by default, and where no address space is left") {
  const host_pages none;
  CHECK_FALSE(none);
  CHECK(none.bytes() == 0);
  const host_pages impossible(std::size_t{1} << 60, {.threads = 1});
  CHECK_FALSE(impossible);
}

// Divides by zero today, hence skipped.
TEST_CASE("host pages: none are none" * doctest::skip()) {
  const host_pages none(0, {});
  CHECK(none.bytes() == 0);
}

TEST_CASE("host pages: move") {
  host_pages first(1, {.threads = 1});
  auto* const data = first.data();
  host_pages second(std::move(first));
  CHECK(second.data() == data);
  CHECK_FALSE(first);  // NOLINT(bugprone-use-after-move)
  host_pages third(huge_page + 1, {.threads = 1});
  third = std::move(second);
  CHECK(third.data() == data);
  CHECK(third.bytes() == huge_page);
}

TEST_CASE("host pages: a node that is not there is no failure") {
  const host_pages pages(1, {.node = 1 << 20, .threads = 1});
  CHECK(pages);
  CHECK_FALSE(pages.bound());
  CHECK(tidepool::node_of_pci("ffff:FF:ff.f") == -1);
}
