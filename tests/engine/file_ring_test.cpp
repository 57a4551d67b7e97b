// What passes through the ring of a file: every byte of it, and each once.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "disk.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/places/file.hpp"

namespace {

using tidepool::options;
using tidepool::place_kind;
using tidepool::test::disk;
using tidepool::test::disk_call;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

options with_file(std::size_t slots) {
  auto opts = small_options();
  opts.places = {place_kind::file};
  opts.file_path = std::filesystem::temp_directory_path();
  opts.file_budget = std::size_t{8} << 20;
  opts.file_ring = slots * 4096;
  opts.reload_ahead = 0;
  return opts;
}

struct desk : rig {
  desk() { dev.on_disk = files; }
  std::shared_ptr<disk> files = std::make_shared<disk>();
  std::size_t wrong_bytes = 0;

  static unsigned char byte_of(std::uint32_t tag, std::size_t at) {
    return static_cast<unsigned char>(at * 31 + at / 251 + tag * 7 + 1);
  }
  void write_all(const buffer& to, std::uint32_t tag) {
    dev.launch(stream(), 1000, [at = to.as<unsigned char>(), bytes = to.size(), tag] {
      for (std::size_t i = 0; i < bytes; ++i) at[i] = byte_of(tag, i);
    });
  }
  // Each row of what was written as one piece.
  void check_all(const void* from, std::size_t offset, std::size_t width, std::size_t rows,
                 std::size_t pitch_then, std::size_t pitch_now, std::uint32_t tag) {
    REQUIRE(from != nullptr);
    dev.launch(stream(), 1000, [=, this, at = static_cast<const unsigned char*>(from)] {
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t i = 0; i < width; ++i) {
          const auto right = byte_of(tag, offset + row * pitch_then + i);
          wrong_bytes += at[row * pitch_now + i] != right ? 1 : 0;
        }
      }
    });
  }
  void check_all(const buffer& from, std::uint32_t tag) {
    check_all(from.data(), 0, from.size(), 1, 0, 0, tag);
  }
};

// Tensors of so many bytes each, there and back.
std::size_t wrong_of(const options& opts, std::size_t bytes) {
  desk at;
  offloader off(at.dev, opts, {.file = tidepool::file_place()});
  off.on_report([](std::string_view) {});
  auto chunk = off.begin();
  std::vector<rig::buffer> saved(6);
  for (std::uint32_t i = 0; i < saved.size(); ++i) {
    saved[i] = off.allocate(bytes, at.stream());
    at.write_all(saved[i], i);
    chunk.commit<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
  }
  chunk.end_forward();
  for (auto i = static_cast<std::uint32_t>(saved.size()); i-- > 0;) {
    chunk.restore<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
    at.check_all(saved[i], i);
    saved[i].reset(at.stream());
  }
  chunk.finish();
  off.end_step();
  at.dev.synchronize();
  return at.wrong_bytes;
}

int code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const tidepool::disk_error& problem) {
    return problem.code;
  }
  return 0;
}

}  // namespace

TEST_CASE("file ring: the last byte of a tensor comes back too, wherever a slot or a block ends") {
  for (const std::size_t bytes : {1U, 255U, 257U, 4095U, 4096U, 4097U, 8191U, 8193U, 12'289U}) {
    CAPTURE(bytes);
    CHECK(wrong_of(with_file(2), bytes) == 0);
    CHECK(wrong_of(small_options(), bytes) == 0);
    auto beside = small_options();
    beside.places = {place_kind::peer, place_kind::host};
    beside.peer_budget = std::size_t{1} << 20;
    CHECK(wrong_of(beside, bytes) == 0);
  }
}

TEST_CASE("file ring: rows of any width are cut at any byte") {
  for (const std::size_t width : {1U, 3U, 4093U, 4095U, 4096U, 4097U, 5001U}) {
    CAPTURE(width);
    desk at;
    offloader off(at.dev, with_file(2), {.file = tidepool::file_place()});
    off.on_report([](std::string_view) {});
    constexpr std::size_t rows = 9;
    const auto pitch = width + 11;
    auto chunk = off.begin();
    auto x = off.allocate(pitch * (rows + 1), at.stream());
    at.write_all(x, 5);
    auto part = x.view({.offset = 7, .width = width, .rows = rows, .pitch = pitch});
    chunk.commit<"fc1">(0, at.stream(), part);
    x.reset(at.stream());
    chunk.end_forward();
    chunk.restore<"fc1">(0, at.stream(), part);
    at.check_all(part.data(), 7, width, rows, pitch, part.pitch(), 5);
    part.reset(at.stream());
    chunk.finish();
    off.end_step();
    at.dev.synchronize();
    CHECK(at.wrong_bytes == 0);
  }
}

TEST_CASE("file ring: a slot that a read has not let go yet is not used for anything else") {
  desk at;
  offloader off(at.dev, with_file(2), {.file = tidepool::file_place()});
  off.on_report([](std::string_view) {});
  auto chunk = off.begin();
  std::vector<rig::buffer> saved(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    saved[i] = off.allocate(8192, at.stream());
    at.write_all(saved[i], i);
    if (i < 3) chunk.commit<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
  }
  chunk.end_forward();
  auto next = off.begin();
  // All that is to be written has been.
  chunk.restore<"fc1">(2, at.stream(), saved[2]);
  chunk.restore<"fc1">(0, at.stream(), saved[0]);
  at.files->patience = std::chrono::milliseconds(20);
  at.files->hold(true);
  CHECK(code_of([&] { chunk.restore<"fc1">(1, at.stream(), saved[1]); }) == ETIMEDOUT);
  CHECK(code_of([&] { next.commit<"fc1">(0, at.stream(), saved[3]); }) == ETIMEDOUT);
  at.files->hold(false);
  at.files->patience = std::chrono::minutes(2);
  next.commit<"fc1">(0, at.stream(), saved[3]);
  next.end_forward();
  chunk.restore<"fc1">(1, at.stream(), saved[1]);
  next.restore<"fc1">(0, at.stream(), saved[3]);
  for (std::uint32_t i = 0; i < 4; ++i) at.check_all(saved[i], i);
  chunk.finish();
  next.finish();
  off.end_step();
  at.dev.synchronize();
  CHECK(at.wrong_bytes == 0);
}

TEST_CASE("file ring: what was read is not read again where only the copy after it failed") {
  desk at;
  offloader off(at.dev, with_file(2), {.file = tidepool::file_place()});
  off.on_report([](std::string_view) {});
  auto chunk = off.begin();
  std::vector<rig::buffer> saved(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    saved[i] = off.allocate(8192, at.stream());
    at.write_all(saved[i], i);
    chunk.commit<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
  }
  chunk.end_forward();
  at.dev.before_copy = [copies = 0]() mutable {
    if (++copies == 2) throw tidepool::device_error("the second copy fails", 1);
  };
  CHECK_THROWS_AS(chunk.restore<"fc1">(0, at.stream(), saved[0]), tidepool::device_error);
  at.dev.before_copy = {};
  CHECK(at.files->calls(disk_call::read) == 2);
  chunk.restore<"fc1">(0, at.stream(), saved[0]);
  CHECK(at.files->calls(disk_call::read) == 2);
  at.check_all(saved[0], 0);
  for (const std::uint32_t i : {2U, 1U}) {
    chunk.restore<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
    at.check_all(saved[i], i);
  }
  chunk.finish();
  off.end_step();
  at.dev.synchronize();
  CHECK(at.wrong_bytes == 0);
}

TEST_CASE("file ring: what has been copied is written while forward goes on, not when slots end") {
  desk at;
  offloader off(at.dev, with_file(16), {.file = tidepool::file_place()});
  off.on_report([](std::string_view) {});
  auto chunk = off.begin();
  std::vector<rig::buffer> saved(6);
  for (std::uint32_t i = 0; i < saved.size(); ++i) {
    saved[i] = off.allocate(4096, at.stream());
    at.write_all(saved[i], i);
    chunk.commit<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
    at.dev.synchronize();
  }
  // The last has not been given to the disk: no call came after its copy was over.
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (at.files->calls(disk_call::write) < 5 && std::chrono::steady_clock::now() < late) {
    std::this_thread::yield();
  }
  CHECK(at.files->calls(disk_call::write) == 5);
  chunk.end_forward();
  for (auto i = static_cast<std::uint32_t>(saved.size()); i-- > 0;) {
    chunk.restore<"fc1">(static_cast<int>(i), at.stream(), saved[i]);
    at.check_all(saved[i], i);
  }
  chunk.finish();
  off.end_step();
  at.dev.synchronize();
  CHECK(at.wrong_bytes == 0);
}
