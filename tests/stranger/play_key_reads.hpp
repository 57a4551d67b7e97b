// Reads of tensors by key: in forward, while their scope is open and behind it, and in backward.
#pragma once

#include "player.hpp"

namespace stranger {

// Addresses that were given behind a scope hold on.
inline void player::key_end_forward(int which) {
  auto* const in = keys_at(which);
  if (in == nullptr || !in->within.empty() || in->ended) return;
  call(key_name(which) + ".end_forward();", may(in->side), [&] { in->pass->end_forward(); });
  in->ended = true;
}

inline void player::key_load(const operation& op) {
  auto* const in = keys_at(op.a);
  if (in == nullptr) return;
  const auto key = static_cast<std::uint64_t>(op.b) * 7919 + 5;
  const auto found = in->tensors.find(key);
  if (found == in->tensors.end()) return;
  auto& of = found->second;
  auto& scope = in->scopes[static_cast<std::size_t>(of.scope)];
  const int stream = stream_of(op.c);
  const auto code =
      key_name(op.a) + ".load(" + std::to_string(key) + ", s" + std::to_string(stream) + ")";
  void* got = nullptr;
  if (in->release && scope.left && !of.excluded) {
    if (side_at(in->side).dirty) return;
    return refused("static_cast<void>(" + code + ");",
                   [&] { got = in->pass->load(key, ref(stream)); });
  }
  const auto& from = regions_[static_cast<std::size_t>(of.region)];
  if (code_.on()) code_.line("bytes_at p" + std::to_string(at_operation_) + " = nullptr;");
  auto allowed = may_allocate(in->side);
  if (in->ended && !in->forward_only && scope.left && !scope.restored && key_fits(*in, of.scope)) {
    allowed &= ~static_cast<unsigned>(budget);
  }
  const auto came = device_.bytes_in();
  const auto threw =
      call("p" + std::to_string(at_operation_) + " = static_cast<bytes_at>(" + code + ");", allowed,
           [&] { got = in->pass->load(key, ref(stream)); });
  give(in->side, stream);
  // Before end_forward it is a read in forward, and backward has not begun.
  if (!in->forward_only && in->ended) in->restored = true;
  // All of the scope may have come back: before the wait for this one failed, or for a read.
  if ((threw & failure) != 0 || (scope.left && !in->ended && !of.excluded)) scope.tried = true;
  if (threw != 0) return;
  // What stayed where it was, or has no bytes, may have brought nothing back.
  const bool came_alone = got == from.at || of.bytes == 0;
  if (in->ended && !of.excluded) (came_alone ? scope.tried : scope.restored) = true;
  ++reached()[in->ended    ? "loaded in backward"
              : scope.left ? "read in forward, behind its scope"
                           : "read in forward, in its scope"];
  of.loaded = true;
  of.streams |= 1U << static_cast<unsigned>(stream);
  auto* const at = static_cast<std::byte*>(got);
  if (at == nullptr && of.bytes > 0) find("load gave nothing", code);
  if (of.at != nullptr && of.at != at) find("loaded again, and lies elsewhere", code);
  const auto& with = settings(in->side);
  const bool stays = in->forward_only || !scope.left || of.excluded ||
                     (with.modules >> static_cast<unsigned>(scope.module) & 1U) == 0 ||
                     (!in->ended && of.bytes < with.min_elements);
  if (stays && of.bytes > 0) {
    if (at != from.at) find("what stays lies elsewhere", code);
    if (device_.bytes_in() != came) find("a read of what stays brought something back", code);
  }
  of.at = at;
  of.asked = at_operation_;
  of.readers |= 1U << static_cast<unsigned>(stream);
  if (at != nullptr && at == from.at && loans_[static_cast<std::size_t>(of.loan)].times_back != 0) {
    find("loaded from memory that went back", code);
  }
  read_key(op.b, of, stream);
}

// A kernel that reads it; the trainer has its address, and the word of `load` for this stream.
inline void player::read_key(int key, key_tensor& of, int stream) {
  touch_words(of.at, of.bytes, of.words, of.version, stream, false,
              "key " + std::to_string(key) + " of tensor " + std::to_string(of.words));
  of.used[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
  code_.line("read_at(dev, s" + std::to_string(stream) + ", p" + std::to_string(at_operation_) +
             ", " + std::to_string(of.bytes) + ", " + std::to_string(of.words) + ", " +
             std::to_string(of.version) + ", \"key " + std::to_string(key * 7919 + 5) + "\");");
  look();
}

inline void player::key_read(const operation& op) {
  auto* const in = keys_at(op.a);
  if (in == nullptr) return;
  const auto found = in->tensors.find(static_cast<std::uint64_t>(op.b) * 7919 + 5);
  if (found == in->tensors.end() || found->second.at == nullptr) return;
  auto& of = found->second;
  const int stream = stream_of(op.c);
  if ((of.readers >> static_cast<unsigned>(stream) & 1U) == 0) return;
  ++reached()["read at an address of before"];
  if (code_.on()) {
    code_.line("bytes_at p" + std::to_string(at_operation_) + " = p" + std::to_string(of.asked) +
               ";");
  }
  read_key(op.b, of, stream);
}

}  // namespace stranger
