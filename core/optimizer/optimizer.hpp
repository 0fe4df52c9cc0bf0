#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/layout/buffer_layout.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// An optimizer's options; its own defaults where the user gave none.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool nesterov = false;
  int newton_schulz_steps = 0;
  std::array<double, 3> coefficients{};
  MuonScale scale = MuonScale::original;

  friend bool operator==(const OptimizerSettings&, const OptimizerSettings&) = default;
};

/// Properties of an optimizer. docs/optimizers.md has the formulas and their sources.
struct OptimizerTraits {
  OptimizerKind kind = OptimizerKind::adamw;
  std::string_view name;
  /// What it keeps per element besides the main value, by PyTorch's names: f32, and zero before the first
  /// step. SGD keeps its buffer only if the momentum is not 0; see states_of().
  std::span<const std::string_view> states;
  /// The layout when it is sharded: `whole_parameter` for an optimizer that steps whole matrices, and can
  /// step nothing else; `padded` for one that gives any flat range the same bits as in the whole.
  LayoutPolicy layout = LayoutPolicy::padded;
  double beta2 = 0;  ///< a default, like all below
  double epsilon = 0;
  double weight_decay = 0;
  double momentum = 0;

  bool takes_matrices_only() const { return layout == LayoutPolicy::whole_parameter; }
};

/// All of them, by ascending kind.
std::span<const OptimizerTraits> optimizers();
const OptimizerTraits& traits_of(OptimizerKind kind);
std::string_view name_of(OptimizerKind kind);
/// "sgd, adam, adamw, lion, muon"
std::string optimizer_names();
/// Errc::invalid_argument lists the names.
Result<OptimizerKind> optimizer_from_name(std::string_view name);

OptimizerSettings settings_of(const OptimizerOptions& options);
/// Errc::invalid_argument names the option that is out of range.
Result<void> check(const OptimizerSettings& settings);

/// The states kept under these settings. The names are never destroyed.
std::span<const std::string_view> states_of(const OptimizerSettings& settings);

/// The factor of Muon's learning rate.
double muon_scale(MuonScale rule, std::int64_t rows, std::int64_t columns);

/// One line; it differs if the settings differ.
std::string describe(const OptimizerSettings& settings);

}  // namespace troupe::core
