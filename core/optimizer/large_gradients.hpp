#pragma once

namespace troupe::core {

/// Tells norms of gradients that are far above what was usual at first. Pure: ranks that see the same norms
/// say the same.
class LargeGradients {
 public:
  static constexpr int kSamples = 100;

  /// 0: nothing is too large.
  explicit LargeGradients(double factor) : factor_(factor) {}

  /// The norm of a step's gradients, if they are finite. Returns the largest of the first kSamples norms if
  /// this one is more than `factor` times as large, otherwise 0. The first ones are never too large.
  double exceeded_by(double norm) {
    if (factor_ == 0) return 0;
    if (seen_ < kSamples) {
      ++seen_;
      largest_ = norm > largest_ ? norm : largest_;
      return 0;
    }
    return norm > factor_ * largest_ ? largest_ : 0;
  }

 private:
  double factor_;
  int seen_ = 0;
  double largest_ = 0;
};

}  // namespace troupe::core
