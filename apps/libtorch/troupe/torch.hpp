#pragma once

#include <ATen/core/Tensor.h>
#include <troupe/troupe.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace troupe::torch {

/// The message says what was expected, what was found and what to do next.
class Error : public std::runtime_error {
 public:
  Error(troupe_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  troupe_status status;
};

/// Trains the parameters of a LibTorch model, in place, on all ranks of the job that the process's
/// environment names, or on one rank alone. Every rank makes the same model; first values are those of rank
/// 0. Parameters are dense, on the CPU, in f32, bf16 or f16; a tied one counts once, and one that requires no
/// gradient is frozen. Gradients go to the session from hooks while backward runs. A trainer belongs to one
/// thread. Calls throw Error.
///
/// The library libtroupe.so.0, or what TROUPE_LIBRARY names, is loaded such that neither finds what is the
/// other's: LibTorch exports the symbols of libraries of its own.
class Trainer {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  /// By their names in troupe.h, such as {"strategy", "zero1"}, {"lanes", "4"}, {"checkpoints", "run"}.
  using Options = std::vector<std::pair<std::string, std::string>>;

  Trainer(const Parameters& parameters, const Options& options);
  /// From named_parameters() of a module.
  template <typename Named>
  Trainer(const Named& named, const Options& options) : Trainer(listed(named), options) {}
  /// Leaves a job that was not closed, whose other ranks are then told.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  int rank() const;
  int world_size() const;
  /// After restore() the first one that was not saved.
  std::int64_t next_step() const;

  /// A step of the whole job. `loss_of(step, lane)` is called for each lane that this rank plays, and returns
  /// the mean loss of its microbatch, of which the step takes the backward. The generator of the CPU is set
  /// from both before. What it throws ends the job: the other ranks are told why.
  troupe_step_outcome step(double learning_rate,
                           const std::function<at::Tensor(std::int64_t step, int lane)>& loss_of);

  /// Before the first step: the newest complete checkpoint; false where there is none.
  bool restore();
  /// Saves in the background, by all ranks alike.
  void save();
  /// Leaves the job, when all ranks do; the parameters are the model's own again.
  void close();

 private:
  template <typename Named>
  static Parameters listed(const Named& named) {
    Parameters found;
    for (const auto& item : named) found.emplace_back(item.key(), item.value());
    return found;
  }

  struct State;
  struct Hook;
  void begin();
  void share_first_values();
  void play(std::int64_t step, int lane, const at::Tensor& loss);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::torch
