#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "apps/gpt/model.hpp"

namespace troupe::apps::gpt {

struct SamplingOptions {
  double temperature = 0.8;  ///< 0 takes the likeliest token each time
  std::size_t top_k = 40;    ///< choose among this many likeliest tokens; 0: among all
  std::uint64_t seed = 0;
};

/// One token from logits (V), chosen by `uniform` in [0, 1).
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// `bytes` bytes of text that go on from the prompt, which is not empty. The model was made for one sequence
/// or more; when its length is full, the older half is forgotten.
core::Result<std::string> sample_text(Model& model, Model::Parameters parameters, std::string_view prompt,
                                      std::size_t bytes, const SamplingOptions& options);

}  // namespace troupe::apps::gpt
