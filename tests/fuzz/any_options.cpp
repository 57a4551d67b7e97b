// Options that code has made, with any value in any member: validated or refused, never worse.
#include <fuzzer/FuzzedDataProvider.h>

#include <limits>

#include "fuzz.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/validate.hpp"

namespace {

using namespace tidepool;

class maker {
 public:
  maker(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}

  options make() {
    options value;
    value.offload_modules = names();
    value.own_modules = names();
    value.offload_layers = layers();
    value.recompute_modules = names();
    value.max_inflight = perhaps();
    value.max_inflight_bytes = perhaps();
    for (const auto& name : names()) value.module_max_inflight[name] = number();
    value.min_tensor_elements = number();
    value.fraction = fraction();
    value.delta_bytes_per_rank = number();
    value.pipeline_rank = integer();
    value.margin = bytes_.ConsumeBool();
    value.recompute_by_plan = bytes_.ConsumeBool();
    value.reload_ahead = number();
    value.reload_ahead_bytes = perhaps();
    value.memory = static_cast<memory_kind>(bytes_.ConsumeIntegral<std::uint8_t>() & 3U);
    value.device_budget = perhaps();
    for (auto n = count(); n > 0; --n) value.slots.push_back({number(), number()});
    value.device_step = number();
    value.borrowed_slack = perhaps();
    value.copy_piece = number();
    value.pack = names();
    value.host_budget = perhaps();
    value.places.clear();
    for (auto n = count(); n > 0; --n) {
      value.places.push_back(static_cast<place_kind>(bytes_.ConsumeIntegral<std::uint8_t>() & 3U));
    }
    value.peer_device = integer();
    value.peer_budget = perhaps();
    value.file_path = bytes_.ConsumeRandomLengthString(12);
    value.file_budget = perhaps();
    value.file_ring = number();
    value.host_step = number();
    value.local_ranks = integer();
    value.poison = bytes_.ConsumeBool();
    return value;
  }

 private:
  std::size_t count() { return bytes_.ConsumeIntegral<std::uint8_t>() & 3U; }

  // Known names often enough that some combinations are valid.
  std::vector<std::string> names() {
    constexpr std::array<std::string_view, 20> likely{"attn_norm", "qkv_linear", "core_attn",
                                                      "attn_proj", "mlp_norm",   "expert_fc1",
                                                      "moe_act",   "mlp_norm",   "fused_group_mlp",
                                                      "all",       "none",       "rope",
                                                      "my-norm.2", "a/b",        "moe",
                                                      "mlp",       "2",          "",
                                                      "a b",       "a,b"};
    std::vector<std::string> result;
    for (auto n = count(); n > 0; --n) {
      if (bytes_.ConsumeIntegral<std::uint8_t>() % 8 == 0) {
        result.push_back(bytes_.ConsumeRandomLengthString(12));
      } else {
        result.emplace_back(likely[bytes_.ConsumeIntegral<std::uint8_t>() % likely.size()]);
      }
    }
    return result;
  }

  std::size_t number() {
    switch (bytes_.ConsumeIntegral<std::uint8_t>() & 3U) {
      case 0:
        return bytes_.ConsumeIntegral<std::uint8_t>();
      case 1:
        return std::size_t{bytes_.ConsumeIntegral<std::uint8_t>()} << 20;
      case 2:
        return std::numeric_limits<std::size_t>::max() - bytes_.ConsumeIntegral<std::uint8_t>();
      default:
        return bytes_.ConsumeIntegral<std::size_t>();
    }
  }
  std::optional<std::size_t> perhaps() {
    return bytes_.ConsumeBool() ? std::optional(number()) : std::nullopt;
  }
  int integer() {
    return bytes_.ConsumeBool() ? bytes_.ConsumeIntegral<int>()
                                : bytes_.ConsumeIntegral<std::uint8_t>();
  }
  std::vector<int> layers() {
    std::vector<int> result;
    for (auto n = count(); n > 0; --n) result.push_back(integer());
    return result;
  }
  double fraction() {
    switch (bytes_.ConsumeIntegral<std::uint8_t>() & 7U) {
      case 0:
        return std::numeric_limits<double>::quiet_NaN();
      case 1:
        return std::numeric_limits<double>::infinity();
      case 2:
        return bytes_.ConsumeFloatingPoint<double>();
      default:
        return bytes_.ConsumeProbability<double>();
    }
  }

  FuzzedDataProvider bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto value = maker(data, size).make();
  const bool open = fuzz::accepted([&] { validate(value, open_module_list(value), true); });
  const bool compiled = fuzz::accepted([&] { validate(value, fuzz::whole_list::names, false); });
  const auto text = to_text(value);
  if (!open && !compiled) return 0;
  options again;
  fuzz::expect(fuzz::accepted([&] { again = parse_options(text); }), "the text is refused", text);
  // `none` among the modules reads back as no module.
  auto expected = value;
  if (expected.offload_modules == std::vector<std::string>{"none"}) {
    expected.offload_modules.clear();
  }
  fuzz::expect(again == expected, "the text reads otherwise", text);
  return 0;
}
