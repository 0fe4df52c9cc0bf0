#include "apps/gpt/stage/model.hpp"

#include <unistd.h>

#include <new>
#include <utility>

#include "apps/gpt/layers/matmul.hpp"
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
    placed.tensor = carve_tensor(carver, sharing.layers->size(), sharing.sequence, N, config);
    placed.tensor->group = sharing.layers;
    // Forward does not use it, and backward is done with it when a block recomputes forward.
    placed.tensor->partial = placed.activations.gradients.normed;
  }
  if (sharing.context != nullptr) {
    placed.across = carve_context(carver, shape.batch, *extents.keys, config);
    placed.across->group = sharing.context;
  }
  return placed;
}

}  // namespace

std::size_t physical_memory_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

template <class T>
Result<BasicModel<T>> BasicModel<T>::create(const ModelConfig& config, BatchShape shape, Keep keep,
                                            const Sharing<T>& sharing) {
  CHECK(sharing.layers != nullptr || !sharing.sequence, "members that share layers share their rows");
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
  TRY(prepare_blas());
  return BasicModel(config, shape, keep, std::move(memory), bytes, sharing);
}

template <class T>
BasicModel<T>::BasicModel(const ModelConfig& config, BatchShape shape, Keep keep, std::unique_ptr<T[]> memory,
                          std::size_t bytes, const Sharing<T>& sharing)
    : config_(config),
      shape_(shape),
      keep_(keep),
      table_(parameter_table(config)),
      rotary_(rotary_of<T>(config, shape.length, member_of(sharing.context))),
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
  for (const ExpertRoutes& routes : activations_.routes) {
    if (!across_) all += routes.loss;
  }
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
  const std::size_t N = shape_.rows();
  CHECK(tokens.size() == N && targets.size() == N, "tokens and targets have the shape given to create()");
  TRY(check_targets(targets, vocabulary()));
  TRY(trunk_forward(shape_, pass, tokens));
  return part_loss(context(shape_), activations_, pass, targets);
}

// From tokens to the normed residual stream before the output layer.
template <class T>
Result<void> BasicModel<T>::trunk_forward(BatchShape shape, const Pass<T>& pass, Tokens tokens) {
  CHECK(pass.parameters.size() == table_.specs.size(), "one pointer per parameter of the table");
  return part_forward(context(shape), activations_, pass, tokens);
}

template <class T>
Result<void> BasicModel<T>::backward(const Pass<T>& pass, Tokens tokens, Tokens targets) {
  if (pass.hooks.begin_backward) TRY(pass.hooks.begin_backward());
  return part_backward(context(shape_), activations_, activations_.gradients, pass, tokens, targets);
}

template class BasicModel<float>;
template class BasicModel<double>;

}  // namespace troupe::apps::gpt
