#pragma once

namespace troupe::gpu {

/// torch.optim.SGD with dampening 0.
struct SgdOptions {
  double learning_rate = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// torch.optim.Adam and AdamW (amsgrad off), in the order of operations of their single tensor form. Factors
/// which are the same for all elements are computed in double and rounded once.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = true;  ///< true is AdamW, false is Adam
};

}  // namespace troupe::gpu
