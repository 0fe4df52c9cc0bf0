#pragma once

#include <cstdint>
#include <span>

#include "apps/gpt/model/parameters.hpp"
#include "core/element_range.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Initial values of parameters. They are read by range, so that each rank reads no more than it holds. Any
/// thread may read.
class InitialValues {
 public:
  virtual ~InitialValues() = default;

  /// The elements of `range`, row-major, of a parameter in the model's table; `values` has the same number.
  virtual core::Result<void> read(const ParameterSpec& spec, core::ElementRange range,
                                  std::span<float> values) const = 0;

  /// All of them.
  core::Result<void> read(const ParameterSpec& spec, std::span<float> values) const {
    return read(spec, {0, static_cast<std::int64_t>(spec.elements())}, values);
  }
};

/// The values of initialise().
class RandomValues final : public InitialValues {
 public:
  explicit RandomValues(std::uint64_t seed) : seed_(seed) {}

  using InitialValues::read;
  core::Result<void> read(const ParameterSpec& spec, core::ElementRange range,
                          std::span<float> values) const override {
    initialise(spec, seed_, range, values);
    return {};
  }

 private:
  std::uint64_t seed_;
};

}  // namespace troupe::apps::gpt
