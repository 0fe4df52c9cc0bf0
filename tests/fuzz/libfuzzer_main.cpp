#include "tests/fuzz/targets.hpp"

/// Built once for each format, with its function as FUZZ_TARGET.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return troupe::fuzz::FUZZ_TARGET(data, size);
}
