#include "apps/gpt/model.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/embedding.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/tensor/vocabulary.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// B batch, T length, N = B*T rows, C width, V vocabulary.

using core::Errc;
using core::fail;
using core::Result;

namespace {

template <class T>
struct PlacedActivations {
  Activations<T> activations;
  std::optional<TensorParallel<T>> tensor;
  std::optional<ContextParallel<T>> across;
};

template <class T>
PlacedActivations<T> place_activations(Carver<T>& carver, const ModelConfig& config, BatchShape shape,
                                       Keep keep, const Sharing<T>& sharing) {
  const std::size_t N = shape.rows();
  ActivationExtents extents;
  if (sharing.sequence) extents.stream_rows = most_own_rows(N, sharing.layers->size());
  if (sharing.context != nullptr) extents.keys = shape.length * sharing.context->size();
  PlacedActivations<T> placed;
  placed.activations = carve(carver, config, shape, keep, extents);
  if (sharing.layers != nullptr) {
    placed.tensor = carve_tensor(carver, *sharing.layers, sharing.sequence, N, config.width);
    // Forward leaves it alone, and backward is done with it when a block computes forward again.
    placed.tensor->partial = placed.activations.gradients.normed;
  }
  if (sharing.context != nullptr)
    placed.across = carve_context(carver, *sharing.context, shape.batch, *extents.keys, config.key_width());
  return placed;
}

template <class T>
Rotary<T> rotary_of(const ModelConfig& config, BatchShape shape, const TensorGroup<T>* context) {
  if (context == nullptr)
    return Rotary<T>(config.context, config.head_size(), config.rope_base, config.rope_scaling);
  const auto positions =
      positions_of_member(shape.length * context->size(), context->size(), context->index());
  return Rotary<T>(positions, config.head_size(), config.rope_base, config.rope_scaling);
}

}  // namespace

std::size_t physical_memory_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

template <class T>
Result<BasicModel<T>> BasicModel<T>::create(const ModelConfig& config, BatchShape shape, Keep keep,
                                            const Sharing<T>& sharing) {
  CHECK(sharing.layers != nullptr || !sharing.sequence, "members that share layers share their rows");
  CHECK(sharing.layers == nullptr || sharing.context == nullptr, "a group shares layers or the context");
  TRY(validate(config));
  TRY(check_shape(config, shape));
  TRY(check_keep(config, keep));
  Carver<T> plan(nullptr);
  place_activations(plan, config, shape, keep, sharing);
  const std::size_t bytes = plan.elements() * sizeof(T);
  const std::size_t machine_bytes = physical_memory_bytes();
  std::unique_ptr<T[]> memory;
  if (bytes <= machine_bytes) memory.reset(new (std::nothrow) T[plan.elements()]());
  if (!memory) {
    return fail(
        Errc::out_of_memory,
        "the activations of {} sequences of {} tokens need {} MiB, this machine has {} MiB; use a smaller "
        "microbatch, a shorter context, --recompute or a smaller model",
        shape.batch, shape.length, bytes >> 20, machine_bytes >> 20);
  }
  use_one_blas_thread();
  return BasicModel(config, shape, keep, std::move(memory), bytes, sharing);
}

template <class T>
BasicModel<T>::BasicModel(const ModelConfig& config, BatchShape shape, Keep keep, std::unique_ptr<T[]> memory,
                          std::size_t bytes, const Sharing<T>& sharing)
    : config_(config),
      shape_(shape),
      keep_(keep),
      table_(parameter_table(config)),
      rotary_(rotary_of<T>(config, shape, sharing.context)),
      memory_(std::move(memory)),
      activation_bytes_(bytes) {
  Carver<T> place(memory_.get());
  auto placed = place_activations(place, config_, shape_, keep_, sharing);
  activations_ = std::move(placed.activations);
  tensor_ = placed.tensor;
  across_ = placed.across;
  if (tensor_) whole_logits_.resize(vocabulary());
}

template <class T>
Result<T> BasicModel<T>::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                          Tokens targets, const StepHooks& hooks) {
  CHECK(gradients.size() == table_.specs.size(), "one gradient pointer per parameter of the table");
  const Pass<T> pass{parameters, gradients, hooks};
  double all = static_cast<double>(TRY(loss(pass, tokens, targets)));
  for (const ExpertRoutes& routes : activations_.routes) all += routes.loss;
  TRY(backward(pass, tokens, targets));
  return static_cast<T>(all);
}

template <class T>
Result<T> BasicModel<T>::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                      const StepHooks& hooks) {
  return loss({parameters, {}, hooks}, tokens, targets);
}

template <class T>
Result<std::span<const T>> BasicModel<T>::logits(Parameters parameters, Tokens tokens,
                                                 const StepHooks& hooks) {
  return logits_of(parameters, tokens, tokens.size() - 1, hooks);
}

template <class T>
Result<std::span<const T>> BasicModel<T>::logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                    const StepHooks& hooks) {
  CHECK(!tokens.empty() && tokens.size() <= shape_.length, "logits() takes one sequence of 1..T tokens");
  const Pass<T> pass{parameters, {}, hooks};
  TRY(trunk_forward({1, tokens.size()}, pass, tokens));
  const std::size_t N = tokens.size(), C = config_.width, V = config_.vocabulary;
  const T* last = TRY(all_rows<T>(tensor(), N, C, activations_.final_norm.output)) + row * C;
  const std::span<T> found(activations_.logits, V);
  linear_forward({1, C, V}, last, TRY(pass.use(table_.head)), found.data());
  if (!tensor_) return std::span<const T>(found);
  const typename TensorGroup<T>::Counts counts(tensor_->group->size(), V);
  TRY(tensor_->group->gather(found, whole_logits_, counts));
  return std::span<const T>(whole_logits_);
}

template <class T>
Result<T> BasicModel<T>::loss(const Pass<T>& pass, Tokens tokens, Tokens targets) {
  const std::size_t N = shape_.rows(), C = config_.width, V = config_.vocabulary;
  CHECK(tokens.size() == N && targets.size() == N, "tokens and targets have the shape given to create()");
  TRY(check_targets(targets, vocabulary()));
  TRY(trunk_forward(shape_, pass, tokens));
  const T* x = TRY(all_rows<T>(tensor(), N, C, activations_.final_norm.output));
  linear_forward({N, C, V}, x, TRY(pass.use(table_.head)), activations_.logits);
  if (!tensor_) return static_cast<T>(cross_entropy_forward(targets, V, activations_.logits));
  return static_cast<T>(
      TRY(vocabulary_cross_entropy_forward(*tensor_->group, targets, V, activations_.logits)));
}

template <class T>
Result<void> BasicModel<T>::embed(const Pass<T>& pass, Tokens tokens) {
  const std::size_t N = tokens.size(), C = config_.width, V = config_.vocabulary;
  const T* table = TRY(pass.use(table_.embedding));
  T* x = activations_.blocks.front().input;
  if (!tensor_) {
    embedding_forward(tokens, C, table, x);
    return {};
  }
  vocabulary_embedding_forward(tokens, tensor_->group->index(), V, C, table, tensor_->partial);
  const T* sum = TRY(summed_rows(tensor(), N, C, tensor_->partial));
  std::copy_n(sum, own_rows(tensor(), N) * C, x);
  return {};
}

template <class T>
Result<void> BasicModel<T>::embed_backward(const Pass<T>& pass, Tokens tokens) {
  const std::size_t C = config_.width, V = config_.vocabulary;
  TRY(pass.use(table_.embedding));
  T* d_table = pass.gradient(table_.embedding);
  const T* d_x = TRY(all_rows<T>(tensor(), tokens.size(), C, activations_.gradients.residual));
  if (tensor_) {
    vocabulary_embedding_backward(tokens, tensor_->group->index(), V, C, d_x, d_table);
  } else {
    embedding_backward(tokens, C, d_x, d_table);
  }
  pass.ready(table_.embedding);
  return {};
}

// Tokens to the normed residual stream before the output layer.
template <class T>
Result<void> BasicModel<T>::trunk_forward(BatchShape shape, const Pass<T>& pass, Tokens tokens) {
  CHECK(pass.parameters.size() == table_.specs.size(), "one pointer per parameter of the table");
  TRY(check_tokens(tokens, vocabulary()));
  Activations<T>& a = activations_;
  TRY(embed(pass, tokens));
  for (std::size_t layer = 0; layer < a.blocks.size(); ++layer) {
    T* output = layer + 1 < a.blocks.size() ? a.blocks[layer + 1].input : a.output;
    TRY(block_forward(context(shape), table_.blocks[layer], a.blocks[layer], pass, output));
  }
  return norm_forward(context(shape), table_.final_norm, a.output, a.final_norm, pass);
}

template <class T>
Result<void> BasicModel<T>::backward(const Pass<T>& pass, Tokens tokens, Tokens targets) {
  const std::size_t N = shape_.rows(), C = config_.width, V = config_.vocabulary;
  Activations<T>& a = activations_;
  const GradientScratch<T>& d = a.gradients;

  if (pass.hooks.begin_backward) TRY(pass.hooks.begin_backward());
  const T scale = static_cast<T>(pass.hooks.loss_scale);
  if (tensor_) {
    vocabulary_cross_entropy_backward(targets, tensor_->group->index(), V, a.logits, scale);
  } else {
    cross_entropy_backward(targets, V, a.logits, scale);
  }
  const T* head = TRY(pass.use(table_.head));
  const T* x = TRY(all_rows<T>(tensor(), N, C, a.final_norm.output));
  linear_backward_weight({N, C, V}, a.logits, x, pass.gradient(table_.head));
  if (!config_.tied_embeddings) pass.ready(table_.head);
  linear_backward_input({N, C, V}, a.logits, head, d.normed);

  const T* d_normed = TRY(summed_rows(tensor(), N, C, d.normed));
  std::fill_n(d.residual, own_rows(tensor(), N) * C, T{0});
  TRY(norm_backward(context(shape_), table_.final_norm, a.output, a.final_norm, pass, d_normed, d.residual));
  for (std::size_t layer = a.blocks.size(); layer-- > 0;) {
    // Those of the last block are still there.
    if (keep_ == Keep::inputs && layer + 1 < a.blocks.size())
      TRY(block_activations(context(shape_), table_.blocks[layer], a.blocks[layer], pass));
    TRY(block_backward(context(shape_), table_.blocks[layer], a.blocks[layer], d, pass));
  }
  return embed_backward(pass, tokens);
}

template class BasicModel<float>;
template class BasicModel<double>;

}  // namespace troupe::apps::gpt
