/// Module names, and the lists of modules that a program compiles in.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidepool::inline v0_3_0 {

/// A string literal usable as a template argument: `commit<"core_attn">(…)`.
template <std::size_t Size>
struct fixed_string {
  char text[Size]{};  ///< the characters, with a zero at the end

  // The constructor is implicit, so that a plain literal can stand where a name is expected.
  /// Copies a plain literal.
  consteval fixed_string(const char (&literal)[Size]) { std::copy_n(literal, Size, text); }

  /// The characters, without the zero.
  [[nodiscard]] constexpr std::string_view view() const { return {text, Size - 1}; }
};

/// The largest number of modules of an offloader. One machine word holds the set of enabled
/// modules, so that a disabled module costs one test of a bit.
inline constexpr std::size_t max_modules = 64;

/// Names that Megatron-Core uses (`TransformerConfig.offload_modules`). Other names work as well,
/// see `options::own_modules`.
inline constexpr std::array<std::string_view, 9> standard_modules{
    "attn_norm",  "qkv_linear", "core_attn",       "attn_proj", "mlp_norm",
    "expert_fc1", "moe_act",    "fused_group_mlp", "gdp_qkv"};

/// Index of a module within one offloader.
enum class module_id : std::uint8_t {};

/// A compile-time list of modules: a call for a module outside it generates no instruction. A call
/// with a misspelt name does nothing either; `strict_modules` refuses to compile it.
template <fixed_string... Names>
struct modules {
  static_assert(sizeof...(Names) > 0, "tidepool: name at least one module, or use all_modules");
  static_assert((!Names.view().empty() && ...), "tidepool: the name of a module is empty");
  static_assert(sizeof...(Names) <= max_modules, "tidepool: at most 64 modules");

  static constexpr bool open = false;    ///< only the names of the list are known
  static constexpr bool strict = false;  ///< calls may name other modules, and then do nothing
  /// The names of the list.
  static constexpr std::array<std::string_view, sizeof...(Names)> names{Names.view()...};

  /// True when the list has the name.
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

/// Like `modules`, for a program that names only modules of the list: `commit<"expert_fc">` beside
/// `strict_modules<"expert_fc1">` does not compile, and the message shows the nearest name.
///
/// The compiler checks `offloader::enabled` and the calls of `chunk` that have a name as template
/// argument. `commit_or_discard` and `restore_or_recompute` take Megatron's regions, too. Ids are
/// looked up at run time, and a wrong name throws `unknown_module` then.
///
///     tidepool::offloader<device, tidepool::strict_modules<"core_attn", "expert_fc1">> off(dev);
template <fixed_string... Names>
struct strict_modules : modules<Names...> {
  static constexpr bool strict = true;  ///< calls that name another module do not compile
};

/// The list `Modules`, where the tensors of the modules `Names` are packed if they are offloaded,
/// as if `options::pack` had these names, too.
///
///     using listed = tidepool::packed<tidepool::modules<"expert_fc1", "moe_act">, "expert_fc1">;
///     tidepool::offloader<device, listed> off(dev, options);
template <class Modules, fixed_string... Names>
struct packed : Modules {
  static_assert(!Modules::open, "tidepool: packed needs a list of modules; use --pack otherwise");
  static_assert((Modules::contains(Names.view()) && ...),
                "tidepool: packed names a module that its list does not have");

  /// The names of the modules that are packed.
  static constexpr std::array<std::string_view, sizeof...(Names)> packed_names{Names.view()...};
};

/// Every module name is compiled in, and the run-time options alone decide. `options::own_modules`
/// declares names beside the standard ones.
struct all_modules {
  static constexpr bool open = true;     ///< any name may be declared
  static constexpr bool strict = false;  ///< names are looked up at run time
};

}  // namespace tidepool
