/// What ranks with GPUs send each other: over NCCL, from device to device.
///
/// NCCL's sends wait on the device for their receives. Two rules keep schedules from locking up:
/// - Each stream of messages, from one rank to another in one direction of the model, has a
///   communicator and a CUDA stream of its own; within it both sides keep the same order.
/// - What is sent is copied first. Memory that came back when a message has been received could be
///   what the other side's message waits for.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tidepool/device/cuda.hpp>
#include <utility>
#include <vector>

#include "../model/device_array.hpp"
#include "exchange.hpp"
#include "nccl_tools.hpp"
#include "ranks.hpp"

namespace moe {

/// All ranks, and their communicator: others are split from it, since with NCCL_COMM_ID all that
/// are made anew would have one identity.
struct nccl_team {
  world& all;
  const nccl_communicator& everybody;
};

template <class Device, class Kernels>
class nccl_link final : public host_link, public expert_exchange {
 public:
  using team = nccl_team;
  using stream_ref = typename Device::stream_ref;

  nccl_link(team& ranks, Device& dev, Kernels& kernels, stream_ref stream)
      : host_link(ranks.all),
        parent_(ranks.everybody),
        dev_(dev),
        kernels_(kernels),
        stream_(stream),
        ready_(dev.make_event()),
        watch_(ranks.all.rank()) {}
  ~nccl_link() override { watch_.stop(); }

  /// Takes the buffer. Neither host nor stream wait for the other side. Odd tags are of backward.
  template <class Buffer>
  void send(Buffer what, int rank, int tag) {
    if (rank == all().rank()) {  // a stage that hands over to the next one here
      own_.emplace_back(tag, std::move(what));
      return;
    }
    channel& out = channel_to(rank, tag % 2 == 1, true);
    const auto count = static_cast<index>(what.size() / sizeof(float));
    outgoing& copy = free_copy(count);
    kernels_.publish(copy.memory.data(), what.template as<float>(), count);
    what.reset(stream_);
    dev_.record(ready_, stream_);
    dev_.wait(out.stream.ref(), ready_);
    check(ncclSend(copy.memory.data(), static_cast<std::size_t>(count), ncclFloat, 1,
                   out.communicator.get(), out.stream.get()),
          "ncclSend");
    dev_.record(copy.sent, out.stream.ref());
  }

  /// The stream waits for what fills the buffer, the host does not.
  template <class Buffer>
  void receive(Buffer& what, int rank, int tag) {
    if (rank == all().rank()) {
      const auto found = std::find_if(own_.begin(), own_.end(),
                                      [&](const auto& each) { return each.first == tag; });
      if (found == own_.end()) throw std::logic_error("nothing was sent with this tag");
      what.reset(stream_);
      what = std::move(found->second);
      own_.erase(found);
      return;
    }
    channel& in = channel_to(rank, tag % 2 == 1, false);
    dev_.record(ready_, stream_);  // from here on the buffer's memory is free
    dev_.wait(in.stream.ref(), ready_);
    check(ncclRecv(what.template as<float>(), what.size() / sizeof(float), ncclFloat, 0,
                   in.communicator.get(), in.stream.get()),
          "ncclRecv");
    dev_.record(ready_, in.stream.ref());
    dev_.wait(stream_, ready_);
  }

  void finish() {
    for (auto& each : channels_) dev_.synchronize(each.stream.ref());
  }

  [[nodiscard]] int ranks() const override { return all().size(); }

  std::span<const std::int32_t> counts(const std::int32_t* on_device, index each) override {
    group& with = everybody();
    const index count = each * ranks();
    if (!with.counts || with.counts->size() < count) {
      with.counts.emplace(dev_, count, "counts of other ranks");
      with.host_counts.emplace(dev_, count, "counts of other ranks");
    }
    const auto words = static_cast<std::size_t>(each);
    // On the stream itself, with a communicator of its own: rows that travel do not delay it.
    nccl_group([&] {
      for (int peer = 0; peer < ranks(); ++peer) {
        check(ncclSend(on_device + peer * each, words, ncclInt32, peer, with.for_counts.get(),
                       stream_.get()),
              "ncclSend");
        check(ncclRecv(with.counts->data() + peer * each, words, ncclInt32, peer,
                       with.for_counts.get(), stream_.get()),
              "ncclRecv");
      }
    });
    kernels_.publish(with.host_counts->data(), with.counts->data(), count);
    dev_.synchronize(stream_);
    return {with.host_counts->data(), static_cast<std::size_t>(count)};
  }

  int start(const row_counts& rows, std::span<const moving_rows> what) override {
    group& with = everybody();
    std::size_t number = 0;
    while (number < exchanges_.size() && exchanges_[number].under_way) ++number;
    if (number == exchanges_.size()) exchanges_.push_back({dev_.make_event()});
    fork(with);
    nccl_group([&] {
      for (const moving_rows& each : what) move(with, rows, each);
    });
    dev_.record(exchanges_[number].done, with.stream.ref());
    exchanges_[number].under_way = true;
    return static_cast<int>(number);
  }

  void finish(int exchange) override {
    auto& now = exchanges_[static_cast<std::size_t>(exchange)];
    dev_.wait(stream_, now.done);
    now.under_way = false;
  }

  void gather_parts(float* values, const std::vector<index>& parts) override {
    group& with = everybody();
    fork(with);
    nccl_group([&] {
      int root = 0;
      for (const index part : parts) {
        if (part > 0) {
          check(ncclBroadcast(values, values, static_cast<std::size_t>(part), ncclFloat, root,
                              with.for_rows.get(), with.stream.get()),
                "ncclBroadcast");
        }
        values += part;
        ++root;
      }
    });
    dev_.record(ready_, with.stream.ref());
    dev_.wait(stream_, ready_);
  }

 private:
  /// Messages from one rank to another, of forward or of backward.
  struct channel {
    int from, to;
    bool backward;
    nccl_communicator communicator;
    typename Device::stream stream;
  };

  struct outgoing {
    device_array<Device, float> memory;
    typename Device::event sent;
  };

  /// All ranks.
  struct group {
    nccl_communicator for_rows, for_counts;
    typename Device::stream stream;  // of the rows
    std::optional<device_array<Device, std::int32_t>> counts;
    std::optional<device_array<Device, std::int32_t, side::host>> host_counts;
  };

  struct exchange_event {
    typename Device::event done;
    bool under_way = false;
  };

  /// The rows' stream may read and write what the stream has been given so far.
  void fork(group& with) {
    dev_.record(ready_, stream_);
    dev_.wait(with.stream.ref(), ready_);
  }

  void move(group& with, const row_counts& rows, const moving_rows& what) {
    const float* from = what.from;
    float* to = what.to;
    for (std::size_t peer = 0; peer < rows.sent.size(); ++peer) {
      const index out = rows.sent[peer] * what.width, in = rows.received[peer] * what.width;
      if (out > 0) {
        check(ncclSend(from, static_cast<std::size_t>(out), ncclFloat, static_cast<int>(peer),
                       with.for_rows.get(), with.stream.get()),
              "ncclSend");
      }
      if (in > 0) {
        check(ncclRecv(to, static_cast<std::size_t>(in), ncclFloat, static_cast<int>(peer),
                       with.for_rows.get(), with.stream.get()),
              "ncclRecv");
      }
      from += out;
      to += in;
    }
  }

  /// A communicator of `members`, empty on ranks that are none; all ranks must make the same calls
  /// in the same order.
  nccl_communicator bring_together(const std::vector<int>& members) {
    const auto me = std::find(members.begin(), members.end(), all().rank());
    if (me == members.end()) return parent_.split(std::nullopt);
    nccl_communicator made = parent_.split(static_cast<int>(me - members.begin()));
    watch_.add(made);
    return made;
  }

  group& everybody() {
    if (!everybody_) {
      std::vector<int> members;
      for (int r = 0; r < all().size(); ++r) members.push_back(r);
      nccl_communicator for_rows = bring_together(members);
      nccl_communicator for_counts = bring_together(members);
      everybody_.reset(new group{std::move(for_rows), std::move(for_counts), dev_.make_stream(),
                                 std::nullopt, std::nullopt});
    }
    return *everybody_;
  }

  /// The first message of a communicator blocks the host until the other side has its end of it;
  /// here all are in one order, and no schedule can lock up.
  void connect(channel& fresh) {
    if (!first_word_) first_word_.emplace(dev_, 1, "a first message");
    nccl_communicator& with = fresh.communicator;
    if (fresh.from == all().rank()) {
      check(ncclSend(first_word_->data(), 1, ncclFloat, 1, with.get(), fresh.stream.get()),
            "ncclSend");
    } else {
      check(ncclRecv(first_word_->data(), 1, ncclFloat, 0, with.get(), fresh.stream.get()),
            "ncclRecv");
    }
    dev_.synchronize(fresh.stream.ref());
  }

  /// All ranks make their channels at their first message, one after the other.
  channel& channel_to(int rank, bool backward, bool sends) {
    const int me = all().rank();
    if (channels_.empty()) {
      for (const bool back : {false, true}) {
        for (int from = 0; from < all().size(); ++from) {
          const int to = (from + (back ? all().size() - 1 : 1)) % all().size();
          if (from == to) continue;
          nccl_communicator made = bring_together({from, to});
          if (from != me && to != me) continue;
          channels_.push_back({from, to, back, std::move(made), dev_.make_stream()});
          connect(channels_.back());
        }
      }
    }
    // What is sent once all else of a step is over takes the way that there is.
    for (const bool either_way : {false, true}) {
      for (channel& each : channels_) {
        if ((either_way || each.backward == backward) && each.from == (sends ? me : rank) &&
            each.to == (sends ? rank : me)) {
          return each;
        }
      }
    }
    throw std::logic_error("ranks " + std::to_string(me) + " and " + std::to_string(rank) +
                           " are no neighbours");
  }

  static bool over(const typename Device::event& what) {
    const cudaError_t code = cudaEventQuery(what.get());
    if (code == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());  // the next check of a launch would find it
    if (code == cudaErrorNotReady) return false;
    throw tidepool::device_error(std::string("cudaEventQuery: ") + cudaGetErrorString(code), code);
  }

  outgoing& free_copy(index count) {
    for (outgoing& each : outgoing_) {
      if (each.memory.size() >= count && over(each.sent)) return each;
    }
    return outgoing_.emplace_back(
        outgoing{{dev_, count, "activations on their way"}, dev_.make_event()});
  }

  const nccl_communicator& parent_;
  Device& dev_;
  Kernels& kernels_;
  stream_ref stream_;
  typename Device::event ready_;
  nccl_watch watch_;
  std::list<channel> channels_;
  std::optional<device_array<Device, float>> first_word_;
  std::vector<std::pair<int, tidepool::buffer<Device>>> own_;  // sent to this rank, with their tags
  std::list<outgoing> outgoing_;
  std::unique_ptr<group> everybody_;
  std::vector<exchange_event> exchanges_;
};

}  // namespace moe
