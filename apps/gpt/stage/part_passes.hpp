#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/block.hpp"
#include "apps/gpt/model/model_part.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// N rows of this pass, C width, V vocabulary. X is the engine that computes, E its elements; X::Text is a
// microbatch's text as it reads it.

/// What the passes of a part of the model compute with besides parameters and activations.
template <class X>
struct PartContext {
  BlockContext<X> block;
  const ParameterTable& table;  ///< of the whole model
  ModelPart part;
  Keep keep;
};

template <class X, class E>
core::Result<void> token_forward(const PartContext<X>& context, const Pass<E>& pass, typename X::Text text,
                                 E* x) {
  const BlockContext<X>& block = context.block;
  const auto* tensor = block.tensor;
  const E* table = TRY(pass.use(context.table.embedding));
  block.engine.embedding_forward(block, text, table, tensor == nullptr ? x : tensor->partial);
  if (tensor == nullptr) return {};
  const E* sum = TRY(summed_over_members<X>(block, tensor->partial));
  block.engine.copy(sum, x, own_rows(block) * block.config.width);
  return {};
}

/// From the text, or, if the part does not begin the model, from the rows in its first block's input, to
/// activations.output, and if it ends the model to the final norm's output.
template <class X, class E>
core::Result<void> part_forward(const PartContext<X>& context, const Activations<E>& a, const Pass<E>& pass,
                                typename X::Text text) {
  if (context.part.has_begin()) TRY(token_forward(context, pass, text, a.blocks.front().input));
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    E* output = i + 1 < a.blocks.size() ? a.blocks[i + 1].input : a.output;
    TRY(block_forward(context.block, context.table.blocks[context.part.first + i], a.blocks[i], pass,
                      output));
  }
  if (!context.part.has_end(context.block.config)) return {};
  return norm_forward(context.block, context.table.final_norm, a.output, a.final_norm, pass);
}

/// The mean loss over the rows, in nats, for a part that ends the model, after part_forward(). `loss` is in
/// the memory that the engine computes in.
template <class X, class E>
core::Result<void> part_loss(const PartContext<X>& context, const Activations<E>& a, const Pass<E>& pass,
                             typename X::Text text, double* loss) {
  const BlockContext<X>& block = context.block;
  const LinearShape shape{block.shape.rows(), block.config.width, block.config.vocabulary};
  const E* x = TRY(all_rows<X>(block, a.final_norm.output));
  TRY(project(block, pass, Sliced::outputs, shape, context.table.head, x, a.logits));
  return block.engine.cross_entropy_forward(block, text, a, pass.hooks, loss);
}

template <class X, class E>
core::Result<void> head_backward(const PartContext<X>& context, const Activations<E>& a,
                                 const GradientScratch<E>& d, const Pass<E>& pass, typename X::Text text) {
  const BlockContext<X>& block = context.block;
  const ModelConfig& config = block.config;
  const LinearShape shape{block.shape.rows(), config.width, config.vocabulary};
  const std::size_t parameter = context.table.head;
  block.engine.cross_entropy_backward(block, text, a, pass.hooks);
  const E* x = TRY(all_rows<X>(block, a.final_norm.output));
  const E* head = TRY(pass.use(parameter));
  if (!config.tied_embeddings) {
    x = kept_for_weights(pass, x, shape.rows * shape.in, a.final_norm.output);
    TRY(add_weight_gradient(block, pass, Sliced::outputs, shape, parameter, x, a.logits));
  } else {
    // Without a place for the gradient, another part multiplies and waits for this, so it is not deferred. A
    // tied embedding is ready once its rows are added too.
    if (pass.gradient(parameter) != nullptr)
      multiply_backward_weight(block, Sliced::outputs, shape, a.logits, x, pass.gradient(parameter));
    if (!context.part.has_begin() || pass.gradient(parameter) == nullptr) pass.ready(parameter);
  }
  multiply_backward(block, Sliced::outputs, shape, a.logits, head, d.normed, Write::overwrite);
  const E* d_normed = TRY(summed_rows<X>(block, d.normed));
  block.engine.zero(d.residual, own_rows(block) * config.width);
  return norm_backward(block, context.table.final_norm, a.output, a.final_norm, d_normed, d, pass);
}

/// Turns d.residual (N, C) from the gradient with respect to the part's output (of the loss, if the part ends
/// the model) into that with respect to its input, and adds the gradients of its parameters. An output layer
/// without a place for its gradient is only reported as ready: the factors are in a.logits and the final
/// norm's output.
template <class X, class E>
core::Result<void> part_backward(const PartContext<X>& context, const Activations<E>& a,
                                 const GradientScratch<E>& d, const Pass<E>& pass, typename X::Text text) {
  const BlockContext<X>& block = context.block;
  if (context.part.has_end(block.config)) TRY(head_backward(context, a, d, pass, text));
  for (std::size_t i = a.blocks.size(); i-- > 0;) {
    const BlockParameters& parameters = context.table.blocks[context.part.first + i];
    // The last block's are still there.
    if (context.keep == Keep::inputs && i + 1 < a.blocks.size())
      TRY(block_activations(block, parameters, a.blocks[i], pass));
    TRY(block_backward(block, parameters, a.blocks[i], d, pass));
  }
  if (!context.part.has_begin()) return {};
  const E* d_rows = TRY(all_rows<X>(block, d.residual));
  const E* kept = kept_for_weights(pass, d_rows, block.shape.rows() * block.config.width);
  const std::size_t embedding = context.table.embedding;
  return use_and_add_to_gradient(pass, embedding, [=, partials = d.partials](const Pass<E>& at) {
    block.engine.embedding_backward(block, text, kept, partials, at.gradient(embedding));
  });
}

}  // namespace troupe::apps::gpt
