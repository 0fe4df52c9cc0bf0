// Cuts a tensor for two ranks, with Troupe's formats and maths alone.
#include <cstdio>
#include <string>
#include <troupe/core/layout/buffer_layout.hpp>
#include <troupe/core/version.hpp>

int main() {
  namespace core = troupe::core;
  core::LayoutOptions options;
  options.shards = 2;
  const auto layout = core::padded_layout({{.elements = 1000}}, options);
  if (!layout) {
    std::fprintf(stderr, "%s\n", layout.error().message.c_str());
    return 1;
  }
  // Bucket ends are multiples of lcm(2 shards, 128 elements).
  return layout->elements == 1024 && std::string(core::kVersion) == "0.1.0" ? 0 : 1;
}
