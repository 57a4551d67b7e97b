/// What the stages of a pipeline on GPUs send each other: over NCCL, from device to device.
///
/// NCCL's sends wait on the device for their receives. Two rules keep schedules from locking up:
/// - Each stream of messages, from one rank to another in one direction of the model, has a
///   communicator and a CUDA stream of its own; within it both sides keep the same order.
/// - What is sent is copied first. Memory that came back when a message has been received could be
///   what the other side's message waits for.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <tidepool/device/cuda.hpp>
#include <utility>
#include <vector>

#include "../model/device_array.hpp"
#include "nccl_tools.hpp"

namespace moe {

/// Ranks are places in the line.
template <class Device, class Kernels>
class nccl_line {
 public:
  using stream_ref = typename Device::stream_ref;

  nccl_line(const nccl_communicator& line, nccl_watch& watch, Device& dev, Kernels& kernels,
            stream_ref stream)
      : line_(line),
        watch_(watch),
        dev_(dev),
        kernels_(kernels),
        stream_(stream),
        ready_(dev.make_event()) {}

  /// Takes the buffer. Neither host nor stream wait for the other side. Odd tags are of backward.
  template <class Buffer>
  void send(Buffer what, int rank, int tag) {
    if (rank == line_.place()) {  // a stage that hands over to the next one here
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
    if (rank == line_.place()) {
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

  /// The first message of a communicator blocks the host until the other side has its end of it;
  /// here all are in one order, and no schedule can lock up.
  void connect(channel& fresh) {
    if (!first_word_) first_word_.emplace(dev_, 1, "a first message");
    nccl_communicator& with = fresh.communicator;
    if (fresh.from == line_.place()) {
      check(ncclSend(first_word_->data(), 1, ncclFloat, 1, with.get(), fresh.stream.get()),
            "ncclSend");
    } else {
      check(ncclRecv(first_word_->data(), 1, ncclFloat, 0, with.get(), fresh.stream.get()),
            "ncclRecv");
    }
    dev_.synchronize(fresh.stream.ref());
  }

  /// All ranks of the line make their channels at their first message, one after the other.
  channel& channel_to(int rank, bool backward, bool sends) {
    const int me = line_.place(), all = line_.size();
    if (channels_.empty()) {
      for (const bool back : {false, true}) {
        for (int from = 0; from < all; ++from) {
          const int to = (from + (back ? all - 1 : 1)) % all;
          if (from == to) continue;
          const bool here = from == me || to == me;
          nccl_communicator made =
              line_.split(here ? std::optional(from == me ? 0 : 1) : std::nullopt);
          if (!here) continue;
          watch_.add(made);
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
    throw std::logic_error("stages " + std::to_string(me) + " and " + std::to_string(rank) +
                           " are no neighbours");
  }

  outgoing& free_copy(index count) {
    for (outgoing& each : outgoing_) {
      if (each.memory.size() >= count && dev_.passed(each.sent)) return each;
    }
    return outgoing_.emplace_back(
        outgoing{{dev_, count, "activations on their way"}, dev_.make_event()});
  }

  const nccl_communicator& line_;
  nccl_watch& watch_;
  Device& dev_;
  Kernels& kernels_;
  stream_ref stream_;
  typename Device::event ready_;
  std::list<channel> channels_;
  std::optional<device_array<Device, float>> first_word_;
  std::vector<std::pair<int, tidepool::buffer<Device>>> own_;  // sent to this rank, with their tags
  std::list<outgoing> outgoing_;
};

}  // namespace moe
