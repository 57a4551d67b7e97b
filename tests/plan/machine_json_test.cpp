// Machines to JSON and back, and what is said of files that are wrong.
#if __has_include(<nlohmann/json.hpp>)

#include "../../examples/plan/machine_json.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <typeinfo>
#include <vector>

#include "../../bench/machine_file.hpp"
#include "tidepool/plan/json.hpp"

TEST_SUITE_BEGIN("plan");

namespace {

using namespace planning;
using namespace tidepool::plan;

machine_description usual_machine() {
  machine_description about;
  about.name = "h200";
  about.device_bytes = 141'000'000'000;
  about.gemm_tflops = 700;
  about.gemm_share = 0.71;
  about.attention_tflops = 400;
  about.memory_rate = 4000;
  about.peer_rate = 397;
  about.link = {55, 56, 101.5, 2};
  about.shared = {{2, {53, 52, 67, 2}}, {4, {35, 41, 42, 2.5}}};
  about.source = "measured";
  return about;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

// What `body` says when it throws exactly `Error`.
template <class Error>
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(typeid(error) == typeid(Error));
    return error.what();
  }
  return "nothing was refused";
}

std::string machine_refusal(const std::string& text) {
  return refusal<file_error>([&] { static_cast<void>(machine_from_json(text, "m.json")); });
}

struct folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("tidepool-machine-" + std::to_string(::getpid()));
  folder() { std::filesystem::create_directories(path); }
  folder(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("machine_json: every known machine comes back equal") {
  for (const auto& each : known_machines()) {
    CAPTURE(each.name);
    CHECK(machine_from_json(to_json(each)) == each);
  }
}

TEST_CASE("machine_json: random machines come back equal, and the same text") {
  std::mt19937_64 random(7);
  const auto roll = [&] { return std::uniform_real_distribution<double>(0.01, 1e4)(random); };
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    machine_description about;
    about.name = "a \"b\"\n\xc3\xa9";
    about.device_bytes = random();
    about.gemm_tflops = roll();
    about.attention_tflops = roll();
    about.memory_rate = roll();
    about.peer_rate = i % 3 == 0 ? 0 : roll();
    about.link = {roll(), roll(), roll(), roll()};
    if (i % 2 == 0) about.peer_link = {roll(), roll(), roll(), roll()};
    std::size_t gpus = 2;
    for (auto points = random() % 5; points > 0; --points, gpus += 1 + random() % 9) {
      about.shared.push_back(
          {gpus, {about.link.out / roll() / 1e2, about.link.in, about.link.both / 3, roll()}});
      auto& out = about.shared.back().each.out;
      const auto before = about.shared.size() - 1;
      out = std::min(out, before > 0 ? about.shared[before - 1].each.out : about.link.out);
    }
    const auto text = to_json(about);
    REQUIRE(machine_from_json(text) == about);
    REQUIRE(to_json(machine_from_json(text)) == text);
  }
}

TEST_CASE("machine_json: a row of text for each number of GPUs") {
  const auto text = to_json(usual_machine());
  CHECK(text.starts_with("{\n \"tidepool_machine\": 1,\n \"name\": \"h200\",\n"));
  CHECK(has(text,
            "\n  {\"gpus\": 4, \"out\": 35.0, \"in\": 41.0, \"both\": 42.0, \"latency_us\": 2.5}"));
  CHECK(text.ends_with("}\n"));
}

TEST_CASE("machine_json: what has a default may be left out") {
  const auto about = machine_from_json(
      R"({"tidepool_machine": 1, "name": "x", "gemm_tflops": 1, "attention_tflops": 2,
          "memory_rate": 3, "link": {"out": 4, "in": 5, "both": 6, "latency_us": 7},
          "shared": [{"gpus": 2, "out": 4, "in": 4, "both": 4}]})");
  CHECK(about.shared == std::vector<shared_link>{{2, {4, 4, 4, 7}}});
  CHECK(about.peer_rate == 0);
  CHECK(about.source.empty());
  CHECK(machine_from_json(to_json(about)) == about);
}

TEST_CASE("machine_json: a bad value is refused with its place and what was expected") {
  const auto good = to_json(usual_machine());
  struct edit {
    std::string from, to, place, problem;
  };
  const std::vector<edit> edits{
      {"\"name\": \"h200\"", "\"name\": \"\"", "/name", "the name is empty"},
      {"\"name\": \"h200\"", "\"name\": 7", "/name", "found 7, expected a string"},
      {"\"name\": \"h200\",", "", "its top level", "the key 'name' is missing"},
      {"\"gemm_tflops\": 700.0,", "", "its top level", "the key 'gemm_tflops' is missing"},
      {"\"gemm_tflops\": 700.0", "\"gemm_tflops\": 0", "/gemm_tflops", "the rate is 0; give TFL"},
      {"\"attention_tflops\": 400.0", "\"attention_tflops\": -1", "/attention_tflops",
       "the rate is -1"},
      {"\"memory_rate\": 4000.0", "\"memory_rate\": true", "/memory_rate", "expected a number"},
      {"\"peer_rate\": 397.0", "\"peer_rate\": -1", "/peer_rate", "found -1; give a finite"},
      {"\"gemm_share\": 0.71", "\"gemm_share\": -0.5", "/gemm_share", "found -0.5"},
      {"141000000000", "-1", "/device_bytes", "found -1, expected a whole number"},
      {"\"out\": 55.0, ", "", "/link", "the key 'out' is missing"},
      {"\"out\": 55.0", "\"out\": 0", "/link/out", "the rate is 0; give GB/s"},
      {"\"in\": 56.0", "\"In\": 56.0", "/link", "no key 'In' here; did you mean 'in'?"},
      {"\"latency_us\": 2.0}", "\"latency_us\": -2}", "/link/latency_us", "the latency is -2"},
      {"\"gpus\": 2,", "", "/shared/0", "the key 'gpus' is missing"},
      {"\"gpus\": 2", "\"gpus\": 1", "/shared/0/gpus", "found 1; give 2 GPUs or more"},
      {"\"gpus\": 2", "\"gpus\": 2.5", "/shared/0/gpus", "found 2.5, expected a whole number"},
      {"\"gpus\": 2", "\"gpus\": 4", "/shared/1/gpus", "found 4 after 4; list fewer GPUs first"},
      {"\"gpus\": 4", "\"gpus\": 2", "/shared/1/gpus", "found 2 after 2"},
      {"\"gpus\": 2", "\"gpus\": 8", "/shared/1/gpus", "found 4 after 8"},
      {"\"both\": 42.0", "\"both\": 0", "/shared/1/both", "the rate is 0"},
      {"\"both\": 42.0, ", "", "/shared/1", "the key 'both' is missing"},
      // Totals of two GPUs.
      {"\"out\": 53.0", "\"out\": 106.0", "/shared/0/out",
       "a GPU gets 106 GB/s beside others, and 55 alone; give the rates of each GPU"},
      {"\"in\": 41.0", "\"in\": 164.0", "/shared/1/in", "a GPU gets 164 GB/s"},
      {"\"both\": 67.0", "\"both\": 134.0", "/shared/0/both", "a GPU gets 134 GB/s"},
      // Of four, on a host that gives no more than one GPU can take.
      {"\"both\": 42.0", "\"both\": 100.0", "/shared/1/both",
       "a GPU gets 100 GB/s beside others, and 67 beside fewer; give the rates of each GPU"},
      {"\"shared\": [", "\"shared\": [[], ", "/shared/0", "found an array, expected an object"},
      {"\"shared\"", "\"sharde\"", "its top level", "did you mean 'shared'?"},
      {"\"gpus\": 2", "\"gpus\": 2, \"gpus\": 2", "/shared/0", "the key 'gpus' stands twice"},
      {"\"tidepool_machine\": 1", "\"tidepool_machine\": 2", "/tidepool_machine",
       "it is of version 2; this build reads version 1"},
      {"\"tidepool_machine\"", "\"machine\"", "its top level",
       "the key 'tidepool_machine' is missing; a machine begins with"},
      {"\"tidepool_machine\"", "\"tidepool_profile\"", "its top level",
       "'tidepool_machine' is missing; this is a profile: read it as one"},
  };
  for (const auto& each : edits) {
    CAPTURE(each.to);
    const auto said = machine_refusal(changed(good, each.from, each.to));
    CHECK_MESSAGE(has(said, "tidepool: machine 'm.json' at " + each.place + ": "), said);
    CHECK_MESSAGE(has(said, each.problem), said);
  }
  CHECK(has(machine_refusal(""), "tidepool: machine 'm.json': it is empty"));
  CHECK(has(machine_refusal("{\"tidepool_machine\": 1,\n \"link\": {]"), "at line 2, column 11"));
  CHECK(has(refusal<file_error>([&] { static_cast<void>(plan_from_json(good)); }),
            "this is a machine: read it as one"));
}

TEST_CASE("machine_json: a machine that contradicts itself is not written") {
  using change = std::function<void(machine_description&)>;
  constexpr auto infinite = std::numeric_limits<double>::infinity();
  constexpr auto no_number = std::numeric_limits<double>::quiet_NaN();
  struct fault {
    change make;
    std::string place;
  };
  const std::vector<fault> faults{
      {[](auto& m) { m.name.clear(); }, "/name"},
      {[](auto& m) { m.name = "\xc3"; }, "/name"},
      {[](auto& m) { m.source = "\xff"; }, "/source"},
      {[=](auto& m) { m.gemm_tflops = infinite; }, "/gemm_tflops"},
      {[=](auto& m) { m.memory_rate = no_number; }, "/memory_rate"},
      {[=](auto& m) { m.peer_rate = no_number; }, "/peer_rate"},
      {[=](auto& m) { m.link.both = no_number; }, "/link/both"},
      {[=](auto& m) { m.link.latency_us = infinite; }, "/link/latency_us"},
      {[](auto& m) { m.shared[0].gpus = 0; }, "/shared/0/gpus"},
      {[=](auto& m) { m.shared[1].each.in = no_number; }, "/shared/1/in"},
      {[](auto& m) { std::swap(m.shared[0], m.shared[1]); }, "/shared/1/gpus"},
  };
  check(usual_machine());
  for (const auto& each : faults) {
    CAPTURE(each.place);
    auto about = usual_machine();
    each.make(about);
    const auto said = refusal<profile_error>([&] { static_cast<void>(to_json(about)); });
    CHECK_MESSAGE(has(said, "tidepool: machine at " + each.place + ": "), said);
  }
}

TEST_CASE("machine_json: a file cut anywhere, or with one wrong byte, is refused, or sound") {
  const auto about = usual_machine();
  const auto text = to_json(about);
  std::size_t read = 0;
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    try {
      const auto cut = machine_from_json(text.substr(0, size));
      REQUIRE(cut == about);
      ++read;
    } catch (const file_error&) {
    }
  }
  CHECK(read == 1);  // without the line feed at its end
  std::size_t sound = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      auto bad = text;
      bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ (1U << bit));
      CAPTURE(i);
      CAPTURE(bit);
      try {
        const auto other = machine_from_json(bad);
        const auto again = machine_from_json(to_json(other));
        REQUIRE(again == other);
        ++sound;
      } catch (const file_error& refused) {
        REQUIRE(typeid(refused) == typeid(file_error));
      }
    }
  }
  CHECK(sound > 20);  // another digit, another name
}

TEST_CASE("machine_json: files are saved, replaced and loaded") {
  const folder at;
  const auto path = (at.path / "host.json").string();
  auto about = usual_machine();
  save(about, path);
  CHECK(load_machine(path) == about);
  set_link(about, 8, {20, 21, 22, 2});
  save(about, path);
  CHECK(load_machine(path) == about);
  about.name.clear();
  CHECK_THROWS_AS(save(about, path), profile_error);
  CHECK(load_machine(path).shared.size() == 3);
  CHECK(has(refusal<file_error>([&] { static_cast<void>(load_machine(path + ".none")); }),
            "it cannot be read: No such file or directory"));
}

TEST_CASE("machine_json: bench_link begins a file with one GPU, and goes on with any number") {
  using tidepool::option_error;
  const folder at;
  const auto path = (at.path / "host.json").string();
  const auto says = [&](const std::string& like, std::size_t gpus) {
    return refusal<option_error>(
        [&] { static_cast<void>(bench::machine_to_add_to(path, like, gpus)); });
  };
  CHECK(has(says("h200", 2), "measure one GPU first"));
  CHECK(has(says("", 1), "name the machine"));
  CHECK(has(says("h20", 1), "did you mean h200?"));

  auto host = bench::machine_to_add_to(path, "h200", 1);
  CHECK(host.shared.empty());  // another host's
  CHECK(host.gemm_tflops == machine_named("h200").gemm_tflops);
  set_link(host, 1, {50, 51, 90, 2});
  save(host, path);
  host = bench::machine_to_add_to(path, "", 4);
  set_link(host, 4, {30, 31, 40, 2});
  save(host, path);
  host = bench::machine_to_add_to(path, "gb200", 2);
  CHECK(host.name == "h200");
  CHECK(host.link == link_rates{50, 51, 90, 2});
  CHECK(host.shared == std::vector<shared_link>{{4, {30, 31, 40, 2}}});
}

#endif
