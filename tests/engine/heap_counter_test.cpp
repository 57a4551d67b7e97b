// Operators new and delete that count, for the whole test program.
#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "heap_fault.hpp"

namespace {

thread_local std::uint64_t allocations = 0;
thread_local bool refused = false;

void* counted(std::size_t bytes, std::size_t alignment) noexcept {
  ++allocations;
  if (refused || tidepool::test::heap_fails()) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* counted_or_throw(std::size_t bytes, std::size_t alignment) {
  if (auto* const pointer = counted(bytes, alignment)) return pointer;
  throw std::bad_alloc();
}

// Not inlined: a compiler that saw `free` behind `delete` would take it for a mistake.
[[gnu::noinline]] void give_back(void* pointer) noexcept { std::free(pointer); }

}  // namespace

namespace tidepool::test {

std::uint64_t heap_allocations() noexcept { return allocations; }

no_heap::no_heap() noexcept { refused = true; }
no_heap::~no_heap() { refused = false; }

}  // namespace tidepool::test

void* operator new(std::size_t bytes) { return counted_or_throw(bytes, 1); }
void* operator new[](std::size_t bytes) { return counted_or_throw(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, 1);
}
void operator delete(void* pointer) noexcept { give_back(pointer); }
void operator delete[](void* pointer) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { give_back(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { give_back(pointer); }
void operator delete[](void* pointer, std::align_val_t) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { give_back(pointer); }
void operator delete[](void* pointer, std::size_t, std::align_val_t) noexcept {
  give_back(pointer);
}
void operator delete(void* pointer, const std::nothrow_t&) noexcept { give_back(pointer); }
void operator delete[](void* pointer, const std::nothrow_t&) noexcept { give_back(pointer); }

TEST_CASE("heap counter: counts what this thread allocates") {
  struct alignas(64) wide {
    char bytes[64];
  };
  const auto before = tidepool::test::heap_allocations();
  auto one = std::make_unique<int>(1);
  const std::vector<int> many(100);
  const auto aligned = std::make_unique<wide>();
  CHECK(tidepool::test::heap_allocations() == before + 3);
  CHECK(reinterpret_cast<std::uintptr_t>(aligned.get()) % 64 == 0);
  one.reset();
  CHECK(tidepool::test::heap_allocations() == before + 3);
}
