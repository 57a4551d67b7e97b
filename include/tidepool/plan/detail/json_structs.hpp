// Structs from JSON and to it, by the members that they have in files.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/module.hpp"
#include "tidepool/plan/detail/json_members.hpp"
#include "tidepool/plan/detail/json_text.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/refusal.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

inline constexpr std::uint32_t json_version = 1;

[[nodiscard]] inline std::string version_key(std::string_view kind) {
  return "tidepool_" + std::string(kind);
}
[[nodiscard]] inline std::string did_you_mean(std::string_view close) {
  return "did you mean " + tidepool::detail::text::in_quotes(close) + "?";
}

// All: a rate of a link that is left out must not be that of another machine.
enum class rates : std::uint8_t { some, all };

// Reads the parts of one document.
class json_reader {
 public:
  using keys = std::vector<std::string_view>;

  json_reader(const subject& of, std::string_view text, rates needed = rates::some)
      : source_(parse_json(of, text)), rates_(needed) {
    const auto kind = std::string(of.kind);
    const auto key = version_key(kind);
    if (!has(top(), key)) {
      auto remedy = "a " + kind + " begins with \"" + key + "\": 1";
      for (const std::string other : {"profile", "plan", "machine"}) {
        if (has(top(), version_key(other))) remedy = "this is a " + other + ": read it as one";
      }
      source_.refuse(top(), "the key '" + key + "' is missing", remedy);
    }
    std::uint32_t version = 0;
    const auto& found = member(top(), key);
    read(found, version);
    if (version == json_version) return;
    source_.refuse(found, "it is of version " + std::to_string(version),
                   "this build reads version 1; write the file anew, or update Tidepool");
  }

  [[nodiscard]] const json& top() const { return source_.document; }

  // The document into `all`, whose keys these are, and those that the caller reads.
  void read_top(auto& all, const keys& own = {}) {
    const auto version = version_key(source_.of.kind);
    keys known{version};
    append_keys(known, all);
    known.insert(known.end(), own.begin(), own.end());
    only(top(), known);
    read_members(top(), all);
  }

  [[nodiscard]] const json& member(const json& from, std::string_view key) const {
    if (has(from, key)) return from.at(std::string(key));
    source_.refuse(from, "the key '" + std::string(key) + "' is missing", "add it");
  }
  // The length of an array.
  std::size_t size(const json& from) const {
    if (!from.is_array()) expected(from, "an array");
    return from.size();
  }
  void expect_size(const json& from, std::size_t count, const char* problem) const {
    if (size(from) == count) return;
    source_.refuse(from, phrase(problem, from.size(), count).text(),
                   "change actions, not the number of rows");
  }
  // An object with no keys but these.
  void only(const json& from, std::span<const std::string_view> known) const {
    if (!from.is_object()) expected(from, "an object");
    for (const auto& [key, value] : from.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const auto close = tidepool::detail::text::nearest(key, known);
      source_.refuse(from, "there is no key " + tidepool::detail::text::in_quotes(key) + " here",
                     close.empty() ? "the keys are " + tidepool::detail::text::join(known, ", ")
                                   : did_you_mean(close));
    }
  }

  template <class T>
  void read(const json& from, T& into, const auto&... fresh) {
    if constexpr (has_members<T>) {
      keys known;
      append_keys(known, into);
      only(from, known);
      read_members(from, into);
    } else if constexpr (has_parts<T>) {
      read_parts(from, into);
    } else if constexpr (has_words<T>) {
      into = static_cast<T>(word(from, words_of(into)));
    } else if constexpr (std::same_as<T, module_id>) {
      into = module_of(from);
    } else if constexpr (requires { into.has_value(); }) {
      read(from, into.emplace(fresh...));
    } else if constexpr (std::same_as<T, bool>) {
      if (!from.is_boolean()) expected(from, "true or false");
      into = from.get<bool>();
    } else if constexpr (std::same_as<T, double>) {
      if (!from.is_number()) expected(from, "a number");
      into = from.get<double>();
    } else if constexpr (std::same_as<T, std::string>) {
      if (!from.is_string()) expected(from, "a string");
      into = from.get_ref<const std::string&>();
    } else if constexpr (std::integral<T>) {
      read_whole(from, into, std::numeric_limits<T>::max());
    } else {
      const auto count = size(from);
      for (std::size_t i = 0; i < count; ++i) read(from[i], into.emplace_back(fresh...));
      if constexpr (std::same_as<T, std::vector<std::string>>) modules_ = into;
    }
  }

 private:
  [[noreturn]] void expected(const json& from, std::string_view what,
                             std::string_view remedy = "correct it") const {
    const auto found = from.is_array()    ? std::string("an array")
                       : from.is_object() ? std::string("an object")
                                          : tidepool::detail::text::printable(from.dump());
    source_.refuse(from, "found " + found + ", expected " + std::string(what), remedy);
  }
  [[nodiscard]] static bool has(const json& from, std::string_view key) {
    return from.is_object() && from.contains(key);
  }
  static void append_keys(keys& to, const auto& of) {
    each_member(of, [&](std::string_view key, const auto&...) { to.push_back(key); });
  }

  void read_members(const json& from, auto& into) {
    each_member(into, [&](std::string_view key, auto& member, const auto&... how) {
      read_member(from, key, member, how...);
    });
  }
  void read_member(const json& from, std::string_view key, auto& member) {
    read_member(from, key, member, presence::usual);
  }
  template <class T>
  void read_member(const json& from, std::string_view key, T& member, presence is,
                   const auto&... fresh) {
    const bool needed = is == presence::needed || (is == presence::rate && rates_ == rates::all);
    if (!needed && !has(from, key)) return;
    const auto& value = this->member(from, key);
    if constexpr (std::same_as<T, std::uint32_t>) {
      read_whole(value, member, none - 1);  // no file says `none`: it leaves it out
    } else {
      read(value, member, fresh...);
    }
  }

  void read_parts(const json& from, auto& into) {
    keys needed;
    std::size_t most = 0;
    each_part(into, [&](std::string_view key, const auto&, presence is = presence::needed) {
      ++most;
      if (is == presence::needed) needed.push_back(key);
    });
    const auto count = size(from);
    if (count < needed.size() || count > most) {
      source_.refuse(from, "found " + std::to_string(count) + " parts",
                     "give [" + tidepool::detail::text::join(needed, ", ") + "]");
    }
    std::size_t next = 0;
    each_part(into, [&]<class T>(std::string_view, T& part, const auto&...) {
      if (next == count) return;
      const auto& value = from[next++];
      if constexpr (std::same_as<T, bool>) {
        part = word(value, pass_words) == 1;
      } else {
        read(value, part);
      }
    });
  }

  template <class Whole>
  void read_whole(const json& from, Whole& into, Whole most) const {
    constexpr auto least = std::numeric_limits<Whole>::min();
    const auto take = [&](auto number) {
      if (std::cmp_less(number, least) || std::cmp_greater(number, most)) return false;
      into = static_cast<Whole>(number);
      return true;
    };
    const bool right = from.is_number_unsigned()
                           ? take(from.get<std::uint64_t>())
                           : from.is_number_integer() && take(from.get<std::int64_t>());
    if (right) return;
    expected(from, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }

  [[nodiscard]] std::size_t word(const json& from, std::span<const std::string_view> words) const {
    const auto text = from.is_string() ? from.get_ref<const std::string&>() : std::string();
    const auto found = std::find(words.begin(), words.end(), text);
    if (found == words.end()) {
      const auto close = tidepool::detail::text::nearest(text, words);
      expected(from, "one of " + tidepool::detail::text::join(words, ", "),
               close.empty() ? "correct it" : did_you_mean(close));
    }
    return static_cast<std::size_t>(found - words.begin());
  }

  [[nodiscard]] module_id module_of(const json& from) {
    std::string name;
    read(from, name);
    const auto found = std::find(modules_.begin(), modules_.end(), name);
    if (found == modules_.end()) {
      source_.refuse(from, tidepool::detail::text::in_quotes(name) + " is not one of the modules",
                     "add it to \"modules\", or correct it");
    }
    return static_cast<module_id>(found - modules_.begin());
  }

  json_source source_;
  rates rates_;
  std::span<const std::string> modules_;  // of the profile
};

// Writes them.
class json_writer {
 public:
  // Groups have the names of these modules.
  explicit json_writer(std::span<const std::string> modules = {}) : modules_(modules) {}

  // A document of this kind, as far as its members go.
  [[nodiscard]] json document(std::string_view kind, const auto& all) const {
    json top{{version_key(kind), json_version}};
    top.update(written(all));
    return top;
  }

 private:
  template <class T>
  [[nodiscard]] json written(const T& value) const {
    if constexpr (has_members<const T>) {
      auto all = json::object();
      each_member(value, [&](std::string_view key, const auto& member, const auto&... is) {
        if (!says_nothing(member, is...)) all[std::string(key)] = written(member);
      });
      return all;
    } else if constexpr (has_parts<const T>) {
      auto row = json::array();
      each_part(value, [&]<class Part>(std::string_view, const Part& part, const auto&... is) {
        if constexpr (std::same_as<Part, bool>) {
          row.push_back(pass_words[part ? 1 : 0]);
        } else if (!says_nothing(part, is...)) {
          row.push_back(written(part));
        }
      });
      return row;
    } else if constexpr (has_words<T>) {
      return words_of(value)[static_cast<std::size_t>(value)];
    } else if constexpr (std::same_as<T, module_id>) {
      return modules_[static_cast<std::size_t>(value)];
    } else if constexpr (requires { value.has_value(); }) {
      return written(*value);
    } else if constexpr (std::same_as<T, std::string> || std::is_arithmetic_v<T>) {
      return value;
    } else {
      auto list = json::array();
      for (const auto& each : value) list.push_back(written(each));
      return list;
    }
  }

  [[nodiscard]] static bool says_nothing(const auto&) { return false; }
  template <class T>
  [[nodiscard]] static bool says_nothing(const T& member, presence is, const auto&...) {
    if constexpr (std::same_as<T, std::uint32_t>) {
      if (is == presence::unless_none) return member == none;
    }
    return is == presence::unless_empty && member == T{};
  }

  std::span<const std::string> modules_;
};

}  // namespace tidepool::plan::detail
