// The bodies of rows.hpp: counts of rows on their way from the device to the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tidepool/core/rollback.hpp"
#include "tidepool/core/room.hpp"
#include "tidepool/rows.hpp"

namespace tidepool::inline v0_3_0::detail {

// A commit copies its counts twice: on its own stream into room of ours on the device, so that the
// trainer may write the next count at once, and from there to the host, behind the tensors. A copy
// to the host on the trainer's stream would make that stream wait for offloads before it.
//
// No room is used again before the host has read it. The host reads when it is asked, or when the
// next step begins, and waits then for the copies.
class row_counts final : public row_counter {
 public:
  explicit row_counts(engine& owner)
      : of_(owner),
        device_pages_(owner.device().device_pages()),
        host_pages_(owner.device().host_pages({})) {
    grow();
  }
  ~row_counts() override {
    for (const auto lane : of_.memory().copy_lanes()) of_.memory().settle(lane);
    for (const auto& each : pages_) {
      device_pages_->deallocate(each.device);
      host_pages_->deallocate(each.host);
    }
  }

  // The counter of `owner`; the first call makes it.
  [[nodiscard]] static row_counts& of(engine& owner) {
    auto& counter = owner.rows();
    if (counter == nullptr) counter = std::make_unique<row_counts>(owner);
    return static_cast<row_counts&>(*counter);
  }

  void declare(const storage& store, const device_count& count) {
    declared_.insert_or_assign(&store, count);
  }

  std::size_t count(const chunk_state& in, const group& which, const saved* items) override;
  void take_back(std::size_t latest) noexcept override;
  void step_ended() noexcept override { (capturing() ? captured_->ends_step : due_) = true; }
  void expect_asked(const char* call) override {
    if (!due_ || capturing()) return;
    if (auto over = read()) throw unasked_overflow(call, std::move(*over));
  }

  void begin_capture() override;
  shared_rows end_capture(bool kept) noexcept override;
  void before_launch(const shared_rows& of) override {
    make_room(launched_, launched_.size() + 1);
    expect_asked("launch");
    // Another launch would write over counts that were not read, as of another microbatch.
    if (std::ranges::find(launched_, of) == launched_.end()) return;
    collect();
    expect_asked("launch");
  }
  void launched(const shared_rows& of) override {
    if (of == nullptr) return;
    if (!of->claims.empty()) launched_.push_back(of);
    due_ = due_ || of->ends_step;
  }

  // Waits for all counts so far, and returns the one that is furthest beyond its plan.
  [[nodiscard]] std::optional<row_overflow> read();

 private:
  using claims = std::vector<row_claim>;
  static constexpr std::size_t room_bytes = sizeof(std::uint64_t);
  static constexpr std::uint32_t rooms_of_page = 4096;
  // Counts that are read before anybody must ask, where no step is ever ended.
  static constexpr std::size_t most_unasked = std::size_t{16} * rooms_of_page;
  // The plan of a claim whose commit failed.
  static constexpr auto of_no_commit = std::numeric_limits<std::uint64_t>::max();

  struct page {
    std::byte* device;
    std::byte* host;
  };

  [[nodiscard]] bool capturing() const { return of_.order().capturing(); }
  void grow();
  [[nodiscard]] std::uint32_t take_room();
  void claim(claims& into, std::size_t first, const chunk_state& in, const group& which,
             const saved& item);
  void release(const claims& done) noexcept {
    for (const auto& each : done) read_.push_back(each.room);  // has room for all
  }
  [[nodiscard]] std::byte* on_host(std::uint32_t room) const {
    return pages_[room / rooms_of_page].host + room % rooms_of_page * room_bytes;
  }
  [[nodiscard]] std::byte* on_device(std::uint32_t room) const {
    return pages_[room / rooms_of_page].device + room % rooms_of_page * room_bytes;
  }
  // Waits for all counts so far, and keeps the worst of them until it is told.
  void collect();
  void look(const claims& at);

  engine& of_;
  std::unique_ptr<page_allocator> device_pages_;
  std::unique_ptr<page_allocator> host_pages_;
  std::vector<page> pages_;
  // Room that is free. `read_` is taken last, so that room is used again as late as may be.
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> read_;
  std::unordered_map<const storage*, device_count> declared_;  // where `is.counted`
  claims eager_;                                               // not read yet
  std::shared_ptr<graph_rows> captured_;                       // of the capture under way
  std::vector<shared_rows> launched_;                          // not read yet
  std::vector<shared_rows> graphs_;                            // all, until they are gone
  std::optional<row_overflow> untold_;                         // of counts that were read
  std::size_t unasked_ = 0;                                    // counts since the latest question
  bool due_ = false;                                           // a step is over, and nobody asked
};

TIDEPOOL_INLINE void row_counts::grow() {
  constexpr auto bytes = rooms_of_page * room_bytes;
  pages_.reserve(pages_.size() + 1);
  const auto rooms = (pages_.size() + 1) * rooms_of_page;
  for (auto* list : {&free_, &read_}) list->reserve(rooms);
  auto* const device = device_pages_->try_allocate(bytes);
  auto* const host = device == nullptr ? nullptr : host_pages_->try_allocate(bytes);
  if (host == nullptr) {
    if (device != nullptr) device_pages_->deallocate(device);
    throw out_of_budget("counts_rows: no memory for the counts on the device and the host", bytes,
                        0);
  }
  pages_.push_back({static_cast<std::byte*>(device), static_cast<std::byte*>(host)});
  for (auto room = rooms; room-- > rooms - rooms_of_page;) {
    free_.push_back(static_cast<std::uint32_t>(room));
  }
}

TIDEPOOL_INLINE std::uint32_t row_counts::take_room() {
  if (free_.empty()) std::swap(free_, read_);
  if (free_.empty() && capturing()) {
    throw misuse_error("commit: a capture holds at most " + std::to_string(rooms_of_page / 2) +
                       " counts of rows; share counts, or capture the step in parts");
  }
  if (free_.empty()) grow();
  const auto room = free_.back();
  free_.pop_back();
  return room;
}

TIDEPOOL_INLINE std::size_t row_counts::count(const chunk_state& in, const group& which,
                                              const saved* items) {
  if (!capturing() && eager_.size() >= rooms_of_page) {  // a large step, or none was ever ended
    collect();
    expect_asked("commit");
  }
  auto& dev = of_.device();
  auto& into = capturing() ? captured_->claims : eager_;
  const auto before = into.size();
  const auto out = of_.memory().offload_lane(which.place);
  rollback uncounted([&]() noexcept {
    for (const auto lane : {which.lane, out}) {
      if (!capturing()) of_.memory().settle(lane);
    }
    take_back(into.size() - before);
  });
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].copies && items[i].store->is.counted) claim(into, before, in, which, items[i]);
  }
  // The copies to the host, which the host waits for before it reads.
  if (into.size() > before) of_.order().hand_on(which.lane, out, join_site::producer);
  for (auto i = before; i < into.size(); ++i) {
    const copy_shape one{into[i].width, 1, into[i].width, into[i].width};
    dev.copy(on_host(into[i].room), on_device(into[i].room), one, copy_direction::device_to_host,
             out);
  }
  uncounted.keep();
  return into.size() - before;
}

// The caller settles its lanes. A capture cannot take recorded copies back, so that their room
// stays taken.
TIDEPOOL_INLINE void row_counts::take_back(std::size_t latest) noexcept {
  for (; latest > 0; --latest) {
    if (capturing()) {
      captured_->claims.rbegin()[static_cast<std::ptrdiff_t>(latest) - 1].planned = of_no_commit;
    } else {
      read_.push_back(eager_.back().room);
      eager_.pop_back();
    }
  }
}

// Copies the count of one tensor into room on the device, unless another tensor of the group has
// the same count.
TIDEPOOL_INLINE void row_counts::claim(claims& into, std::size_t first, const chunk_state& in,
                                       const group& which, const saved& item) {
  const std::uint64_t planned = item.store->part.what.rows;
  const auto count = declared_.at(item.store);
  for (auto i = first; i < into.size(); ++i) {
    if (into[i].count != count.at() || into[i].width != count.width()) continue;
    into[i].planned = std::min(into[i].planned, planned);
    return;
  }
  make_room(into, into.size() + 1);
  into.push_back({planned, take_room(), count.width(), count.at(), which.module, which.layer,
                  in.info.microbatch});
  of_.device().copy(on_device(into.back().room), count.at(),
                    {count.width(), 1, count.width(), count.width()},
                    copy_direction::peer_to_device, which.lane);
}

TIDEPOOL_INLINE void row_counts::begin_capture() {
  expect_asked("capture");
  std::erase_if(graphs_, [&](const shared_rows& each) {
    if (each.use_count() > 1) return false;
    release(each->claims);
    return true;
  });
  make_room(graphs_, graphs_.size() + 1);
  if (free_.size() + read_.size() < rooms_of_page / 2) grow();
  captured_ = std::make_shared<graph_rows>();
}

TIDEPOOL_INLINE shared_rows row_counts::end_capture(bool kept) noexcept {
  if (captured_ == nullptr) return {};  // the capture was refused before it began
  shared_rows done = std::exchange(captured_, nullptr);
  if (kept) {
    graphs_.push_back(done);
  } else {
    release(done->claims);  // its work never runs
  }
  return done;
}

TIDEPOOL_INLINE std::optional<row_overflow> row_counts::read() {
  if (capturing()) {
    throw misuse_error(
        "rows_overflowed: a capture is under way, and nothing of it has run; ask after a launch");
  }
  collect();
  due_ = false;
  unasked_ = 0;
  return std::exchange(untold_, std::nullopt);
}

TIDEPOOL_INLINE void row_counts::collect() {
  if (!launched_.empty()) of_.meet_graphs();
  auto& dev = of_.device();
  for (const auto kind : {place_kind::host, place_kind::peer, place_kind::file}) {
    if ((eager_.empty() && launched_.empty()) || !of_.memory().has(kind)) continue;
    if (dev.can().drops_joins && dev.leaves_out(join_site::row_count)) continue;
    dev.synchronize(of_.memory().offload_lane(kind));
  }
  look(eager_);
  unasked_ += eager_.size();
  for (const auto& each : launched_) {
    look(each->claims);
    unasked_ += each->claims.size();
  }
  due_ = due_ || unasked_ >= most_unasked;
  release(eager_);
  eager_.clear();
  launched_.clear();
}

TIDEPOOL_INLINE void row_counts::look(const claims& at) {
  if (!of_.device().can().moves_bytes) return;
  for (const auto& each : at) {
    of_.device().host_reads(on_host(each.room), each.width, "a count of rows");
    std::uint64_t rows = 0;
    std::memcpy(&rows, on_host(each.room), each.width);  // little-endian, as packed records are
    const auto module = static_cast<std::size_t>(each.module);
    if (each.planned == of_no_commit) continue;
    auto& most = of_.counters_.modules[module].most_rows;
    most = std::max(most, rows);
    if (rows <= each.planned) continue;
    if (untold_ && rows - each.planned <= untold_->rows - untold_->planned) continue;
    untold_ = {of_.names()[module], each.layer, each.microbatch, rows, each.planned};
  }
}

[[gnu::cold]] TIDEPOOL_INLINE void count_rows(engine& of, storage& store, const counted_rows& how) {
  const auto refuse = [](const std::string& why) { throw misuse_error("counts_rows: " + why); };
  if (store.is.of_host_state) refuse("the buffer belongs to a host_state, which moves as a whole");
  if (store.saves > 0) {
    refuse("the buffer is saved already; say how many rows are valid before its first commit");
  }
  if (how.count.at() == nullptr) refuse("the count has no address; give one on the device");
  if (store.bytes == 0) return;  // it has no rows
  if (how.planned_rows == 0 || how.row_bytes == 0 ||
      how.planned_rows > store.bytes / how.row_bytes) {
    refuse(std::to_string(how.planned_rows) + " planned rows of " + std::to_string(how.row_bytes) +
           " bytes, in a buffer of " + std::to_string(store.bytes) +
           " bytes; plan for at least one row, and for no more than it holds");
  }
  if (of.rows() == nullptr && of.order().capturing()) {
    refuse(
        "its first use lies in a capture, which cannot make room for counts; run the step once"
        " without capture");
  }
  row_counts::of(of).declare(store, how.count);
  store.part = {0, {0, how.row_bytes, how.planned_rows, how.row_bytes}, nullptr};
  store.is.counted = true;
}

TIDEPOOL_INLINE std::optional<row_overflow> overflowed_rows(engine& of) {
  return of.rows() == nullptr ? std::nullopt : row_counts::of(of).read();
}

}  // namespace tidepool::detail

namespace tidepool::inline v0_3_0 {

[[gnu::cold]] TIDEPOOL_INLINE unasked_overflow::unasked_overflow(const std::string& call,
                                                                 row_overflow of)
    : error(detail::signed_message(
          call + ": a step before this moved fewer rows than it had, and nobody asked: " +
          of.module + " of layer " + std::to_string(of.layer) + ", microbatch " +
          std::to_string(of.microbatch) + " had " + std::to_string(of.rows) + " rows where " +
          std::to_string(of.planned) +
          " were planned. Go back to a state from before that step, ask rows_overflowed() after"
          " each step before its gradients are used, and repeat a step that overflowed with more"
          " planned_rows")),
      where(std::move(of)) {}

}  // namespace tidepool
