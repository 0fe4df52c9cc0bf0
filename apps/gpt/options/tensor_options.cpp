#include "apps/gpt/options/tensor_options.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;

namespace {

core::Result<void> check_slices(const core::TrainingOptions& training, const TensorOptions& tensor) {
  const int ranks = training.tensor_parallel, slices = slices_of(training, tensor);
  if (slices == ranks) return {};
  const int each = slices / ranks;
  if (slices % ranks != 0) {
    return fail(Errc::invalid_argument,
                "tensor-parallel ranks compute the same number of slices, found --tensor-slices {} for {} "
                "ranks; choose a multiple of --tensor-parallel, or leave --tensor-slices out",
                slices, ranks);
  }
  if (ranks > 1 && (each & (each - 1)) != 0) {
    return fail(
        Errc::invalid_argument,
        "slices are added in pairs, and pairs of pairs: a rank must have 1, 2, 4, 8 ... of them, found "
        "{} slices for {} ranks, which is {} each; choose --tensor-slices {}, or other ranks",
        slices, ranks, each, 2 * ranks);
  }
  if (training.numerics != core::Numerics::ordered) {
    return fail(Errc::invalid_argument,
                "--tensor-slices fixes the order of sums, which fast numerics leave to the back-end; use "
                "--numerics ordered, or leave --tensor-slices out");
  }
  if (training.expert_parts() > 1 || training.expert_columns() > 1) {
    return fail(Errc::unavailable,
                "slices of experts are those of layers, found --tensor-slices {} for {} ranks with experts "
                "that are cut over {}; leave out --expert-tensor-parallel, or --tensor-slices",
                slices, ranks, training.expert_tensor_parallel);
  }
  return {};
}

}  // namespace

core::Result<void> check_tensor_options(const core::TrainingOptions& training, const TensorOptions& tensor,
                                        bool is_local) {
  TRY(check_slices(training, tensor));
  if (tensor.sequence_parallel && training.tensor_parallel == 1) {
    return fail(Errc::invalid_argument,
                "--sequence-parallel is between tensor-parallel ranks, and there is one; add "
                "--tensor-parallel 2 or more, or leave it out");
  }
  if (is_local && (slices_of(training, tensor) > 1 || training.pieces_of_lane() > 1)) {
    return fail(Errc::invalid_argument,
                "--local is one rank that computes whole layers; leave it out, or --tensor-parallel, "
                "--tensor-slices, --context-parallel and --context-pieces");
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> describe(const core::TrainingOptions& training,
                                                          const TensorOptions& tensor) {
  std::vector<std::pair<std::string, std::string>> rows;
  const int ranks = training.tensor_parallel, slices = slices_of(training, tensor);
  if (ranks > 1) {
    rows.emplace_back("tensor-parallel ranks", std::to_string(ranks));
    rows.emplace_back("sequence parallelism", tensor.sequence_parallel ? "on" : "off");
  }
  if (slices > 1) rows.emplace_back("tensor slices", std::to_string(slices));
  if (training.context_parallel > 1)
    rows.emplace_back("context-parallel ranks", std::to_string(training.context_parallel));
  if (training.own_pieces() > 1)
    rows.emplace_back("pieces of each sequence", std::to_string(training.pieces_of_lane()));
  return rows;
}

}  // namespace troupe::apps::gpt
