// What the fuzz targets share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/error.hpp"
#include "tidepool/module.hpp"

namespace tidepool::fuzz {

[[noreturn]] inline void finding(std::string_view what, std::string_view detail = {}) {
  std::fprintf(stderr, "finding: %.*s: %.*s\n", static_cast<int>(what.size()), what.data(),
               static_cast<int>(detail.size()), detail.data());
  std::abort();
}

inline void expect(bool holds, std::string_view what, std::string_view detail = {}) {
  if (!holds) finding(what, detail);
}

// Whether `body` ends without a refusal. A refusal is a `tidepool::error` that a terminal can show.
template <class Body>
bool accepted(const Body& body) {
  try {
    body();
    return true;
  } catch (const error& refusal) {
    const std::string_view message = refusal.what();
    expect(!message.empty(), "a refusal says nothing");
    for (const char c : message) {
      expect(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "a message holds controls",
             message);
    }
  } catch (const std::exception& other) {
    finding("an exception that is no tidepool::error", other.what());
  } catch (...) {
    finding("an exception of an unknown type");
  }
  return false;
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What lies between separators, empty parts included.
inline std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Lists that a program could compile in.
using whole_list = modules<"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm",
                           "expert_fc1", "moe_act", "fused_group_mlp">;
using short_list = modules<"core_attn", "rope">;
using fused_list = modules<"fused_group_mlp">;

}  // namespace tidepool::fuzz
