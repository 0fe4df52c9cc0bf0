#include "apps/gpt/options/tensor_options.hpp"

#include "apps/command_line/options.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;

void add_tensor_options(CLI::App& app, core::TrainingOptions& training, TensorOptions& tensor) {
  add_number(app, "--tensor-parallel", training.tensor_parallel, {1, 1024},
             "Ranks that share each layer: heads, feed-forward elements and the vocabulary")
      ->capture_default_str();
  app.add_flag("--sequence-parallel", tensor.sequence_parallel,
               "With --tensor-parallel, split norms and the residual stream too, by rows");
  add_number(
      app, "--tensor-slices", tensor.slices, {1, 1024},
      "Compute each layer on one rank in the slices of this many tensor-parallel ranks: a reference for "
      "their bits")
      ->capture_default_str();
  add_number(app, "--context-parallel", training.context_parallel, {1, 1024},
             "Ranks that share each sequence; each has an early and a late piece")
      ->capture_default_str();
}

core::Result<void> check_tensor_options(const core::TrainingOptions& training, const TensorOptions& tensor,
                                        bool is_local) {
  if (training.tensor_parallel > 1 && tensor.slices > 1) {
    return fail(Errc::invalid_argument,
                "--tensor-slices is for ranks with whole layers, found it with --tensor-parallel {}; leave "
                "one of the two out",
                training.tensor_parallel);
  }
  if (tensor.sequence_parallel && training.tensor_parallel == 1 && tensor.slices == 1) {
    return fail(Errc::invalid_argument,
                "--sequence-parallel is between tensor-parallel ranks, and there is one; add "
                "--tensor-parallel 2 or more, or leave it out");
  }
  if (is_local && (training.tensor_parallel > 1 || tensor.slices > 1 || training.context_parallel > 1)) {
    return fail(Errc::invalid_argument,
                "--local is one rank that computes whole layers; leave it out, or --tensor-parallel, "
                "--tensor-slices and --context-parallel");
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> describe(const core::TrainingOptions& training,
                                                          const TensorOptions& tensor) {
  std::vector<std::pair<std::string, std::string>> rows;
  const bool is_shared = training.tensor_parallel > 1;
  if (is_shared || tensor.slices > 1) {
    rows.emplace_back(is_shared ? "tensor-parallel ranks" : "tensor slices",
                      std::to_string(is_shared ? training.tensor_parallel : tensor.slices));
    rows.emplace_back("sequence parallelism", tensor.sequence_parallel ? "on" : "off");
  }
  if (training.context_parallel > 1)
    rows.emplace_back("context-parallel ranks", std::to_string(training.context_parallel));
  return rows;
}

}  // namespace troupe::apps::gpt
