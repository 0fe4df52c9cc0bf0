#pragma once

#include <memory>
#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/host_model.hpp"
#include "apps/gpt/run_options.hpp"
#include "apps/gpt/tensor/session_group.hpp"
#include "apps/gpt/tensor/share.hpp"
#include "apps/gpt/trainable_model.hpp"

namespace troupe::apps::gpt {

/// What a trainer's rank has of tensor parallelism: its share of the layers, all of them where it is alone,
/// and the session's group "tp".
class TensorRank {
 public:
  /// Errc::invalid_argument names what does not divide, Errc::unavailable what is not cut.
  static core::Result<std::unique_ptr<TensorRank>> create(const TrainerOptions& options, core::Rank rank,
                                                          gpu::DeviceKind device);

  const SharedTable& table() const { return table_; }
  bool is_shared() const { return table_.share().size > 1; }
  /// For models, which may use it after open(); null where the rank is alone.
  TensorGroup<float>* group() { return is_shared() ? &group_ : nullptr; }
  /// Before open(), after which it may be used.
  core::Result<std::unique_ptr<TrainableModel>> make_model(const TrainerOptions& options);

  /// With the session's group, where layers are shared.
  core::Result<void> open(actors::Session& session);

  /// All of a parameter, of which `part` is this rank's; by all ranks of the group together. It lives until
  /// the next call.
  core::Result<std::span<const float>> whole(std::size_t parameter, std::span<const float> part);

 private:
  TensorRank(const TrainerOptions& options, const TensorShare& share);

  SharedTable table_;
  SessionTensorGroup group_;
  std::vector<float> gathered_, whole_;
};

/// The model of a rank that keeps all of it and computes all lanes, in slices. Errors as those of TensorRank.
/// Where `context` shares the sequences, the microbatch has this rank's tokens of each.
core::Result<std::unique_ptr<RowModel>> create_sliced_model(const TrainerOptions& options,
                                                            gpu::DeviceKind device,
                                                            TensorGroup<float>* context = nullptr);

}  // namespace troupe::apps::gpt
