#include "writer.hpp"

#include <regex>

namespace stranger {

namespace {

constexpr const char* head = R"(// g++ -std=c++20 -Iinclude -I. this.cpp && ./a.out [order seed]
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <cstring>
#include <memory>
#include <vector>
#include <tidepool/keyed.hpp>
#include <tidepool/layers.hpp>
#include <tidepool/places/lending.hpp>
#include <tidepool/plan.hpp>
#include <tidepool/tidepool.hpp>
#include "tests/stranger/numbers.hpp"
)";

constexpr const char* failing = R"(
// One call of the library to the device fails, once.
struct device : tp::virtual_device {
  using base = tp::virtual_device;
  using base::base;
  int calls = 0, fails = 0;
  std::string kind;
  bool now(const char* call) { return kind == call && ++calls == fails; }
  void count(const char* call) {
    if (now(call)) throw tp::device_error("made to fail", 777);
  }
  stream make_stream() { return count("make_stream"), base::make_stream(); }
  event make_event(bool timing = false) { return count("make_event"), base::make_event(timing); }
  void record(event& e, stream_ref s) { count("record"), base::record(e, s); }
  void wait(stream_ref s, const event& e) { count("wait"), base::wait(s, e); }
  void synchronize(stream_ref s) { base::synchronize(s), count("synchronize"); }
  void synchronize() { base::synchronize(), count("synchronize"); }
  void copy(void* to, const void* from, const tp::copy_shape& shape, tp::copy_direction where,
            stream_ref s) {
    count("copy"), base::copy(to, from, shape, where, s);
  }
  void* try_allocate(std::size_t n) { return now("try_allocate") ? nullptr : base::try_allocate(n); }
  void* try_allocate_host(std::size_t n) { return now("try_allocate_host") ? nullptr : base::try_allocate_host(n); }
  void* try_allocate_peer(int d, std::size_t n) { return now("try_allocate_host") ? nullptr : base::try_allocate_peer(d, n); }
  void begin_capture(stream_ref s) { count("begin_capture"), base::begin_capture(s); }
  graph end_capture(stream_ref s) {
    const bool fail = now("end_capture");
    auto made = base::end_capture(s);
    if (fail) throw tp::device_error("made to fail", 777);
    return made;
  }
  void replay(graph& g, stream_ref s) { count("replay"), base::replay(g, s); }
  void pack(std::byte* to, std::byte* spill, const std::byte* from, std::size_t n, stream_ref s) { count("pack"), base::pack(to, spill, from, n, s); }
  void unpack(std::byte* to, const std::byte* from, const std::byte* spill, std::size_t n, stream_ref s) { count("unpack"), base::unpack(to, from, spill, n, s); }
  void fill_bytes(void* p, unsigned char b, std::size_t n, stream_ref s) { count("fill_bytes"), base::fill_bytes(p, b, n, s); }
};
)";

constexpr const char* source = R"(
// Some blocks of each size, with the fences that it was given.
struct own_blocks final : tp::block_source {
  struct one { std::byte* at; std::size_t bytes; bool taken = false; tp::fence after{}; };
  std::vector<one> all;
  own_blocks(device& dev, std::vector<std::pair<std::size_t, int>> sizes) {
    for (auto [bytes, count] : sizes) {
      for (; count > 0; --count) all.push_back({static_cast<std::byte*>(dev.allocate(bytes)), bytes});
    }
  }
  bool take(std::size_t bytes, tp::lane_id, tp::block& into, tp::fence& ready) override {
    one* best = nullptr;
    for (auto& each : all) {
      if (each.taken || each.bytes < bytes) continue;
      if (!best || each.bytes < best->bytes || (each.bytes == best->bytes && each.after.order() < best->after.order())) best = &each;
    }
    if (!best) return false;
    best->taken = true;
    into = {best->at, best->bytes, static_cast<std::uint32_t>(best - all.data())};
    ready = best->after;
    return true;
  }
  void release(const tp::block& done, const tp::fence& after) noexcept override {
    all[done.index].taken = false;
    all[done.index].after = after;
  }
  std::size_t reserved() const override { return budget(); }
  std::size_t peak() const override { return budget(); }
  std::size_t budget() const override { std::size_t n = 0; for (auto& e : all) n += e.bytes; return n; }
  std::size_t largest_free() const override { std::size_t n = 0; for (auto& e : all) n = e.taken || e.bytes < n ? n : e.bytes; return n; }
  std::uint64_t allocations() const override { return 0; }
};
// An allocator that works in the order of a stream.
struct allocator {
  device& dev;
  device::stream_ref home;
  std::size_t limit, used = 0;
  std::vector<std::pair<void*, std::size_t>> handed{}, free{};
  void* take(std::size_t bytes) {
    if (limit != 0 && used + bytes > limit) return nullptr;
    void* got = nullptr;
    for (auto& each : free) {
      if (each.second != bytes) continue;
      got = each.first, each = free.back(), free.pop_back();
      break;
    }
    if (got == nullptr) got = dev.allocate(bytes);
    used += bytes;
    handed.emplace_back(got, bytes);
    dev.launch(home, 200, [=] { std::memset(got, 0xCD, bytes); });
    return got;
  }
  void give(void* p) {
    for (auto& each : handed) {
      if (each.first != p) continue;
      const auto bytes = each.second;
      used -= bytes, free.push_back(each), each = handed.back(), handed.pop_back();
      dev.launch(home, 200, [=] { std::memset(p, 0xCE, bytes); });
      return;
    }
  }
};
)";

constexpr const char* helpers = R"(
using modules = tp::packed<tp::modules<"core_attn", "expert_fc1", "moe_act", "mine", "mine_again">, "mine">;
using offloader = tp::offloader<device, modules>;
using stranger::number;

struct part {
  std::size_t offset, width, rows, pitch;
};
template <class Handle>
static std::size_t pitch_of(const Handle& h, const part& p) {
  if constexpr (requires { h.pitch(); }) return h.pitch();
  return p.width;
}
template <class Handle>
static void write(device& dev, device::stream_ref s, Handle& h, std::uint64_t id, std::uint64_t version, part p) {
  auto* const at = h.template as<std::byte>();
  dev.launch(s, 1000, [=, step = pitch_of(h, p)] {
    for (std::size_t r = 0; r < p.rows; ++r) {
      stranger::put_words(at + r * step, p.width, id, version, p.offset + r * p.pitch);
    }
  });
}
template <class Handle>
static void read(device& dev, device::stream_ref s, Handle& h, std::uint64_t id, std::uint64_t version, part p,
                 const char* what) {
  const auto* const at = h.template as<std::byte>();
  dev.launch(s, 1000, [=, step = pitch_of(h, p)] {
    for (std::size_t r = 0; r < p.rows; ++r) {
      const auto c = stranger::wrong_word(at + r * step, p.width, id, version, p.offset + r * p.pitch);
      if (c < p.width) std::printf("WRONG: %s, byte %zu of row %zu\n", what, c, r);
    }
  });
}
static void write_at(device& dev, device::stream_ref s, void* at, std::size_t bytes, std::uint64_t id, std::uint64_t version) {
  dev.launch(s, 700, [=] { stranger::put_words(static_cast<std::byte*>(at), bytes, id, version); });
}
// Version 0 stands for zeros.
static void read_at(device& dev, device::stream_ref s, const void* at, std::size_t bytes, std::uint64_t id, std::uint64_t version,
                    const char* what) {
  dev.launch(s, 700, [=] {
    const auto c = stranger::wrong_word(static_cast<const std::byte*>(at), bytes, id, version);
    if (c < bytes) std::printf("WRONG: %s, byte %zu\n", what, c);
  });
}
using bytes_at = std::byte*;
// For the type that `adopt` takes.
struct at {
  void* data;
  operator void*() const { return data; }
  operator number*() const { return static_cast<number*>(data); }
  operator __nv_bfloat16*() const { return static_cast<__nv_bfloat16*>(data); }
};
// The owners of memory that is lent. With the last of them it is written at once, in the order of its stream.
static std::shared_ptr<void> lent(device& dev, device::stream_ref home, bytes_at at, std::size_t bytes) {
  return {at, [&dev, home, bytes](void* p) { dev.launch(home, 300, [=] { std::memset(p, 0xAB, bytes); }); }};
}
struct arrays {
  using array = tp::saved_layers<stranger::quad, offloader>;
  offloader::chunk pass;
  tp::layer_group<offloader> group;
  std::vector<std::unique_ptr<array>> all;
  arrays(offloader& off, const char* module, int count) : group(off, pass, module) {
    for (int i = 0; i < count; ++i) all.push_back(std::make_unique<array>(group));
  }
};
// The trainer's own join: `after` waits for `before`.
static void join(tp::virtual_device& dev, device::stream_ref before, device::stream_ref after) {
  auto event = dev.make_event();
  dev.record(event, before);
  dev.wait(after, event);
}
template <class Body>
static void attempt(Body&& body) {
  try {
    body();
    std::printf("nothing was thrown\n");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
}
)";

std::string bytes_or_none(const char* member, long value) {
  return value < 0 ? std::string()
                   : std::string("  o.") + member + " = " + std::to_string(value) + ";\n";
}

std::string options_text(const side& with, int number, bool poison) {
  std::string text =
      "static tp::options options" + std::to_string(number) + "() {\n  tp::options o;\n";
  const auto put = [&](const std::string& line) { text += "  o." + line + ";\n"; };
  std::string list;
  for (std::size_t m = 0; m < module_names.size(); ++m) {
    if ((with.modules >> m & 1U) != 0)
      list += std::string(list.empty() ? "" : ", ") + '"' + module_names[m] + '"';
  }
  put("offload_modules = {" + list + "}");
  list.clear();
  for (std::size_t m = 0; m < discard_names.size(); ++m) {
    if ((with.recompute >> m & 1U) != 0)
      list += std::string(list.empty() ? "" : ", ") + '"' + discard_names[m] + '"';
  }
  if (!list.empty()) put("recompute_modules = {" + list + "}");
  put("min_tensor_elements = " + std::to_string(with.min_elements));
  if (!with.margin) put("margin = false");
  if (with.fraction != 1) put("fraction = " + std::to_string(with.fraction));
  if (with.delta != 0) {
    put("pipeline_rank = 1");
    put("delta_bytes_per_rank = " + std::to_string(with.delta));
  }
  text += bytes_or_none("max_inflight", with.cap);
  text += bytes_or_none("max_inflight_bytes", with.cap_bytes);
  put("reload_ahead = " + std::to_string(with.ahead));
  text += bytes_or_none("reload_ahead_bytes", with.ahead_bytes);
  if (with.automatic) put("policy = tp::policy_kind::automatic");
  if (!with.recompute_by_plan) put("recompute_by_plan = false");
  if (with.timed_step != 2) put("timed_step = " + std::to_string(with.timed_step));
  if (with.memory == 1) put("memory = tp::memory_kind::arena");
  if (with.memory == 2) {
    put("memory = tp::memory_kind::slots");
    std::string rings;
    for (const auto& [bytes, count] : with.rings) {
      rings += (rings.empty() ? "{" : ", {") + std::to_string(bytes) + ", " +
               std::to_string(count) + "}";
    }
    put("slots = {" + rings + "}");
  } else if (with.budget != 0 || with.memory == 1) {
    put("device_budget = " + std::to_string(with.budget != 0 ? with.budget : roomy_device));
  }
  put("device_step = " + std::to_string(with.step));
  put("copy_piece = " + std::to_string(with.piece));
  list = with.pack == pack_all ? "\"all\"" : "";
  for (std::size_t m = 0; m < module_names.size(); ++m) {
    if ((with.pack >> m & 1U) != 0)
      list += std::string(list.empty() ? "" : ", ") + '"' + module_names[m] + '"';
  }
  if (!list.empty()) put("pack = {" + list + "}");
  put("host_budget = " + std::to_string(with.host_budget != 0 ? with.host_budget : roomy_host));
  put("host_step = " + std::to_string(with.host_step));
  if (with.peer_budget != 0) {
    put("places = {tp::place_kind::peer, tp::place_kind::host}");
    put("peer_budget = " + std::to_string(with.peer_budget));
  }
  list.clear();
  for (unsigned l = 0; l < 8; ++l) {
    if ((with.layers >> l & 1U) != 0) list += (list.empty() ? "" : ", ") + std::to_string(l);
  }
  if (!list.empty()) put("offload_layers = {" + list + "}");
  text += bytes_or_none("borrowed_slack", with.slack);
  if (poison) put("poison = true");
  return text + "  return o;\n}\n";
}

// Declarations for the names that the lines use.
std::string declarations(const std::string& lines) {
  std::string text;
  const auto declare = [&](const std::string& letter, const std::string& type) {
    std::set<int> numbers;
    const std::regex name("\\b" + letter + "([0-9]+)\\b");
    for (auto at = std::sregex_iterator(lines.begin(), lines.end(), name);
         at != std::sregex_iterator(); ++at) {
      numbers.insert(std::stoi((*at)[1]));
    }
    std::string names;
    for (const int each : numbers)
      names += (names.empty() ? " " : ", ") + letter + std::to_string(each);
    if (!names.empty()) text += "  " + type + names + ";\n";
  };
  declare("f", "std::optional<tp::fixed_block>");
  declare("lent", "std::optional<tp::lent_memory<device>>");
  if (lines.find("weights.") != std::string::npos) text += "  std::set<const void*> weights;\n";
  declare("g", "std::optional<tp::graph<device>>");
  declare("h", "tp::host_state<device>");
  declare("m", "bytes_at");
  declare("r", "std::shared_ptr<void>");
  declare("keys", "std::optional<tp::keyed<device, modules>>");
  declare("k", "tp::keyed<device, modules>::pass");
  declare("l", "std::optional<arrays>");
  declare("c", "offloader::chunk");
  declare("t", "offloader::buffer");
  declare("v", "offloader::view");
  return text;
}

}  // namespace

std::string writer::whole(const program& what, const std::string& why) const {
  std::string body;
  for (const auto& each : lines_) body += each + "\n";
  for (const char* unused : {"f1", "f2"}) {
    if (body.find(std::string("*") + unused) != std::string::npos) continue;
    const auto at = body.find(std::string("  ") + unused + ".emplace");
    if (at != std::string::npos) body.erase(at, body.find('\n', at) + 1 - at);
  }
  std::string text =
      "// Seed " + std::to_string(what.seed) + ". " + why.substr(0, why.find('\n')) + "\n";
  text += head;
  if (body.find("tp::plan::") != std::string::npos) text += "#include <tidepool/plan/json.hpp>\n";
  text += "namespace tp = tidepool;\n";
  text += what.fault_at > 0 ? failing : "\nusing device = tp::virtual_device;\n";
  text += helpers;
  for (const auto& each : what.sides) {
    if (each.own == none) continue;
    text += source;
    break;
  }
  text += '\n';
  for (std::size_t s = 0; s < what.sides.size(); ++s)
    text += options_text(what.sides[s], static_cast<int>(s), what.poison);
  text += "\nint main(int argc, char** argv) {\n";
  text += "  tp::machine like{.device_bytes = " + std::to_string(what.memory) +
          ", .host_bytes = " + std::to_string(what.memory) + "};\n";
  text += "  if (argc > 1) like.order_seed = std::strtoull(argv[1], nullptr, 10);\n";
  if (what.poison) text += "  like.poison = false;\n";
  text += "  like.packs_from = " + std::to_string(what.packs_from) + ";\n";
  if (body.find("(neighbour,") != std::string::npos) text += "  device neighbour(like);\n";
  text += "  device dev(like);\n";
  for (int s = 0; s < what.streams; ++s) {
    text += "  const auto stream" + std::to_string(s) + " = dev.make_stream();\n  const auto s" +
            std::to_string(s) + " = stream" + std::to_string(s) + ".ref();\n";
  }
  for (int s = 0; what.eager && s < what.streams; ++s) {
    text += "  dev.host_executes(s" + std::to_string(s) + ");\n";
  }
  if (what.fault_at > 0) {
    text += "  dev.kind = \"" +
            std::string(device_calls[static_cast<std::size_t>(what.fault_call)]) +
            "\";\n  dev.fails = " + std::to_string(what.fault_at) + ";\n";
  }
  for (std::size_t s = 0; s < what.sides.size(); ++s) {
    const auto n = std::to_string(s);
    const auto& own = what.sides[s];
    std::string parts = "{.planner = tp::planner()";
    if (own.own == blocks) {
      std::string sizes;
      for (const auto& [bytes, count] : own.rings) {
        sizes += (sizes.empty() ? "{" : ", {") + std::to_string(bytes) + ", " +
                 std::to_string(count) + "}";
      }
      parts +=
          ", .memory = std::make_unique<own_blocks>(dev, std::vector<std::pair<std::size_t, "
          "int>>{" +
          sizes + "})";
    } else if (own.own != none) {
      text += "  allocator own" + n + "{dev, s0, " + std::to_string(own.own_bytes) + "};\n";
      parts += ", .memory = tp::memory_on<device>(s0, [&](std::size_t n) { return own" + n +
               ".take(n); }, [&](void* p) { own" + n + ".give(p); })";
    }
    text += "  std::optional<offloader> off" + std::to_string(s) + ";\n  off" + std::to_string(s) +
            ".emplace(dev, options" + std::to_string(s) + "(), tp::parts" + parts + "});\n";
  }
  // The offloaders go first unless the lines say otherwise, so the handles are declared before.
  if (body.find("  profile = ") != std::string::npos) text += "  std::string profile, plan;\n";
  const auto declared = declarations(body);
  text += declared + body + "}\n";
  return text;
}

}  // namespace stranger
