#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.hpp"
#include "core/models/model_config.hpp"
#include "core/models/pipeline.hpp"

namespace troupe::core {

/// One microbatch, for forward and backward.
struct MicrobatchShape {
  std::int64_t sequences = 1;
  std::int64_t length = 0;    ///< tokens of each
  DType dtype = DType::bf16;  ///< of activations; statistics of norms and softmax are f32
  /// A layer keeps only its input, and backward recomputes the rest.
  bool recompute = false;
  /// Attention keeps its probabilities, (heads, length, length) per sequence; otherwise one f32 per row, from
  /// which backward recomputes them (FlashAttention, Dao et al. 2022).
  bool keep_probabilities = false;
  /// Number of ranks that share each sequence: a rank has `length` divided by this of its tokens, and gathers
  /// the keys and values of all during attention. Must divide the length.
  std::int64_t context_parallel = 1;
  /// Number of ranks that share each layer: its heads, and the columns of its MLPs. Must divide them.
  std::int64_t tensor_parallel = 1;
  /// They also share the rows between layers; a layer gathers them.
  bool sequence_parallel = false;
  /// Slices of each layer that a rank computes one by one: the term that each adds to a sum is kept until the
  /// sum is, and those of experts until backward.
  std::int64_t slices = 1;
};

/// The microbatches of a pipeline stage.
struct StageMicrobatches {
  std::vector<LayerChunk> chunks;  ///< its layers
  std::int64_t activations = 1;    ///< microbatches whose activations a chunk keeps at the same time
  std::int64_t inputs = 1;         ///< microbatches whose inputs are kept
};

/// Bytes that a rank needs for the activations of its microbatches.
struct ActivationBytes {
  std::int64_t layers = 0;     ///< what backward reads in all layers, or their inputs with `recompute`
  std::int64_t head = 0;       ///< the output of the last layer, the last norm, and the logits
  std::int64_t transient = 0;  ///< gradients in flight, which layers share; the layer being recomputed

  std::int64_t total() const { return layers + head + transient; }
  ActivationBytes& operator*=(std::int64_t pieces) {
    layers *= pieces;
    head *= pieces;
    transient *= pieces;
    return *this;
  }
};

/// Counts what backward reads, following Korthikanti et al. 2022 (Reducing Activation Recomputation in Large
/// Transformer Models, section 4), for a pre-norm layer without dropout, with grouped heads and a gated MLP
/// if the model has them. Elements per token of a layer, where C is the hidden size, H the heads, Q and K the
/// total widths of its queries and keys, and F the width of its MLP:
///
///     2 C            its input, and the residual stream between attention and MLP
///     2 C            outputs of both norms
///     Q + 2 K        queries, keys and values; Q + K more where heads are normed
///     H length       probabilities, where they are kept
///     Q              output of attention
///     3 F, or 2 F    gate, what it multiplies, and their product; without a gate the MLP's two
///
/// For experts, those that a token is sent to count, each with a copy of its input, and the shared one;
/// latents of compressed queries, keys and values count before and after their norms. Ranks that share layers
/// have their part of Q, K, H and F and of the logits, and with `sequence_parallel` of everything else except
/// the inputs of experts. Gradients in flight are those of one layer. The reference trainer keeps the same
/// (apps/gpt/model/activations.hpp), and recomputes nothing. Sizes above a petabyte per part are given as
/// one.
ActivationBytes activation_bytes(const ModelConfig& model, const MicrobatchShape& shape);

/// For a pipeline stage, whose slots are each as large as its largest chunk.
ActivationBytes activation_bytes(const ModelConfig& model, const MicrobatchShape& shape,
                                 const StageMicrobatches& stage);

}  // namespace troupe::core
