#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "apps/gpt/experts/expert_config.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

enum class Norm { rms, layer };
enum class Activation { swiglu, gelu };

/// How rotary angles grow with the position in a model that was extended to longer texts, by the formulas of
/// transformers (modeling_rope_utils.py).
struct RotaryScaling {
  enum class Kind {
    none,
    linear,    ///< all angles are divided by the factor
    llama3,    ///< slow ones are divided, fast ones are not, those between are interpolated
    yarn,      ///< as above, by the numbers of pairs
    longrope,  ///< each is divided by a factor of its own
  };
  Kind kind = Kind::none;
  double factor = 1;
  /// For llama3: wavelengths above original_context / low_frequency are slow, those below original_context /
  /// high_frequency are fast.
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
  /// For yarn: pairs that make more turns than this in original_context are fast,
  double fast_turns = 32;
  double slow_turns = 1;    ///< and those that make fewer are slow;
  bool whole_pairs = true;  ///< the borders between them are rounded to whole pairs.
  /// For yarn and longrope: cosines and sines are multiplied by it.
  double attention_factor = 1;
  /// For longrope, one per pair: of a context up to original_context, and of longer ones.
  std::vector<double> short_factors{};
  std::vector<double> long_factors{};

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

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
