#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/gpt/experts/expert_activations.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps::gpt {

/// How often the experts of each layer were chosen by a token, and how often they had no room for it. Layers
/// without experts count nothing.
class ExpertTally {
 public:
  ExpertTally() = default;
  ExpertTally(std::size_t layers, std::size_t experts)
      : experts_(experts), chosen_(layers * experts), dropped_(layers * experts) {}

  std::size_t layers() const { return experts_ == 0 ? 0 : chosen_.size() / experts_; }
  std::span<const std::int64_t> chosen(std::size_t layer) const { return of(chosen_, layer); }
  std::span<const std::int64_t> dropped(std::size_t layer) const { return of(dropped_, layer); }

  /// A pass; a layer each.
  void add(std::span<const ExpertRoutes> routes);
  /// `other` is of the same model, or empty.
  ExpertTally& operator+=(const ExpertTally& other);
  ExpertTally operator-(const ExpertTally& other) const;

  /// All counts end to end, as ranks add them.
  std::vector<std::int64_t> counts() const;
  void set_counts(std::span<const std::int64_t> counts);

  /// As checkpoints keep it. One of another model is Errc::mismatch.
  core::Value value() const;
  core::Result<void> set_value(const core::Value& value);

  friend bool operator==(const ExpertTally&, const ExpertTally&) = default;

 private:
  std::span<const std::int64_t> of(const std::vector<std::int64_t>& counts, std::size_t layer) const {
    return std::span(counts).subspan(layer * experts_, experts_);
  }

  std::size_t experts_ = 0;
  std::vector<std::int64_t> chosen_, dropped_;  // by layer, then expert
};

}  // namespace troupe::apps::gpt
