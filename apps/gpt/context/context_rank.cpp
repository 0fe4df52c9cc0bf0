#include "apps/gpt/context/context_rank.hpp"

#include <utility>

#include "apps/gpt/context/context_model.hpp"
#include "apps/gpt/tensor/tensor_model.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

Result<std::unique_ptr<ContextRank>> ContextRank::create(const TrainerOptions& options, core::Rank rank,
                                                         gpu::DeviceKind device) {
  const auto& training = options.session.training;
  const int size = training.context_parallel;
  if (size < 1) return fail(Errc::invalid_argument, "context_parallel must be 1 or more, found {}", size);
  if (size == 1) return std::unique_ptr<ContextRank>{};
  TRY(check_tensor_options(training, options.tensor, false));
  if (device == gpu::DeviceKind::cuda && options.model.experts.count > 0) {
    return fail(Errc::unavailable,
                "device cuda with experts and context_parallel > 1, found {}: members decide together about "
                "rows on the host alone; use --device host, or leave --context-parallel out",
                size);
  }
  if (device == gpu::DeviceKind::cuda) {
    return fail(Errc::unavailable,
                "sequences are shared between ranks on the host device only; use --device host, or leave "
                "--context-parallel out");
  }
  TRY(SequencePart::shape_of(options.microbatch, static_cast<std::size_t>(size)));
  // Tensor-parallel ranks have neighbouring numbers, then come those that share a sequence.
  const auto index = static_cast<std::size_t>(rank.value / training.tensor_parallel % size);
  return std::unique_ptr<ContextRank>(
      new ContextRank(static_cast<std::size_t>(size), index, training.numerics));
}

Result<std::unique_ptr<TrainableModel>> ContextRank::make_model(const TrainerOptions& options,
                                                                TensorRank& tensor) {
  auto own = options;
  own.microbatch = TRY(SequencePart::shape_of(options.microbatch, group_.size()));
  const Keep keep = options.arithmetic.keep;
  std::unique_ptr<RowModel> model;
  if (tensor.is_shared()) {
    model = TRY(TensorModel::create(own.model, own.microbatch, keep, tensor.table().share(), *tensor.group(),
                                    &group_));
  } else if (options.tensor.slices > 1) {
    model = TRY(create_sliced_model(own, gpu::DeviceKind::host, &group_));
  } else {
    model = std::make_unique<HostModel>(
        TRY(Model::create(own.model, own.microbatch, keep, {.context = &group_})));
  }
  return std::make_unique<ContextModel>(options.microbatch, group_, std::move(model));
}

Result<void> ContextRank::open(actors::Session& session) {
  group_.open(*TRY(session.group("cp")));
  return {};
}

Result<double> ContextRank::sum(double own) {
  auto total = static_cast<float>(own);
  TRY(group_.sum({&total, 1}));
  return total;
}

}  // namespace troupe::apps::gpt
