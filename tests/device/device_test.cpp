#include "tidepool/device/device.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string_view>

#include "counting_device.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

// A stream that can be copied would be given back twice.
struct copyable_stream : tidepool::null_device {
  struct stream {
    [[nodiscard]] stream_ref ref() const { return {}; }
  };
  stream make_stream() { return {}; }
};

struct throwing_free : tidepool::null_device {
  void deallocate(void* pointer) { null_device::deallocate(pointer); }
};

}  // namespace

TEST_CASE("device: the concept takes the library's devices and what is derived from them") {
  static_assert(tidepool::device<tidepool::null_device>);
  static_assert(tidepool::device<tidepool::virtual_device>);
  static_assert(tidepool::device<tidepool::test::counting_device<tidepool::virtual_device>>);
}

TEST_CASE("device: the concept refuses what is not a device") {
  static_assert(!tidepool::device<int>);
  static_assert(!tidepool::device<copyable_stream>);
  static_assert(!tidepool::device<throwing_free>);
}

TEST_CASE("device: every join site has a name of its own") {
  std::set<std::string_view> names;
  for (unsigned i = 0; i < static_cast<unsigned>(tidepool::join_site::count); ++i) {
    names.insert(name_of(static_cast<tidepool::join_site>(i)));
  }
  CHECK(names.size() == static_cast<std::size_t>(tidepool::join_site::count));
  CHECK(names.count("") == 0);
  CHECK(name_of(tidepool::join_site::own_offload) == "own_offload");
  CHECK(name_of(tidepool::join_site::cap) == "cap");
}

TEST_CASE("device: the bytes of a copy are those of its rows, not of the gaps between them") {
  CHECK(tidepool::copy_shape{.width = 12}.bytes() == 12);
  CHECK(tidepool::copy_shape{.width = 12, .rows = 3, .source_pitch = 100, .target_pitch = 12}
            .bytes() == 36);
}
