// What options are accepted, and what a refusal says.
#include "tidepool/validate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "refusal.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/config/value_rules.hpp"
#include "tidepool/parse.hpp"

namespace tidepool {
namespace {

using test::check_says;
using test::refusal;
using names = std::vector<std::string>;
using compiled = modules<"core_attn", "expert_fc1", "moe_act">;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

void validate_open(const options& value) { validate(value, open_module_list(value), true); }
void validate_closed(const options& value) { validate(value, compiled::names, false); }

void accepted(const char* text) {
  CAPTURE(text);
  CHECK_NOTHROW(validate_open(parse_options(text)));
}

template <class Error = option_error>
std::string refused(const options& value) {
  return refusal<Error>([&] { validate_open(value); });
}

template <class Error = option_error>
std::string refused(const char* text) {
  CAPTURE(text);
  return refused<Error>(parse_options(text));
}

template <class Error = option_error>
std::string refused_closed(const char* text) {
  CAPTURE(text);
  return refusal<Error>([&] { validate_closed(parse_options(text)); });
}

names enabled(const options& value, std::span<const std::string_view> known, bool open) {
  const std::uint64_t mask = resolve_modules(value, known, open);
  names result;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if ((mask >> i & 1) != 0) result.emplace_back(known[i]);
  }
  CHECK((known.size() == 64 || mask >> known.size() == 0));
  return result;
}

names enabled(const char* text) {
  const options value = parse_options(text);
  return enabled(value, open_module_list(value), true);
}

TEST_CASE("defaults, and what people write, are accepted") {
  accepted("");
  accepted("--offload-modules=none");
  accepted("--offload-modules=all");
  accepted("--offload-modules=core_attn,attn_proj,expert_fc1,moe_act");
  accepted("--offload-modules=fused_group_mlp --max-inflight=0");
  accepted("--offload-modules=all --offload-layers=0,2");
  accepted("--offload-modules=core_attn --max-inflight=2,core_attn:1");
  accepted("--own-modules=rope --offload-modules=rope,core_attn --max-inflight=rope:1");
  accepted("--memory=arena --device-budget=1B");
  accepted("--memory=pool --device-budget=1GiB");
  accepted("--memory=slots --slots=64MiBx4,1MiBx2");
  accepted("--memory=slots --slots=1MiBx2 --device-budget=2MiB");
  accepted("--max-inflight-bytes=0 --reload-ahead=0 --reload-ahead-bytes=0");
  accepted("--min-tensor-elements=0 --offload-fraction=0 --delta-bytes-per-rank=1TiB");
  CHECK_NOTHROW(validate_closed(parse_options("--offload-modules=all")));
  CHECK_NOTHROW(validate_closed(parse_options("--offload-modules=core_attn")));
}

TEST_CASE("the set of enabled modules") {
  CHECK(enabled("").empty());
  CHECK(enabled("--offload-modules=none").empty());
  CHECK(enabled("--offload-modules=moe_act,core_attn") == names{"core_attn", "moe_act"});
  CHECK(enabled("--offload-modules=core_attn,core_attn") == names{"core_attn"});
  CHECK(enabled("--own-modules=rope,gate --offload-modules=gate") == names{"gate"});
  options word;
  word.offload_modules = {"none"};
  CHECK(enabled(word, standard_modules, true).empty());
  CHECK_NOTHROW(validate_open(word));
}

TEST_CASE("'all' enables every known module that may stand together") {
  CHECK(enabled("--offload-modules=all --own-modules=rope") ==
        names{"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1",
              "moe_act", "gdp_qkv", "rope"});
  const options all = parse_options("--offload-modules=all");
  CHECK(enabled(all, compiled::names, false) == names{"core_attn", "expert_fc1", "moe_act"});
  CHECK(enabled(all, modules<"core_attn", "fused_group_mlp">::names, false) ==
        names{"core_attn", "fused_group_mlp"});
  CHECK(enabled(all, modules<"moe_act", "fused_group_mlp">::names, false) == names{"moe_act"});
  CHECK(enabled(all, modules<"expert_fc1", "fused_group_mlp">::names, false) ==
        names{"expert_fc1"});
}

TEST_CASE("64 modules fill the word, 65 are refused") {
  options value;
  for (int i = 0; i < 55; ++i) value.own_modules.push_back("own" + std::to_string(i));
  value.offload_modules = {"own54"};
  CHECK(resolve_modules(value, open_module_list(value), true) == std::uint64_t{1} << 63);
  CHECK_NOTHROW(validate_open(value));
  value.own_modules.push_back("own55");
  check_says(refused(value), {"own_modules (--own-modules or TIDEPOOL_OWN_MODULES)", "56 names",
                              "at most 64", "65"});
}

TEST_CASE("an unknown module: the list, the nearest, how to declare it") {
  const std::string message = refused<unknown_module>("--offload-modules=core_atn");
  check_says(message, {"tidepool: option offload_modules (--offload-modules or "
                       "TIDEPOOL_OFFLOAD_MODULES) names 'core_atn'",
                       "no known module", "did you mean 'core_attn'?", "--own-modules="});
  for (const std::string_view name : standard_modules) {
    check_says(message, {std::string(name).c_str()});
  }
  check_says(refused<unknown_module>("--offload-modules=fc1"), {"did you mean 'expert_fc1'?"});
  check_says(refused<unknown_module>("--offload-modules=MoE-Act"), {"did you mean 'moe_act'?"});
  check_says(refused<unknown_module>("--own-modules=rope --offload-modules=ropee"),
             {"did you mean 'rope'?"});
  check_says(refused<unknown_module>("--own-modules=rope --offload-modules=rpoe"),
             {"did you mean 'rope'?"});
  const std::string far = refused<unknown_module>("--offload-modules=embedding_table");
  check_says(far, {"'embedding_table'", "no known module. Known here: attn_norm"});
  CHECK(far.find("did you mean") == std::string::npos);
  check_says(refused<unknown_module>(("--offload-modules=" + std::string(5000, 'x')).c_str()),
             {"xxx...'"});
}

TEST_CASE("a module outside the compiled list: what is compiled in, how to add it") {
  check_says(
      refused_closed<unknown_module>("--offload-modules=mlp_norm"),
      {"option offload_modules (--offload-modules or TIDEPOOL_OFFLOAD_MODULES) names 'mlp_norm'",
       "not compiled into", "Known here: core_attn, expert_fc1, moe_act",
       "tidepool::modules<\"core_attn\", \"expert_fc1\", \"moe_act\", \"mlp_norm\">"});
  check_says(refused_closed<unknown_module>("--offload-modules=moe_acts"),
             {"not compiled into", "did you mean 'moe_act'?"});
  check_says(refused_closed<unknown_module>("--own-modules=rope"),
             {"option own_modules (--own-modules or TIDEPOOL_OWN_MODULES) names 'rope'",
              "not compiled into"});
  CHECK_NOTHROW(validate_closed(parse_options("--own-modules=core_attn")));
}

TEST_CASE("'all' and 'none' beside names are refused from code, too") {
  for (const char* const word : {"all", "none"}) {
    options value;
    value.offload_modules = {"core_attn", word};
    check_says(refused(value),
               {"offload_modules (--offload-modules or TIDEPOOL_OFFLOAD_MODULES) is 'core_attn,",
                word, "alone or the names"});
  }
}

TEST_CASE("names of one's own") {
  struct row {
    const char* name;
    const char* problem;
  };
  for (const row& bad : {row{"", "cannot name a module"},
                         {"all", "cannot name a module"},
                         {"none", "cannot name a module"},
                         {"a b", "cannot name a module"},
                         {"a,b", "cannot name a module"},
                         {"a:1", "cannot name a module"},
                         {"-a", "cannot name a module"},
                         {"a\n", "cannot name a module"},
                         {"core_attn", "a standard module already"}}) {
    CAPTURE(bad.name);
    options value;
    value.own_modules = {bad.name};
    check_says(refused(value),
               {"own_modules (--own-modules or TIDEPOOL_OWN_MODULES) is '", bad.problem, "; "});
  }
  check_says(refused("--own-modules=rope,rope"), {"'rope'", "twice", "take one out"});
}

TEST_CASE("attn_proj needs core_attn") {
  check_says(
      refused("--offload-modules=attn_proj,moe_act"),
      {"offload_modules (--offload-modules or TIDEPOOL_OFFLOAD_MODULES) is 'attn_proj,moe_act'",
       "attn_proj cannot leave without core_attn", "add core_attn", "take attn_proj out"});
  accepted("--offload-modules=attn_proj,core_attn");
  using alone = modules<"attn_proj">;
  check_says(refusal([] { validate(parse_options("--offload-modules=all"), alone::names, false); }),
             {"'all'", "attn_proj", "add core_attn (and compile it in)"});
}

TEST_CASE("gdp_qkv cannot leave where gdp_in_proj discards its tensor") {
  check_says(refused("--offload-modules=gdp_qkv --recompute-modules=gdp_in_proj"),
             {"gdp_in_proj discards the tensor that gdp_qkv offloads", "take gdp_qkv out"});
  check_says(refused("--offload-modules=core_attn,qkv_linear --recompute-modules=layernorm"),
             {"layernorm discards the tensor that qkv_linear offloads", "take qkv_linear out"});
  check_says(refused("--offload-modules=expert_fc1 --recompute-modules=moe_permute"),
             {"moe_permute discards the tensor that expert_fc1 offloads", "or moe_permute out"});
  // By `all` it is a name without a module.
  accepted("--offload-modules=all --recompute-modules=layernorm,moe_permute,mla_up_proj");
  accepted("--offload-modules=gdp_qkv");
  accepted("--offload-modules=core_attn --recompute-modules=gdp_in_proj");
}

TEST_CASE("fused_group_mlp excludes its parts") {
  check_says(refused("--offload-modules=fused_group_mlp,expert_fc1"),
             {"'fused_group_mlp,expert_fc1'", "take out either fused_group_mlp or expert_fc1"});
  check_says(refused("--offload-modules=moe_act,fused_group_mlp"),
             {"'moe_act,fused_group_mlp'", "take out either fused_group_mlp or moe_act"});
}

TEST_CASE("a module may be offloaded and recomputed: its inputs leave, its output is computed") {
  accepted("--offload-modules=core_attn,moe_act --recompute-modules=core_attn");
  accepted("--offload-modules=all --recompute-modules=moe_act");
  accepted("--offload-modules=fused_group_mlp --recompute-modules=moe_act");
  accepted("--offload-modules=expert_fc1 --recompute-modules=moe_act");
  accepted("--offload-modules=core_attn,attn_norm --recompute-modules=layernorm,mla_up_proj,mlp");
  accepted("--recompute-modules=core_attn");
  CHECK_NOTHROW(validate_closed(
      parse_options("--offload-modules=moe_act --recompute-modules=core_attn,shared_experts")));
  CHECK_NOTHROW(validate_open(
      parse_options("--own-modules=rope --offload-modules=core_attn --recompute-modules=rope")));
}

TEST_CASE("every region of Megatron's can be recomputed") {
  for (const char* const region : {"layernorm", "mla_up_proj", "mlp", "moe", "shared_experts",
                                   "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"}) {
    CAPTURE(region);
    accepted(("--offload-modules=core_attn,attn_proj --recompute-modules=" + std::string(region))
                 .c_str());
  }
  for (const char* const norm : {"attn_norm", "mlp_norm"}) {
    const std::string text = "--recompute-modules=mhc --offload-modules=" + std::string(norm);
    check_says(refused(text.c_str()), {"mhc discards the tensor that", norm});
  }
  check_says(refused("--offload-modules=fused_group_mlp --recompute-modules=moe_permute"),
             {"moe_permute discards the tensor that fused_group_mlp offloads"});
}

TEST_CASE("nothing is offloaded inside what is recomputed whole") {
  for (const char* const part : {"expert_fc1", "moe_act", "fused_group_mlp"}) {
    CAPTURE(part);
    const std::string text = "--recompute-modules=moe --offload-modules=" + std::string(part);
    check_says(refused(text.c_str()),
               {"recompute_modules (--recompute-modules or TIDEPOOL_RECOMPUTE_MODULES) is 'moe'",
                "moe is recomputed whole", part, "recompute less than moe"});
  }
  check_says(refused("--recompute-modules=fused_group_mlp --offload-modules=expert_fc1"),
             {"fused_group_mlp is recomputed whole", "expert_fc1"});
  check_says(refused("--recompute-modules=fused_group_mlp --offload-modules=moe_act"),
             {"fused_group_mlp is recomputed whole", "moe_act"});
}

TEST_CASE("an unknown name among the recomputed") {
  check_says(
      refused<unknown_module>("--recompute-modules=mo_act"),
      {"recompute_modules (--recompute-modules or TIDEPOOL_RECOMPUTE_MODULES) names 'mo_act'",
       "did you mean 'moe_act'?", "shared_experts"});
  check_says(refused_closed<unknown_module>("--recompute-modules=layernrm"),
             {"did you mean 'layernorm'?"});
  // Calls by that name generate no instruction, so that nothing would be recomputed.
  check_says(
      refused_closed<unknown_module>("--recompute-modules=mlp_norm"),
      {"names 'mlp_norm', which is not compiled into this program",
       R"(To compile it in: tidepool::modules<"core_attn", "expert_fc1", "moe_act", "mlp_norm">)"});
}

TEST_CASE("a region of one's own is recomputed once it is declared, as the refusal says") {
  const auto open = refused<unknown_module>("--recompute-modules=my_region");
  check_says(open, {"Declare a region of your own in own_modules (--own-modules=NAME)"});
  accepted("--recompute-modules=my_region --own-modules=my_region");
  const auto closed = refused_closed<unknown_module>("--recompute-modules=my_region");
  check_says(closed, {R"(tidepool::modules<"core_attn", "expert_fc1", "moe_act", "my_region">)"});
  using with_region = modules<"core_attn", "expert_fc1", "moe_act", "my_region">;
  const auto value = parse_options("--recompute-modules=my_region");
  CHECK_NOTHROW(validate(value, with_region::names, false));
}

TEST_CASE("a refused value may have come from a flag or from the environment") {
  const options value = from_environment({}, [](const char* name) {
    return std::string_view(name) == "TIDEPOOL_OFFLOAD_MODULES" ? "my_nomr" : nullptr;
  });
  check_says(refused<unknown_module>(value),
             {"--offload-modules or TIDEPOOL_OFFLOAD_MODULES", "names 'my_nomr'"});
  options fraction;
  fraction.fraction = 2;
  check_says(refused(fraction), {"(--offload-fraction or TIDEPOOL_OFFLOAD_FRACTION) is '2'"});
}

TEST_CASE("caps of single modules") {
  check_says(refused("--offload-modules=core_attn --max-inflight=moe_act:3"),
             {"module_max_inflight (--max-inflight or TIDEPOOL_MAX_INFLIGHT) is 'moe_act:3'",
              "moe_act is not offloaded", "add moe_act to --offload-modules"});
  check_says(refused("--max-inflight=moe_act:3"), {"not offloaded"});
  check_says(
      refused<unknown_module>("--offload-modules=all --max-inflight=moe_akt:3"),
      {"--max-inflight or TIDEPOOL_MAX_INFLIGHT) names 'moe_akt'", "did you mean 'moe_act'?"});
  check_says(refused("--offload-modules=all --max-inflight=fused_group_mlp:3"), {"not offloaded"});
  accepted("--offload-modules=all --max-inflight=moe_act:3");
}

TEST_CASE("layers") {
  options value;
  value.offload_modules = {"all"};
  for (const int bad : {-1, 1'000'000}) {
    value.offload_layers = {0, bad};
    check_says(refused(value), {"offload_layers (--offload-layers or TIDEPOOL_OFFLOAD_LAYERS) is '",
                                std::to_string(bad).c_str(), "from 0 to 999999"});
  }
  check_says(refused("--offload-layers=0,2-4"),
             {"offload_layers (--offload-layers or TIDEPOOL_OFFLOAD_LAYERS) is '0,2-4'",
              "--offload-modules=all"});
}

TEST_CASE("fractions") {
  for (const double bad : {1.5, -0.25, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    options value;
    value.fraction = bad;
    check_says(refused(value), {"fraction (--offload-fraction or TIDEPOOL_OFFLOAD_FRACTION) is '",
                                "[0, 1]", "give 1"});
  }
  options value;
  value.fraction = 1.5;
  check_says(refused(value), {"'1.5'"});
}

TEST_CASE("ranks") {
  options value;
  value.pipeline_rank = -1;
  check_says(refused(value), {"pipeline_rank (--pipeline-rank or TIDEPOOL_PIPELINE_RANK) is '-1'",
                              "negative", "0 or more"});
  value = {};
  value.local_ranks = -2;
  check_says(refused(value), {"local_ranks (--local-ranks or TIDEPOOL_LOCAL_RANKS) is '-2'",
                              "negative", "launcher"});
  value = {};
  value.delta_bytes_per_rank = most / 2;
  value.pipeline_rank = 2;
  CHECK_NOTHROW(validate_open(value));
  value.pipeline_rank = 3;
  check_says(refused(value),
             {"delta_bytes_per_rank (--delta-bytes-per-rank or TIDEPOOL_DELTA_BYTES_PER_RANK)",
              "pipeline rank 3", "smaller size"});
}

// Each would otherwise lift the limit that it was to set.
TEST_CASE("a negative number in any count or size is refused as it was written") {
  struct row {
    const char* flag;
    void (*set)(options& into, int number);
    std::string shown = "-5";
    int least = 0;
  };
  const std::vector<row> rows{
      {"max-inflight", [](options& o, int n) { o.max_inflight = n; }},
      {"max-inflight", [](options& o, int n) { o.module_max_inflight["core_attn"] = n; },
       "core_attn:-5"},
      {"max-inflight-bytes", [](options& o, int n) { o.max_inflight_bytes = n; }},
      {"min-tensor-elements", [](options& o, int n) { o.min_tensor_elements = n; }},
      {"delta-bytes-per-rank", [](options& o, int n) { o.delta_bytes_per_rank = n; }},
      {"pipeline-rank", [](options& o, int n) { o.pipeline_rank = n; }},
      {"timed-step", [](options& o, int n) { o.timed_step = n; }, "-5", 2},
      {"adopt-after", [](options& o, int n) { o.adopt_after = n; }},
      {"plan-effort", [](options& o, int n) { o.plan_effort = n; }, "-5", 1},
      {"reload-ahead", [](options& o, int n) { o.reload_ahead = n; }},
      {"reload-ahead-bytes", [](options& o, int n) { o.reload_ahead_bytes = n; }},
      {"device-budget", [](options& o, int n) { o.device_budget = n; }, "-5", 1},
      {"slots",
       [](options& o, int n) {
         o.slots = {{static_cast<std::size_t>(n), 1}};
       },
       "-5x1", 1},
      {"slots",
       [](options& o, int n) {
         o.slots = {{1, static_cast<std::size_t>(n)}};
       },
       "1Bx-5", 1},
      {"device-step", [](options& o, int n) { o.device_step = n; }, "-5", 1},
      {"borrowed-slack", [](options& o, int n) { o.borrowed_slack = n; }},
      {"copy-piece", [](options& o, int n) { o.copy_piece = n; }},
      {"peer-device", [](options& o, int n) { o.peer_device = n; }},
      {"peer-budget", [](options& o, int n) { o.peer_budget = n; }, "-5", 4096},
      {"file-budget", [](options& o, int n) { o.file_budget = n; }, "-5", 4096},
      {"file-ring", [](options& o, int n) { o.file_ring = n; }, "-5", 8192},
      {"host-budget", [](options& o, int n) { o.host_budget = n; }, "-5", 1},
      {"host-step", [](options& o, int n) { o.host_step = n; }, "-5", 1},
      {"local-ranks", [](options& o, int n) { o.local_ranks = n; }}};
  for (const row& each : rows) {
    CAPTURE(each.flag);
    CAPTURE(each.shown);
    const std::string flag = each.flag;
    options value;
    value.offload_modules = {"core_attn"};
    if (flag == "slots") value.memory = memory_kind::slots;
    if (flag == "peer-budget") value.places = {place_kind::peer};
    if (flag.starts_with("file-b")) value.places = {place_kind::file};
    if (flag.starts_with("file-b")) value.file_path = "/mnt";
    each.set(value, each.least);
    CHECK_NOTHROW(validate_open(value));
    each.set(value, -5);
    const auto& option = *detail::text::find_option(flag);
    check_says(refused(value),
               {("(--" + flag + " or ").c_str(), ("is '" + each.shown + "'").c_str(),
                "a negative number has no meaning; give 0 or more"});
    if (option.form.find("none") != std::string_view::npos) {
      check_says(refused(value), {"or none (std::nullopt in code) for no limit of your own"});
    }
  }
  // A new option with a number in its form needs a row above.
  for (const auto& option : detail::text::option_table) {
    CAPTURE(option.flag);
    bool number = false;
    for (const char* const word : {"COUNT", "SIZE", "RANK", "DEVICE"}) {
      number = number || option.form.find(word) != std::string_view::npos;
    }
    CHECK(number == std::ranges::any_of(rows, [&](auto& row) { return row.flag == option.flag; }));
  }
}

TEST_CASE("kinds of memory and what they need") {
  check_says(refused("--memory=arena"),
             {"memory (--memory or TIDEPOOL_MEMORY) is 'arena'", "--device-budget=8GiB"});
  check_says(refused("--memory=slots"),
             {"memory (--memory or TIDEPOOL_MEMORY) is 'slots'", "--slots=64MiBx4"});
  check_says(refused("--slots=64MiBx4"), {"slots (--slots or TIDEPOOL_SLOTS) is '64MiBx4'",
                                          "--memory=pool", "add --memory=slots"});
  check_says(refused("--memory=arena --device-budget=1GiB --slots=1x1"), {"--memory=arena"});
  check_says(refused("--memory=slots --slots=64MiBx4,0x2"), {"'0x2'", "at least one byte"});
  check_says(refused("--memory=slots --slots=64MiBx0"), {"'64MiBx0'", "such as 64MiBx4"});
  check_says(refused("--memory=slots --slots=100x10 --device-budget=1000B"), {"2560"});
  check_says(refused("--memory=slots --slots=64MiBx4 --device-budget=255MiB"),
             {"'64MiBx4'", "256MiB", "above device_budget 255MiB", "raise --device-budget"});
  options value;
  value.memory = memory_kind::slots;
  constexpr auto half_of_it = most / 2 / 256 * 256;  // in whole blocks
  value.slots = {{half_of_it, 2}, {1, 2}};
  check_says(refused(value),
             {"slots (--slots or TIDEPOOL_SLOTS)", "do not fit 64 bits", "smaller rings"});
  value.slots = {{half_of_it, 3}};
  check_says(refused(value), {"do not fit 64 bits"});
  value.slots = {{most / 2, 2}};  // rounded up
  check_says(refused(value), {"do not fit 64 bits"});
  value.slots = {{half_of_it, 2}, {1, 1}};
  CHECK_NOTHROW(validate_open(value));
  value = {};
  value.memory = static_cast<memory_kind>(9);
  check_says(refused(value),
             {"memory (--memory or TIDEPOOL_MEMORY) is '9'", "pool, arena or slots"});
  value = {};
  value.host_memory = static_cast<tidepool::host_kind>(9);
  check_says(refused(value),
             {"host_memory (--host-memory or TIDEPOOL_HOST_MEMORY) is '9'", "write-combined"});
}

TEST_CASE("budgets and steps of nothing") {
  check_says(refused("--device-budget=0"),
             {"device_budget (--device-budget or TIDEPOOL_DEVICE_BUDGET) is '0'", "8GiB"});
  check_says(refused("--memory=arena --device-budget=0"), {"device_budget", "nothing fits"});
  check_says(refused("--host-budget=0"),
             {"host_budget (--host-budget or TIDEPOOL_HOST_BUDGET) is '0'", "auto"});
  check_says(refused("--device-step=0"),
             {"device_step (--device-step or TIDEPOOL_DEVICE_STEP) is '0'", "32MiB"});
  check_says(refused("--host-step=0"),
             {"host_step (--host-step or TIDEPOOL_HOST_STEP) is '0'", "32MiB"});
}

TEST_CASE("places and what they need") {
  accepted("--places=host");
  accepted("--places=peer,host --peer-budget=8GiB");
  accepted("--places peer host --peer-budget=8GiB --peer-device=0");
  accepted("--places=peer --peer-budget=1B");
  check_says(refusal<option_error>([] { static_cast<void>(parse_options("--places=disk")); }),
             {"--places is 'disk'", "there is no such place", "such as peer,host"});
  check_says(refusal<option_error>([] { static_cast<void>(parse_options("--places=pear,host")); }),
             {"did you mean 'peer'?"});
  check_says(refused("--places=peer,host"),
             {"places (--places or TIDEPOOL_PLACES) is 'peer,host'", "--peer-budget=8GiB"});
  check_says(refused("--peer-budget=8GiB"),
             {"peer_budget (--peer-budget or TIDEPOOL_PEER_BUDGET) is '8GiB'", "no effect",
              "add --places=peer,host"});
  check_says(refused("--places=peer,host --peer-budget=0"), {"peer_budget", "nothing fits"});
  check_says(refused("--places=host,host"), {"'host,host'", "named twice"});
  accepted("--places=host,file:/mnt/nvme --file-budget=64GiB");
  accepted("--places host peer file:a:b --file-budget=4KiB --peer-budget=1B --file-ring=8KiB");
  for (const char* bare : {"--places=host,file", "--places=file:"}) {
    check_says(refusal<option_error>([&] { static_cast<void>(parse_options(bare)); }),
               {"a file needs its path", "give it as file:/path"});
  }
  check_says(
      refusal<option_error>([] { static_cast<void>(parse_options("--places=file:a,file:b")); }),
      {"two files are given"});
  check_says(refused("--places=host,file:/mnt"),
             {"places (--places or TIDEPOOL_PLACES) is 'host,file:/mnt'", "of the disk",
              "add file_budget (--file-budget=8GiB)"});
  check_says(refused("--file-budget=8GiB"), {"no effect", "add --places=host,file:/path"});
  check_says(refused("--places=file:a --file-budget=0"), {"file_budget", "nothing fits"});
  check_says(refused("--places=file:a --file-budget=4095B"), {"file_budget", "has 4KiB"});
  check_says(refused("--places=file:a --file-budget=4KiB --file-ring=8191B"),
             {"file_ring (--file-ring or TIDEPOOL_FILE_RING) is '8191B'", "at least 8KiB"});
  options value;
  value.file_path = "/mnt";
  check_says(refused(value), {"file_path has no effect without the place 'file'"});
  value.places = {place_kind::file};
  value.file_budget = 4096;
  for (const char* path : {"a,b", "a b", "a\nb"}) {
    value.file_path = path;
    check_says(refused(value), {"cannot be told from two places"});
  }
  value.file_path.clear();
  check_says(refused(value), {"the file has no path", "file:/mnt/nvme"});
  value = {};
  value.peer_device = -1;
  check_says(refused(value), {"peer_device (--peer-device or TIDEPOOL_PEER_DEVICE) is '-1'"});
  value = {};
  value.places = {};
  check_says(refused(value), {"is 'none'", "has to go somewhere"});
  value.places = {static_cast<place_kind>(7)};
  check_says(refused(value), {"is '7'", "there is no such place"});
}

TEST_CASE("an unknown module is an option error, which is an error") {
  CHECK_THROWS_AS(validate_open(parse_options("--offload-modules=x_y_z")), option_error);
  CHECK_THROWS_AS(validate_open(parse_options("--offload-modules=x_y_z")), error);
}

TEST_CASE("every flag that a refusal names exists") {
  // Labels are written beside the checks, not taken from the table.
  for (const char* const flag :
       {"offload-modules", "own-modules", "recompute-modules", "max-inflight", "offload-layers",
        "offload-fraction", "pipeline-rank", "local-ranks", "delta-bytes-per-rank", "memory",
        "slots", "device-budget", "host-budget", "device-step", "host-step", "places",
        "peer-device", "peer-budget"}) {
    CAPTURE(flag);
    CHECK(detail::text::find_option(flag) != nullptr);
  }
}

// Each would be compared with all others first.
TEST_CASE("validate: very many modules of one's own are refused at once") {
  options value;
  for (int i = 0; i < 200'000; ++i) value.own_modules.push_back("m" + std::to_string(i));
  const auto begin = std::clock();
  check_says(refused(value), {"own_modules", "200000 names", "at most 64 modules"});
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 5);
}

}  // namespace
}  // namespace tidepool
