#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "apps/gpt/layers/rotary_scaling.hpp"
#include "apps/gpt/model/expert_config.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

enum class Norm { rms, layer };
enum class Activation { swiglu, gelu };

/// What defines the function a decoder-only transformer computes. Linear layers have no biases except those
/// named here.
struct ModelConfig {
  std::size_t layers = 0;
  std::size_t heads = 0;         ///< divides width, unless the head size is given
  std::size_t width = 0;         ///< elements of the residual stream
  std::size_t feed_forward = 0;  ///< elements of the hidden layer of an MLP
  std::size_t context = 0;       ///< the longest sequence, in tokens
  std::size_t vocabulary = 256;  ///< one token per byte value
  Norm norm = Norm::rms;
  Activation activation = Activation::swiglu;
  bool tied_embeddings = true;  ///< the output layer reads the embedding table
  double rope_base = 10000;
  double norm_epsilon = 1e-5;
  double initial_deviation = 0.02;  ///< of the weights; smaller for projections into the residual stream
  std::size_t key_value_heads = 0;  ///< groups of heads that share keys and values; 0: as many as heads
  std::size_t head_dimension = 0;   ///< elements of a head, even; 0: width / heads
  bool query_key_value_bias = false;
  bool attention_output_bias = false;
  bool query_key_norm = false;  ///< RMS norms of each head's query and key, before they are rotated
  RotaryScaling rope_scaling;
  ExpertConfig experts;

  std::size_t head_size() const { return head_dimension > 0 ? head_dimension : width / heads; }
  std::size_t key_heads() const { return key_value_heads > 0 ? key_value_heads : heads; }
  std::size_t query_width() const { return heads * head_size(); }
  std::size_t key_width() const { return key_heads() * head_size(); }
};

/// An Error names the first invalid field, its value and what it must be.
core::Result<void> validate(const ModelConfig& config);

/// "tiny" (tests: a few thousand parameters), "demo" (minutes on two cores), or for GPUs "350m", "760m" and
/// "1.5b": widths and depths of GPT-2 and GPT-3, 2,048 tokens, and GPT-2's vocabulary, of which a text of
/// bytes uses the first 256.
core::Result<ModelConfig> preset(std::string_view name);

core::Result<Norm> norm_from_name(std::string_view name);
core::Result<Activation> activation_from_name(std::string_view name);

}  // namespace troupe::apps::gpt
