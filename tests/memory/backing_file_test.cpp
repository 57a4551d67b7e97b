// The file behind a place, the thread that reads and writes it, and the room in it.
#include "tidepool/places/backing_file.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "process_state.hpp"
#include "tidepool/error.hpp"
#include "tidepool/places/detail/file_pages.hpp"
#include "tidepool/places/detail/file_worker.hpp"

namespace {

using tidepool::backing_file;
using tidepool::file_granule;
using tidepool::file_result;
using tidepool::detail::file_pages;
using tidepool::detail::file_request;
using tidepool::detail::file_request_kind;
using tidepool::detail::file_worker;
using tidepool::detail::in_granules;
using tidepool::detail::system_file;
using tidepool::test::blocked_signals;
using tidepool::test::says;

// A file whose calls come to what was written down before; after that they do all they are asked.
struct scripted : backing_file {
  struct asked {
    std::size_t bytes;
    std::uint64_t at;
    friend bool operator==(const asked&, const asked&) = default;
  };
  struct script {
    std::vector<file_result> results;
    int code_of_extend = 0;
    std::vector<asked> seen{};
  };

  explicit scripted(std::shared_ptr<script> of) : all(std::move(of)) {}
  file_result next(std::size_t bytes, std::uint64_t at) {
    all->seen.push_back({bytes, at});
    if (all->seen.size() > all->results.size()) return {bytes, 0};
    return all->results[all->seen.size() - 1];
  }
  file_result write(const void* /*from*/, std::size_t bytes, std::uint64_t at) override {
    return next(bytes, at);
  }
  file_result read(void* into, std::size_t bytes, std::uint64_t at) override {
    const auto result = next(bytes, at);
    std::memset(into, static_cast<int>(all->seen.size()), result.bytes);
    return result;
  }
  int extend(std::uint64_t /*from*/, std::size_t /*bytes*/) override { return all->code_of_extend; }

  std::shared_ptr<script> all;
};

using script = scripted::script;

// What becomes of a request of three granules, at the second of the file.
struct served {
  explicit served(std::vector<file_result> results,
                  file_request_kind kind = file_request_kind::write)
      : all(std::make_shared<script>(script{std::move(results)})) {
    file_worker worker(std::make_unique<scripted>(all));
    request.ask(kind, data.data(), data.size(), file_granule);
    worker.submit(request);
    CHECK(worker.wait(request));
    CHECK(request.over);
  }

  std::vector<std::byte> data = std::vector<std::byte>(3 * file_granule);
  std::shared_ptr<script> all;
  file_request request;
};

constexpr std::size_t one = file_granule;

int in_memory() {
  const int made = ::memfd_create("tidepool test", MFD_CLOEXEC);
  REQUIRE(made >= 0);
  return made;
}

}  // namespace

TEST_CASE("backing file: what it has made room for is there to be read, and no more than that") {
  system_file file(in_memory());
  errno = EIO;  // of an earlier call
  CHECK(file.extend(0, 2 * one) == 0);
  errno = EIO;
  CHECK(file.extend(2 * one, one) == 0);
  std::vector<char> data(4 * one, 'x');
  errno = EIO;
  auto got = file.read(data.data(), 3 * one, 0);
  CHECK(got.bytes == 3 * one);
  CHECK(got.code == 0);
  CHECK(std::count(data.begin(), data.end(), '\0') == 3 * one);
  errno = EIO;
  got = file.read(data.data(), one, 3 * one);
  CHECK(got.bytes == 0);
  CHECK(got.code == 0);
}

TEST_CASE("backing file: the system says why there is no room, unless it can promise none") {
  system_file reads_only(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(reads_only.extend(0, one) == EBADF);
  std::vector<char> data(one);
  const auto got = reads_only.write(data.data(), one, 0);
  CHECK(got.bytes == 0);
  CHECK(got.code == EBADF);
  // Files of this kind have no such call.
  const int plain = ::open("/proc/self/comm", O_RDWR | O_CLOEXEC);
  REQUIRE(plain >= 0);
  REQUIRE(::fallocate(plain, 0, 0, 1) != 0);
  REQUIRE(errno == EOPNOTSUPP);
  system_file cannot_promise(plain);
  CHECK(cannot_promise.extend(0, one) == 0);
}

TEST_CASE("backing file: it is made in a process without a standard input as in any other") {
  const tidepool::test::without_standard_input gone;
  const auto before = tidepool::test::open_descriptors();
  {
    errno = EINVAL;  // of an earlier call
    const auto file = tidepool::open_backing_file(std::filesystem::temp_directory_path());
    struct stat found {};
    CHECK(::fstat(0, &found) == 0);
    CHECK(S_ISREG(found.st_mode));
    CHECK(tidepool::test::open_descriptors() == before + 1);
    CHECK(file->extend(0, one) == 0);
  }
  CHECK(tidepool::test::open_descriptors() == before);
}

TEST_CASE("backing file: a call waits two minutes for it at most") {
  const auto file = tidepool::open_backing_file(std::filesystem::temp_directory_path());
  CHECK(file->patience() == std::chrono::seconds(120));
}

TEST_CASE("file worker: what is done in part is asked for again from there, till it is done") {
  for (const auto kind : {file_request_kind::write, file_request_kind::read}) {
    const served by_granules({{one, 0}, {one, 0}}, kind);
    CHECK_FALSE(by_granules.request.failed());
    CHECK(by_granules.request.result.bytes == 3 * one);
    CHECK(by_granules.all->seen ==
          std::vector<scripted::asked>{{3 * one, one}, {2 * one, 2 * one}, {one, 3 * one}});
  }
  // From where a granule begins, and as often as a signal was in the way.
  const served in_the_midst({{0, EINTR}, {one + 100, 0}, {0, EINTR}});
  CHECK_FALSE(in_the_midst.request.failed());
  CHECK(in_the_midst.all->seen ==
        std::vector<scripted::asked>{
            {3 * one, one}, {3 * one, one}, {2 * one, 2 * one}, {2 * one, 2 * one}});
}

TEST_CASE("file worker: it stops at an error, and where nothing more is done, and says how far") {
  const served failed({{one, 0}, {one, EIO}});
  CHECK(failed.request.failed());
  CHECK(failed.request.result.code == EIO);
  CHECK(failed.request.result.bytes == 2 * one);
  CHECK(failed.all->seen.size() == 2);
  for (const std::size_t little : {std::size_t{0}, std::size_t{1}, one - 1}) {
    const served stuck({{one, 0}, {little, 0}});
    CHECK(stuck.request.failed());
    CHECK(stuck.request.result.code == 0);
    CHECK(stuck.request.result.bytes == one);
    CHECK(stuck.all->seen.size() == 2);
  }
}

TEST_CASE("file worker: a request that nobody has made is over, and has not failed") {
  file_worker worker(std::make_unique<scripted>(std::make_shared<script>()));
  const file_request none;
  CHECK(none.over);
  CHECK(worker.wait(none));
  CHECK_FALSE(none.failed());
}

TEST_CASE("file worker: its thread takes no signals, and the caller's are as they were") {
  const tidepool::test::threads_since here;
  const tidepool::test::blocking only(SIGUSR1);
  file_worker worker(std::make_unique<scripted>(std::make_shared<script>()));
  CHECK(blocked_signals() == std::vector{SIGUSR1});
  file_request request;
  request.ask(file_request_kind::extend, nullptr, one, 0);
  worker.submit(request);
  REQUIRE(worker.wait(request));  // by now it runs
  const auto fresh = here.fresh();
  REQUIRE(fresh.size() == 1);
  CHECK(tidepool::test::blocks_all_signals(fresh[0]));
}

TEST_CASE("file worker: where no thread can be had that is said, and the caller's signals stay") {
  const tidepool::test::blocking only(SIGUSR1);
  {
    const tidepool::test::without_threads none;
    CHECK_THROWS_AS(file_worker(std::make_unique<scripted>(std::make_shared<script>())),
                    std::system_error);
  }
  CHECK(blocked_signals() == std::vector{SIGUSR1});
}

TEST_CASE("file pages: bytes are rounded up to granules, as far as there are numbers") {
  constexpr auto most = std::numeric_limits<std::size_t>::max() / one * one;
  CHECK(in_granules(0) == 0);
  for (std::size_t bytes = 1; bytes <= one; ++bytes) CHECK(in_granules(bytes) == one);
  CHECK(in_granules(one + 1) == 2 * one);
  CHECK(in_granules(most - one + 1) == most);
  CHECK(in_granules(most) == most);
  CHECK(in_granules(most + 1) == most);
}

TEST_CASE("file pages: a full disk has no room, now or for this user; what is broken is an error") {
  const auto all = std::make_shared<script>();
  file_worker worker(std::make_unique<scripted>(all));
  file_pages room(worker, "/mnt/nvme", 4 * one);
  for (const int full : {ENOSPC, EDQUOT, EFBIG}) {
    all->code_of_extend = full;
    CHECK(room.try_allocate(one) == nullptr);
    CHECK(room.full() == tidepool::detail::in_words(full));
    CHECK(room.free_bytes() == 4 * one);
  }
  all->code_of_extend = EIO;
  try {
    static_cast<void>(room.try_allocate(one));
    FAIL("there is none");
  } catch (const tidepool::disk_error& problem) {
    CHECK(problem.code == EIO);
    CHECK(says(problem.what(), "the file in /mnt/nvme cannot grow by 4096 bytes"));
  }
  all->code_of_extend = 0;
  CHECK(room.offset_of(room.try_allocate(one)) == 0);
  CHECK(room.offset_of(room.try_allocate(2 * one)) == one);
  CHECK(room.full().empty());
  CHECK(room.free_bytes() == one);
}
