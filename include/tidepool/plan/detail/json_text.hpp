// Parses and writes JSON text for profiles, plans and machines. Every refusal names the position,
// and nothing in the text is ignored: double keys and excessive sizes are refused.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "tidepool/plan/json.hpp needs nlohmann/json.hpp: install nlohmann-json3-dev (Debian, Ubuntu)"
#endif

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/plan/refusal.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

using json = nlohmann::ordered_json;

// Limits that are far above any profile, and far below the memory of a machine.
inline constexpr std::size_t most_json_bytes = std::size_t{256} << 20;
inline constexpr std::size_t most_json_depth = 16;
inline constexpr std::size_t most_json_keys = 64;
inline constexpr std::size_t most_json_string = 4096;
inline constexpr std::size_t most_json_items = std::size_t{1} << 22;

// A step of a JSON pointer, with escapes.
[[nodiscard]] inline std::string pointer_step(std::string_view key) {
  std::string step = "/";
  for (const char c : tidepool::detail::text::printable(key)) {
    step += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return step;
}

// The JSON pointer to a part of a document, or none if the part is elsewhere. The pointer is only
// computed for a refusal, since it takes a search.
[[nodiscard]] inline std::optional<std::string> pointer_to(const json& part, const json& all) {
  if (&part == &all) return "";
  if (!all.is_structured()) return {};
  for (auto each = all.begin(); each != all.end(); ++each) {
    const auto rest = pointer_to(part, *each);
    if (!rest) continue;
    return (all.is_object() ? pointer_step(each.key()) : "/" + std::to_string(each - all.begin())) +
           *rest;
  }
  return {};
}

// A document that is read, and the subject of messages about it.
struct json_source {
  subject of;
  json document{};

  [[noreturn]] void refuse(const json& part, std::string_view problem,
                           std::string_view remedy) const {
    const auto place = pointer_to(part, document).value_or("");
    of.refuse(place.empty() ? "its top level" : place, problem, remedy);
  }
};

// A builder of its own, because nlohmann's takes the last of two equal keys, and any depth.
class json_builder : public nlohmann::json_sax<json> {
 public:
  json_builder(json_source& into, std::string_view text) : into_(into), text_(text) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override {
    expect_short(value);
    return put(std::move(value));
  }
  bool binary(binary_t&) override { return false; }  // JSON text has no binary values
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    expect_short(name);
    auto& object = *open_.back();
    const auto quoted = tidepool::detail::text::in_quotes(name);
    if (object.contains(name)) {
      refuse("the key " + quoted + " stands twice", "take one of them out");
    }
    if (object.size() == most_json_keys) {
      refuse("there are more than 64 keys in one object", "take out " + quoted);
    }
    slot_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    const auto before = text_.substr(0, position > 0 ? position - 1 : 0);
    const auto line = before.substr(before.rfind('\n') + 1);  // the whole text if it has one line
    // The column counts characters and not bytes, as editors do.
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; };
    const auto column = 1 + std::count_if(line.begin(), line.end(), begins);
    // The message leaves out nlohmann's error number and position, because the refusal has its own.
    std::string_view what = problem.what();
    what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    if (what.starts_with("parse error")) what.remove_prefix(what.find(": ") + 2);
    into_.of.refuse("line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n')) +
                        ", column " + std::to_string(column),
                    "this is no JSON: " + tidepool::detail::text::printable(what),
                    "correct it there, or write the file anew with save()");
  }

 private:
  // Refuses a value in the innermost open container.
  [[noreturn]] void refuse(std::string_view problem, std::string_view remedy) const {
    into_.refuse(open_.empty() ? into_.document : *open_.back(), problem, remedy);
  }
  void expect_short(std::string_view text) const {
    if (text.size() <= most_json_string) return;
    refuse("a text has " + std::to_string(text.size()) + " bytes", "give 4096 or fewer");
  }
  bool put(json value) {
    if (open_.empty()) {
      slot_ = &into_.document;
    } else if (auto& outer = *open_.back(); outer.is_array()) {
      if (outer.size() == most_json_items) {
        refuse("there are more than 4194304 parts in one array", "give a file that save() wrote");
      }
      slot_ = &outer.emplace_back();
    }
    *slot_ = std::move(value);
    return true;
  }
  bool open(json container) {
    if (open_.size() == most_json_depth) {
      refuse("it is nested more than 16 deep", "nothing that is read is so deep");
    }
    put(std::move(container));
    open_.push_back(slot_);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  json_source& into_;
  std::string_view text_;
  std::vector<json*> open_;
  json* slot_ = nullptr;  // last value, or the place for the value of the last key
};

[[nodiscard]] inline json_source parse_json(const subject& of, std::string_view text) {
  constexpr std::string_view remedy = "give a file that save() wrote";
  of.require(text.size() <= most_json_bytes, {}, "it is larger than 256 MiB", remedy);
  of.require(!tidepool::detail::text::trim(text).empty(), {}, "it is empty", remedy);
  json_source result{of};
  json_builder builder(result, text);
  static_cast<void>(json::sax_parse(text.begin(), text.end(), &builder));
  return result;
}

// Writes a value. A container that holds containers has a line for each; one that holds none is on
// one line.
inline void write_json(std::string& out, const json& value, std::size_t indent = 0) {
  if (!value.is_structured()) {
    out += value.dump();
    return;
  }
  const bool spread = std::any_of(value.begin(), value.end(),
                                  [](const json& each) { return each.is_structured(); });
  const auto line = [&](std::size_t columns) {
    if (spread) out.append("\n").append(columns, ' ');
  };
  const bool object = value.is_object();
  out += object ? '{' : '[';
  for (auto each = value.begin(); each != value.end(); ++each) {
    if (each != value.begin()) out += spread ? "," : ", ";
    line(indent + 1);
    if (object) out.append(json(each.key()).dump()).append(": ");
    write_json(out, *each, indent + 1);
  }
  line(indent);
  out += object ? '}' : ']';
}

[[nodiscard]] inline std::string finished(const json& document) {
  std::string text;
  write_json(text, document);
  return text += '\n';
}

}  // namespace tidepool::plan::detail
