// JSON as profiles, plans and machines need it: every refusal says where, and nothing is passed
// over.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error "tidepool/plan/json.hpp needs nlohmann/json.hpp: install nlohmann-json3-dev (Debian, Ubuntu)"
#endif

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/plan/check.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

using json = nlohmann::ordered_json;

// Far above any profile, and far below what would exhaust a machine.
inline constexpr std::size_t most_json_bytes = std::size_t{256} << 20;
inline constexpr std::size_t most_json_depth = 16;
inline constexpr std::size_t most_json_keys = 64;
inline constexpr std::size_t most_json_string = 4096;
inline constexpr std::size_t most_json_items = std::size_t{1} << 22;

// Whose text it is.
struct json_source {
  std::string_view kind;  // profile, plan or machine
  std::string_view name;

  [[noreturn]] void refuse(std::string_view place, std::string_view problem,
                           std::string_view remedy) const {
    std::string text = "tidepool: ";
    text.append(kind).append(" ").append(tidepool::detail::text::in_quotes(name));
    if (!place.empty()) text.append(" at ").append(place);
    throw file_error(text.append(": ").append(problem).append("; ").append(remedy));
  }
};

// One step of a JSON pointer.
[[nodiscard]] inline std::string pointer_step(std::string_view key) {
  std::string step = "/";
  for (const char c : tidepool::detail::text::printable(key)) {
    if (c == '~' || c == '/') {
      step += c == '~' ? "~0" : "~1";
    } else {
      step += c;
    }
  }
  return step;
}

// nlohmann's own builder takes the last of two equal keys, and any depth.
class json_builder : public nlohmann::json_sax<json> {
 public:
  json_builder(const json_source& source, std::string_view text) : source_(source), text_(text) {}

  json take() { return std::move(root_); }

  bool null() override { return put(json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return put(json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return put(json(value)) != nullptr;
  }
  bool string(string_t& value) override {
    expect_short(value);
    return put(json(std::move(value))) != nullptr;
  }
  bool binary(binary_t&) override { return false; }  // there is none in text
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    expect_short(name);
    auto& object = *open_.back();
    const auto quoted = tidepool::detail::text::in_quotes(name);
    if (object.contains(name)) {
      source_.refuse(place(), "the key " + quoted + " stands twice", "take one of them out");
    }
    if (object.size() == most_json_keys) {
      source_.refuse(place(), "there are more than 64 keys in one object", "take out " + quoted);
    }
    slot_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    const auto before = text_.substr(0, position > 0 ? position - 1 : 0);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto start = before.rfind('\n') + 1;  // 0 without one
    const auto column = 1 + std::count_if(before.begin() + static_cast<std::ptrdiff_t>(start),
                                          before.end(), [](char c) {
                                            // Characters, as editors count, not bytes.
                                            return (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
                                          });
    // Without nlohmann's number and its own account of the place.
    std::string_view what = problem.what();
    what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    if (what.starts_with("parse error")) what.remove_prefix(what.find(": ") + 2);
    source_.refuse("line " + std::to_string(line) + ", column " + std::to_string(column),
                   "this is no JSON: " + tidepool::detail::text::printable(what),
                   "correct it there, or write the file anew with save()");
  }

 private:
  // The innermost open container, or the value last put into those outside of it.
  [[nodiscard]] std::string place() const {
    std::string text;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      const auto& each = *open_[i];
      text += each.is_array() ? "/" + std::to_string(each.size() - 1)
                              : pointer_step(std::prev(each.end()).key());
    }
    return text.empty() ? "its top level" : text;
  }
  void expect_short(std::string_view text) const {
    if (text.size() <= most_json_string) return;
    source_.refuse(place(), "a text has " + std::to_string(text.size()) + " bytes",
                   "give 4096 or fewer");
  }
  json* put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    auto& outer = *open_.back();
    if (outer.is_array()) {
      if (outer.size() == most_json_items) {
        source_.refuse(place(), "there are more than 4194304 parts in one array",
                       "give a file that save() wrote");
      }
      outer.push_back(std::move(value));
      return &outer.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool open(json container) {
    if (open_.size() == most_json_depth) {
      source_.refuse(place(), "it is nested more than 16 deep", "nothing that is read is so deep");
    }
    open_.push_back(put(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const json_source& source_;
  std::string_view text_;
  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;  // of the key before
};

// A value and where it stands. It points to the node it was taken from, which must outlive it.
class json_node {
 public:
  json_node(const json_source& source, const json& value) : source_(&source), value_(&value) {}

  [[nodiscard]] std::string place() const {
    if (outer_ == nullptr) return {};
    return outer_->place() + (key_.empty() ? "/" + std::to_string(index_) : pointer_step(key_));
  }
  [[noreturn]] void refuse(std::string_view problem, std::string_view remedy) const {
    const auto where = place();
    source_->refuse(where.empty() ? "its top level" : std::string_view(where), problem, remedy);
  }
  [[noreturn]] void expected(std::string_view what, std::string_view remedy = "correct it") const {
    const auto found = value_->is_array()    ? std::string("an array")
                       : value_->is_object() ? std::string("an object")
                                             : tidepool::detail::text::printable(value_->dump());
    refuse("found " + found + ", expected " + std::string(what), remedy);
  }

  /// An object with no keys but these.
  void only(std::initializer_list<std::string_view> known) const {
    if (!value_->is_object()) expected("an object");
    for (const auto& [key, value] : value_->items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::span<const std::string_view> names(known.begin(), known.size());
      const auto close = tidepool::detail::text::nearest(key, names);
      const auto quoted = tidepool::detail::text::in_quotes(key);
      refuse("there is no key " + quoted + " here",
             close.empty() ? "the keys are " + tidepool::detail::text::join(known, ", ")
                           : "did you mean " + tidepool::detail::text::in_quotes(close) + "?");
    }
  }
  [[nodiscard]] bool has(std::string_view key) const {
    return value_->is_object() && value_->contains(key);
  }
  [[nodiscard]] json_node member(std::string_view key) const& {
    if (!has(key)) {
      refuse("the key '" + std::string(key) + "' is missing", "add it");
    }
    return {*source_, value_->at(std::string(key)), *this, key, 0};
  }
  json_node member(std::string_view) const&& = delete;

  /// Elements of an array.
  [[nodiscard]] std::size_t size() const {
    if (!value_->is_array()) expected("an array");
    return value_->size();
  }
  [[nodiscard]] json_node item(std::size_t index) const& {
    return {*source_, (*value_)[index], *this, {}, index};
  }
  json_node item(std::size_t) const&& = delete;

  template <class Integer>
  void read(Integer& into, Integer most = std::numeric_limits<Integer>::max()) const {
    constexpr auto least = std::numeric_limits<Integer>::min();
    const auto fits = [&](auto number) {
      return std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, most);
    };
    const bool plain = value_->is_number_unsigned();
    const bool right = plain ? fits(value_->get<std::uint64_t>())
                             : value_->is_number_integer() && fits(value_->get<std::int64_t>());
    if (!right) {
      expected("a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    into = plain ? static_cast<Integer>(value_->get<std::uint64_t>())
                 : static_cast<Integer>(value_->get<std::int64_t>());
  }
  void read(double& into) const {
    if (!value_->is_number()) expected("a number");
    into = value_->get<double>();
  }
  void read(bool& into) const {
    if (!value_->is_boolean()) expected("true or false");
    into = value_->get<bool>();
  }
  void read(std::string& into) const {
    if (!value_->is_string()) expected("a string");
    into = value_->get_ref<const std::string&>();
  }
  /// The index of one of these words.
  [[nodiscard]] std::size_t word(std::span<const std::string_view> words) const {
    const auto text = value_->is_string() ? value_->get_ref<const std::string&>() : std::string();
    const auto found = std::find(words.begin(), words.end(), text);
    if (found == words.end()) {
      const auto close = tidepool::detail::text::nearest(text, words);
      expected("one of " + tidepool::detail::text::join(words, ", "),
               close.empty() ? "correct it"
                             : "did you mean " + tidepool::detail::text::in_quotes(close) + "?");
    }
    return static_cast<std::size_t>(found - words.begin());
  }
  /// Leaves `into` alone where there is no such key.
  void perhaps(std::string_view key, auto& into) const {
    if (has(key)) member(key).read(into);
  }

 private:
  json_node(const json_source& source, const json& value, const json_node& outer,
            std::string_view key, std::size_t index)
      : source_(&source), value_(&value), outer_(&outer), key_(key), index_(index) {}

  const json_source* source_;
  const json* value_;
  const json_node* outer_ = nullptr;
  std::string_view key_;  // ours, never empty; empty: an element
  std::size_t index_ = 0;
};

[[nodiscard]] inline json parse_json(const json_source& source, std::string_view text) {
  if (text.size() > most_json_bytes) {
    source.refuse({}, "it is larger than 256 MiB", "give a file that save() wrote");
  }
  if (tidepool::detail::text::trim(text).empty()) {
    source.refuse({}, "it is empty", "give a file that save() wrote");
  }
  json_builder builder(source, text);
  static_cast<void>(json::sax_parse(text.begin(), text.end(), &builder));
  return builder.take();
}

// Rows on one line each: what holds containers is spread, what holds none is not.
inline void write_json(std::string& out, const json& value, std::size_t indent = 0) {
  if (!value.is_structured()) {
    out += value.dump();
    return;
  }
  const bool spread = std::any_of(value.begin(), value.end(),
                                  [](const json& each) { return each.is_structured(); });
  const auto line = [&](std::size_t columns) { out.append("\n").append(columns, ' '); };
  const bool object = value.is_object();
  out += object ? '{' : '[';
  bool first = true;
  for (auto each = value.begin(); each != value.end(); ++each) {
    if (!first) out += spread ? "," : ", ";
    first = false;
    if (spread) line(indent + 1);
    if (object) out.append(json(each.key()).dump()).append(": ");
    write_json(out, *each, indent + 1);
  }
  if (spread) line(indent);
  out += object ? '}' : ']';
}

struct file_closer {
  void operator()(std::FILE* file) const { static_cast<void>(std::fclose(file)); }
};
using file_handle = std::unique_ptr<std::FILE, file_closer>;

[[nodiscard]] inline std::string last_problem() { return std::generic_category().message(errno); }

[[nodiscard]] inline std::string read_file(const json_source& source) {
  const auto refuse = [&] {
    source.refuse({}, "it cannot be read: " + last_problem(), "give a file that save() wrote");
  };
  const file_handle file(std::fopen(std::string(source.name).c_str(), "rb"));
  if (file == nullptr) refuse();
  std::string text;
  // One byte more is enough to know that it is too large.
  while (text.size() <= most_json_bytes) {
    constexpr std::size_t piece = std::size_t{1} << 16;
    const auto before = text.size();
    text.resize(before + piece);
    const auto got = std::fread(text.data() + before, 1, piece, file.get());
    text.resize(before + got);
    if (got == piece) continue;
    if (std::ferror(file.get()) != 0) refuse();
    break;
  }
  return text;
}

// Of another name for every writer, also of several ranks that save the same file.
[[nodiscard]] inline std::string temporary_beside(const std::string& path) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return path + "." + std::to_string(::getpid()) + "-" + std::to_string(now) + ".tmp";
}

// A reader sees the old file or the new one, never half of it.
inline void write_file(const json_source& source, std::string_view text) {
  const std::string path(source.name);
  const auto beside = temporary_beside(path);
  file_handle file(std::fopen(beside.c_str(), "wbx"));
  bool done =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  const bool made = file != nullptr;
  if (made) done = std::fclose(file.release()) == 0 && done;
  done = done && std::rename(beside.c_str(), path.c_str()) == 0;
  if (done) return;
  const auto problem = last_problem();
  if (made) static_cast<void>(std::remove(beside.c_str()));
  source.refuse({}, "it cannot be written: " + problem, "give a path in a folder with room");
}

[[nodiscard]] inline json rates_to_json(const link_rates& rates) {
  return {
      {"out", rates.out}, {"in", rates.in}, {"both", rates.both}, {"latency_us", rates.latency_us}};
}

}  // namespace tidepool::plan::detail
