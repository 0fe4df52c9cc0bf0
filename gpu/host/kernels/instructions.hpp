#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::gpu {

/// Targets that kernels are compiled for. All of them give the same bits.
enum class InstructionSet { plain, avx2, avx512 };

/// The best one for this machine. avx2 includes the conversions of f16c, and avx512 the sets that Ice Lake
/// and Zen 4 brought together.
inline InstructionSet best_instruction_set() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return InstructionSet::plain;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vbmi");
  return has_avx512 ? InstructionSet::avx512 : InstructionSet::avx2;
}

template <class Loop, class... Arguments>
[[gnu::target("avx2")]] auto run_with_avx2(Arguments... arguments) {
  return Loop::run(arguments...);
}

/// Runs Loop::run, which is compiled once per instruction set: it must be always_inline. (The loader's own
/// dispatch, target_clones, crashes under the thread sanitizer.)
template <class Loop, class... Arguments>
auto run_best(Arguments... arguments) {
  return best_instruction_set() >= InstructionSet::avx2 ? run_with_avx2<Loop>(arguments...)
                                                        : Loop::run(arguments...);
}

/// How far ahead of a loop over memory to fetch. Reading one stream and computing with it, a core leaves half
/// of the memory's speed unused otherwise, most of all where the pages are small.
inline constexpr std::size_t kPrefetchBytes = 8192;

/// Fetches the cache line at `bytes` past `place`, into the second-level cache. Any address may be given.
[[gnu::always_inline]] inline void prefetch(const void* place, std::size_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(place) + bytes), 0, 2);
}

}  // namespace troupe::gpu
