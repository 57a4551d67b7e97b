/// Names of modules in a program's text: looks them up in a list, and finds the nearest name.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tidepool/core/text.hpp"
#include "tidepool/module.hpp"

namespace tidepool::inline v0_3_0::detail {

/// Names that `recompute_modules` takes beside modules: parts of a model that trainers recompute.
/// Source: Megatron-Core `TransformerConfig.recompute_modules`, and the gather of routed tokens.
inline constexpr std::array<std::string_view, 9> recompute_regions{
    "layernorm",   "mla_up_proj", "mlp",          "moe", "shared_experts",
    "moe_permute", "gdp_in_proj", "gdn_norm_out", "mhc"};

// Templates that show their argument in a compiler's messages. They take letters for clang, because
// clang before 16 shows a string as numbers.
#if defined(__clang__)
template <char... Letters>
struct name {};
template <char... Letters>
struct did_you_mean {};
#else
template <fixed_string Name>
struct name {};
template <fixed_string Name>
struct did_you_mean {};
#endif
struct no_name_is_near {};

template <class Modules, std::size_t Index>
consteval auto name_at() {
  constexpr std::string_view text = Modules::names[Index];
  char copy[text.size() + 1]{};
  std::copy(text.begin(), text.end(), copy);
  return fixed_string<text.size() + 1>(copy);
}

template <fixed_string Name, bool Meant, std::size_t... I>
consteval auto spelled(std::index_sequence<I...>) {
#if defined(__clang__)
  if constexpr (Meant) {
    return did_you_mean<Name.text[I]...>();
  } else {
    return name<Name.text[I]...>();
  }
#else
  if constexpr (Meant) {
    return did_you_mean<Name>();
  } else {
    return name<Name>();
  }
#endif
}

template <fixed_string Name, bool Meant>
using spelled_name = decltype(spelled<Name, Meant>(std::make_index_sequence<Name.view().size()>()));

template <class Modules, fixed_string Name>
consteval auto nearest_of_list() {
  constexpr std::string_view near = text::nearest(Name.view(), Modules::names);
  if constexpr (near.empty()) {
    return no_name_is_near();
  } else {
    constexpr auto found = std::find(Modules::names.begin(), Modules::names.end(), near);
    constexpr auto index = static_cast<std::size_t>(found - Modules::names.begin());
    return spelled_name<name_at<Modules, index>(), true>();
  }
}

template <class Wrong, class Nearest>
struct not_in_strict_modules {
  static_assert(sizeof(Wrong) == 0,
                "tidepool: strict_modules<...> has no module of this name. The lines around this "
                "one show it as name<...>, and the nearest of the list as did_you_mean<...>. "
                "Correct the name, or add it to the list");
};

template <class Modules>
constexpr bool list_has(std::string_view name) {
  if constexpr (Modules::open) {
    return false;
  } else {
    return Modules::contains(name);
  }
}

struct nothing_refused {};

template <class Modules, fixed_string Name>
consteval auto refusal() {
  if constexpr (Modules::strict && !list_has<Modules>(Name.view())) {
    using nearest = decltype(nearest_of_list<Modules, Name>());
    return std::type_identity<not_in_strict_modules<spelled_name<Name, false>, nearest>>();
  } else {
    return std::type_identity<nothing_refused>();
  }
}

/// True where the calls for a module generate code. A name that a strict list lacks does not
/// compile. The error is in a base class, because clang repeats an error in a function at each of
/// its callers.
template <class Modules, fixed_string Name>
struct compiled_in : decltype(refusal<Modules, Name>())::type {
  static_assert(!Modules::open || sizeof(Name) == 0,
                "tidepool: with all_modules, name a module by the id from offloader::module");
  static constexpr bool value = list_has<Modules>(Name.view());
};

/// The names that an offer to recompute may use in a strict list: its modules, and every region.
template <class Modules>
struct with_regions {
  static constexpr bool open = false;
  static constexpr bool strict = true;
  static constexpr auto names = [] {
    std::array<std::string_view, Modules::names.size() + recompute_regions.size()> all;
    const auto regions = std::copy(Modules::names.begin(), Modules::names.end(), all.begin());
    std::copy(recompute_regions.begin(), recompute_regions.end(), regions);
    return all;
  }();
  static constexpr bool contains(std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

/// True where an offer to recompute generates code. An offer by a region always does.
template <class Modules, fixed_string Name>
consteval bool offered() {
  constexpr auto& regions = recompute_regions;
  if constexpr (std::find(regions.begin(), regions.end(), Name.view()) != regions.end()) {
    return true;
  } else if constexpr (Modules::strict) {
    return compiled_in<with_regions<Modules>, Name>::value;
  } else {
    return compiled_in<Modules, Name>::value;
  }
}

/// The id of a module of the list. A region that the list lacks is looked up at each call.
template <class Modules, fixed_string Name>
consteval auto offer_of() {
  if constexpr (list_has<Modules>(Name.view())) {
    return Modules::id(Name.view());
  } else {
    return Name.view();
  }
}

}  // namespace tidepool::detail
