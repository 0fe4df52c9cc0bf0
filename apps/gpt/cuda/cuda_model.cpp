#include "apps/gpt/cuda/cuda_model.hpp"

#include <utility>
#include <vector>

#include "apps/gpt/cuda/cuda_stage.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/stage/uncut_model.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

StageShape stage_shape(BatchShape shape, const CudaModelOptions& options) {
  return {.batch = shape, .keep = options.keep, .share = options.share};
}

/// For ranks that share layers: a sum in their order takes a slot for each.
constexpr std::size_t kMostMembers = 256;

Result<void> check_cuda_share(const ModelConfig& config, const TensorShare& share) {
  TRY(check_share(config, share));
  if (share.size > kMostMembers) {
    return fail(Errc::unavailable, "on a GPU at most {} ranks share a layer, found {}; use fewer",
                kMostMembers, share.size);
  }
  return {};
}

}  // namespace

Result<void> check_cuda_model(const ModelConfig& whole, BatchShape shape, core::DType dtype,
                              const TensorShare& share) {
  TRY(validate(whole));
  TRY(check_shape(whole, shape));
  TRY(check_cuda_share(whole, share));
  const ModelConfig config = config_of_share(whole, share.size);
  const std::string of_share = share.size > 1 ? fmt::format(" of each of {} ranks", share.size) : "";
  if (config.head_size() > cuda::kMostHeadSize) {
    return fail(Errc::invalid_argument,
                "on a GPU heads must be at most {} wide, found {}; use more or narrower heads",
                cuda::kMostHeadSize, config.head_size());
  }
  // A grid has at most 65,535 rows of blocks.
  if (shape.batch * config.heads > 65535) {
    return fail(Errc::invalid_argument,
                "on a GPU sequences x heads must be at most 65535, found {} x {}; use a smaller microbatch",
                shape.batch, config.heads);
  }
  if (dtype != core::DType::bf16 && dtype != core::DType::f32) {
    return fail(Errc::invalid_argument, "on a GPU the model computes in bf16 or f32, found {}",
                core::name_of(dtype));
  }
  // Parameters are contiguous, and kernels load 16 bytes at a time.
  const std::size_t step = 16 / core::size_of(dtype);
  if (config.width % step != 0 || config.feed_forward % step != 0) {
    return fail(Errc::invalid_argument,
                "on a GPU width and feed_forward{} must be multiples of {} in {}, found {} and {}", of_share,
                step, core::name_of(dtype), config.width, config.feed_forward);
  }
  if (config.experts.count > 0 &&
      (config.experts.feed_forward % step != 0 || config.experts.shared_feed_forward % step != 0)) {
    return fail(Errc::invalid_argument,
                "on a GPU the feed_forward of experts must be multiples of {} in {}, found {} and {}", step,
                core::name_of(dtype), config.experts.feed_forward, config.experts.shared_feed_forward);
  }
  if (config.query_width() % step != 0 || config.key_width() % step != 0 ||
      (config.query_key_norm && config.head_size() % step != 0)) {
    return fail(Errc::invalid_argument,
                "on a GPU heads and key_value_heads{} times their width must be multiples of {} in {}, and "
                "so must that width where queries and keys have norms; found {} and {} heads of {}",
                of_share, step, core::name_of(dtype), config.heads, config.key_heads(), config.head_size());
  }
  return {};
}

Result<std::unique_ptr<TrainableModel>> create_cuda_model(const ModelConfig& config, BatchShape shape,
                                                          CudaModelOptions options, gpu::Device& device,
                                                          gpu::StreamView compute, DeviceTensorGroup* group) {
  const StageShape whole = stage_shape(shape, options);
  auto stage = TRY(create_cuda_stage(config, uncut(config), whole, options, device, compute, {group}));
  const std::size_t bytes = cuda_activation_bytes(config, shape, options);
  return std::make_unique<UncutModel>(config, shape, std::move(stage), bytes);
}

std::size_t cuda_activation_bytes(const ModelConfig& config, BatchShape shape,
                                  const CudaModelOptions& options) {
  return cuda_stage_bytes(config, uncut(config), stage_shape(shape, options), options.dtype);
}

}  // namespace troupe::apps::gpt
