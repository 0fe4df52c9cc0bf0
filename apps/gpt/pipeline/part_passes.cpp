#include "apps/gpt/pipeline/part_passes.hpp"

#include <algorithm>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/embedding.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/pipeline/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

template <class T>
Result<void> head_backward(const PartContext<T>& context, const Activations<T>& a,
                           const GradientScratch<T>& d, const Pass<T>& pass, TokenSpan targets) {
  const ModelConfig& config = context.block.config;
  const LinearShape shape{context.block.shape.rows(), config.width, config.vocabulary};
  const std::size_t parameter = context.table.head;
  cross_entropy_backward(targets, config.vocabulary, a.logits, static_cast<T>(pass.hooks.loss_scale));
  const T* head = TRY(pass.use(parameter));
  // A tied embedding is ready when its rows are added too; where another part has it, that part waits for
  // this, so it is not put off.
  const bool is_tied = config.tied_embeddings;
  if (is_tied && pass.gradient(parameter) == nullptr) {
    pass.ready(parameter);  // another part multiplies
  } else if (pass.later != nullptr && !is_tied) {
    pass.later->add([=](const Pass<T>& at) -> Result<void> {
      TRY(at.use(parameter));
      linear_backward_weight(shape, a.logits, a.final_norm.output, at.gradient(parameter));
      at.ready(parameter);
      return {};
    });
  } else {
    linear_backward_weight(shape, a.logits, a.final_norm.output, pass.gradient(parameter));
    if (!is_tied || !context.part.has_begin()) pass.ready(parameter);
  }
  linear_backward_input(shape, a.logits, head, d.normed);
  return {};
}

template <class T>
Result<void> token_backward(const Pass<T>& pass, std::size_t embedding, std::size_t width, TokenSpan tokens,
                            const T* d_rows) {
  TRY(pass.use(embedding));
  embedding_backward(tokens, width, d_rows, pass.gradient(embedding));
  pass.ready(embedding);
  return {};
}

}  // namespace

template <class T>
Result<void> part_forward(const PartContext<T>& context, const Activations<T>& a, const Pass<T>& pass,
                          TokenSpan tokens) {
  const ModelConfig& config = context.block.config;
  if (context.part.has_begin()) {
    TRY(check_tokens(tokens, config.vocabulary));
    embedding_forward(tokens, config.width, TRY(pass.use(context.table.embedding)), a.blocks.front().input);
  }
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
  linear_forward({N, C, V}, a.final_norm.output, TRY(pass.use(context.table.head)), a.logits);
  return static_cast<T>(cross_entropy_forward(targets, V, a.logits));
}

template <class T>
Result<void> part_backward(const PartContext<T>& context, const Activations<T>& a,
                           const GradientScratch<T>& d, const Pass<T>& pass, TokenSpan tokens,
                           TokenSpan targets) {
  const ModelConfig& config = context.block.config;
  const std::size_t N = context.block.shape.rows(), C = config.width;
  if (context.part.has_end(config)) {
    TRY(head_backward(context, a, d, pass, targets));
    std::fill_n(d.residual, N * C, T{0});
    TRY(norm_backward(context.block, context.table.final_norm, a.output, a.final_norm, pass, d.normed,
                      d.residual));
  }
  for (std::size_t i = a.blocks.size(); i-- > 0;) {
    const BlockParameters& parameters = context.table.blocks[context.part.first + i];
    // Those of the last block are still there.
    if (context.keep == Keep::inputs && i + 1 < a.blocks.size())
      TRY(block_activations(context.block, parameters, a.blocks[i], pass));
    TRY(block_backward(context.block, parameters, a.blocks[i], d, pass));
  }
  if (!context.part.has_begin()) return {};
  const std::size_t embedding = context.table.embedding;
  if (pass.later == nullptr) return token_backward(pass, embedding, C, tokens, d.residual);
  pass.later->add([=, kept = pass.later->keep(d.residual, N * C)](const Pass<T>& at) {
    return token_backward(at, embedding, C, tokens, kept);
  });
  return {};
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
