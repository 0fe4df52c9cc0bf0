#include "core/optimizer/optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

constexpr std::array<std::string_view, 1> kMomentum{"momentum_buffer"};
constexpr std::array<std::string_view, 1> kMoment{"exp_avg"};
constexpr std::array<std::string_view, 2> kMoments{"exp_avg", "exp_avg_sq"};

constexpr std::array<OptimizerTraits, 5> kOptimizers{{
    {.kind = OptimizerKind::sgd, .name = "sgd", .states = kMomentum},
    {.kind = OptimizerKind::adam, .name = "adam", .states = kMoments, .beta2 = 0.999, .epsilon = 1e-8},
    {.kind = OptimizerKind::adamw,
     .name = "adamw",
     .states = kMoments,
     .beta2 = 0.999,
     .epsilon = 1e-8,
     .weight_decay = 0.01},
    {.kind = OptimizerKind::lion, .name = "lion", .states = kMoment, .beta2 = 0.99},
    {.kind = OptimizerKind::muon,
     .name = "muon",
     .states = kMomentum,
     .layout = LayoutPolicy::whole_parameter,
     .epsilon = 1e-7,
     .weight_decay = 0.1,
     .momentum = 0.95},
}};

/// PyTorch refuses 100 or more.
constexpr int kMostSteps = 99;

Result<void> check_share(const OptimizerSettings& settings, std::string_view option, double value) {
  if (value >= 0 && value < 1) return {};
  return fail(Errc::invalid_argument, "{} of {} is {}; expected a number from 0 to below 1", option,
              name_of(settings.kind), value);
}

Result<void> check_magnitude(const OptimizerSettings& settings, std::string_view option, double value) {
  if (value >= 0 && std::isfinite(value)) return {};
  return fail(Errc::invalid_argument, "{} of {} is {}; expected 0 or a finite number above", option,
              name_of(settings.kind), value);
}

}  // namespace

std::span<const OptimizerTraits> optimizers() {
  return kOptimizers;
}

const OptimizerTraits& traits_of(OptimizerKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  CHECK(index < kOptimizers.size() && kOptimizers[index].kind == kind, "every optimizer is in the table");
  return kOptimizers[index];
}

std::string_view name_of(OptimizerKind kind) {
  return traits_of(kind).name;
}

std::string optimizer_names() {
  std::string names;
  for (const auto& traits : kOptimizers) names += (names.empty() ? "" : ", ") + std::string(traits.name);
  return names;
}

Result<OptimizerKind> optimizer_from_name(std::string_view name) {
  for (const auto& traits : kOptimizers) {
    if (traits.name == name) return traits.kind;
  }
  return fail(Errc::invalid_argument, "'{}' is not an optimizer; choose one of {}", name, optimizer_names());
}

OptimizerSettings settings_of(const OptimizerOptions& options) {
  const auto& traits = traits_of(options.kind);
  return {.kind = options.kind,
          .beta1 = options.beta1,
          .beta2 = options.beta2.value_or(traits.beta2),
          .epsilon = options.epsilon.value_or(traits.epsilon),
          .weight_decay = options.weight_decay.value_or(traits.weight_decay),
          .momentum = options.momentum.value_or(traits.momentum),
          .nesterov = options.nesterov,
          .newton_schulz_steps = options.newton_schulz_steps,
          .coefficients = options.coefficients,
          .scale = options.scale};
}

Result<void> check(const OptimizerSettings& settings) {
  TRY(check_share(settings, "beta1", settings.beta1));
  TRY(check_share(settings, "beta2", settings.beta2));
  TRY(check_share(settings, "the momentum", settings.momentum));
  TRY(check_magnitude(settings, "epsilon", settings.epsilon));
  TRY(check_magnitude(settings, "the weight decay", settings.weight_decay));
  if (settings.newton_schulz_steps < 1 || settings.newton_schulz_steps > kMostSteps) {
    return fail(Errc::invalid_argument, "{} Newton-Schulz steps; expected 1 to {}, and 5 are usual",
                settings.newton_schulz_steps, kMostSteps);
  }
  if (!std::all_of(settings.coefficients.begin(), settings.coefficients.end(),
                   [](double one) { return std::isfinite(one); })) {
    return fail(Errc::invalid_argument,
                "the Newton-Schulz coefficients are {}, {} and {}; expected finite numbers, and 3.4445, "
                "-4.7750 and 2.0315 are usual",
                settings.coefficients[0], settings.coefficients[1], settings.coefficients[2]);
  }
  return {};
}

std::span<const std::string_view> states_of(const OptimizerSettings& settings) {
  const bool has_none = settings.kind == OptimizerKind::sgd && settings.momentum == 0;
  return has_none ? std::span<const std::string_view>{} : traits_of(settings.kind).states;
}

double muon_scale(MuonScale rule, std::int64_t rows, std::int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  if (rule == MuonScale::match_rms_adamw) return 0.2 * std::sqrt(std::max(m, n));
  return std::sqrt(std::max(1.0, m / n));
}

std::string describe(const OptimizerSettings& s) {
  auto text = fmt::format("{} beta1={} beta2={} epsilon={} weight_decay={} momentum={}", name_of(s.kind),
                          s.beta1, s.beta2, s.epsilon, s.weight_decay, s.momentum);
  if (s.kind == OptimizerKind::muon) {
    text += fmt::format(" nesterov={} newton_schulz_steps={} coefficients={},{},{} scale={}", s.nesterov,
                        s.newton_schulz_steps, s.coefficients[0], s.coefficients[1], s.coefficients[2],
                        s.scale == MuonScale::original ? "original" : "match_rms_adamw");
  }
  return text;
}

}  // namespace troupe::core
