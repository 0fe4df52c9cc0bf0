#include "apps/gpt/stage/models.hpp"

#include <utility>

#include "apps/gpt/stage/host_stage.hpp"
#include "core/errors.hpp"
#ifdef TROUPE_HAS_CUDA
#include "apps/gpt/cuda/cuda_stage.hpp"
#endif

namespace troupe::apps::gpt {

using core::DType;
using core::Errc;
using core::fail;
using core::Result;

namespace {

constexpr const char* kWithoutCuda =
    "expected a build with the CUDA data plane, but this one has none; build with -DTROUPE_CUDA=ON, or train "
    "on the host device";

double gib(std::size_t bytes) {
  return static_cast<double>(bytes) / (std::size_t{1} << 30);
}

}  // namespace

Result<void> check_model(const ModelConfig& config, BatchShape shape, ModelOptions options,
                         gpu::DeviceKind device) {
  TRY(validate(config));
  TRY(check_shape(config, shape));
  TRY(check_keep(config, options.keep));
  if (device != gpu::DeviceKind::cuda && options.dtype != DType::f32) {
    return fail(Errc::invalid_argument, "the host computes in f32, found {}; use --dtype f32, or a GPU",
                core::name_of(options.dtype));
  }
  if (device != gpu::DeviceKind::cuda && options.tf32) {
    return fail(Errc::invalid_argument, "the host has no tf32; leave --tf32 out, or use a GPU");
  }
#ifndef TROUPE_HAS_CUDA
  if (device == gpu::DeviceKind::cuda) return fail(Errc::unavailable, kWithoutCuda);
#endif
  return {};
}

Result<std::unique_ptr<TrainableStage>> create_stage(const ModelConfig& config, const StageCut& cut,
                                                     const StageShape& shape, ModelOptions options,
                                                     StagePlace place) {
  if (place.device.kind() != gpu::DeviceKind::cuda)
    return create_host_stage(config, cut, shape, place.groups);
#ifdef TROUPE_HAS_CUDA
  return create_cuda_stage(config, cut, shape, options, place.device, place.compute, place.device_groups);
#else
  (void)options;
  return fail(Errc::unavailable, kWithoutCuda);
#endif
}

std::size_t stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                        ModelOptions options, gpu::DeviceKind device) {
#ifdef TROUPE_HAS_CUDA
  if (device == gpu::DeviceKind::cuda) return cuda_stage_bytes(config, cut, shape, options.dtype);
#endif
  (void)options;
  (void)device;
  return host_stage_bytes(config, cut, shape);
}

Result<void> check_shared_model(const ModelConfig& config, BatchShape shape, ModelOptions options,
                                const TensorShare& share, gpu::DeviceKind device) {
  TRY(validate(config));
#ifdef TROUPE_HAS_CUDA
  if (device == gpu::DeviceKind::cuda) return check_cuda_model(config, shape, options.dtype, share);
#endif
  (void)shape, (void)options, (void)device;
  return check_share(config, share);
}

MemoryNeed memory_need(const ModelConfig& config, BatchShape shape, ModelOptions options,
                       gpu::DeviceKind device) {
  const std::size_t count = parameter_count(config);
  const std::size_t states = options.dtype == DType::f32 ? 2 : 3;
  return {.parameters = count * core::size_of(options.dtype),
          .gradients = count * sizeof(float),
          .optimizer = count * sizeof(float) * states,
          .activations =
              stage_bytes(config, uncut(config), {.batch = shape, .keep = options.keep}, options, device)};
}

Result<void> check_memory(const MemoryNeed& need, std::size_t device_bytes) {
  if (need.total() <= device_bytes) return {};
  return fail(
      Errc::out_of_memory,
      "training takes {:.1f} GiB (parameters {:.1f}, gradients {:.1f}, optimizer {:.1f}, activations "
      "{:.1f}), the device has {:.1f}; use a smaller microbatch, --recompute, fewer lanes per rank, more "
      "ranks, or a smaller model",
      gib(need.total()), gib(need.parameters), gib(need.gradients), gib(need.optimizer),
      gib(need.activations), gib(device_bytes));
}

double training_flops_per_token(const ModelConfig& config, std::size_t length) {
  const auto C = static_cast<double>(config.width), F = static_cast<double>(config.feed_forward);
  const auto Q = static_cast<double>(config.query_width()), K = static_cast<double>(config.key_width());
  const auto layers = static_cast<double>(config.layers);
  const double mlp_matrices = config.activation == Activation::swiglu ? 3 : 2;
  const ExpertConfig& experts = config.experts;
  double mlps = 0;
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    // For a layer with experts only those that a token chose.
    const auto rows = experts.choices * experts.feed_forward + experts.shared_feed_forward;
    mlps +=
        experts.in_layer(layer) ? C * static_cast<double>(3 * rows + experts.count) : mlp_matrices * C * F;
  }
  const double multiplied = layers * 2 * C * (Q + K) + mlps + static_cast<double>(config.vocabulary) * C;
  return 6 * multiplied + 6 * layers * static_cast<double>(length) * Q;
}

double peak_flops(int major, int minor) {
  if (major == 9 && minor == 0) return 989e12;
  if (major == 8 && minor == 0) return 312e12;
  return 0;
}

}  // namespace troupe::apps::gpt
