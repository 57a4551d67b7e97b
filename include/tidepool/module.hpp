/// Module names, and the lists of modules a program compiles in.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidepool::inline v0_2_0 {

/// A string literal usable as a template argument: `commit<"core_attn">(…)`.
template <std::size_t Size>
struct fixed_string {
  char text[Size]{};  ///< the characters, with a zero at the end

  // Implicit, so that a plain literal can stand where a name is expected.
  /// From a plain literal.
  consteval fixed_string(const char (&literal)[Size]) { std::copy_n(literal, Size, text); }

  /// The characters, without the zero.
  [[nodiscard]] constexpr std::string_view view() const { return {text, Size - 1}; }
};

/// Modules an offloader serves at most. One machine word holds the set of enabled ones, so that a
/// disabled module costs one test of a bit.
inline constexpr std::size_t max_modules = 64;

/// Names the field uses; any other name is the user's own and just as good.
/// Source: Megatron-Core `TransformerConfig.offload_modules`.
inline constexpr std::array<std::string_view, 9> standard_modules{
    "attn_norm",  "qkv_linear", "core_attn",       "attn_proj", "mlp_norm",
    "expert_fc1", "moe_act",    "fused_group_mlp", "gdp_qkv"};

/// Index of a module within one offloader.
enum class module_id : std::uint8_t {};

/// A compile-time list of modules: what is not in it generates no instruction. A name that is
/// misspelt in a call is not in it either; `strict_modules` refuses that.
template <fixed_string... Names>
struct modules {
  static_assert(sizeof...(Names) > 0, "tidepool: name at least one module, or use all_modules");
  static_assert((!Names.view().empty() && ...), "tidepool: the name of a module is empty");
  static_assert(sizeof...(Names) <= max_modules, "tidepool: at most 64 modules");

  static constexpr bool open = false;    ///< only the names of the list are known
  static constexpr bool strict = false;  ///< calls may name other modules, and then do nothing
  /// The list.
  static constexpr std::array<std::string_view, sizeof...(Names)> names{Names.view()...};

  /// Whether the list has the name.
  static constexpr bool contains(std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  /// The index of a name of the list.
  static constexpr module_id id(std::string_view name) {
    return static_cast<module_id>(std::find(names.begin(), names.end(), name) - names.begin());
  }

 private:
  static constexpr bool unique() {
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (std::size_t j = i + 1; j < names.size(); ++j) {
        if (names[i] == names[j]) return false;
      }
    }
    return true;
  }
  static_assert(unique(), "tidepool: a module is named twice");
};

/// `modules`, for a program that uses no other names: `commit<"expert_fc">` beside
/// `strict_modules<"expert_fc1">` does not compile, and the message shows the nearest name.
///
/// The calls of `chunk` that have a name as template argument are checked, and
/// `offloader::enabled`. `discard` and `recompute` take the standard modules and Megatron's regions
/// too. Ids are looked up at run time, where a wrong name is an `unknown_module`.
///
///     tidepool::offloader<device, tidepool::strict_modules<"core_attn", "expert_fc1">> off(dev);
template <fixed_string... Names>
struct strict_modules : modules<Names...> {
  static constexpr bool strict = true;  ///< calls that name another module do not compile
};

/// Every name is compiled in; the run-time options alone decide. The user's own names are declared
/// with `options::own_modules`.
struct all_modules {
  static constexpr bool open = true;     ///< any name may be declared
  static constexpr bool strict = false;  ///< names are looked up at run time
};

}  // namespace tidepool
