#pragma once

#include <cstdint>
#include <span>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/block.hpp"
#include "apps/gpt/model/model_part.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"

namespace troupe::apps::gpt {

// N rows of this pass, C width, V vocabulary.

/// What the passes of a part of the model compute with besides parameters and activations.
template <class T>
struct PartContext {
  BlockContext<T> block;
  const ParameterTable& table;  ///< of the whole model
  ModelPart part;
  Keep keep;
};

using TokenSpan = std::span<const std::int32_t>;

/// From the tokens, or, if the part does not begin the model, from the rows in its first block's input, to
/// activations.output, and if it ends the model to the final norm's output.
template <class T>
core::Result<void> part_forward(const PartContext<T>& context, const Activations<T>& a, const Pass<T>& pass,
                                TokenSpan tokens);

/// Mean loss over the rows, in nats, for a part that ends the model, after part_forward().
template <class T>
core::Result<T> part_loss(const PartContext<T>& context, const Activations<T>& a, const Pass<T>& pass,
                          TokenSpan targets);

/// Turns d.residual (N, C) from the gradient with respect to the part's output (of the loss, if the part ends
/// the model) into that with respect to its input, and adds the gradients of its parameters. An output layer
/// without a place for its gradient is only reported as ready: the factors are in a.logits and the final
/// norm's output.
template <class T>
core::Result<void> part_backward(const PartContext<T>& context, const Activations<T>& a,
                                 const GradientScratch<T>& d, const Pass<T>& pass, TokenSpan tokens,
                                 TokenSpan targets);

}  // namespace troupe::apps::gpt
