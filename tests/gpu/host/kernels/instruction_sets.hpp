#pragma once

#include <ostream>

#include "gpu/host/kernels/instructions.hpp"

namespace troupe::gpu {

inline std::ostream& operator<<(std::ostream& out, InstructionSet set) {
  switch (set) {
    case InstructionSet::plain:
      return out << "plain";
    case InstructionSet::avx2:
      return out << "avx2";
    case InstructionSet::avx512:
      return out << "avx512";
  }
  return out;
}

}  // namespace troupe::gpu
