/// NVTX ranges around the host's work for a group, so that profilers show names. Compiles to
/// nothing with `NVTX_DISABLE` or `TIDEPOOL_NO_CUDA`, or if NVTX is not installed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tidepool/trace/detail/module_colour.hpp"

// The form with NVTX and the form without have different names and the same layout. So translation
// units that disagree can still be linked: at worst some ranges are missing.
#if !defined(NVTX_DISABLE) && !defined(TIDEPOOL_NO_CUDA) && __has_include(<nvtx3/nvtx3.hpp>)
// The macro is set around the include, because a header must not decide which version of NVTX its
// users see.
#if !defined(NVTX3_CPP_REQUIRE_EXPLICIT_VERSION)
#define NVTX3_CPP_REQUIRE_EXPLICIT_VERSION
#include <nvtx3/nvtx3.hpp>
#undef NVTX3_CPP_REQUIRE_EXPLICIT_VERSION
#else
#include <nvtx3/nvtx3.hpp>
#endif
#define TIDEPOOL_DETAIL_NVTX 1
#define TIDEPOOL_DETAIL_NVTX_FORM nvtx_on
#else
#define TIDEPOOL_DETAIL_NVTX 0
#define TIDEPOOL_DETAIL_NVTX_FORM nvtx_off
#endif

namespace tidepool::inline v0_3_0::trace {
inline namespace TIDEPOOL_DETAIL_NVTX_FORM {

/// The work that a range covers; NVTX shows it as the range's category.
enum class nvtx_action : std::uint8_t {
  offload,  ///< issues copies to the host
  reload,   ///< issues copies back
  commit,   ///< the trainer's commit
  restore   ///< the trainer's restore
};

#if TIDEPOOL_DETAIL_NVTX
/// True if ranges are compiled in: NVTX was found, and not disabled.
inline constexpr bool nvtx_compiled_in = true;

/// The domain of the ranges, which a profiler shows.
struct nvtx_domain {
  static constexpr const char* name = "tidepool";  ///< its name in the profiler
};
#else
inline constexpr bool nvtx_compiled_in = false;
#endif

class nvtx_names;

/// A range of the calling thread. The range ends with the object; ranges of a thread must end in
/// reverse order. Neither copied nor moved: hold it in a local variable.
class nvtx_range {
 public:
  /// Opens the range of a module (an index among `names`) and a layer (negative: none).
  nvtx_range(const nvtx_names& names, nvtx_action what, std::size_t module, int layer) noexcept;
  nvtx_range(const nvtx_range&) = delete;
  nvtx_range& operator=(const nvtx_range&) = delete;
  ~nvtx_range() {
#if TIDEPOOL_DETAIL_NVTX
    if (domain_ != nullptr) nvtxDomainRangePop(static_cast<nvtxDomainHandle_t>(domain_));
#endif
  }

 private:
  [[maybe_unused]] void* domain_;  // null: no range was opened
};

/// The names of an offloader's modules, registered once with the profiler in the domain `tidepool`.
///
/// The functions open a range such as `offload core_attn`. The layer is the range's payload unless
/// it is negative. An index without a name opens no range. The functions cost one branch while no
/// tool listens, allocate nothing and never throw. Thread safety: as a const object.
class nvtx_names {
 public:
  /// Registers the names; does nothing if NVTX is not compiled in.
  explicit nvtx_names([[maybe_unused]] std::span<const std::string> modules) {
#if TIDEPOOL_DETAIL_NVTX
    domain_ = static_cast<nvtxDomainHandle_t>(nvtx3::v1::domain::get<nvtx_domain>());
    using named = nvtx3::v1::named_category_in<nvtx_domain>;
    for (std::uint32_t action = 0; action < actions.size(); ++action) {
      static_cast<void>(named(action + 1, actions[action]));
    }
    entries_.reserve(modules.size());
    for (const auto& module : modules) {
      entry item;
      const auto place = detail::colour_place(module) % detail::module_colours.size();
      const auto colour = detail::module_colours[place];
      item.colour = 0xff000000U | static_cast<std::uint32_t>(colour.red) << 16 |
                    static_cast<std::uint32_t>(colour.green) << 8 | colour.blue;
      for (std::size_t action = 0; action < actions.size(); ++action) {
        const auto text = std::string(actions[action]) + " " + module;
        item.texts[action] = nvtx3::v1::registered_string_in<nvtx_domain>(text).get_handle();
      }
      entries_.push_back(item);
    }
#endif
  }

  /// Opens a range `offload` of a module, by its index.
  [[nodiscard]] nvtx_range offload(std::size_t module, int layer = -1) const noexcept {
    return {*this, nvtx_action::offload, module, layer};
  }
  /// Opens a range `reload` of a module, by its index.
  [[nodiscard]] nvtx_range reload(std::size_t module, int layer = -1) const noexcept {
    return {*this, nvtx_action::reload, module, layer};
  }
  /// Opens a range `commit` of a module, by its index.
  [[nodiscard]] nvtx_range commit(std::size_t module, int layer = -1) const noexcept {
    return {*this, nvtx_action::commit, module, layer};
  }
  /// Opens a range `restore` of a module, by its index.
  [[nodiscard]] nvtx_range restore(std::size_t module, int layer = -1) const noexcept {
    return {*this, nvtx_action::restore, module, layer};
  }

 private:
  friend class nvtx_range;
  static constexpr std::array<const char*, 4> actions{"offload", "reload", "commit", "restore"};

  struct entry {
    std::array<void*, actions.size()> texts{};
    std::uint32_t colour = 0;
  };

  [[nodiscard]] void* open([[maybe_unused]] std::size_t module, [[maybe_unused]] nvtx_action action,
                           [[maybe_unused]] int layer) const noexcept {
#if TIDEPOOL_DETAIL_NVTX
    // NVTX returns no domain unless a tool was loaded with the process.
    if (domain_ == nullptr || module >= entries_.size()) return nullptr;
    const auto& item = entries_[module];
    const auto index = static_cast<std::size_t>(action);
    // The attributes are filled by hand, because the wrapper's constructors fill the same 48 bytes
    // several times.
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.category = static_cast<std::uint32_t>(index) + 1;
    attributes.colorType = NVTX_COLOR_ARGB;
    attributes.color = item.colour;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = static_cast<nvtxStringHandle_t>(item.texts[index]);
    if (layer >= 0) {
      attributes.payloadType = NVTX_PAYLOAD_TYPE_INT32;
      attributes.payload.iValue = layer;
    }
    nvtxDomainRangePushEx(static_cast<nvtxDomainHandle_t>(domain_), &attributes);
    return domain_;
#else
    return nullptr;
#endif
  }

  // Both members stay empty in the form without NVTX.
  [[maybe_unused]] void* domain_ = nullptr;
  std::vector<entry> entries_;
};

inline nvtx_range::nvtx_range(const nvtx_names& names, nvtx_action what, std::size_t module,
                              int layer) noexcept
    : domain_(names.open(module, what, layer)) {}

}  // namespace TIDEPOOL_DETAIL_NVTX_FORM
}  // namespace tidepool::trace

#undef TIDEPOOL_DETAIL_NVTX
#undef TIDEPOOL_DETAIL_NVTX_FORM
