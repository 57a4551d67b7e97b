/// The fields of a model's description by name, for `--set`.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <tidepool/config/formats.hpp>
#include <vector>

#include "description.hpp"

namespace planning {

using description = model_description;

struct field {
  std::string_view name;
  std::size_t description::*number;
};

inline constexpr std::array<field, 23> fields{
    {{"layers", &description::layers},
     {"dense_layers", &description::dense_layers},
     {"hidden", &description::hidden},
     {"heads", &description::heads},
     {"head_dim", &description::head_dim},
     {"kv_heads", &description::kv_heads},
     {"q_latent", &description::q_latent},
     {"kv_latent", &description::kv_latent},
     {"rope_dim", &description::rope_dim},
     {"experts", &description::experts},
     {"top_k", &description::top_k},
     {"ffn", &description::ffn},
     {"shared_experts", &description::shared_experts},
     {"dense_ffn", &description::dense_ffn},
     {"sequence", &description::sequence},
     {"microbatch", &description::microbatch},
     {"bytes_per_element", &description::bytes_per_element},
     {"tensor_parallel", &description::tensor_parallel},
     {"expert_parallel", &description::expert_parallel},
     {"pipeline_parallel", &description::pipeline_parallel},
     {"pipeline_rank", &description::pipeline_rank},
     {"microbatches", &description::microbatches},
     {"in_flight", &description::in_flight}}};

/// A share or a percentage: `0.01`, `1%`.
inline double read_share(const tidepool::detail::text::setting& given) {
  constexpr std::string_view remedy = "give a share such as 0.01 or 1%";
  auto text = given.value;
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  double value = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || stop != text.data() + text.size() || !(value >= 0 && value < 1e3)) {
    tidepool::detail::text::refuse(given, "that is no share", remedy);
  }
  return percent ? value / 100 : value;
}

/// Applies `layers=16` and the like. Throws `tidepool::option_error`.
inline void set_field(description& model, std::string_view assignment) {
  namespace text = tidepool::detail::text;
  const auto equals = assignment.find('=');
  const auto name = text::trim(assignment.substr(0, equals));
  const text::setting given{
      "--set " + std::string(name),
      equals == std::string_view::npos ? "" : text::trim(assignment.substr(equals + 1))};
  if (given.value.empty()) text::refuse(given, "there is no value", "give --set layers=16");
  if (name == "efficiency") return void(model.efficiency = read_share(given));
  if (name == "exposed") return void(model.exposed = read_share(given));
  if (name == "fused_activation") {
    const auto number = text::number_format<unsigned>::read(given);
    if (number > 1) text::refuse(given, "that is neither", "give 0 or 1");
    return void(model.fused_activation = number == 1);
  }
  const auto* found = std::find_if(fields.begin(), fields.end(),
                                   [&](const field& each) { return each.name == name; });
  if (found == fields.end()) {
    std::vector<std::string_view> names{"efficiency", "exposed", "fused_activation"};
    for (const auto& each : fields) names.push_back(each.name);
    const auto near = text::nearest(name, names);
    text::refuse(given, "a model has no such field",
                 (near.empty() ? "take of " + text::join(names, ", ")
                               : "did you mean " + std::string(near) + "?"));
  }
  model.*(found->number) = text::number_format<std::size_t>::read(given);
}

}  // namespace planning
