#include "apps/gpt/model/config.hpp"

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

struct SizeLimit {
  const char* name;
  std::size_t value;
  std::size_t most;
};

Result<void> validate_heads(const ModelConfig& config) {
  if (config.head_dimension == 0 && config.width % config.heads != 0) {
    return fail(Errc::invalid_argument, "width must be a multiple of heads, found width {} and heads {}",
                config.width, config.heads);
  }
  if (config.head_dimension > 1024) {
    return fail(Errc::invalid_argument, "head_dimension must be at most 1024, found {}",
                config.head_dimension);
  }
  if (config.head_dimension % 2 != 0) {
    return fail(Errc::invalid_argument,
                "head_dimension must be even, because rotary positions turn pairs; found {}",
                config.head_dimension);
  }
  if (config.head_size() % 2 != 0) {
    return fail(Errc::invalid_argument,
                "width / heads must be even, because rotary positions turn pairs; found {} / {} = {}",
                config.width, config.heads, config.head_size());
  }
  if (config.key_heads() > config.heads || config.heads % config.key_heads() != 0) {
    return fail(Errc::invalid_argument,
                "heads must be a multiple of key_value_heads, found {} heads and {} key_value_heads",
                config.heads, config.key_heads());
  }
  return {};
}

Result<void> validate_rotary(const ModelConfig& config) {
  if (!std::isfinite(config.rope_base) || config.rope_base < 1) {
    return fail(Errc::invalid_argument, "rope_base must be at least 1, found {}", config.rope_base);
  }
  const RotaryScaling& scaling = config.rope_scaling;
  if (!std::isfinite(scaling.factor) || scaling.factor < 1) {
    return fail(Errc::invalid_argument, "the factor of rope_scaling must be at least 1, found {}",
                scaling.factor);
  }
  const bool ordered = scaling.low_frequency > 0 && scaling.high_frequency > scaling.low_frequency &&
                       std::isfinite(scaling.high_frequency) && scaling.original_context >= 1 &&
                       std::isfinite(scaling.original_context);
  if (!ordered) {
    return fail(Errc::invalid_argument,
                "rope_scaling needs 0 < low_frequency < high_frequency and an original_context of 1 or more, "
                "found {}, {} and {}",
                scaling.low_frequency, scaling.high_frequency, scaling.original_context);
  }
  const bool has_turns =
      scaling.slow_turns > 0 && scaling.fast_turns >= scaling.slow_turns && std::isfinite(scaling.fast_turns);
  if (!has_turns || !std::isfinite(scaling.attention_factor) || scaling.attention_factor <= 0) {
    return fail(Errc::invalid_argument,
                "rope_scaling needs 0 < slow_turns <= fast_turns and an attention_factor above 0, found {}, "
                "{} and {}",
                scaling.slow_turns, scaling.fast_turns, scaling.attention_factor);
  }
  const auto pairs = scaling.kind == RotaryScaling::Kind::longrope ? config.head_size() / 2 : 0;
  for (const auto* factors : {&scaling.short_factors, &scaling.long_factors}) {
    const auto is_good = [](double factor) { return std::isfinite(factor) && factor > 0; };
    if (factors->size() != pairs || !std::all_of(factors->begin(), factors->end(), is_good))
      return fail(Errc::invalid_argument,
                  "longrope needs {} factors above 0, one per pair, and other scalings none; found {}", pairs,
                  factors->size());
  }
  return {};
}

Result<void> validate_experts(const ModelConfig& config) {
  const ExpertConfig& experts = config.experts;
  if (experts.count == 0) return {};
  TRY(core::validate(experts.router()));
  if (config.activation != Activation::swiglu)
    return fail(Errc::invalid_argument, "experts are gated; use the activation swiglu with them");
  TRY(core::ExpertSpread::create(experts.spread()));
  if (experts.place >= experts.ranks)
    return fail(Errc::invalid_argument,
                "place {} of the ranks that experts are distributed over is not below their number {}",
                experts.place, experts.ranks);
  if (experts.count > 1 << 12)
    return fail(Errc::invalid_argument, "a layer must have at most 4096 experts, found {}", experts.count);
  constexpr std::size_t kMostFeedForward = 1 << 18;
  if (experts.feed_forward < 1 || experts.feed_forward > kMostFeedForward)
    return fail(Errc::invalid_argument, "the feed_forward of experts must lie in 1..{}, found {}",
                kMostFeedForward, experts.feed_forward);
  if (experts.shared_feed_forward > kMostFeedForward)
    return fail(Errc::invalid_argument, "the feed_forward of the shared expert must be at most {}, found {}",
                kMostFeedForward, experts.shared_feed_forward);
  if (experts.shared_gate && experts.shared_feed_forward == 0)
    return fail(Errc::invalid_argument, "a gate of the shared expert needs one; set its feed_forward");
  if (experts.capacity_factor && (!std::isfinite(*experts.capacity_factor) || *experts.capacity_factor <= 0))
    return fail(Errc::invalid_argument, "the capacity factor of experts must be above 0, found {}",
                *experts.capacity_factor);
  for (const double coefficient : {experts.balance, experts.z_loss}) {
    if (!std::isfinite(coefficient) || coefficient < 0)
      return fail(Errc::invalid_argument,
                  "the losses of routers must have coefficients of 0 or more, found {}", coefficient);
  }
  return {};
}

}  // namespace

Result<void> validate(const ModelConfig& config) {
  const SizeLimit limits[] = {
      {"layers", config.layers, 1 << 10},   {"heads", config.heads, 1 << 10},
      {"width", config.width, 1 << 16},     {"feed_forward", config.feed_forward, 1 << 18},
      {"context", config.context, 1 << 16}, {"vocabulary", config.vocabulary, 1 << 20},
  };
  for (const SizeLimit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.most) {
      return fail(Errc::invalid_argument, "{} must lie in 1..{}, found {}", limit.name, limit.most,
                  limit.value);
    }
  }
  TRY(validate_heads(config));
  TRY(validate_rotary(config));
  TRY(validate_experts(config));
  if (!std::isfinite(config.norm_epsilon) || config.norm_epsilon <= 0) {
    return fail(Errc::invalid_argument, "norm_epsilon must be above 0, found {}", config.norm_epsilon);
  }
  if (!std::isfinite(config.initial_deviation) || config.initial_deviation <= 0) {
    return fail(Errc::invalid_argument, "initial_deviation must be above 0, found {}",
                config.initial_deviation);
  }
  return {};
}

Result<ModelConfig> preset(std::string_view name) {
  if (name == "tiny") {
    return ModelConfig{.layers = 2, .heads = 2, .width = 16, .feed_forward = 32, .context = 16};
  }
  if (name == "demo") {
    return ModelConfig{.layers = 4, .heads = 4, .width = 128, .feed_forward = 384, .context = 64};
  }
  ModelConfig large{.heads = 16, .width = 1024, .feed_forward = 2816, .context = 2048, .vocabulary = 50304};
  large.layers = 24;
  if (name == "350m") return large;
  large.heads = 24;
  large.width = 1536;
  large.feed_forward = 4096;
  if (name == "760m") return large;
  large.layers = 48;
  large.heads = 25;
  large.width = 1600;
  if (name == "1.5b") return large;
  return fail(Errc::not_found, "no model preset \"{}\"; use tiny, demo, 350m, 760m or 1.5b", name);
}

Result<Norm> norm_from_name(std::string_view name) {
  if (name == "rms") return Norm::rms;
  if (name == "layer") return Norm::layer;
  return fail(Errc::invalid_argument, "no norm \"{}\"; use rms or layer", name);
}

Result<Activation> activation_from_name(std::string_view name) {
  if (name == "swiglu") return Activation::swiglu;
  if (name == "gelu") return Activation::gelu;
  return fail(Errc::invalid_argument, "no activation \"{}\"; use swiglu or gelu", name);
}

}  // namespace troupe::apps::gpt
