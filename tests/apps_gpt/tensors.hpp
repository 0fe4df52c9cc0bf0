#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/gpt/model/parameters.hpp"

namespace troupe::apps::gpt {

/// One zeroed tensor per parameter, and the pointer tables a model takes.
template <class T>
struct Tensors {
  explicit Tensors(const std::vector<ParameterSpec>& specs) {
    for (const ParameterSpec& spec : specs) tensors.emplace_back(spec.elements());
  }

  std::span<const std::byte* const> constant() {
    constant_.clear();
    for (auto& tensor : tensors) constant_.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
    return constant_;
  }

  std::span<T* const> pointers() {
    pointers_.clear();
    for (auto& tensor : tensors) pointers_.push_back(tensor.data());
    return pointers_;
  }

  std::vector<std::vector<T>> tensors;

 private:
  std::vector<const std::byte*> constant_;
  std::vector<T*> pointers_;
};

inline Tensors<float> initial_parameters(const std::vector<ParameterSpec>& specs, std::uint64_t seed) {
  Tensors<float> values(specs);
  for (std::size_t i = 0; i < specs.size(); ++i)
    initialise(specs[i], seed, {0, static_cast<std::int64_t>(specs[i].elements())}, values.tensors[i]);
  return values;
}

}  // namespace troupe::apps::gpt
