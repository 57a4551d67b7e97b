// Megatron's names, with Megatron's meaning.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "refusal.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/parse.hpp"

namespace tidepool {
namespace {

using test::check_says;
using test::refusal;
using names = std::vector<std::string>;

std::string refused(const std::string& text, const options& base = {}) {
  return refusal([&] { static_cast<void>(parse_options(text, base)); });
}

TEST_CASE("Megatron's flags") {
  CHECK(parse_options("--offload-modules core_attn attn_proj").offload_modules ==
        names{"core_attn", "attn_proj"});
  CHECK(parse_options("--fine-grained-offloading-max-inflight-offloads 2").max_inflight == 2);
  CHECK(parse_options("--min-offloaded-tensor-size 2048").min_tensor_elements == 2048);
  CHECK(parse_options("--activation-offload-fraction 0.5").fraction == 0.5);
  CHECK(parse_options("--delta-offload-bytes-across-pp-ranks 1024").delta_bytes_per_rank == 1024);
  CHECK(parse_options("--recompute-modules moe_act layernorm").recompute_modules ==
        names{"moe_act", "layernorm"});
}

TEST_CASE("underscores count as dashes in every name") {
  CHECK(parse_options("--offload_modules=core_attn").offload_modules == names{"core_attn"});
  CHECK(parse_options("--min_offloaded-tensor_size=7").min_tensor_elements == 7);
  CHECK(parse_options("--no_margin").margin == false);
  CHECK(parse_options("--fine_grained_offloading_max_inflight_offloads=3").max_inflight == 3);
  for (const auto& item : detail::text::option_table) {
    if (item.write == nullptr) continue;
    std::string flag(item.flag);
    for (char& c : flag) c = c == '-' ? '_' : c;
    CHECK_NOTHROW(static_cast<void>(parse_options("--" + flag + "=" + item.write(options{}))));
  }
  // A module's name is a value, not a name of an option.
  CHECK(parse_options("--own_modules=my-norm").own_modules == names{"my-norm"});
}

TEST_CASE("a refusal names the option as it was written") {
  check_says(refused("--min_offloaded_tensor_size=-1"), {"--min_offloaded_tensor_size is '-1'"});
}

TEST_CASE("fine-grained-activation-offloading alone offloads nothing, and says so") {
  for (const char* const text :
       {"--fine-grained-activation-offloading", "--fine_grained_activation_offloading",
        "--fine-grained-activation-offloading=true",
        "--fine-grained-activation-offloading --offload-modules=none",
        "--no-fine-grained-activation-offloading --fine-grained-activation-offloading"}) {
    CAPTURE(text);
    check_says(refused(text),
               {"activation", "alone it offloads nothing", "add --offload-modules=core_attn"});
  }
}

TEST_CASE("fine-grained-activation-offloading beside modules changes nothing") {
  const names modules{"core_attn"};
  CHECK(parse_options("--fine-grained-activation-offloading --offload-modules core_attn")
            .offload_modules == modules);
  CHECK(parse_options("--offload-modules core_attn --fine-grained-activation-offloading")
            .offload_modules == modules);
  options base;
  base.offload_modules = modules;
  CHECK(parse_options("--fine-grained-activation-offloading", base) == base);
  CHECK(parse_options("--offload-modules=core_attn").offload_modules == modules);
}

TEST_CASE("no-fine-grained-activation-offloading offloads nothing, wherever it stands") {
  for (const char* const text :
       {"--no-fine-grained-activation-offloading --offload-modules=core_attn",
        "--offload-modules=core_attn --no-fine-grained-activation-offloading",
        "--offload-modules=core_attn --fine-grained-activation-offloading=false"}) {
    CAPTURE(text);
    CHECK(parse_options(text).offload_modules.empty());
  }
}

}  // namespace
}  // namespace tidepool
