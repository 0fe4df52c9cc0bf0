#pragma once

namespace troupe::gpu {

/// Targets that kernels are compiled for. All of them give the same bits.
enum class InstructionSet { plain, avx2 };

/// The best one for this machine; avx2 includes the conversions of f16c.
inline InstructionSet best_instruction_set() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? InstructionSet::avx2
                                                                          : InstructionSet::plain;
}

template <class Loop, class... Arguments>
[[gnu::target("avx2")]] auto run_with_avx2(Arguments... arguments) {
  return Loop::run(arguments...);
}

/// Runs Loop::run, which is compiled once per instruction set: it must be always_inline. (The loader's own
/// dispatch, target_clones, crashes under the thread sanitizer.)
template <class Loop, class... Arguments>
auto run_best(Arguments... arguments) {
  return best_instruction_set() == InstructionSet::avx2 ? run_with_avx2<Loop>(arguments...)
                                                        : Loop::run(arguments...);
}

}  // namespace troupe::gpu
