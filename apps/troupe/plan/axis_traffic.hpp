#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/models/activations.hpp"
#include "core/models/rank_tensors.hpp"
#include "core/program/step_time.hpp"

namespace troupe::apps {

/// What a rank sends in a step to those with which it shares a model, besides what a session's program moves.
struct AxisTraffic {
  std::string_view axis;  ///< "tensor", "context", "expert" or "pipeline"
  std::int64_t members = 1;
  bool within_node = false;
  std::int64_t launches = 0;
  std::int64_t bytes = 0;
  double seconds = 0;  ///< in the way of its computation

  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};

/// A stage's work in a step.
struct StageWorkload {
  std::int64_t ranks = 1;   ///< of the same part of the model
  std::int64_t rounds = 1;  ///< microbatches
  bool is_ordered = true;   ///< numerics
  std::int64_t pieces = 1;  ///< of each sequence, on this rank: MicrobatchShape::context_parallel counts all
  std::vector<core::LayerChunk> layers;
};

/// With N tokens of a microbatch that the rank has, C the hidden size, K the width of its keys, n members,
/// K' experts of a token, b bytes an element, and S = N C b. A rank with p pieces of a sequence sends the
/// rows of each on its own, as many bytes in p times as many messages, unless one says otherwise:
///
///     tensor     a sum of S per product by rows: 2 forward and 2 backward in a layer, and one for the
///                embedding and one for the output layer; each sends 2 (n - 1) / n S. With shared rows a sum
///                is two halves, before and after the layer's part, and backward gathers a layer's inputs
///                again: 2 (n - 1) / n S more. Gradients of parameters that ranks share are summed once for
///                each piece
///     context    in a layer keys and values are gathered forward and backward, and their gradients summed:
///                6 (n - 1) N K b; a rank with p pieces of a sequence gives p terms of each gradient,
///                (4 + 2 p) (n - 1) N K b, those of all pieces in one message
///     expert     in a layer with experts 4 exchanges, each of (n - 1) / n K' S where tokens go to all
///                ranks alike
///     pipeline   S for each boundary of a chunk, forward and backward; of a tied embedding the first stage
///                sends the values once, and the last one its gradient in f32, or in `ordered` numerics the
///                factors of each microbatch's, logits and normed rows, of all pieces in one message
///
/// Recomputation repeats the forward of a layer. Counts of tokens and the sums of a cross entropy are left
/// out. Ranks of the tensor axis have neighbouring numbers, then come context, expert, the rest of the
/// data-parallel ones, and stages.
std::vector<AxisTraffic> traffic_of(const core::ModelConfig& model, const core::MicrobatchShape& shape,
                                    const core::ModelAxes& axes, const StageWorkload& work,
                                    const core::Links& links);

}  // namespace troupe::apps
