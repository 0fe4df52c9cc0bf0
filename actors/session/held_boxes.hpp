#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "actors/planes/checkpoint/load_exchange.hpp"
#include "core/boxes/box.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/save_plan.hpp"

namespace troupe::actors {

/// What a rank gives to others from memory: boxes of named tensors.
class HeldBoxes {
 public:
  using Source = LoadExchange::Source;

  explicit HeldBoxes(Source source = Source::host) : source_(source) {}
  Source source() const { return source_; }
  /// `memory[i]` is the structure's piece i, and stays as long as this is used.
  void add(const core::SaveStructure& structure, std::span<const std::span<std::byte>> memory);
  /// Where a shard of the manifest is; empty for one that is not held. The manifest's shards begin at
  /// different bytes, and it must outlive what is returned.
  LoadExchange::MemoryOf lookup(const core::Manifest& manifest) const;

 private:
  struct Key {
    std::string tensor;
    core::Box box;
    auto operator<=>(const Key& other) const {
      const auto tensors = tensor <=> other.tensor;
      return tensors != 0 ? tensors : box <=> other.box;
    }
    bool operator==(const Key& other) const = default;
  };
  Source source_;
  std::map<Key, std::span<const std::byte>> boxes_;
};

}  // namespace troupe::actors
