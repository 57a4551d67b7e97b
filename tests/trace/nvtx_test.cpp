// The tests are their own NVTX tool: statically injected, and deaf outside of `listening`.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// What NVTX's headers look for in a program that brings its own tool; they must not define it.
#define NVTX_STATIC_INJECTION_IMPL
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(std::uint32_t));
}

#include "heap_fault.hpp"
#include "tidepool/trace/nvtx.hpp"

namespace {

using tidepool::trace::nvtx_names;

// Made in the test, never copied or moved.
static_assert(!std::is_copy_constructible_v<tidepool::trace::nvtx_range>);
static_assert(!std::is_move_constructible_v<tidepool::trace::nvtx_range>);
static_assert(noexcept(std::declval<const nvtx_names&>().offload(0)));

}  // namespace

TEST_CASE("ranges cost no allocation and no care, with NVTX or without") {
  const std::vector<std::string> modules{"core_attn", "moe_act"};
  const nvtx_names names(modules);
  {
    const auto commit = names.commit(0);
    const auto offload = names.offload(0, 3);
  }
  const auto unknown = names.reload(2);  // no such module: no range, no harm
  const nvtx_names none({});
  const auto nothing = none.restore(0);
}

#if !defined(NVTX_DISABLE) && !defined(TIDEPOOL_NO_CUDA) && __has_include(<nvtx3/nvtx3.hpp>)

static_assert(tidepool::trace::nvtx_compiled_in);

// A library must leave the unversioned names to its users.
namespace nvtx3 {
struct scoped_range {};
}  // namespace nvtx3
static_assert(std::is_empty_v<nvtx3::scoped_range>);  // ambiguous otherwise

namespace {

struct seen_range {
  std::string domain;
  std::string text;
  std::string category;
  std::uint32_t colour = 0;
  bool has_payload = false;
  int payload = 0;
};

// What the tool was told. Names are told once, when an offloader is made, so always kept.
struct tool {
  bool attached = false;
  bool listening = false;
  int depth = 0;
  std::mutex names_mutex;         // other tests make offloaders in several threads
  std::deque<std::string> names;  // handles point at them
  std::map<std::uint32_t, std::string> categories;
  std::vector<seen_range> ranges;
};

tool& the_tool() {
  static tool instance;
  return instance;
}

std::string text_of(const void* handle) {
  return handle == nullptr ? "" : *static_cast<const std::string*>(handle);
}

template <class Handle>
Handle keep(const char* name) {
  // A tool in C has no way to say that the heap is exhausted.
  const tidepool::test::heap_watch unwatched(false);
  const std::lock_guard lock(the_tool().names_mutex);
  return reinterpret_cast<Handle>(&the_tool().names.emplace_back(name));
}

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  return keep<nvtxDomainHandle_t>(name);
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t, const char* text) {
  return keep<nvtxStringHandle_t>(text);
}
void NVTX_API name_category(nvtxDomainHandle_t, std::uint32_t id, const char* name) {
  const tidepool::test::heap_watch unwatched(false);
  const std::lock_guard lock(the_tool().names_mutex);
  the_tool().categories[id] = name;
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  auto& to = the_tool();
  if (!to.listening) return 0;
  seen_range range;
  range.domain = text_of(domain);
  if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED) {
    range.text = text_of(event->message.registered);
  }
  range.category = to.categories[event->category];
  range.colour = event->color;
  range.has_payload = event->payloadType == NVTX_PAYLOAD_TYPE_INT32;
  range.payload = event->payload.iValue;
  to.ranges.push_back(range);
  return to.depth++;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  auto& to = the_tool();
  if (!to.listening) return 0;
  return --to.depth;
}

template <class Function>
void hook(NvtxFunctionTable table, std::size_t index, Function function) {
  *table[index] = reinterpret_cast<NvtxFunctionPointer>(function);
}

int NVTX_API attach(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainRangePop) {
    return 0;
  }
  hook(table, NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  hook(table, NVTX_CBID_CORE2_DomainRegisterStringA, &register_string);
  hook(table, NVTX_CBID_CORE2_DomainNameCategoryA, &name_category);
  hook(table, NVTX_CBID_CORE2_DomainRangePushEx, &push);
  hook(table, NVTX_CBID_CORE2_DomainRangePop, &pop);
  the_tool().attached = true;
  return 1;
}

struct listening {
  listening() {
    the_tool().ranges.clear();
    the_tool().depth = 0;
    the_tool().listening = true;
  }
  ~listening() { the_tool().listening = false; }
};

}  // namespace

NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &attach;

TEST_CASE("a tool sees ranges of the domain tidepool, named by action and module") {
  const std::vector<std::string> modules{"core_attn", "my own"};
  const nvtx_names names(modules);
  if (!the_tool().attached) {
    MESSAGE("skipped: another NVTX tool is attached");
    return;
  }
  const listening ears;
  auto& heard = the_tool();
  {
    const auto commit = names.commit(0);
    CHECK(heard.depth == 1);
    {
      const auto offload = names.offload(1, 12);
      CHECK(heard.depth == 2);
    }
    CHECK(heard.depth == 1);
  }
  { const auto restore = names.restore(0); }
  { const auto reload = names.reload(0, 0); }
  { const auto unknown = names.reload(2); }
  CHECK(heard.depth == 0);

  REQUIRE(heard.ranges.size() == 4);
  for (const auto& range : heard.ranges) CHECK(range.domain == "tidepool");
  CHECK(heard.ranges[0].text == "commit core_attn");
  CHECK(heard.ranges[0].category == "commit");
  CHECK_FALSE(heard.ranges[0].has_payload);
  CHECK(heard.ranges[1].text == "offload my own");
  CHECK(heard.ranges[1].category == "offload");
  CHECK(heard.ranges[1].has_payload);
  CHECK(heard.ranges[1].payload == 12);
  CHECK(heard.ranges[2].text == "restore core_attn");
  CHECK(heard.ranges[3].text == "reload core_attn");
  CHECK(heard.ranges[3].has_payload);
  // The colour that the module has in pictures.
  CHECK(heard.ranges[0].colour == 0xff38a0f4);
}

TEST_CASE("names are registered when they are made, not when ranges open") {
  const std::vector<std::string> modules{"core_attn"};
  const nvtx_names names(modules);
  if (!the_tool().attached) return;
  const auto before = the_tool().names.size();
  for (int i = 0; i < 10; ++i) {
    const auto range = names.offload(0);
  }
  CHECK(the_tool().names.size() == before);
}

#else

static_assert(!tidepool::trace::nvtx_compiled_in);

#endif
