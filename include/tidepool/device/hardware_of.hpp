// Implements the virtual calls of `hardware` with those of a device. Only this part of the engine
// knows the type of the device, and the abilities of the type.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/device/allocators.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/device/hardware_traits.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

// `Device` is the type of the trainer's object, because functions that hide those of a base, as in
// `checked_device`, must be called.
template <device Device>
class hardware_of final : public hardware {
  using stream_ref = typename Device::stream_ref;

 public:
  // `dev` must outlive this object.
  explicit hardware_of(Device& dev)
      : hardware(Device::name,
                 {.fills = filling_device<Device>,
                  .captures = capturing_device<Device>,
                  .tells_what_is_over = detail::tells_what_is_over<Device>,
                  .checks_order = order_checking_device<Device>,
                  .poisons = poisoning_device<Device>,
                  .drops_joins = join_dropping_device<Device>,
                  .logs_kernels = kernel_logging_device<Device>,
                  .simulates_time = simulating_device<Device>,
                  .moves_bytes = moves_bytes(dev),
                  .host_works = host_executing_device<Device>,
                  .packs_from = packs_from(dev),
                  .pack_piece = pack_piece(dev),
                  .pack_rate = pack_rate(dev),
                  .unpack_rate = unpack_rate(dev)},
                 &type_of_device<Device>),
        dev_(&dev) {}

  [[nodiscard]] Device& device() const { return *dev_; }

  // The lane of a stream among the first `count`; `count` if the stream has no lane there.
  [[nodiscard]] std::size_t find(const stream_ref& stream, std::size_t count,
                                 bool in_capture) const {
    if constexpr (std::equality_comparable<stream_ref>) {
      // Streams are compared, because a question for the key of a stream under capture would end
      // the capture.
      for (std::size_t i = 0; in_capture && i < count; ++i) {
        if (lanes_[i].stream == stream) return i;
      }
    }
    const auto key = key_of(stream, in_capture);
    for (std::size_t i = 0; i < count; ++i) {
      if (lanes_[i].key == key) return i;
    }
    return count;
  }

  void open(lane_id lane, const void* stream, bool in_capture) override {
    const auto& named = ref(stream);
    lane_state fresh{named, key_of(named, in_capture), {}, std::nullopt};
    fresh.make_events(*dev_);
    at(lane) = std::move(fresh);
  }
  void open_own(lane_id lane) override {
    auto own = dev_->make_stream();
    const stream_ref named = own.ref();
    lane_state fresh{named, key_of(named, false), {}, std::move(own)};
    fresh.make_events(*dev_);
    at(lane) = std::move(fresh);
  }
  void close(lane_id lane) noexcept override {
    at(lane).events.clear();
    at(lane).own.reset();
  }
  [[nodiscard]] const void* stream(lane_id lane) const override { return &at(lane).stream; }

  void record(lane_id on, std::size_t event) override {
    auto& lane = at(on);
    dev_->record(lane.events[event], lane.stream);
  }
  void wait(lane_id waiter, lane_id of, std::size_t event) override {
    dev_->wait(at(waiter).stream, at(of).events[event]);
  }
  [[nodiscard]] bool passed(lane_id of, std::size_t event) const override {
    return over(at(of).events[event]);
  }
  void synchronize(lane_id lane) override { dev_->synchronize(at(lane).stream); }
  void synchronize() override { dev_->synchronize(); }

  [[nodiscard]] timing_id make_timing() override {
    if (spare_.empty()) {
      timings_.emplace_back(dev_->make_event(true));
      spare_.reserve(timings_.capacity());
      return static_cast<timing_id>(timings_.size() - 1);
    }
    const auto which = spare_.back();
    timings_[which].emplace(dev_->make_event(true));
    spare_.pop_back();
    return static_cast<timing_id>(which);
  }
  void free_timing(timing_id gone) noexcept override {
    const auto which = static_cast<std::uint32_t>(gone);
    timings_[which].reset();
    spare_.push_back(which);  // `spare_` has room for all numbers
  }
  void record(timing_id target, const void* stream) override {
    dev_->record(timing(target), ref(stream));
  }
  [[nodiscard]] bool passed(timing_id which) const override { return over(timing(which)); }
  [[nodiscard]] double elapsed_us(timing_id from, timing_id to) const override {
    return dev_->elapsed_us(timing(from), timing(to));
  }
  void log_kernels() override {
    if constexpr (kernel_logging_device<Device>) dev_->log_kernels();
  }
  [[nodiscard]] std::vector<lane_kernel> take_kernels(std::size_t lanes) override {
    std::vector<lane_kernel> result;
    if constexpr (kernel_logging_device<Device>) {
      for (const auto& run : dev_->take_kernels()) {
        for (std::size_t i = 0; i < lanes; ++i) {
          if (lanes_[i].stream.index() != run.stream) continue;
          result.push_back({static_cast<lane_id>(i), run.start_ns, run.end_ns});
        }
      }
    }
    return result;
  }
  [[nodiscard]] double now_ns() const override {
    if constexpr (kernel_logging_device<Device>) return dev_->now_ns();
    return 0;
  }

  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            lane_id on) override {
    dev_->copy(target, source, shape, direction, at(on).stream);
  }
  [[nodiscard]] bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                lane_id on) override {
    if constexpr (batching_device<Device>) {
      return dev_->copy_batch(items, direction, at(on).stream);
    }
    return false;
  }
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, lane_id on) override {
    if constexpr (filling_device<Device>) dev_->fill_bytes(pointer, byte, bytes, at(on).stream);
  }
  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            lane_id on) override {
    if constexpr (packing_device<Device>) dev_->pack(packed, spill, tensor, bytes, at(on).stream);
  }
  void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill, std::size_t bytes,
              lane_id on) override {
    if constexpr (packing_device<Device>) dev_->unpack(tensor, packed, spill, bytes, at(on).stream);
  }
  bool poison(void* pointer, std::size_t bytes, lane_id on) override {
    if constexpr (poisoning_device<Device>) return dev_->poison(pointer, bytes, at(on).stream);
    return false;
  }
  void worked(std::size_t bytes, lane_id on) override {
    if constexpr (host_executing_device<Device>) dev_->worked(bytes, at(on).stream);
  }
  [[nodiscard]] bool leaves_out(join_site site) const override {
    if constexpr (join_dropping_device<Device>) return dev_->leaves_out(site);
    return false;
  }
  [[nodiscard]] std::uint64_t issued() const override {
    if constexpr (requires { dev_->issued(); }) return dev_->issued();
    return 0;
  }
  void drop(lane_id lane, std::uint64_t issued) noexcept override {
    if constexpr (counting_issues<Device>) {
      dev_->drop(at(lane).stream, issued);
    } else if constexpr (dropping_device<Device>) {
      dev_->drop(at(lane).stream);
    }
  }
  [[nodiscard]] bool drops() const override { return dropping_device<Device>; }

  void begin_capture(lane_id on) override {
    if constexpr (capturing_device<Device>) dev_->begin_capture(at(on).stream);
  }
  [[nodiscard]] bool capturing(lane_id which) const override {
    if constexpr (capturing_device<Device>) return dev_->capturing(at(which).stream);
    return false;
  }
  [[nodiscard]] std::unique_ptr<captured_graph> end_capture(lane_id on) override {
    if constexpr (capturing_device<Device>) {
      return std::make_unique<graph_of>(dev_->end_capture(at(on).stream));
    }
    return nullptr;
  }
  void replay(captured_graph& which, lane_id on) override {
    if constexpr (capturing_device<Device>) {
      dev_->replay(static_cast<graph_of&>(which).graph, at(on).stream);
    }
  }

  [[nodiscard]] std::unique_ptr<page_allocator> device_pages() override {
    return std::make_unique<device_allocator<Device>>(*dev_);
  }
  [[nodiscard]] std::unique_ptr<page_allocator> host_pages(const host_memory& how) override {
    return std::make_unique<host_allocator<Device>>(*dev_, how);
  }
  [[nodiscard]] std::unique_ptr<page_allocator> peer_pages(int peer) override {
    if constexpr (peer_device<Device>) return std::make_unique<peer_allocator<Device>>(*dev_, peer);
    return nullptr;
  }
  [[nodiscard]] std::string why_not(host_kind kind) const override {
    if constexpr (requires { dev_->why_not(kind); }) return dev_->why_not(kind);
    return {};
  }
  [[nodiscard]] std::string why_no_peer(int peer) const override {
    if constexpr (peer_device<Device>) return dev_->why_no_peer(peer);
    return "a device of the kind " + std::string(Device::name) + " has no neighbours";
  }
  void open_file(const std::string& path, std::unique_ptr<backing_file>& into) override {
    if constexpr (requires { dev_->open_file(path); }) into = dev_->open_file(path);
  }
  [[nodiscard]] void* import_memory(int descriptor, std::size_t bytes) override {
    if constexpr (lending_device<Device>) {
      return dev_->import_memory(descriptor, bytes);
    } else {
      throw misuse_error("borrow: a device of the kind " + std::string(Device::name) +
                         " cannot use memory of other processes");
    }
  }
  void drop_import(void* pointer) noexcept override {
    if constexpr (lending_device<Device>) dev_->drop_import(pointer);
  }
  [[nodiscard]] memory_info memory() const override { return dev_->memory(); }
  [[nodiscard]] std::string host_memory_text() const override {
    if constexpr (requires { dev_->host_memory_text(); }) {
      return std::string(dev_->host_memory_text());
    } else {
      return {};
    }
  }
  [[nodiscard]] bool lost() const noexcept override {
    if constexpr (requires { dev_->lost(); }) return dev_->lost();
    return false;
  }

  [[nodiscard]] std::optional<plan::link_rates> known_link(bool to_peer) const override {
    if constexpr (requires { dev_->model().peer_both_rate; }) {
      const auto& of = dev_->model();
      const auto us = (to_peer ? of.peer_latency_ns : of.copy_latency_ns) / 1e3;
      if (!to_peer || of.peer_shares_link) {
        return plan::link_rates{of.offload_rate, of.reload_rate, of.both_rate, us};
      }
      return plan::link_rates{of.peer_offload_rate, of.peer_reload_rate, of.peer_both_rate, us};
    }
    return {};
  }
  [[nodiscard]] bool peer_shares_link() const override {
    if constexpr (requires { dev_->model().peer_shares_link; }) {
      return dev_->model().peer_shares_link;
    }
    return false;
  }

  void borrows(const void* pointer, std::size_t bytes) override {
    if constexpr (order_checking_device<Device>) dev_->borrows(pointer, bytes);
  }
  void gave_back(const void* pointer, std::size_t bytes, lane_id on) override {
    if constexpr (order_checking_device<Device>) dev_->gave_back(pointer, bytes, at(on).stream);
  }
  void returned(const void* pointer, std::size_t bytes, lane_id home) override {
    if constexpr (order_checking_device<Device>) dev_->returned(pointer, bytes, at(home).stream);
  }
  void name_copy_streams(lane_id offload, lane_id reload, lane_id unpack, place_kind to) override {
    if constexpr (order_checking_device<Device>) {
      dev_->name_copy_streams(at(offload).stream, at(reload).stream, at(unpack).stream, to);
    }
  }
  void writes_file(const void* block, const void* memory, std::size_t bytes) override {
    if constexpr (order_checking_device<Device>) dev_->writes_file(block, memory, bytes);
  }
  void reads_file(const void* memory, const void* block, std::size_t bytes) override {
    if constexpr (order_checking_device<Device>) dev_->reads_file(memory, block, bytes);
  }
  void host_reads(const void* memory, std::size_t bytes, std::string_view what) override {
    if constexpr (requires { dev_->host_reads(memory, bytes, what); }) {
      dev_->host_reads(memory, bytes, what);
    }
  }
  void abandons_capture() noexcept override {
    if constexpr (order_checking_device<Device>) dev_->abandons_capture();
  }
  void begin_subject(std::string_view module, int layer, int microbatch) override {
    if constexpr (order_checking_device<Device>) {
      subjects_.emplace_back(*dev_, module, layer, microbatch);
    }
  }
  void end_subject() noexcept override {
    if constexpr (order_checking_device<Device>) subjects_.pop_back();
  }

 private:
  struct lane_state {
    stream_ref stream{};
    std::uint64_t key = 0;
    std::vector<typename Device::event> events;
    std::optional<typename Device::stream> own;

    void make_events(Device& dev) {
      events.reserve(ring);
      for (std::size_t i = 0; i < ring; ++i) events.push_back(dev.make_event(false));
    }
  };
  struct graph_of final : captured_graph {
    explicit graph_of(typename graph_type<Device>::type&& made) : graph(std::move(made)) {}
    typename graph_type<Device>::type graph;
  };

  [[nodiscard]] lane_state& at(lane_id lane) { return lanes_[index_of(lane)]; }
  [[nodiscard]] const lane_state& at(lane_id lane) const { return lanes_[index_of(lane)]; }
  [[nodiscard]] static const stream_ref& ref(const void* stream) {
    return *static_cast<const stream_ref*>(stream);
  }
  [[nodiscard]] typename Device::event& timing(timing_id which) {
    return *timings_[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] const typename Device::event& timing(timing_id which) const {
    return *timings_[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] bool over(const typename Device::event& which) const {
    if constexpr (detail::tells_what_is_over<Device>) return dev_->passed(which);
    return false;
  }
  [[nodiscard]] static std::size_t packs_from(const Device& dev) {
    if constexpr (packing_device<Device>) return dev.packs_from();
    return 0;
  }
  [[nodiscard]] static bool moves_bytes(const Device& dev) {
    if constexpr (requires { dev.moves_bytes(); }) return dev.moves_bytes();
    return true;
  }
  // On its way back a large tensor needs device memory for only two such pieces.
  [[nodiscard]] static std::size_t pack_piece(const Device& dev) {
    if constexpr (requires { dev.pack_piece(); }) return dev.pack_piece();
    return std::size_t{16} << 20;
  }
  [[nodiscard]] static double pack_rate(const Device& dev) {
    if constexpr (requires { dev.pack_rate(); }) return dev.pack_rate();
    return 0;
  }
  [[nodiscard]] static double unpack_rate(const Device& dev) {
    if constexpr (requires { dev.unpack_rate(); }) return dev.unpack_rate();
    return 0;
  }
  [[nodiscard]] static std::uint64_t key_of(const stream_ref& stream, bool in_capture) {
    if constexpr (requires { stream.key_in_capture(); }) {
      if (in_capture) return stream.key_in_capture();
    }
    return stream.key();
  }

  Device* dev_;
  std::array<lane_state, max_lanes> lanes_;
  std::vector<std::optional<typename Device::event>> timings_;
  std::vector<std::uint32_t> spare_;  // numbers of timings that were freed
  std::deque<typename subject_type<Device>::type> subjects_;
};

}  // namespace tidepool::detail
