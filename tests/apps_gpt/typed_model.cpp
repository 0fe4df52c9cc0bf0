#include "tests/apps_gpt/typed_model.hpp"

#include <new>
#include <utility>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

template <class T>
Result<BasicModel<T>> BasicModel<T>::create(const ModelConfig& config, BatchShape shape, Keep keep,
                                            const Sharing<T>& sharing) {
  CHECK(sharing.layers != nullptr || !sharing.sequence, "members that share layers share their rows");
  TRY(validate(config));
  TRY(check_shape(config, shape));
  TRY(check_keep(config, keep));
  StageShape whole{.batch = shape, .keep = keep};
  whole.share.slices = sharing.slices;
  if (sharing.layers != nullptr)
    whole.share = {sharing.layers->size(), sharing.layers->index(), sharing.sequence, sharing.slices};
  if (sharing.context != nullptr) whole.context_parallel = sharing.context->size();
  Carver plan(nullptr, HostEngine<T>::kAlign);
  place_stage<HostEngine<T>>(plan, config, uncut(config), whole);
  const std::size_t bytes = plan.bytes(), machine_bytes = physical_memory_bytes();
  std::unique_ptr<std::byte[]> memory;
  if (bytes <= machine_bytes) memory.reset(new (std::nothrow) std::byte[bytes]());
  if (!memory) {
    return fail(
        Errc::out_of_memory,
        "the activations of {} sequences of {} tokens need {} MiB, this machine has {} MiB; use a smaller "
        "microbatch, a shorter context, --recompute or a smaller model",
        shape.batch, shape.length, bytes >> 20, machine_bytes >> 20);
  }
  TRY(prepare_blas());
  Carver place(memory.get(), HostEngine<T>::kAlign);
  auto core = std::make_unique<Core>(
      config, uncut(config), whole, place_stage<HostEngine<T>>(place, config, uncut(config), whole),
      HostEngine<T>(rotary_of<T>(config, shape.length, member_of(sharing.context))),
      std::pair(sharing.layers, sharing.context));
  return BasicModel(shape, sharing.context == nullptr, std::move(memory), bytes, std::move(core));
}

template <class T>
Result<T> BasicModel<T>::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                          Tokens targets, const StepHooks& hooks) {
  const Pass<T> pass{parameters, gradients, hooks};
  double all = TRY(loss(pass, tokens, targets));
  for (const ExpertRoutes& layer : routes()) {
    if (adds_routes_) all += layer.loss;
  }
  if (hooks.begin_backward) TRY(hooks.begin_backward());
  TRY(core_->backward(0, 0, pass, {tokens, targets}));
  return static_cast<T>(all);
}

template <class T>
Result<T> BasicModel<T>::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                      const StepHooks& hooks) {
  return static_cast<T>(TRY(loss({parameters, {}, hooks}, tokens, targets)));
}

template <class T>
Result<std::span<const T>> BasicModel<T>::logits(Parameters parameters, Tokens tokens,
                                                 const StepHooks& hooks) {
  return logits_of(parameters, tokens, tokens.size() - 1, hooks);
}

template <class T>
Result<std::span<const T>> BasicModel<T>::logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                    const StepHooks& hooks) {
  const Pass<T> pass{parameters, {}, hooks};
  TRY(check_tokens(tokens, core_->vocabulary()));
  TRY(core_->forward_sequence(0, pass, {tokens, {}}, tokens.size()));
  const T* found = TRY(core_->own_logits_of(0, row, pass));
  return core_->engine().all_logits(core_->context(0, {}).block, found, whole_logits_);
}

template <class T>
Result<double> BasicModel<T>::loss(const Pass<T>& pass, Tokens tokens, Tokens targets) {
  const std::size_t N = shape_.rows();
  CHECK(tokens.size() == N && targets.size() == N, "tokens and targets have the shape given to create()");
  TRY(check_targets(targets, core_->vocabulary()));
  TRY(check_tokens(tokens, core_->vocabulary()));
  TRY(core_->forward(0, {}, pass, {tokens, targets}));
  double words = 0;
  TRY(core_->loss(0, 0, pass, {tokens, targets}, &words));
  return words;
}

template class BasicModel<float>;
template class BasicModel<double>;

}  // namespace troupe::apps::gpt
