// A file as a place: what it holds comes back, what fails is said, and nothing is lost.
#include "tidepool/places/file.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "disk.hpp"
#include "messages.hpp"
#include "program.hpp"
#include "rig.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/error.hpp"

namespace {

namespace fs = std::filesystem;
using tidepool::disk_error;
using tidepool::join_site;
using tidepool::machine;
using tidepool::memory_kind;
using tidepool::options;
using tidepool::place_kind;
using tidepool::test::arena_options;
using tidepool::test::disk;
using tidepool::test::disk_call;
using tidepool::test::disk_fault;
using tidepool::test::program;
using tidepool::test::rig;
using tidepool::test::run;
using tidepool::test::run_resident;
using tidepool::test::says;
using tidepool::test::small_options;

// Says nothing of modules that a test does not use.
struct offloader : rig::offloader<tidepool::modules<"fc1", "core_attn">> {
  offloader(rig::device_type& dev, const options& opts)
      : rig::offloader<tidepool::modules<"fc1", "core_attn">>(dev, opts,
                                                              {.file = tidepool::file_place()}) {
    on_report([](std::string_view) {});
  }
};

constexpr std::size_t size = 6000;  // two slots of the smallest ring
constexpr std::size_t in_file = 8192;

// On a ring of two slots, so that all goes through the file.
options with_file(options opts, std::size_t budget = std::size_t{8} << 20) {
  opts.places = {place_kind::file};
  opts.file_path = fs::temp_directory_path();
  opts.file_budget = budget;
  opts.file_ring = 8192;
  opts.reload_ahead = 1;
  return opts;
}

const tidepool::trace::place_counters& at(const tidepool::trace::counters& totals,
                                          std::string_view name) {
  const auto found = std::ranges::find(totals.places, name, &tidepool::trace::place_counters::name);
  REQUIRE(found != totals.places.end());
  return *found;
}

struct desk : rig {
  explicit desk(const machine& model = {}) : rig(model) { dev.on_disk = files; }
  std::shared_ptr<disk> files = std::make_shared<disk>();
};

template <class Call>
std::string words_of(const Call& call, int* code = nullptr) {
  try {
    call();
  } catch (const disk_error& problem) {
    if (code != nullptr) *code = problem.code;
    return problem.what();
  } catch (const tidepool::error& problem) {
    return std::string("another error: ") + problem.what();
  }
  return {};
}

// No two passes write the same.
std::uint32_t passes = 0;

// A tensor for each of some layers; a call that throws `disk_error` is made again where asked to.
struct pass {
  rig& at;
  offloader::chunk chunk;
  int tries = 1;
  std::vector<rig::buffer> saved{};
  std::vector<std::string> said{};
  std::vector<int> codes{};
  std::uint32_t tag = 1000 * ++passes;

  template <class Call>
  void call(const Call& what) {
    for (int i = 1;; ++i) {
      try {
        return what();
      } catch (const disk_error& problem) {
        said.emplace_back(problem.what());
        codes.push_back(problem.code);
        if (i == tries) throw;
      }
    }
  }
  void forward(offloader& off, int layers, bool ends = true) {
    for (int layer = 0; layer < layers; ++layer) {
      auto& x = saved.emplace_back(off.allocate(size, at.stream()));
      at.write(x, tag + static_cast<std::uint32_t>(layer));
      call([&] { chunk.commit<"fc1">(layer, at.stream(), x); });
    }
    if (ends) chunk.end_forward();
  }
  void backward() {
    for (auto layer = static_cast<int>(saved.size()); layer-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(layer)];
      call([&] { chunk.restore<"fc1">(layer, at.stream(), x); });
      at.check(x, tag + static_cast<std::uint32_t>(layer));
      x.reset(at.stream());
    }
    chunk.finish();
  }
};

void step(rig& at, offloader& off, int layers = 8) {
  pass work{at, off.begin()};
  work.forward(off, layers);
  work.backward();
  off.end_step();
}

// A folder of the test's own, empty.
struct folder {
  folder() : path(fs::temp_directory_path() / ("tidepool_test." + std::to_string(::getpid()))) {
    fs::remove_all(path);
    fs::create_directory(path);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() {
    std::error_code ignored;
    fs::permissions(path, fs::perms::owner_all, ignored);
    fs::remove_all(path, ignored);
  }
  [[nodiscard]] std::string operator/(const char* name) const { return path / name; }
  fs::path path;
};

}  // namespace

TEST_CASE("file: bits are equal over 40 orders, alone and behind others, in each kind of memory") {
  constexpr memory_kind every_kind[]{memory_kind::pool, memory_kind::arena, memory_kind::slots};
  std::uint64_t through_file = 0;
  std::uint64_t through_host = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    program plan;
    plan.file = tidepool::file_place();
    plan.seed = plan.model.order_seed = static_cast<std::uint64_t>(seed);
    plan.depth = 1 + seed % 4;
    plan.tensors = 1 + seed % 3;
    plan.shares = seed % 2 == 0;
    plan.two_streams = seed % 3 == 0;
    plan.shuffled = seed % 5 == 0;
    plan.largest = seed % 7 == 0 ? 20'000 : 3000;
    const auto resident = run_resident(plan);
    for (const auto kind : every_kind) {
      CAPTURE(static_cast<int>(kind));
      plan.opts = with_file(small_options());
      plan.opts.host_step = 1024;
      if (seed % 4 != 0) {
        plan.opts.places.insert(plan.opts.places.begin(), place_kind::host);
        plan.opts.host_budget = 1024U * (1U + static_cast<unsigned>(seed) % 9U);
      }
      if (seed % 4 == 1) {
        plan.opts.places.insert(plan.opts.places.begin(), place_kind::peer);
        plan.opts.peer_budget = 4096;
      }
      plan.opts.file_ring = 8192U * (1U + static_cast<unsigned>(seed) % 3U);
      plan.opts.reload_ahead = static_cast<std::size_t>(seed) % 3;
      plan.opts.memory = kind;
      if (seed % 4 == 0) plan.opts.max_inflight = static_cast<std::size_t>(seed % 3);
      if (kind == memory_kind::arena) plan.opts.device_budget = std::size_t{512} * 1024;
      if (kind == memory_kind::slots) plan.opts.slots = {{1024, 60}, {20'096, 160}};
      const auto seen = run(plan);
      CHECK(seen.wrong == 0);
      CHECK(seen.weights == resident.weights);
      through_file += at(seen.counters, "file").bytes_reloaded;
      if (seed % 4 != 0) through_host += at(seen.counters, "host").bytes_reloaded;
    }
  }
  CHECK(through_file > 100'000);
  CHECK(through_host > 100'000);
}

TEST_CASE("file: one program does the same in every run, in each order") {
  for (std::uint64_t seed = 0; seed <= 4; ++seed) {
    CAPTURE(seed);
    program plan;
    plan.file = tidepool::file_place();
    plan.model.order_seed = seed;
    plan.opts = with_file(small_options());
    const auto once = run(plan);
    const auto again = run(plan);
    CHECK(once.wrong == 0);
    CHECK(once.counters == again.counters);
    CHECK(once.clock_ns == again.clock_ns);
  }
}

TEST_CASE(
    "file: a slot is written only after the copy into it, and read into only after that out") {
  const auto wrong_orders = [](std::vector<join_site> left_out) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed <= 10; ++seed) {
      program plan;
      plan.file = tidepool::file_place();
      plan.model.order_seed = plan.seed = seed;
      plan.opts = with_file(small_options());
      plan.left_out = left_out;
      wrong += run(plan).wrong > 0 ? 1 : 0;
    }
    return wrong;
  };
  CHECK(wrong_orders({}) == 0);
  CHECK(wrong_orders({join_site::file_write}) == 11);
  CHECK(wrong_orders({join_site::file_reuse}) > 0);
  CHECK(wrong_orders({join_site::own_offload}) > 0);
}

TEST_CASE("file: a slot is filled again only after it was written") {
  desk there;
  offloader off(there.dev, with_file(small_options()));
  there.files->patience = std::chrono::milliseconds(50);
  there.files->hold(true);
  pass work{there, off.begin()};
  int code = 0;
  const auto text = words_of([&] { work.forward(off, 2); }, &code);
  CHECK(code == ETIMEDOUT);
  CHECK(says(text, "does not answer"));
  CHECK(says(text, "Nothing is lost: make the call again once the disk answers"));
  there.files->hold(false);
  work.chunk.commit<"fc1">(1, there.stream(), work.saved[1]);
  work.chunk.end_forward();
  work.backward();
  off.end_step();
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: a read that takes too long is said by the restore, which may be made again") {
  desk there;
  auto opts = with_file(small_options());
  opts.reload_ahead = 0;
  offloader off(there.dev, opts);
  pass work{there, off.begin()};
  work.forward(off, 6);
  there.files->patience = std::chrono::milliseconds(50);
  for (auto layer = 5; layer >= 0; --layer) {
    auto& x = work.saved[static_cast<std::size_t>(layer)];
    if (layer == 2) {
      there.files->hold(true);
      int code = 0;
      words_of([&] { work.chunk.restore<"fc1">(layer, there.stream(), x); }, &code);
      CHECK(code == ETIMEDOUT);
      CHECK(!x);
      there.files->hold(false);
    }
    work.chunk.restore<"fc1">(layer, there.stream(), x);
    there.check(x, work.tag + static_cast<std::uint32_t>(layer));
    x.reset(there.stream());
  }
  work.chunk.finish();
  off.end_step();
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: of host memory only the ring is taken, of the disk only the budget") {
  // Nothing beside the ring fits the host.
  desk there(machine{.host_bytes = 8192 + 4096});
  auto opts = with_file(small_options(), 20 * in_file);
  opts.places = {place_kind::host, place_kind::file};
  opts.host_step = 1024;
  opts.host_budget = 1024;
  {
    offloader off(there.dev, opts);
    CHECK(there.dev.host_held == 0);
    for (int i = 0; i < 5; ++i) step(there, off, 20);
    CHECK(there.wrong() == 0);
    CHECK(there.dev.host_held == 1);
    CHECK(at(off.counters(), "host").bytes_offloaded == 0);
    CHECK(at(off.counters(), "file").bytes_offloaded == 5 * 20 * size);
    CHECK(at(off.counters(), "file").peak == 20 * in_file);
    CHECK(there.files->most() == 20 * in_file);
    pass work{there, off.begin()};
    work.forward(off, 20, false);
    auto extra = off.allocate(size, there.stream());
    there.write(extra, 99);
    try {
      work.chunk.commit<"core_attn">(0, there.stream(), extra);
      FAIL("there is no room");
    } catch (const tidepool::out_of_budget& problem) {
      CHECK(
          says(problem.what(), "0 bytes of 1024 bytes and 160 KiB of 160 KiB of file are in use"));
      CHECK(says(problem.what(), "Raise --host-budget to "));
      CHECK(says(problem.what(), " or more or --file-budget to "));
    }
    there.check(extra, 99);
    extra.reset(there.stream());
  }
  CHECK(there.dev.host_held == 0);
  CHECK(there.files->open_files() == 0);
}

TEST_CASE("file: after the first step nothing more is asked of device and disk than copies") {
  desk there;
  offloader off(there.dev, with_file(small_options()));
  step(there, off);
  const auto counts = [&] {
    return std::vector{there.dev.host_allocations, there.dev.device_allocations,
                       there.dev.events_made, there.dev.streams_made,
                       there.files->calls(disk_call::extend)};
  };
  const auto before = counts();
  for (int i = 0; i < 4; ++i) step(there, off);
  CHECK(counts() == before);
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: a full disk sends groups to the next place, or is refused by name") {
  for (const bool next : {false, true}) {
    CAPTURE(next);
    desk there;
    there.files->room = 4 * in_file;
    auto opts = with_file(small_options());
    opts.host_step = 2 * in_file;
    if (next) opts.places.push_back(place_kind::host);
    offloader off(there.dev, opts);
    pass work{there, off.begin()};
    if (next) {
      work.forward(off, 10);
      work.backward();
      off.end_step();
      CHECK(at(off.counters(), "file").bytes_offloaded == 4 * size);
      CHECK(at(off.counters(), "host").bytes_offloaded == 6 * size);
      CHECK(there.wrong() == 0);
      continue;
    }
    std::string text;
    try {
      work.forward(off, 10);
    } catch (const tidepool::out_of_budget& problem) {
      text = problem.what();
    }
    CHECK(says(text, "commit of fc1 of layer 4"));
    CHECK(says(text, "No space left on device (28)"));
    CHECK(says(text, "free room on the disk of " + opts.file_path));
    there.check(work.saved.back(), work.tag + 4);  // nothing is lost
    there.files->room *= 4;
    work.chunk.commit<"fc1">(4, there.stream(), work.saved.back());
    work.chunk.end_forward();
    work.backward();
    off.end_step();
    step(there, off, 10);
    CHECK(there.wrong() == 0);
  }
}

TEST_CASE("file: every call of the disk fails in turn, in each way, and nothing is lost") {
  struct way {
    int code;
    std::size_t bytes;
  };
  constexpr way ways[]{{EIO, 0}, {ENOSPC, 0}, {EDQUOT, 0}, {EIO, 100}, {0, 0}, {0, 100}};
  std::size_t told = 0;
  std::size_t mended = 0;
  for (const auto kind : {disk_call::write, disk_call::read, disk_call::extend}) {
    desk clean;
    offloader first(clean.dev, with_file(small_options()));
    step(clean, first);
    const auto calls = clean.files->calls(kind);
    REQUIRE(calls > 1);
    for (std::uint64_t index = 1; index <= calls; ++index) {
      for (const auto& each : ways) {
        // What fails once is often mended by the second try that it is given; three times never.
        for (const std::uint64_t times : {1U, 3U}) {
          if (kind == disk_call::extend && each.code != EIO) continue;
          CAPTURE(static_cast<int>(kind));
          CAPTURE(index);
          CAPTURE(each.code);
          CAPTURE(times);
          desk there(machine{.order_seed = index});
          offloader off(there.dev, with_file(small_options()));
          there.files->arm({kind, index, times, each.code, each.bytes});
          pass work{there, off.begin(), 5};
          work.forward(off, 8);
          work.backward();
          off.end_step();
          CHECK(there.files->tripped());
          told += work.said.size();
          mended += work.said.empty() ? 1 : 0;
          const bool full = each.code == ENOSPC || each.code == EDQUOT;
          for (const auto& text : work.said) {
            CHECK(says(text, "Nothing is lost"));
            if (kind != disk_call::extend) CHECK(says(text, "free room on the disk") == full);
          }
          for (const auto code : work.codes) CHECK(code == each.code);
          step(there, off);
          CHECK(there.wrong() == 0);
        }
      }
    }
  }
  CHECK(told > 100);
  CHECK(mended > 100);
}

TEST_CASE("file: a pass that is given up for a broken disk leaves the next step as it should be") {
  for (const auto kind : {disk_call::write, disk_call::read, disk_call::extend}) {
    for (std::uint64_t index = 1; index <= 4; ++index) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(index);
      desk there(machine{.order_seed = index});
      offloader off(there.dev, with_file(small_options()));
      there.files->arm({kind, index, 1000});
      std::string text;
      {
        pass work{there, off.begin()};
        text = words_of([&] {
          work.forward(off, 8);
          work.backward();
        });
      }
      CHECK(says(text, "could be written: Input/output error (5)") == (kind == disk_call::write));
      CHECK(says(text, "could be read: Input/output error (5)") == (kind == disk_call::read));
      CHECK(says(text, "cannot grow by") == (kind == disk_call::extend));
      CHECK(says(text, "give --places=host"));
      off.end_step();
      there.files->disarm();
      for (int i = 0; i < 2; ++i) step(there, off);
      CHECK(there.wrong() == 0);
    }
  }
}

TEST_CASE("file: what could not be written comes back from where it is") {
  desk there;
  auto opts = with_file(small_options());
  opts.file_ring = 16 * 8192;
  offloader off(there.dev, opts);
  there.files->arm({disk_call::write, 1, 1000});
  pass work{there, off.begin()};
  work.forward(off, 16);
  // All copies are over, so that all is given to the disk, and refused.
  there.dev.synchronize();
  work.backward();
  off.end_step();
  CHECK(work.said.empty());
  // The first to come back was not wanted any more when the others were given to the disk.
  for (int i = 0; i < 1000 && there.files->calls(disk_call::write) < 15; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(there.files->calls(disk_call::write) == 15);
  CHECK(there.files->calls(disk_call::read) == 0);
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: a slot tells no block of what its bytes were before") {
  desk there;
  auto opts = with_file(small_options());
  opts.file_ring = 16 * 8192;
  offloader off(there.dev, opts);
  for (int i = 1; i < 12; ++i) step(there, off, 1 + i % 3);
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: a slot is read into only after a copy into it that nobody wants any more") {
  desk there;
  auto opts = with_file(small_options());
  opts.reload_ahead = 0;
  offloader off(there.dev, opts);
  pass work{there, off.begin()};
  work.forward(off, 4);
  there.dev.synchronize();
  {
    pass gone{there, off.begin()};
    gone.forward(off, 1);
  }
  for (const int layer : {0, 1, 2, 3}) {
    auto& x = work.saved[static_cast<std::size_t>(layer)];
    work.chunk.restore<"fc1">(layer, there.stream(), x);
    there.check(x, work.tag + static_cast<std::uint32_t>(layer));
    x.reset(there.stream());
  }
  work.chunk.finish();
  off.end_step();
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: what was given up is not written, nor does anybody hear of it") {
  desk there;
  offloader off(there.dev, with_file(small_options()));
  pass gone{there, off.begin()};
  gone.forward(off, 1);
  gone.saved.clear();
  gone.chunk = {};
  off.end_step();
  CHECK(there.files->calls(disk_call::write) == 0);
  step(there, off);
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: a rectangle is cut where slots end") {
  for (const std::size_t width : {64U, 1000U, 5000U, 9000U}) {
    for (std::uint64_t seed = 0; seed <= 5; ++seed) {
      CAPTURE(width);
      CAPTURE(seed);
      desk there(machine{.order_seed = seed});
      offloader off(there.dev, with_file(small_options()));
      constexpr std::size_t rows = 9;
      const auto pitch = width + 120;
      auto chunk = off.begin();
      auto x = off.allocate(pitch * rows, there.stream());
      there.write(x, 7);
      auto part = x.view({.offset = 40, .width = width, .rows = rows - 1, .pitch = pitch});
      chunk.commit<"fc1">(0, there.stream(), part);
      x.reset(there.stream());
      pass more{there, off.begin()};
      more.forward(off, 4);
      more.backward();
      chunk.end_forward();
      chunk.restore<"fc1">(0, there.stream(), part);
      there.check(part, 7, 40, pitch);
      part.reset(there.stream());
      chunk.finish();
      off.end_step();
      CHECK(there.wrong() == 0);
      CHECK(there.files->calls(disk_call::read) > 0);
    }
  }
}

TEST_CASE("file: a capture is refused, since no graph can ask the host to read") {
  desk there;
  offloader off(there.dev, with_file(small_options()));
  step(there, off);
  step(there, off);
  CHECK_THROWS_AS(static_cast<void>(off.capture(there.stream(), [&] { step(there, off); })),
                  tidepool::misuse_error);
  step(there, off);
  CHECK(there.wrong() == 0);
}

TEST_CASE("file: state on the host stays there") {
  desk there;
  offloader off(there.dev, with_file(small_options()));
  auto state = off.state_on_host(size, "moments");
  auto x = state.create(there.stream());
  there.write(x, 5);
  state.write_back(x, there.stream());
  step(there, off);
  x = state.fetch(there.stream());
  there.check(x, 5);
  x.reset(there.stream());
  CHECK(there.wrong() == 0);
  CHECK(at(off.counters(), "file").bytes_offloaded == 8 * size);
}

TEST_CASE("file: the system's is made in a directory or under a new name, and leaves no name") {
  const folder own;
  for (const std::string& path : {own.path.string(), own / "new"}) {
    CAPTURE(path);
    rig there;
    auto opts = with_file(small_options());
    opts.file_path = path;
    {
      offloader off(there.dev, opts);
      offloader other(there.dev, opts);
      CHECK(fs::is_empty(own.path));
      step(there, off);
      step(there, other);
      CHECK(there.wrong() == 0);
    }
    CHECK(fs::is_empty(own.path));
  }
}

TEST_CASE("file: one that cannot be made is refused by its name, with the remedy") {
  const folder own;
  const auto refusal = [&](const std::string& path, int& code) {
    rig there;
    auto opts = with_file(small_options());
    opts.file_path = path;
    auto text = words_of([&] { offloader off(there.dev, opts); }, &code);
    CHECK(there.dev.host_held == 0);
    return text;
  };
  int code = 0;
  auto text = refusal(own / "no/such/folder", code);
  CHECK(code == ENOENT);
  CHECK(says(text, "the file " + (own / "no/such/folder") + " cannot be made: No such file"));
  CHECK(says(text, "name a directory that may be written to"));

  std::ofstream(own / "mine") << "a trainer's own";
  text = refusal(own / "mine", code);
  CHECK(code == EEXIST);
  CHECK(says(text, "a file that is there is not overwritten"));
  CHECK(fs::file_size(own / "mine") == 15);

  tidepool::null_device none;
  tidepool::offloader<tidepool::null_device, tidepool::modules<"fc1">> off(
      none, with_file(small_options()), {.file = tidepool::file_place()});
}

TEST_CASE("file: without the way to it the error names the include and the constructor") {
  rig there;
  const auto opts = with_file(small_options());
  const auto text =
      words_of([&] { const rig::offloader<tidepool::modules<"fc1">> off(there.dev, opts); });
  CHECK(says(text, "another error: tidepool: places: a file needs the way to it"));
  CHECK(says(text, "#include <tidepool/places/file.hpp>"));
  CHECK(says(text, "offloader(dev, opts, {.file = tidepool::file_place()})"));
  CHECK(says(text, "or take the file out of --places"));
}

TEST_CASE("file: trace, summary and streams have it apart") {
  desk there;
  auto opts = with_file(small_options());
  opts.places = {place_kind::peer, place_kind::host, place_kind::file};
  opts.peer_budget = opts.host_budget = 6144;
  opts.host_step = 1024;
  offloader off(there.dev, opts);
  off.start_trace("step", there.stream());
  step(there, off);
  const auto record = off.finish_trace();
  CHECK(record.lanes == std::vector<std::string>{"offload", "reload", "offload peer", "reload peer",
                                                 "offload file", "reload file", "compute 0"});
  CHECK(at(off.counters(), "file").bytes_offloaded == 6 * size);
  CHECK(there.wrong() == 0);
}
