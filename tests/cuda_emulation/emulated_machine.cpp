#include "tests/cuda_emulation/emulated_machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/errors.hpp"
#include "tests/device_bytes/device_bytes.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes) (void)(memory), (void)(bytes)
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) (void)(memory), (void)(bytes)
#endif

namespace troupe::cuda_emulation {
namespace {

/// What cudaMalloc and the pools give.
constexpr std::size_t kAlignment = 512;
/// Fresh memory is no zeros, on any device.
constexpr int kGarbage = 0xa5;

}  // namespace

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

void Machine::reset() {
  std::lock_guard lock(mutex_);
  CHECK(alive_ == Alive{}, "everything that CUDA gave was given back");
  devices_ = 1;
  memory_bytes_ = std::size_t{1} << 30;
  failure_ = cudaSuccess;
  plans_.clear();
  interruptions_.clear();
  calls_.clear();
  contexts_.clear();
  kernels_.clear();
  module_loading_.clear();
  pageable_copies_ = 0;
}

void Machine::set_device_count(int count) {
  std::lock_guard lock(mutex_);
  devices_ = count;
}

void Machine::set_memory_bytes(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  memory_bytes_ = bytes;
}

void Machine::fail_all(cudaError_t error) {
  std::lock_guard lock(mutex_);
  failure_ = error;
}

void Machine::fail_call(std::string_view function, int n, cudaError_t error) {
  std::lock_guard lock(mutex_);
  plans_[std::string(function)] = {n, error};
}

void Machine::interrupt_call(std::string_view function, int n, std::function<void()> then) {
  std::lock_guard lock(mutex_);
  interruptions_[std::string(function)] = {n, std::move(then)};
}

std::uint64_t Machine::calls(std::string_view function) {
  std::lock_guard lock(mutex_);
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

Alive Machine::alive() {
  std::lock_guard lock(mutex_);
  return alive_;
}

void Machine::forget_what_is_alive() {
  std::lock_guard lock(mutex_);
  alive_ = {};
}

std::uint64_t Machine::pageable_copies() {
  std::lock_guard lock(mutex_);
  return pageable_copies_;
}

bool Machine::is_device_memory(const void* memory) {
  std::lock_guard lock(mutex_);
  const auto found = find(memory);
  return found && found->second.kind == Kind::device;
}

void Machine::interrupt(std::string_view function) {
  std::function<void()> then;
  {
    std::lock_guard lock(mutex_);
    const auto found = interruptions_.find(function);
    if (found == interruptions_.end() || --found->second.remaining > 0) return;
    then = std::move(found->second.then);
    interruptions_.erase(found);
  }
  then();
}

cudaError_t Machine::begin(std::string_view function) {
  interrupt(function);
  std::lock_guard lock(mutex_);
  constexpr std::string_view kLoading = "CUDA_MODULE_LOADING=";
  for (char** each = ::environ; calls_.empty() && *each != nullptr; ++each) {
    if (const std::string_view entry = *each; entry.starts_with(kLoading))
      module_loading_ = entry.substr(kLoading.size());
  }
  ++calls_[std::string(function)];
  if (failure_ != cudaSuccess) return failure_;
  const auto plan = plans_.find(function);
  if (plan == plans_.end() || --plan->second.remaining > 0) return cudaSuccess;
  const cudaError_t error = plan->second.error;
  plans_.erase(plan);
  return error;
}

void Machine::use_context(int device) {
  std::lock_guard lock(mutex_);
  contexts_.insert(device);
}

std::set<int> Machine::contexts() {
  std::lock_guard lock(mutex_);
  return contexts_;
}

std::string Machine::module_loading() {
  std::lock_guard lock(mutex_);
  return module_loading_;
}

bool Machine::is_broken() {
  std::lock_guard lock(mutex_);
  return failure_ != cudaSuccess;
}

int Machine::device_count() {
  std::lock_guard lock(mutex_);
  return devices_;
}

std::size_t Machine::memory_bytes() {
  std::lock_guard lock(mutex_);
  return memory_bytes_;
}

void Machine::count_stream(int change) {
  std::lock_guard lock(mutex_);
  alive_.streams += change;
}

void Machine::count_event(int change) {
  std::lock_guard lock(mutex_);
  alive_.events += change;
}

void Machine::add_pool(cudaMemPool_t pool) {
  std::lock_guard lock(mutex_);
  pools_.insert(pool);
  ++alive_.pools;
}

void Machine::remove_pool(cudaMemPool_t pool) {
  std::lock_guard lock(mutex_);
  pools_.erase(pool);
  --alive_.pools;
}

void Machine::set_threshold(cudaMemPool_t pool, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  pool->threshold = bytes;
}

void Machine::trim_pools() {
  std::lock_guard lock(mutex_);
  for (const cudaMemPool_t pool : pools_) pool->unused = std::min(pool->unused, pool->threshold);
}

std::size_t Machine::free_bytes() {
  std::lock_guard lock(mutex_);
  return room();
}

std::size_t Machine::room() const {
  std::size_t taken = alive_.device_bytes;
  for (const cudaMemPool_t pool : pools_) taken += pool->unused;
  return memory_bytes_ - taken;
}

void Machine::count_kernel(const void* kernel) {
  std::lock_guard lock(mutex_);
  kernels_.insert(kernel);
}

std::size_t Machine::kernels() {
  std::lock_guard lock(mutex_);
  return kernels_.size();
}

cudaError_t Machine::allocate(Kind kind, std::size_t bytes, void** memory, cudaMemPool_t pool) {
  std::lock_guard lock(mutex_);
  const std::size_t reused = pool == nullptr ? 0 : std::min(bytes, pool->unused);
  if (kind == Kind::device && bytes - reused > room()) return cudaErrorMemoryAllocation;
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  tests::set_bytes(*memory, kGarbage, bytes);
  if (pool != nullptr) pool->unused -= reused;
  ranges_[reinterpret_cast<std::uintptr_t>(*memory)] = {bytes, kind, pool};
  if (kind == Kind::pinned) {
    alive_.pinned_bytes += bytes;
  } else {
    alive_.device_bytes += bytes;
    // Code of the host has no business there; only kernels and copies have, which are not instrumented.
    ASAN_POISON_MEMORY_REGION(*memory, bytes);
  }
  return cudaSuccess;
}

cudaError_t Machine::release(Kind kind, void* memory) {
  std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == ranges_.end() || found->second.kind != kind) return cudaErrorInvalidValue;
  const std::size_t bytes = found->second.bytes;
  (kind == Kind::pinned ? alive_.pinned_bytes : alive_.device_bytes) -= bytes;
  if (pools_.contains(found->second.pool)) found->second.pool->unused += bytes;
  ranges_.erase(found);
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  std::free(memory);
  return cudaSuccess;
}

bool Machine::is_inside(const void* memory, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = find(memory);
  if (!found) return true;
  return reinterpret_cast<std::uintptr_t>(memory) - found->first <= found->second.bytes - bytes &&
         bytes <= found->second.bytes;
}

bool Machine::is_pageable(const void* memory) {
  std::lock_guard lock(mutex_);
  return !find(memory);
}

void Machine::count_pageable_copy() {
  std::lock_guard lock(mutex_);
  ++pageable_copies_;
}

std::optional<std::pair<std::uintptr_t, Machine::Range>> Machine::find(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return std::nullopt;
  --after;
  if (address - after->first >= after->second.bytes) return std::nullopt;
  return *after;
}

void reset() {
  Machine::instance().reset();
}
void set_device_count(int count) {
  Machine::instance().set_device_count(count);
}
void set_memory_bytes(std::size_t bytes) {
  Machine::instance().set_memory_bytes(bytes);
}
void remove_driver() {
  Machine::instance().fail_all(cudaErrorInsufficientDriver);
}
void break_device(cudaError_t error) {
  Machine::instance().fail_all(error);
}
void fail_call(std::string_view function, int n, cudaError_t error) {
  Machine::instance().fail_call(function, n, error);
}
void interrupt_call(std::string_view function, int n, std::function<void()> then) {
  Machine::instance().interrupt_call(function, n, std::move(then));
}
std::uint64_t calls(std::string_view function) {
  return Machine::instance().calls(function);
}
std::size_t kernels() {
  return Machine::instance().kernels();
}
std::string module_loading() {
  return Machine::instance().module_loading();
}
std::set<int> contexts() {
  return Machine::instance().contexts();
}
Alive alive() {
  return Machine::instance().alive();
}
void forget_what_is_alive() {
  Machine::instance().forget_what_is_alive();
}
std::uint64_t pageable_copies() {
  return Machine::instance().pageable_copies();
}
bool is_device_memory(const void* memory) {
  return Machine::instance().is_device_memory(memory);
}
int priority_of(cudaStream_t stream) {
  return stream->priority;
}

}  // namespace troupe::cuda_emulation
