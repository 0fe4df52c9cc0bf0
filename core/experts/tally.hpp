#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/experts/dispatch.hpp"

namespace troupe::core {

/// How often the experts of each layer were chosen by a token, and how often they had no room for it. Layers
/// without experts count nothing.
class ExpertTally {
 public:
  ExpertTally() = default;
  ExpertTally(std::size_t layers, std::size_t experts)
      : experts_(experts), chosen_(layers * experts), dropped_(layers * experts) {}

  std::size_t layers() const { return experts_ == 0 ? 0 : chosen_.size() / experts_; }
  std::size_t experts() const { return experts_; }
  std::span<const std::int64_t> chosen(std::size_t layer) const { return of(chosen_, layer); }
  std::span<const std::int64_t> dropped(std::size_t layer) const { return of(dropped_, layer); }

  /// Where a microbatch's tokens go; a layer without experts has no dispatch.
  void add(std::size_t layer, const Dispatch& dispatch);
  /// Counts of one layer, of each expert.
  void add(std::size_t layer, std::span<const std::int64_t> chosen, std::span<const std::int64_t> dropped);
  /// `other` belongs to the same model, or empty.
  ExpertTally& operator+=(const ExpertTally& other);
  ExpertTally operator-(const ExpertTally& other) const;

  /// All counts end to end: chosen, then dropped.
  std::vector<std::int64_t> counts() const;

  friend bool operator==(const ExpertTally&, const ExpertTally&) = default;

 private:
  std::span<const std::int64_t> of(const std::vector<std::int64_t>& counts, std::size_t layer) const {
    return std::span(counts).subspan(layer * experts_, experts_);
  }

  std::size_t experts_ = 0;
  std::vector<std::int64_t> chosen_, dropped_;  // by layer, then expert
};

}  // namespace troupe::core
