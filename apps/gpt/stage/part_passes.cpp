#include "apps/gpt/stage/part_passes.hpp"

#include <algorithm>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/embedding.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/model/vocabulary.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// Tokens of the whole vocabulary; the configuration has this rank's part.
template <class T>
std::size_t whole_vocabulary(const PartContext<T>& context) {
  const auto* tensor = context.block.tensor;
  return context.block.config.vocabulary * (tensor != nullptr ? tensor->group->size() : 1);
}

template <class T>
Result<void> token_forward(const PartContext<T>& context, const Pass<T>& pass, TokenSpan tokens, T* x) {
  const std::size_t N = tokens.size(), C = context.block.config.width, V = context.block.config.vocabulary;
  const auto* tensor = context.block.tensor;
  TRY(check_tokens(tokens, whole_vocabulary(context)));
  const T* table = TRY(pass.use(context.table.embedding));
  if (tensor == nullptr) {
    embedding_forward(tokens, C, table, x);
    return {};
  }
  vocabulary_embedding_forward(tokens, tensor->group->index(), V, C, table, tensor->partial);
  const T* sum = TRY(summed_rows(tensor, N, C, tensor->partial));
  std::copy_n(sum, own_rows(tensor, N) * C, x);
  return {};
}

template <class T>
Result<void> head_backward(const PartContext<T>& context, const Activations<T>& a,
                           const GradientScratch<T>& d, const Pass<T>& pass, TokenSpan targets) {
  const ModelConfig& config = context.block.config;
  const LinearShape shape{context.block.shape.rows(), config.width, config.vocabulary};
  const std::size_t parameter = context.table.head;
  const auto* tensor = context.block.tensor;
  const T scale = static_cast<T>(pass.hooks.loss_scale);
  const auto divisor = pass.hooks.loss_rows;
  if (tensor != nullptr) {
    vocabulary_cross_entropy_backward(targets, tensor->group->index(), config.vocabulary, a.logits, scale,
                                      divisor);
  } else {
    cross_entropy_backward(targets, config.vocabulary, a.logits, scale, divisor);
  }
  const T* x = TRY(all_rows<T>(tensor, shape.rows, config.width, a.final_norm.output));
  const T* head = TRY(pass.use(parameter));
  // A tied embedding is ready once its rows are added too; if another part has it, that part waits for this,
  // so it is not deferred.
  const bool is_tied = config.tied_embeddings;
  if (is_tied && pass.gradient(parameter) == nullptr) {
    pass.ready(parameter);  // another part multiplies
  } else if (is_tied) {
    linear_backward_weight(shape, a.logits, x, pass.gradient(parameter));
    if (!context.part.has_begin()) pass.ready(parameter);
  } else {
    const T* kept = kept_for_weights(pass, x, shape.rows * config.width, a.final_norm.output);
    add_to_gradient(pass, parameter, [=, logits = a.logits](const Pass<T>& at) {
      linear_backward_weight(shape, logits, kept, at.gradient(parameter));
    });
  }
  linear_backward_input(shape, a.logits, head, d.normed);
  return {};
}

template <class T>
Result<void> token_backward(const PartContext<T>& context, const Pass<T>& pass, TokenSpan tokens,
                            const T* d_rows) {
  const std::size_t N = context.block.shape.rows(), C = context.block.config.width;
  const std::size_t V = context.block.config.vocabulary, embedding = context.table.embedding;
  const T* kept = kept_for_weights(pass, d_rows, N * C);
  return use_and_add_to_gradient(pass, embedding, [=, tensor = context.block.tensor](const Pass<T>& at) {
    T* d_table = at.gradient(embedding);
    if (tensor != nullptr) {
      vocabulary_embedding_backward(tokens, tensor->group->index(), V, C, kept, d_table);
    } else {
      embedding_backward(tokens, C, kept, d_table);
    }
  });
}

}  // namespace

template <class T>
Result<void> part_forward(const PartContext<T>& context, const Activations<T>& a, const Pass<T>& pass,
                          TokenSpan tokens) {
  const ModelConfig& config = context.block.config;
  if (context.part.has_begin()) TRY(token_forward(context, pass, tokens, a.blocks.front().input));
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    T* output = i + 1 < a.blocks.size() ? a.blocks[i + 1].input : a.output;
    TRY(block_forward(context.block, context.table.blocks[context.part.first + i], a.blocks[i], pass,
                      output));
  }
  if (!context.part.has_end(config)) return {};
  return norm_forward(context.block, context.table.final_norm, a.output, a.final_norm, pass);
}

template <class T>
Result<T> part_loss(const PartContext<T>& context, const Activations<T>& a, const Pass<T>& pass,
                    TokenSpan targets) {
  const ModelConfig& config = context.block.config;
  const std::size_t N = context.block.shape.rows(), C = config.width, V = config.vocabulary;
  const auto* tensor = context.block.tensor;
  const T* x = TRY(all_rows<T>(tensor, N, C, a.final_norm.output));
  linear_forward({N, C, V}, x, TRY(pass.use(context.table.head)), a.logits);
  const auto divisor = pass.hooks.loss_rows;
  if (tensor == nullptr) return static_cast<T>(cross_entropy_forward(targets, V, a.logits, divisor));
  return static_cast<T>(TRY(vocabulary_cross_entropy_forward(*tensor->group, targets, V, a.logits, divisor)));
}

template <class T>
Result<void> part_backward(const PartContext<T>& context, const Activations<T>& a,
                           const GradientScratch<T>& d, const Pass<T>& pass, TokenSpan tokens,
                           TokenSpan targets) {
  const ModelConfig& config = context.block.config;
  const std::size_t N = context.block.shape.rows(), C = config.width;
  if (context.part.has_end(config)) {
    TRY(head_backward(context, a, d, pass, targets));
    const T* d_normed = TRY(summed_rows(context.block.tensor, N, C, d.normed));
    std::fill_n(d.residual, own_rows(context.block.tensor, N) * C, T{0});
    TRY(norm_backward(context.block, context.table.final_norm, a.output, a.final_norm, pass, d_normed,
                      d.residual));
  }
  for (std::size_t i = a.blocks.size(); i-- > 0;) {
    const BlockParameters& parameters = context.table.blocks[context.part.first + i];
    // The last block's are still there.
    if (context.keep == Keep::inputs && i + 1 < a.blocks.size())
      TRY(block_activations(context.block, parameters, a.blocks[i], pass));
    TRY(block_backward(context.block, parameters, a.blocks[i], d, pass));
  }
  if (!context.part.has_begin()) return {};
  return token_backward(context, pass, tokens, TRY(all_rows<T>(context.block.tensor, N, C, d.residual)));
}

template Result<void> part_forward<float>(const PartContext<float>&, const Activations<float>&,
                                          const Pass<float>&, TokenSpan);
template Result<void> part_forward<double>(const PartContext<double>&, const Activations<double>&,
                                           const Pass<double>&, TokenSpan);
template Result<float> part_loss<float>(const PartContext<float>&, const Activations<float>&,
                                        const Pass<float>&, TokenSpan);
template Result<double> part_loss<double>(const PartContext<double>&, const Activations<double>&,
                                          const Pass<double>&, TokenSpan);
template Result<void> part_backward<float>(const PartContext<float>&, const Activations<float>&,
                                           const GradientScratch<float>&, const Pass<float>&, TokenSpan,
                                           TokenSpan);
template Result<void> part_backward<double>(const PartContext<double>&, const Activations<double>&,
                                            const GradientScratch<double>&, const Pass<double>&, TokenSpan,
                                            TokenSpan);

}  // namespace troupe::apps::gpt
