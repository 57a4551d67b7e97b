// The lanes around a stream capture: what is on the other side of it is never waited for.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "lane_bench.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/memory/lanes.hpp"

namespace {

using tidepool::fence;
using tidepool::join_site;
using tidepool::null_device;

using tidepool::test::lane_bench;

/// Says of every event that it has passed.
class hasty_device : public null_device {
 public:
  [[nodiscard]] bool passed(const event& /*which*/) const { return true; }
};

/// Its streams have handles that a later stream may have again, and keys that no other has; a key
/// may not be asked for in a capture.
class handle_device : public null_device {
 public:
  static inline bool captures = false;

  class stream_ref : public null_device::stream_ref {
   public:
    stream_ref() = default;
    stream_ref(std::uint64_t handle, std::uint64_t key)
        : null_device::stream_ref(key), handle_(handle) {}
    [[nodiscard]] std::uint64_t key() const {
      CHECK_FALSE(captures);
      return null_device::stream_ref::key();
    }
    [[nodiscard]] std::uint64_t key_in_capture() const {
      CHECK(captures);
      return handle_ + 1000;
    }
    friend bool operator==(const stream_ref& one, const stream_ref& other) {
      return one.handle_ == other.handle_;
    }

   private:
    std::uint64_t handle_ = 0;
  };

  class stream {
   public:
    explicit stream(const stream_ref& ref) : ref_(ref) {}
    stream(stream&&) noexcept = default;
    stream& operator=(stream&&) noexcept = default;
    [[nodiscard]] stream_ref ref() const { return ref_; }

   private:
    stream_ref ref_;
  };

  [[nodiscard]] stream make_stream() {
    ++made_;
    return stream({made_, made_});
  }

 private:
  std::uint64_t made_ = 0;
};

}  // namespace

TEST_CASE(
    "lanes: a stream first met in a capture is behind what came before it, and not the rest") {
  lane_bench<tidepool::virtual_device> on(2);
  const auto late = on.dev.make_stream();
  const auto before = on.record(0);
  on.dev.begin_capture(on.streams[0].ref());
  on.order.begin_capture(on.id(0), {on.id(1)});
  auto fork = on.dev.make_event();
  on.dev.record(fork, on.streams[0].ref());
  on.dev.wait(late.ref(), fork);
  const auto id = on.of(late.ref());
  const auto waits = on.dev.waits;
  CHECK_FALSE(on.order.join(id, before, join_site::consumer));  // the device would refuse it
  CHECK(on.dev.waits == waits);
  const auto inside = on.record(1);
  CHECK_FALSE(on.order.joined(id, inside));
  CHECK(on.order.join(id, inside, join_site::consumer));
  on.order.join_back(on.id(0), {on.id(1), id});
  static_cast<void>(on.dev.end_capture(on.streams[0].ref()));
  on.order.end_capture();
}

TEST_CASE("lanes: nothing in a capture is waited for after it, also where the lanes cannot meet") {
  lane_bench<tidepool::virtual_device> on(2);
  on.dev.begin_capture(on.streams[0].ref());
  on.order.begin_capture(on.id(0), {on.id(1)});
  const auto inside = on.record(0);
  on.order.join_back(on.id(0), {on.id(1)});
  static_cast<void>(on.dev.end_capture(on.streams[0].ref()));
  on.dev.before_record = [] { throw tidepool::device_error("no record", 1); };
  CHECK_THROWS_AS(on.order.end_capture(), tidepool::device_error);
  on.dev.before_record = nullptr;
  CHECK_FALSE(on.order.join(on.id(1), inside, join_site::consumer));
  CHECK_FALSE(on.order.capturing());
}

TEST_CASE("lanes: what was recorded in a capture never passes, whatever the device says") {
  lane_bench<hasty_device> on(2);
  const auto before = on.record(0);
  CHECK(on.order.passed(before));
  on.order.begin_capture(on.id(0), {on.id(1)});
  CHECK_FALSE(on.order.passed(before));
  const auto inside = on.record(0);
  on.order.join_back(on.id(0), {on.id(1)});
  const auto last = on.order.next(on.id(1)) - 1;
  on.order.end_capture();
  CHECK(on.order.passed(before));
  CHECK_FALSE(on.order.passed(inside));
  CHECK_FALSE(on.order.passed(tidepool::ticket(on.id(1), last, inside.order)));
  CHECK(on.order.passed(on.record(1)));
}

TEST_CASE(
    "lanes: outside of captures a stream is known by its key, though its handle came before") {
  lane_bench<handle_device> on(2);
  const handle_device::stream_ref again(1, 77);  // of a stream that was destroyed
  CHECK(again == on.streams[0].ref());
  CHECK(index_of(on.of(again)) == 2);
  CHECK(index_of(on.of(on.streams[0].ref())) == 0);
}

TEST_CASE("lanes: in a capture a stream is known by its handle, and no key is asked for") {
  lane_bench<handle_device> on(3);
  on.order.begin_capture(on.id(0), {on.id(1)});
  handle_device::captures = true;
  const auto fresh = on.dev.make_stream();
  for (int i = 0; i < 3; ++i) {
    CHECK(index_of(on.of(on.streams[static_cast<std::size_t>(i)].ref())) ==
          static_cast<std::size_t>(i));
  }
  CHECK(index_of(on.of(fresh.ref())) == 3);
  CHECK(index_of(on.of(fresh.ref())) == 3);
  handle_device::captures = false;
}
