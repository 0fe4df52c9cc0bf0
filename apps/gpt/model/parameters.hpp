#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/expert_parameters.hpp"
#include "core/element_range.hpp"

namespace troupe::apps::gpt {

struct Initialisation {
  enum class Kind { constant, normal };
  Kind kind = Kind::constant;
  double value = 0;  ///< the constant, or the standard deviation around 0
};

/// One tensor that training changes.
struct ParameterSpec {
  std::string name;  ///< in Hugging Face's naming for Llama, "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::size_t> shape;
  Initialisation initialisation;
  bool weight_decay = false;  ///< matrices decay, norms do not
  bool is_expert = false;     ///< an expert's, which may be distributed over ranks
  /// In the order of forward, from 0: the embedding, each block, the last norm with the output layer. Empty:
  /// with tied embeddings both ends read the embedding, and the last norm is too small to be gathered alone.
  std::optional<std::size_t> unit;

  std::size_t elements() const;
};

// C width, F feed_forward, V vocabulary, H heads, K of them with keys of their own, D head size.

struct NormParameters {
  std::size_t weight = 0;           ///< (C)
  std::optional<std::size_t> bias;  ///< (C), LayerNorm only
};

struct BlockParameters {
  NormParameters attention_norm;
  std::size_t query = 0;                                        ///< (H D, C)
  std::size_t key = 0, value = 0;                               ///< (K D, C) each
  std::size_t output = 0;                                       ///< (C, H D)
  std::optional<std::size_t> query_bias, key_bias, value_bias;  ///< (H D), (K D), (K D)
  std::optional<std::size_t> output_bias;                       ///< (C)
  std::optional<std::size_t> query_norm, key_norm;              ///< (D) each
  NormParameters mlp_norm;
  std::optional<std::size_t> gate;               ///< (F, C), SwiGLU only
  std::size_t up = 0;                            ///< (F, C)
  std::size_t down = 0;                          ///< (C, F)
  std::optional<ExpertLayerParameters> experts;  ///< instead of the three above
};

/// All parameters in the order in which forward first reads them, and their places in that order; for experts
/// distributed over ranks, those of the configuration's place.
struct ParameterTable {
  std::vector<ParameterSpec> specs;
  std::size_t embedding = 0;  ///< (V, C)
  std::vector<BlockParameters> blocks;
  NormParameters final_norm;
  std::size_t head = 0;  ///< (V, C); the embedding itself if tied
};

/// `config` must be valid.
ParameterTable parameter_table(const ModelConfig& config);
std::vector<ParameterSpec> parameters(const ModelConfig& config);
std::size_t parameter_count(const ModelConfig& config);

/// Writes the initial values of the elements of `range`, as many as `values` has. They depend only on the
/// seed and the parameter's name, so every rank that creates them gets the same bits.
void initialise(const ParameterSpec& spec, std::uint64_t seed, core::ElementRange range,
                std::span<float> values);

}  // namespace troupe::apps::gpt
