#pragma once

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "core/plan/terms.hpp"

namespace troupe::tests {

/// A strategy on a mesh of data-parallel ranks.
struct ShardingMesh {
  core::Strategy strategy = core::Strategy::ddp;
  int outer = 1;
  int inner = 1;

  int ranks() const { return outer * inner; }
  std::string name() const {
    return outer == 1 && strategy != core::Strategy::hsdp && strategy != core::Strategy::hfsdp
               ? fmt::format("{}On{}", core::name_of(strategy), inner)
               : fmt::format("{}On{}x{}", core::name_of(strategy), outer, inner);
  }
  friend std::ostream& operator<<(std::ostream& out, const ShardingMesh& mesh) { return out << mesh.name(); }
};

inline std::vector<ShardingMesh> sharding_meshes() {
  using core::Strategy;
  std::vector<ShardingMesh> meshes;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const int ranks : {1, 2, 3, 4, 8}) meshes.push_back({strategy, 1, ranks});
  }
  for (const auto strategy : {Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto& [outer, inner] : {std::pair{1, 2}, {2, 1}, {2, 2}, {4, 2}, {2, 4}}) {
      meshes.push_back({strategy, outer, inner});
    }
  }
  return meshes;
}

}  // namespace troupe::tests
