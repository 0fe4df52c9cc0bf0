#include "apps/gpt/stage/tensor_model.hpp"

#include <utility>

#include "apps/gpt/stage/host_stage.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<std::unique_ptr<TensorModel>> TensorModel::create(const ModelConfig& config, BatchShape shape,
                                                         Keep keep, const TensorShare& share,
                                                         TensorGroup<float>& group,
                                                         TensorGroup<float>* context) {
  TRY(validate(config));
  auto model =
      TRY(Model::create(config_of_share(config, share.size), shape, keep, {&group, share.sequence, context}));
  return std::unique_ptr<TensorModel>(new TensorModel(config, share, std::move(model)));
}

std::size_t TensorModel::bytes(const ModelConfig& config, BatchShape shape, Keep keep,
                               const TensorShare& share) {
  const StageShape whole{.batch = shape, .keep = keep, .share = share};
  return host_stage_bytes(config, uncut(config), whole);
}

TensorModel::TensorModel(const ModelConfig& config, const TensorShare& share, Model model)
    : config_(config), table_(config, share), model_(std::move(model)) {}

}  // namespace troupe::apps::gpt
