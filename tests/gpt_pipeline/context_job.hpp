#pragma once

#include <vector>

#include "tests/gpt_pipeline/pipeline_job.hpp"

namespace troupe::apps::gpt {

/// Four layers, of as many heads, for ranks that share each sequence.
inline TrainerOptions context_options(const Cut& cut) {
  auto options = trainer_options(cut);
  options.model.layers = 4;
  options.model.heads = 4;
  options.model.key_value_heads = 2;
  options.model.query_key_norm = true;
  options.session.training.lanes = 4;
  return options;
}

inline std::vector<Trained> run_context(const Cut& cut, const Corpus& corpus, int until,
                                        actors::Storage* disk = nullptr) {
  return simulate(
      cut,
      [&](actors::SimulatedRank& rank) { return train_until(rank, context_options(cut), corpus, until); },
      disk);
}

/// One rank, or the ranks that share each sequence where they have no fixed pieces, in as many slices as the
/// cut has parts of a layer.
inline Cut without_stages(const Cut& cut) {
  const int ranks = cut.pieces == 0 ? cut.context : 1;
  return {.ranks = ranks,
          .tied = cut.tied,
          .strategy = core::Strategy::ddp,
          .slices = cut.all_slices(),
          .experts = cut.experts,
          .capacity = cut.capacity,
          .context = ranks,
          .pieces = cut.pieces};
}

}  // namespace troupe::apps::gpt
