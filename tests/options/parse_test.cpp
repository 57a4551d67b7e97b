// Options from text: every option, good and bad values, and what a refusal says.
#include "tidepool/parse.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "refusal.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/core/text.hpp"

namespace tidepool {
namespace {

using test::check_says;
using test::refusal;
using names = std::vector<std::string>;
using layers = std::vector<int>;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t gib = std::size_t{1} << 30;

// An empty argument cannot be told from a blank in one line of text, so these go as a vector.
options parse(names arguments) { return parse_options(arguments); }

std::string refused(names arguments) {
  CAPTURE(arguments);
  return refusal([&] { static_cast<void>(parse_options(arguments)); });
}

TEST_CASE("nothing given leaves the base as it is") {
  CHECK(parse({}) == options{});
  options base;
  base.reload_ahead = 7;
  CHECK(parse_options(names{}, base) == base);
  CHECK(parse_options("", base) == base);
}

TEST_CASE("every option is read") {
  CHECK(parse_options("--offload-modules=core_attn,moe_act").offload_modules ==
        names{"core_attn", "moe_act"});
  CHECK(parse_options("--own-modules=rope,gate").own_modules == names{"rope", "gate"});
  CHECK(parse_options("--offload-layers=0,2,4-7").offload_layers == layers{0, 2, 4, 5, 6, 7});
  CHECK(parse_options("--recompute-modules=moe_act").recompute_modules == names{"moe_act"});
  CHECK(parse_options("--max-inflight=2").max_inflight == 2);
  CHECK(parse_options("--max-inflight-bytes=512MiB").max_inflight_bytes == 512 * mib);
  CHECK(parse_options("--min-tensor-elements=4096").min_tensor_elements == 4096);
  CHECK(parse_options("--offload-fraction=0.25").fraction == 0.25);
  CHECK(parse_options("--delta-bytes-per-rank=64MiB").delta_bytes_per_rank == 64 * mib);
  CHECK(parse_options("--pipeline-rank=3").pipeline_rank == 3);
  CHECK(parse_options("--no-margin").margin == false);
  CHECK(parse_options("--reload-ahead=5").reload_ahead == 5);
  CHECK(parse_options("--reload-ahead-bytes=1GiB").reload_ahead_bytes == gib);
  CHECK(parse_options("--memory=arena").memory == memory_kind::arena);
  CHECK(parse_options("--memory=slots").memory == memory_kind::slots);
  CHECK(parse_options("--device-budget=8GiB").device_budget == 8 * gib);
  CHECK(parse_options("--slots=64MiBx4,1MiBx2").slots ==
        std::vector<slot_ring>{{64 * mib, 4}, {mib, 2}});
  CHECK(parse_options("--device-step=16MiB").device_step == 16 * mib);
  CHECK(parse_options("--host-budget=100GB").host_budget == 100'000'000'000);
  CHECK(parse_options("--host-step=1GiB").host_step == gib);
  CHECK(parse_options("--local-ranks=8").local_ranks == 8);
  CHECK(parse_options("--poison").poison);
  CHECK_FALSE(parse_options("--poison --no-poison").poison);
}

TEST_CASE("a value may stand behind '=' or in the next argument") {
  CHECK(parse({"--max-inflight", "2"}) == parse({"--max-inflight=2"}));
  CHECK(parse({"--device-budget", "8GiB", "--memory", "arena"}) ==
        parse({"--device-budget=8GiB", "--memory=arena"}));
  CHECK(parse({"--reload-ahead=\t3 "}).reload_ahead == 3);
  check_says(refused({"--max-inflight", "--margin"}), {"--max-inflight is ''", "empty"});
}

TEST_CASE("a list takes commas, blanks, and arguments up to the next option") {
  const names three{"a", "b", "c"};
  CHECK(parse({"--offload-modules=a,b,c"}).offload_modules == three);
  CHECK(parse({"--offload-modules=a b c"}).offload_modules == three);
  CHECK(parse({"--offload-modules=a, b ,c"}).offload_modules == three);
  CHECK(parse({"--offload-modules", "a", "b", "c"}).offload_modules == three);
  CHECK(parse({"--offload-modules", "a,b", "c"}).offload_modules == three);
  const options both = parse({"--offload-modules", "a", "b", "c", "--max-inflight", "1"});
  CHECK(both.offload_modules == three);
  CHECK(both.max_inflight == 1);
  CHECK(parse({"--offload-layers", "0", "4-5", "--no-margin"}).offload_layers == layers{0, 4, 5});
  CHECK(parse({"--recompute-modules", "a", "b"}).recompute_modules == names{"a", "b"});
  CHECK(parse({"--own-modules", "a", "b"}).own_modules == names{"a", "b"});
}

TEST_CASE("'all' and 'none'") {
  options base;
  base.offload_modules = {"core_attn"};
  base.own_modules = {"rope"};
  base.offload_layers = {1};
  base.max_inflight = 3;
  base.module_max_inflight = {{"core_attn", 1}};
  base.max_inflight_bytes = base.device_budget = base.host_budget = base.reload_ahead_bytes = 1;
  base.slots = {{1, 1}};
  base.peer_budget = base.file_budget = 1;
  CHECK(parse_options("--offload-modules=all", base).offload_modules == names{"all"});
  CHECK(parse_options("--offload-modules=none", base).offload_modules.empty());
  const options cleared = parse_options(
      "--offload-modules=none --own-modules=none --offload-layers=all --max-inflight=none "
      "--max-inflight-bytes=none --device-budget=none --host-budget=auto --slots=none "
      "--reload-ahead-bytes=none --peer-budget=none --file-budget=none",
      base);
  CHECK(cleared == options{});
}

TEST_CASE("switches") {
  for (const char* const on : {"--margin", "--margin=true", "--margin=on", "--margin=YES",
                               "--margin=1", "--margin true"}) {
    CAPTURE(on);
    options base;
    base.margin = false;
    CHECK(parse_options(on, base).margin);
  }
  for (const char* const off : {"--no-margin", "--margin=false", "--margin=off", "--margin=no",
                                "--margin=0", "--margin false"}) {
    CAPTURE(off);
    CHECK_FALSE(parse_options(off).margin);
  }
  CHECK(parse({"--margin", "--max-inflight=1"}).max_inflight == 1);
  check_says(refused({"--margin=maybe"}), {"--margin is 'maybe'", "true or false"});
  check_says(refused({"--no-margin=true"}), {"--no-margin", "takes no value", "--margin="});
  check_says(refused({"--no-max-inflight"}), {"--no-max-inflight", "give --max-inflight=", "none"});
}

TEST_CASE("caps in flight: general, by module, both") {
  options read = parse_options("--max-inflight=core_attn:1,expert_fc1:4");
  CHECK_FALSE(read.max_inflight.has_value());
  CHECK(read.module_max_inflight ==
        std::map<std::string, std::size_t>{{"core_attn", 1}, {"expert_fc1", 4}});
  read = parse_options("--max-inflight=2,core_attn:0");
  CHECK(read.max_inflight == 2);
  CHECK(read.module_max_inflight == std::map<std::string, std::size_t>{{"core_attn", 0}});
  // The text stands for the whole option.
  read = parse_options("--max-inflight=moe_act:3", read);
  CHECK_FALSE(read.max_inflight.has_value());
  CHECK(read.module_max_inflight == std::map<std::string, std::size_t>{{"moe_act", 3}});
  CHECK(parse_options("--max-inflight=0").max_inflight == 0);

  check_says(refused({"--max-inflight=2,3"}), {"--max-inflight is '2,3'", "two caps"});
  check_says(refused({"--max-inflight=a:1,a:2"}), {"two caps for 'a'", "keep one"});
  check_says(refused({"--max-inflight=:1"}), {"names no module", "core_attn:1"});
  check_says(refused({"--max-inflight=a:none"}), {"a:none", "leave a out"});
  check_says(refused({"--max-inflight=a:"}), {"not a whole number"});
  check_says(refused({"--max-inflight=a:-1"}), {"negative"});
}

TEST_CASE("of a repeated option the last one holds, also under another name") {
  CHECK(parse_options("--max-inflight=1 --max-inflight=2").max_inflight == 2);
  CHECK(parse_options("--offload-modules=a,b --offload-modules=c").offload_modules == names{"c"});
  CHECK(parse_options("--margin --no-margin").margin == false);
  CHECK(parse_options("--no-margin --margin").margin == true);
  CHECK(
      parse_options("--min-tensor-elements=1 --min-offloaded-tensor-size=2").min_tensor_elements ==
      2);
}

TEST_CASE("sizes") {
  struct row {
    const char* text;
    std::size_t bytes;
  };
  for (const row& good : {row{"0", 0},
                          {"1B", 1},
                          {"1048576", mib},
                          {"4096B", 4096},
                          {"3KiB", 3 * 1024},
                          {"3MiB", 3 * mib},
                          {"3GiB", 3 * gib},
                          {"3TiB", 3 * 1024 * gib},
                          {"3KB", 3'000},
                          {"3MB", 3'000'000},
                          {"3GB", 3'000'000'000},
                          {"3TB", 3'000'000'000'000},
                          {"3mib", 3 * mib},
                          {"1.5GiB", 3 * gib / 2},
                          {"0.25KiB", 256},
                          {"0.000001MB", 1},
                          {"9223372036854775807", std::numeric_limits<std::size_t>::max() / 2},
                          {"8388607TiB", 8'388'607 * (std::size_t{1} << 40)}}) {
    CAPTURE(good.text);
    CHECK(parse({"--host-step", good.text}).host_step == good.bytes);
    CHECK(parse({std::string("--host-budget=") + good.text}).host_budget == good.bytes);
  }

  struct bad_row {
    const char* text;
    const char* problem;
  };
  for (const bad_row& bad : {bad_row{"", "empty"},
                             {" ", "empty"},
                             {"-1", "negative"},
                             {"-1GiB", "negative"},
                             {"+1", "no size"},
                             {"nan", "no size"},
                             {"inf", "no size"},
                             {"GiB", "no size"},
                             {".5GiB", "no size"},
                             {"8G", "'G' is no unit"},
                             {"8 GiB", "' GiB' is no unit"},
                             {"8GiBs", "'GiBs' is no unit"},
                             {"1e9", "'e9' is no unit"},
                             {"0x10", "'x10' is no unit"},
                             {"1,5GiB", "no unit"},
                             {"1.GiB", "one to six digits"},
                             {"1.1234567GiB", "one to six digits"},
                             {"1.5", "no fraction"},
                             {"1.5B", "no fraction"},
                             {"18446744073709551616", "above 9223372036854775807"},
                             {"18446744073709551615", "above 9223372036854775807"},
                             {"8388608TiB", "above 8388607TiB"},
                             {"8388607.999999999TiB", "one to six digits"},
                             {"9223372036854775807KiB", "above 8388607TiB"}}) {
    CAPTURE(bad.text);
    const std::string message = refused({std::string("--device-step=") + bad.text});
    check_says(message, {"option --device-step is '", bad.problem});
    if (std::string(bad.problem) != "empty") check_says(message, {bad.text, "such as 512MiB"});
  }
  // One byte more than fits, so that the sum of whole and part is looked at.
  CHECK(parse({"--host-step=8388607.999999TiB"}).host_step > 8'388'607 * (std::size_t{1} << 40));
}

TEST_CASE("a size without a unit that is too small to be meant is refused") {
  for (const char* const bad : {"1", "10", "1048575"}) {
    CAPTURE(bad);
    const std::string message = refused({std::string("--device-budget=") + bad});
    check_says(message, {"option --device-budget is '", bad, "the unit is missing", "10GiB", bad});
  }
  CHECK(parse_options("--device-budget=10B").device_budget == 10);
  CHECK(to_text(parse_options("--device-budget=1025B")) == "--device-budget=1025B");
}

TEST_CASE("sizes in messages are in the unit that a person reads, never above what they are") {
  using detail::text::size_text;
  CHECK(size_text(0) == "0 bytes");
  CHECK(size_text(1) == "1 byte");
  CHECK(size_text(102'399) == "102399 bytes");
  CHECK(size_text(102'400) == "100 KiB");
  CHECK(size_text(mib - 1) == "1023.99 KiB");
  CHECK(size_text(mib + mib / 20) == "1.04 MiB");
  CHECK(size_text(57'493'422) == "54.82 MiB");
  CHECK(size_text(3 * gib / 2) == "1.5 GiB");
  CHECK(size_text(std::numeric_limits<std::size_t>::max()) == "16777215.99 TiB");
}

TEST_CASE("numbers") {
  for (const char* const flag : {"--max-inflight", "--reload-ahead", "--min-tensor-elements",
                                 "--pipeline-rank", "--local-ranks"}) {
    CAPTURE(flag);
    struct row {
      const char* text;
      const char* problem;
    };
    for (const row& bad : {row{"-1", "negative"},
                           {"two", "not a whole number"},
                           {"nan", "not a whole number"},
                           {"-", "not a whole number"},
                           {"-x", "not a whole number"},
                           {"2x", "'x' follows the number"},
                           {"2.5", "'.5' follows the number"},
                           {"99999999999999999999", "the number is above"}}) {
      CAPTURE(bad.text);
      const std::string shown = std::string("'") + bad.text + "'";
      check_says(refused({std::string(flag) + "=" + bad.text}),
                 {"tidepool: option ", flag, shown.c_str(), bad.problem, "; give a "});
      check_says(refused({flag, bad.text}), {flag, bad.problem});
    }
  }
  check_says(refused({"--pipeline-rank=2147483648"}), {"above 2147483647"});
  check_says(refused({"--min-tensor-elements=1MiB"}), {"'MiB' follows", "elements (not bytes)"});
  check_says(refused({"--max-inflight=-1"}), {"--max-inflight is '-1'", "negative", "none"});
  check_says(refused({"--device-budget=-5"}), {"--device-budget is '-5'", "negative", "or none"});
  check_says(refused({"--host-budget=-5"}), {"--host-budget is '-5'", "negative", "or auto"});
}

TEST_CASE("fractions") {
  CHECK(parse_options("--offload-fraction=0").fraction == 0.0);
  CHECK(parse_options("--offload-fraction=1").fraction == 1.0);
  CHECK(parse_options("--offload-fraction=1e-1").fraction == 0.1);
  for (const char* const bad : {"1.5", "-0.1", "1.0000001"}) {
    CAPTURE(bad);
    check_says(refused({std::string("--offload-fraction=") + bad}),
               {"--offload-fraction is '", bad, "[0, 1]", "such as 0.5"});
  }
  for (const char* const bad : {"nan", "inf", "-nan", "half", "0.5x", "50%", "0,5", "1e999", "."}) {
    CAPTURE(bad);
    check_says(refused({std::string("--offload-fraction=") + bad}),
               {"--offload-fraction is '", bad, "not a number", "such as 0.5"});
  }
}

TEST_CASE("layers") {
  CHECK(parse_options("--offload-layers=3-3").offload_layers == layers{3});
  CHECK(parse_options("--offload-layers=5,1,2").offload_layers == layers{5, 1, 2});
  struct row {
    const char* text;
    const char* problem;
  };
  for (const row& bad : {row{"-1", "negative"},
                         {"7-4", "backwards"},
                         {"4-", "not a whole number"},
                         {"4--7", "negative"},
                         {"1,,2", "empty"},
                         {"1,", "empty"},
                         {"first", "not a whole number"},
                         {"none", "--offload-modules=none"},
                         {"all,1", "not a whole number"},
                         {"0-2147483647", "above 999999"},
                         {"1000000", "above 999999"},
                         {"0-999999,0-999999", "without end"},
                         {"1.5", "follows the number"}}) {
    CAPTURE(bad.text);
    check_says(refused({std::string("--offload-layers=") + bad.text}),
               {"--offload-layers is '", bad.text, bad.problem});
  }
  check_says(refused({"--offload-layers", "-1"}), {"negative"});
}

TEST_CASE("rings of slots") {
  CHECK(parse_options("--slots=4096x2").slots == std::vector<slot_ring>{{4096, 2}});
  CHECK(parse_options("--slots=1.5MiB*2").slots == std::vector<slot_ring>{{3 * mib / 2, 2}});
  for (const char* const bad : {"64MiB", "x4", "64MiBx", "64MiBx4,", "64MiBx-4", "64MiBxfour",
                                "-1x4", "64Mx4", "none,1x1"}) {
    CAPTURE(bad);
    check_says(refused({std::string("--slots=") + bad}), {"--slots is '", bad, "; "});
  }
  check_says(refused({"--slots=x4"}), {"'x4' is not a size and a count"});
  check_says(refused({"--slots=64MiB"}), {"64MiBx4,1MiBx2", "none"});
}

TEST_CASE("kinds of memory") {
  check_says(refused({"--memory=arean"}),
             {"--memory is 'arean'", "did you mean 'arena'", "pool, arena or slots"});
  check_says(refused({"--memory=unobtainium"}), {"'unobtainium'", "give pool, arena or slots"});
}

TEST_CASE("empty text is refused, with what to write instead") {
  check_says(refused({"--offload-modules="}), {"--offload-modules is ''", "empty", "none"});
  check_says(refused({"--offload-modules"}), {"--offload-modules is ''", "empty", "none"});
  check_says(refused({"--offload-modules", "--max-inflight=2"}), {"--offload-modules", "empty"});
  check_says(refused({"--offload-modules", ""}), {"--offload-modules", "empty"});
  for (const auto& item : detail::text::option_table) {
    const std::string flag = "--" + std::string(item.flag);
    CAPTURE(flag);
    check_says(refused({flag + "="}), {flag.c_str(), "empty", "give "});
  }
  check_says(refused({"--offload-modules=a,,b"}), {"a,,b", "empty", "comma"});
  check_says(refused({"--offload-modules=,"}), {"empty", "comma"});
}

TEST_CASE("'all' and 'none' do not stand beside names") {
  check_says(refused({"--offload-modules=all,core_attn"}),
             {"--offload-modules is 'all,core_attn'", "'all'", "alone or the names"});
  check_says(refused({"--offload-modules", "core_attn", "none"}), {"'none'", "alone or the names"});
  check_says(refused({"--offload-modules=all,none"}), {"alone or the names"});
  check_says(refused({"--recompute-modules=all"}), {"'all'", "name the modules"});
  check_says(refused({"--own-modules=all"}), {"'all'", "name the modules"});
}

TEST_CASE("an unknown option names the nearest one") {
  check_says(refused({"--ofload-modules=core_attn"}),
             {"unknown option '--ofload-modules=core_attn'", "did you mean --offload-modules?"});
  check_says(refused({"--max-infligth", "2"}), {"did you mean --max-inflight?"});
  check_says(refused({"--fraction=1"}), {"did you mean --offload-fraction?"});
  check_says(refused({"--module-max-inflight=1"}), {"unknown option"});
  check_says(refused({"--min-ofloaded-tensor-size=1"}), {"--min-offloaded-tensor-size?"});
  check_says(refused({"--learning-rate=1"}),
             {"unknown option", "Tidepool's are --offload-modules", "--local-ranks"});
}

TEST_CASE("an argument that belongs to no option is refused") {
  check_says(refused({"core_attn"}), {"'core_attn'", "two dashes"});
  check_says(refused({"-offload-modules=a"}), {"'-offload-modules=a'", "two dashes"});
  check_says(refused({"--offload-modules=a", "b"}), {"'b'", "--offload-modules by commas"});
  check_says(refused({"--max-inflight", "2", "3"}), {"'3'"});
  check_says(refused({"--margin", "--", "data.txt"}), {"'data.txt'"});
  check_says(refused({"\033[2Jx"}), {"'?[2Jx'"});
}

TEST_CASE("the arguments of main") {
  const char* const argv[] = {"trainer", "--offload-modules", "core_attn", "moe_act", nullptr};
  CHECK(parse_options(4, argv).offload_modules == names{"core_attn", "moe_act"});
  options base;
  base.reload_ahead = 9;
  CHECK(parse_options(1, argv, base) == base);
  CHECK(parse_options(0, argv, base) == base);
  char program[] = "trainer";
  char flag[] = "--no-margin";
  char* writable[] = {program, flag};
  CHECK_FALSE(parse_options(2, writable).margin);
  const known_options known = parse_known_options(2, writable);
  CHECK_FALSE(known.value.margin);
  CHECK(known.rest.empty());
}

TEST_CASE("a trainer's own arguments are kept for it, in order") {
  const names arguments{"data.txt",
                        "--steps",
                        "10",
                        "--offload-modules=core_attn",
                        "-v",
                        "--max-inflight",
                        "2",
                        "--lr=0.1",
                        "--own-modules",
                        "rope",
                        "-q",
                        "--",
                        "--max-inflight=9"};
  const known_options known = parse_known_options(arguments);
  CHECK(known.value.offload_modules == names{"core_attn"});
  CHECK(known.value.own_modules == names{"rope"});
  CHECK(known.value.max_inflight == 2);
  CHECK(known.rest ==
        names{"data.txt", "--steps", "10", "-v", "--lr=0.1", "-q", "--", "--max-inflight=9"});
  CHECK(nearest_option("--ofload-modules") == "--offload-modules");
  CHECK(nearest_option("--steps").empty());
  // A bad value is refused all the same.
  check_says(refusal([] { static_cast<void>(parse_known_options(names{"--max-inflight=-1"})); }),
             {"--max-inflight is '-1'"});
}

// A main may have either kind of argv.
TEST_CASE_TEMPLATE("options are taken out of what main was given, in place", Text, char*,
                   const char*) {
  const auto words = [](std::vector<std::string> given, names& left, options base = {}) {
    std::vector<Text> argv;
    for (auto& each : given) argv.push_back(each.data());
    argv.push_back(nullptr);
    int argc = static_cast<int>(given.size());
    const options taken = take_options(argc, argv.data(), base);
    left.assign(argv.begin(), argv.begin() + argc);
    CHECK(argv[static_cast<std::size_t>(argc)] == nullptr);
    return taken;
  };
  names left;
  const options taken = words({"train", "-b", "4", "--offload-modules", "block", "-i", "block",
                               "--max-inflight=2", "--lr", "2", "--no-margin", "--", "--poison"},
                              left);
  CHECK(left == names{"train", "-b", "4", "-i", "block", "--lr", "2", "--", "--poison"});
  CHECK(taken.offload_modules == names{"block"});
  CHECK(taken.max_inflight == 2);
  CHECK_FALSE(taken.margin);
  CHECK_FALSE(taken.poison);
  // Equal words, of which one is Tidepool's.
  CHECK(words({"train", "--reload-ahead", "7", "7"}, left).reload_ahead == 7);
  CHECK(left == names{"train", "7"});
  CHECK(words({"train", "--margin=false"}, left) == parse_options("--no-margin"));
  CHECK(left == names{"train"});
  options base;
  base.reload_ahead = 9;
  CHECK(words({"train"}, left, base) == base);
  CHECK(left == names{"train"});
  CHECK(words({}, left, base) == base);
  CHECK(left.empty());

  char program[] = "train";
  char mistake[] = "--max-inflight=-1";
  Text argv[] = {program, mistake, nullptr};
  int argc = 2;
  check_says(refusal([&] { static_cast<void>(take_options(argc, argv)); }),
             {"--max-inflight is '-1'"});
  CHECK(argc == 2);
  CHECK(argv[1] == mistake);
}

TEST_CASE("the help names every option, its default and its other names") {
  const std::string help = options_help();
  check_says(help, {"--offload-modules=NAMES|all|none", "--margin, --no-margin", "default 1048576",
                    "default 32MiB", "default auto", "TIDEPOOL_MAX_INFLIGHT",
                    "also --min-offloaded-tensor-size", "SIZE is"});
  for (const auto& item : detail::text::option_table) {
    check_says(help, {("  --" + std::string(item.flag)).c_str(), std::string(item.help).c_str()});
  }
  std::size_t begin = 0;
  for (std::size_t end = help.find('\n'); end != std::string::npos; end = help.find('\n', begin)) {
    CHECK(end - begin <= 100);
    begin = end + 1;
  }
}

}  // namespace
}  // namespace tidepool
