#pragma once

#include <array>
#include <cstddef>

namespace troupe::gpu {

/// torch.optim.SGD with dampening 0.
struct SgdOptions {
  double learning_rate = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// torch.optim.Adam and AdamW (amsgrad off), in the order of operations of their single-tensor form. Factors
/// shared by all elements are computed in double and rounded once.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = true;  ///< true is AdamW, false is Adam
};

/// Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2), in the order of operations of its authors' PyTorch
/// form: values move by the learning rate along the sign of a mean of momentum and gradient.
struct LionOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;   ///< for the mean that gives the direction
  double beta2 = 0.99;  ///< for the momentum that is kept
  double weight_decay = 0;
};

/// torch.optim.Muon (Jordan et al. 2024), but with Newton-Schulz steps in fp32 where PyTorch uses bf16.
struct MuonOptions {
  double learning_rate = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.1;
  bool nesterov = true;
  double scale = 1;  ///< multiplies the learning rate, except for weight decay: core::muon_scale()
  int steps = 5;     ///< of the Newton-Schulz iteration
  std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};
  double epsilon = 1e-7;  ///< lower bound of norms
};

/// Row-major.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  std::size_t count() const { return rows * columns; }
};

}  // namespace troupe::gpu
